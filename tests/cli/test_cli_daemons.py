"""`serve`, `publish`, `up`: what their flags come to. What they do is tested where it lives."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from daemon_process import started

from wakehub.errors import Exit


@pytest.fixture
def served(monkeypatch):
    """The configurations that the hub would have been run with."""
    given = []
    monkeypatch.setattr("wakehub.server.serve.run", lambda config: given.append(config) or 0)
    return given


def test_serve_passes_every_flag(wakehub, served):
    line = "serve --socket /a/h.sock --stats-socket /b/s.sock --hub-id other --allowlist /c/a.jws --owner-pub /d/o.pub"
    assert wakehub(*line.split(), "--max-connections", "64", "--state-dir", "/e").status == 0
    (config,) = served
    assert (config.hub_socket, config.stats_socket) == (Path("/a/h.sock"), Path("/b/s.sock"))
    assert (config.allowlist, config.owner_pub, config.paths.state) == (Path("/c/a.jws"), Path("/d/o.pub"), Path("/e"))
    assert (config.hub_id, config.limits.max_connections) == ("other", 64)


@pytest.mark.parametrize("count", ["1", "7"])
def test_a_ceiling_that_cannot_work_is_a_wrong_setting(wakehub, served, count):
    found = wakehub("serve", "--max-connections", count)
    assert found.status == Exit.CONFIG
    assert "at least 8" in found.err
    assert served == []


@pytest.mark.parametrize(
    ("command", "function"), [("publish", "wakehub.publisher.run.run"), ("up", "wakehub.ops.supervise.run_up")]
)
def test_publish_and_up_are_given_the_instance(wakehub, home, monkeypatch, command, function):
    given = []
    monkeypatch.setattr(function, lambda config: given.append(config) or 0)
    assert wakehub(command, "--hub-id", "other").status == 0
    assert (given[0].hub_id, given[0].paths.run) == ("other", home / "run")


def test_a_second_one_is_refused_and_the_first_goes_on(process, up):
    """Faults F48, F65."""
    for command in ("serve", "publish", "up"):
        found = process(command)
        assert found.status == Exit.HELD
        assert "pid" in found.err
    assert process("--health").status == 0


def test_publish_needs_the_owner_key(wakehub, process, home):
    wakehub("init")
    (home / "keys/owner.key").unlink()
    found = process("publish")
    assert found.status == Exit.PERMISSION
    assert "owner.key" in found.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_drains_at_a_signal(wakehub, home, number):
    wakehub("init")
    words = [sys.executable, "-P", "-m", "wakehub", "serve"]
    with started(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as hub:
        assert hub.stderr is not None
        assert any(b"hub ready" in line for line in hub.stderr)
        hub.send_signal(number)
        hub.communicate()
    assert hub.returncode == 0
    assert not (home / "run/hub.sock").exists()


def test_the_hub_process_holds_no_code_of_the_record(home):
    """design.md: the hub imports neither sqlite3 nor anything of inbox, publisher, relay, ops."""
    script = (
        "import sys, wakehub.server.serve as serve; serve.run = lambda config: 0\n"
        "from wakehub.cli import run; assert run(['serve']) == 0\n"
        "print([name for name in sys.modules if name == 'sqlite3' or name.startswith("
        "('wakehub.inbox', 'wakehub.publisher', 'wakehub.relay', 'wakehub.ops', 'wakehub.client'))])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
