"""`wakehub hook`: what it loads, and when it says what (fault F86)."""

import io
import json
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from daemon_process import environment, stand_in_for_up

from wakehub import config
from wakehub.client.home import ensure_agent, ensure_home
from wakehub.identity import enrolment
from wakehub.inbox.clock import Now
from wakehub.inbox.rows import NewRow
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.invocation import call
from wakehub.ops.hook import EVENTS, hook, report
from wakehub.processes import ProcessId

EARLY = {
    "wakehub", "wakehub.__main__", "wakehub.config", "wakehub.errors", "wakehub.files", "wakehub.limits", "wakehub.ops",
    "wakehub.ops.hook", "wakehub.ownership", "wakehub.paths", "wakehub.visible", "wakehub.wire", "wakehub.wire.fields",
}  # fmt: skip
"""What of ours a hook may load where there is no wakehub."""
NAMING = EARLY | {
    "wakehub.client", "wakehub.client.claude_sessions", "wakehub.client.names", "wakehub.identity",
    "wakehub.identity.addresses", "wakehub.processes",
}  # fmt: skip
"""... until it knows that the agent is not enrolled."""
COUNTING = NAMING | {"wakehub.inbox", "wakehub.inbox.clock", "wakehub.inbox.glance", "wakehub.inbox.tenure"}
"""... to count what waits."""
STANDARD = "json, pathlib, typing, contextlib, functools, fcntl, shlex, unicodedata, importlib, gc"
"""What it may load of the standard library, with whatever these load themselves; and sqlite3, to count.

Nothing else, however small it looks: dataclasses and tomllib, with what they load, took a third of the whole.
"""

LOADED = """
import os, sys
sys.argv = ["wakehub", "hook", "EVENT"]
os._exit = lambda status: sys.exit(print("LOADED", status, *sys.modules))
from wakehub.__main__ import main
main()
"""


@pytest.fixture
def place(short, tmp_path, monkeypatch):
    """An instance in which alice is enrolled, and where this process is alice."""
    environ = environment(short / "home") | {"CLAUDE_CONFIG_DIR": str(tmp_path), "WAKEHUB_AGENT": "alice"}
    found = config.load(environ)
    ensure_home(found)
    ensure_agent(found, "alice")
    monkeypatch.setattr(sys, "stdin", None)
    with stand_in_for_up(found.paths), SqliteInbox.open(found.paths.record) as inbox:
        yield SimpleNamespace(config=found, environ=environ, inbox=inbox)


def post(place) -> None:
    place.inbox.append(NewRow("bob", "alice", b"hello"), Now.read())


def given(monkeypatch, **fields: object) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(fields).encode())))


def loaded(event: str, environ: dict[str, str]) -> tuple[str, set[str]]:
    """What a hook prints as a process, and the modules that it has loaded at its end."""
    words = [sys.executable, "-P", "-c", LOADED.replace("EVENT", event)]
    done = subprocess.run(
        words, input="{}", capture_output=True, text=True, check=True, env=environ, cwd="/", timeout=60
    )
    said, _, rest = done.stdout.rpartition("LOADED ")
    status, *modules = rest.split()
    assert (status, done.stderr) == ("0", "")
    return said, set(modules)


def check(modules: set[str], ours: set[str], standard: str = STANDARD) -> None:
    words = [sys.executable, "-P", "-c", f"import sys, {standard}; print(*sys.modules)"]
    allowed = set(subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout.split())
    assert modules - allowed <= ours
    assert ours <= modules, "listed in vain"


@pytest.mark.parametrize("event", EVENTS)
def test_where_there_is_no_wakehub_nothing_is_said_and_nothing_is_loaded(event, tmp_path):
    said, modules = loaded(event, environment(tmp_path / "none"))
    assert said == ""
    check(modules, EARLY)


@pytest.mark.parametrize("event", EVENTS)
def test_an_agent_that_is_not_enrolled_is_told_nothing_and_no_record_is_opened(event, place):
    post(place)
    said, modules = loaded(event, place.environ | {"WAKEHUB_AGENT": "carol"})
    assert said == ""
    check(modules, NAMING)


@pytest.mark.parametrize("event", ["prompt", "stop"])
def test_nothing_waits(event, place):
    said, modules = loaded(event, place.environ)
    assert said == ""
    check(modules, COUNTING, f"{STANDARD}, sqlite3")


def test_what_waits_is_found_without_the_code_of_the_record(place):
    post(place)
    said, modules = loaded("prompt", place.environ)
    assert "1 unread for alice" in said
    check(modules, COUNTING | {"wakehub.invocation"}, f"{STANDARD}, sqlite3")


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("end", [enrolment.revoke, enrolment.close])
def test_a_name_that_ended_is_told_nothing_until_it_is_enrolled_anew(event, end, place):
    post(place)
    enrolment.enroll(place.config.paths, "alice2", place.config.hub_id, time.time())
    bundled = place.environ | {"WAKEHUB_BUNDLE": "e30"}
    end(place.config.paths, "alice", time.time())
    assert report(event, place.environ) == report(event, bundled) == ""
    enrolment.enroll(place.config.paths, "alice", place.config.hub_id, time.time())
    assert "alice" in report(event, place.environ)


def test_what_else_happens_to_a_name_does_not_end_it(place):
    enrolment.revoke_key(place.config.paths, "alice", bytes(32), time.time())
    assert "alice" in report("session-start", place.environ)


def test_the_introduction_has_five_lines_and_is_about_what_it_must_be(place):
    lines = report("session-start", place.environ).splitlines()
    assert len(lines) == 5
    own, looks, outside, sending, replying = lines
    assert "alice" in own
    assert "unread" not in own
    assert "[wakehub m_" in looks
    assert f"{call(place.environ)} listen --as alice --once --format agent" in looks
    assert "informational" in outside
    assert f"{call(place.environ)} send --as alice --to NAME --stdin" in sending
    assert f"{call(place.environ)} send --as alice --to NAME --re" in replying
    assert "--re m_" in replying
    post(place)
    assert "1 unread" in report("session-start", place.environ).splitlines()[0]
    assert len(report("session-start", place.environ).splitlines()) == 5


def test_what_waits_is_named_and_stays(place):
    post(place)
    post(place)
    for _ in range(2):
        said = report("prompt", place.environ)
        reading = f"{call(place.environ)} listen --as alice --once --format agent"
        assert said == f"wakehub: 2 unread for alice; read with: {reading}"


def test_an_agent_that_would_stop_is_asked_to_read_first_but_only_once(place, monkeypatch):
    post(place)
    decision = json.loads(report("stop", place.environ))
    assert decision["decision"] == "block"
    assert "1 unread for alice" in decision["reason"]
    given(monkeypatch, stop_hook_active=False)
    assert report("stop", place.environ)
    given(monkeypatch, stop_hook_active=True)
    assert report("stop", place.environ) == ""


def test_what_somebody_listens_for_is_left_to_that_one(place):
    post(place)
    place.inbox.leases.acquire(["alice"], ProcessId.own(), "alice", Now.read())
    assert report("prompt", place.environ) == ""


def test_a_bundle_is_an_enrolment_too(place):
    enrolment.enroll(place.config.paths, "carol", place.config.hub_id, time.time())
    place.config.paths.agent_key("carol").unlink()
    environ = place.environ | {"WAKEHUB_AGENT": "carol"}
    assert report("session-start", environ) == ""
    assert report("session-start", environ | {"WAKEHUB_BUNDLE": "e30"})


def test_where_the_registry_is_hidden_key_or_bundle_must_do_and_where_it_is_empty_nobody_is_enrolled(place):
    audit = place.config.paths.audit
    content = audit.read_bytes()
    audit.write_bytes(b"")
    assert report("session-start", place.environ | {"WAKEHUB_BUNDLE": "e30"}) == ""
    audit.write_bytes(content)
    audit.rename(audit.with_name("hidden"))
    audit.symlink_to("/proc/1/nothing")
    assert report("session-start", place.environ)


@pytest.mark.parametrize("event", EVENTS)
def test_no_trouble_disturbs_a_session(event, place, capfd):
    post(place)
    place.config.paths.record.chmod(0o644)
    assert hook(event, place.environ) == 0
    place.config.paths.config_file.write_text("nonsense")
    assert hook(event, place.environ) == 0
    assert hook(event, place.environ | {"WAKEHUB_AGENT": "no address!"}) == 0
    assert capfd.readouterr() == ("", "")
