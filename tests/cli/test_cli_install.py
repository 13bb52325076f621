"""`install` and `uninstall` on the command line: shown first, done when wanted."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from wakehub.errors import Exit


@pytest.fixture
def settings(home) -> Path:
    path = Path(os.environ["CLAUDE_CONFIG_DIR"]) / "settings.json"
    path.parent.mkdir()
    path.write_text('{"model": "x"}\n')
    return path


def answered(text: str, *argv: str) -> int:
    """Run a command at a terminal at which `text` is typed; its exit status."""
    ours, theirs = pty.openpty()
    os.write(ours, text.encode())
    done = subprocess.run(
        [sys.executable, "-P", "-m", "wakehub", *argv], stdin=theirs, capture_output=True, check=False
    )
    os.close(ours)
    os.close(theirs)
    return done.returncode


def test_without_a_yes_it_only_shows_what_it_would_do(wakehub, process, settings):
    found = process("install", "claude")
    assert found.status == Exit.FAILED
    assert f"+++ {settings}" in found.out
    assert "hook session-start" in found.out
    assert "nothing was changed" in found.err
    assert settings.read_text() == '{"model": "x"}\n'
    assert not Path(os.environ["WAKEHUB_HOME"]).exists()


def test_at_a_terminal_it_asks(settings):
    assert answered("n\n", "install", "claude") == Exit.FAILED
    assert settings.read_text() == '{"model": "x"}\n'
    assert answered("y\n", "install", "claude") == 0
    assert "SessionStart" in json.loads(settings.read_text())["hooks"]


def test_in_and_out_again(wakehub, settings):
    found = wakehub("install", "claude", "--yes")
    assert found.status == 0, found.err
    assert f"wrote {settings}" in found.out
    assert "installed already" in wakehub("install", "claude", "--yes").out
    found = wakehub("uninstall", "claude", "--yes")
    assert found.status == 0
    assert settings.read_text() == '{"model": "x"}\n'
    assert "nothing to remove" in wakehub("uninstall", "claude").out


def test_settings_that_are_no_json(wakehub, settings):
    settings.write_text("{ // mine\n}")
    found = wakehub("install", "claude", "--yes")
    assert found.status == Exit.DATA
    assert "next: mend it" in found.err


def test_services_are_written_and_what_to_run_is_said(wakehub, home):
    units = Path(os.environ["XDG_CONFIG_HOME"]) / "systemd" / "user"
    (units / "wakehub.service").unlink()  # the one that these tests have
    found = wakehub("install", "systemd", "--yes")
    assert found.status == 0, found.err
    assert "next: systemctl --user daemon-reload && systemctl --user enable --now wakehub wakehub-publish" in found.out
    assert sorted(os.listdir(units)) == ["wakehub-publish.service", "wakehub.service"]
    assert wakehub("uninstall", "systemd", "--yes").status == 0
    assert os.listdir(units) == []


def test_a_unit_in_the_way(wakehub, home):
    assert wakehub("install", "systemd", "--yes").status == Exit.HELD


def test_a_target_that_there_is_not(wakehub):
    assert wakehub("install", "sytemd").status == Exit.USAGE


@pytest.mark.parametrize(
    ("flag", "key"), [("--state-dir", "[paths] state"), ("--socket", "[hub] socket"), ("--hub-id", "[hub] id")]
)
@pytest.mark.parametrize("target", ["claude", "launchd"])
def test_a_flag_that_what_is_entered_would_not_heed_is_refused(wakehub, home, settings, monkeypatch, target, flag, key):
    monkeypatch.setenv("HOME", str(home.parent))
    wakehub("init")
    found = wakehub("install", target, "--yes", flag, f"{home}/other")
    assert found.status == Exit.USAGE
    assert f'{key} = "{home}/other"' in found.err
    assert settings.read_text() == '{"model": "x"}\n'
    with (home / "config.toml").open("a") as file:
        section, _, name = key.partition(" ")
        file.write("" if section == "[paths]" else f'{section}\n{name} = "{home}/other"\n')
    if flag != "--state-dir":
        assert wakehub("install", target, "--yes", flag, f"{home}/other").status == 0


def test_where_there_is_no_instance_yet_the_flag_is_for_init(wakehub, home, settings):
    refused = wakehub("install", "claude", "--yes", "--state-dir", f"{home}/other")
    assert refused.status == Exit.USAGE
    assert f"next: wakehub init --state-dir {home}/other" in refused.err
    assert wakehub("init", "--state-dir", f"{home}/other").status == 0
    assert wakehub("install", "claude", "--yes").status == 0
    wakehub("send", "--as", "bob", "--to", "alice", "hello")
    assert (home / "other" / "record.db").exists()
    assert not (home / "state").exists()
