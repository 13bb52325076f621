"""Who listens, what waits, who is overdue; and that nobody ever says otherwise (faults F2, F9, F28, F47, F85)."""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from daemon_process import Daemon, stand_in_for_up, until

from wakehub import config as configuration
from wakehub.cli import run
from wakehub.client.home import ensure_agent, ensure_home
from wakehub.client.poke import poke
from wakehub.client.receipts import SendRequest, State
from wakehub.client.send import send
from wakehub.config import Config
from wakehub.errors import Exit
from wakehub.identity import enrolment
from wakehub.inbox.clock import Now
from wakehub.inbox.leases import Lease
from wakehub.inbox.rows import NewRow
from wakehub.inbox.store import Inbox
from wakehub.limits import LEASE_VOID_SECONDS, OVERDUE_SECONDS
from wakehub.ops import status
from wakehub.ops.status import Box, Status, registry_of, survey
from wakehub.processes import ProcessId

NOW = Now.read()


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a present of its own: leases held at the import of this file would be void in a long run."""
    monkeypatch.setattr(sys.modules[__name__], "NOW", Now.read())


@pytest.fixture
def config(short: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("WAKEHUB_HOME", str(short))
    made = configuration.load()
    ensure_home(made)
    return made


def at(seconds: float) -> Now:
    return NOW.later(round(seconds * 1000))


def put(inbox: Inbox, to: str = "alice", now: Now | None = None) -> str:
    (row,) = inbox.append(NewRow("bob", to, b"hello"), now or NOW)
    return row.id


def hold(inbox: Inbox, *names: str, now: Now | None = None, process: ProcessId | None = None, **flags: object) -> Lease:
    lease = inbox.leases.acquire(names, process or ProcessId.own(), names[0], now or NOW, **flags)  # type: ignore[arg-type]
    assert isinstance(lease, Lease)
    return lease


def dead() -> ProcessId:
    return ProcessId.own()._replace(started="of another")


def box(config: Config, inbox: Inbox, now: Now | None = None, name: str = "alice") -> Box:
    registry, _ = registry_of(config)
    (found,) = [box for box in status.boxes(inbox, registry, now or NOW) if box.name == name]
    return found


# --- what waits, and for whom ---


def test_a_name_with_everything_that_is_to_be_known(config: Config, inbox: Inbox) -> None:
    lease = hold(inbox, "alice", now=at(1), host="here")
    handed, _ = put(inbox), put(inbox, now=at(2))
    inbox.record_hint([handed], None, at(3))
    assert inbox.claim(handed, lease.token, at(4))
    inbox.hand_off(handed, lease.token, "flushed", at(5), woken_by="wake")
    assert box(config, inbox, at(6)).to_json(at(6)) == {
        "name": "alice",
        "state": "never_enrolled",
        "presence": "listening",
        "listener": {"names": ["alice"], "pid": os.getpid(), "host": "here", "since_ms": at(1).ms, "status": ""},
        "last_listened_ms": None,
        "unread": 1,
        "oldest_ms": at(2).ms,
        "last_hinted_ms": at(3).ms,
        "last_handed_off_ms": at(5).ms,
        "woken_by": {"wake": 1},
        "trouble": None,
        "stuck": None,
    }


def test_how_its_rows_were_taken_is_counted(config: Config, inbox: Inbox) -> None:
    lease = hold(inbox, "alice")
    for reason in ("backstop", "wake", "wake"):
        row_id = put(inbox)
        assert inbox.claim(row_id, lease.token, NOW)
        inbox.hand_off(row_id, lease.token, "flushed", NOW, woken_by=reason)
    assert "taken by wake 2, backstop 1" in status.words(box(config, inbox), NOW)


def test_a_namespace_that_somebody_holds_is_shown(config: Config, inbox: Inbox) -> None:
    hold(inbox, "acme/", "acme/relay")
    assert box(config, inbox, name="acme/").standing == "namespace"
    assert f"pid {os.getpid()} listens for 1 min" in status.words(box(config, inbox, at(60), "acme/"), at(60))


def test_the_systems_own_boxes_are_not_shown(config: Config, inbox: Inbox) -> None:
    put(inbox, "wakehub-doctor")
    hold(inbox, "wakehub-doctor")
    registry, _ = registry_of(config)
    assert status.boxes(inbox, registry, NOW) == []


# --- what is an error ---


def test_rows_that_a_listener_leaves_for_20_minutes_are_overdue(config: Config, inbox: Inbox) -> None:
    """F9."""
    put(inbox)
    hold(inbox, "alice", now=at(100))
    late = at(100 + OVERDUE_SECONDS)

    def renewed(now: Now) -> Box:
        for lease in inbox.leases.live(NOW):
            inbox.leases.renew(lease.token, now)
        return box(config, inbox, now)

    assert renewed(late).trouble(late) is None  # it can be blamed only for as long as it is there
    later = late.later(1)
    assert renewed(later).trouble(later) == "overdue"
    assert f"OVERDUE: pid {os.getpid()}" in status.words(renewed(later), later)[0]


def test_why_a_listener_does_not_get_rid_of_a_row_is_said(config: Config, inbox: Inbox) -> None:
    row_id = put(inbox, "acme/ops")
    lease = hold(inbox, "acme/")
    inbox.leave("acme/ops", lease.token, "no session called ops is running", at(1))
    found = box(config, inbox, at(2), "acme/ops")
    assert found.trouble(at(2)) is None
    assert found.to_json(at(2))["stuck"] == {"id": row_id, "reason": "no session called ops is running"}
    assert "1 unread, the oldest 2 s old: no session called ops is running" in status.words(found, at(2))


def test_rows_without_a_listener_are_not_overdue(config: Config, inbox: Inbox) -> None:
    put(inbox)
    late = at(10 * OVERDUE_SECONDS)
    assert box(config, inbox, late).trouble(late) is None
    inbox.leases.release(hold(inbox, "alice").token, at(1))
    assert box(config, inbox, late).trouble(late) is None


def test_rows_that_wait_for_a_listener_that_died_are_an_error_at_once(config: Config, inbox: Inbox) -> None:
    """F28."""
    ensure_agent(config, "alice")
    hold(inbox, "alice", process=dead())
    assert box(config, inbox).trouble(NOW) is None  # nothing waits for it
    for _ in range(27):
        put(inbox)
    found = box(config, inbox)
    assert (found.trouble(NOW), found.unread) == ("dead_listener", 27)
    assert status.words(found, NOW)[0] == "LISTENER DIED; next: wakehub listen --as alice"


def test_a_wake_for_a_listener_that_died_is_one_that_the_hub_alone_took(config: Config, inbox: Inbox) -> None:
    """F28: the hub keeps a wake for an agent that it knows, whether that lives or not."""
    hold(inbox, "alice", process=dead())
    inbox.record_hint([put(inbox)], None, at(3))
    assert "last wake 1 min ago, taken by the hub alone" in status.words(box(config, inbox, at(63)), at(63))
    inbox.leases.sweep(at(63))
    hold(inbox, "alice", now=at(63))
    assert "last wake 1 min ago" in status.words(box(config, inbox, at(63)), at(63))


def test_an_error_is_in_the_exit_status(config: Config, inbox: Inbox) -> None:
    assert survey(config).exit is Exit.DONE
    hold(inbox, "alice", process=dead())
    put(inbox)
    found = survey(config)
    assert (found.exit, found.to_json()["healthy"]) == (Exit.FAILED, False)
    assert "✗ alice" in found.to_text()


# --- the daemons ---


def test_where_nothing_runs_both_are_down(config: Config) -> None:
    found = survey(config)
    assert (found.hub.state, found.publisher.state) == ("down", "down")
    assert "wakehub up" in found.to_text()
    assert found.exit is Exit.DONE


def test_a_daemon_that_answers_is_up_and_one_that_is_stopped_is_unknown(config: Config, short: Path) -> None:
    """F47: the kernel accepts for a stopped process, so that a connection proves nothing."""
    with Daemon(short, "serve") as hub, Daemon(short, "publish") as publisher:
        hub.logs("hub ready")
        publisher.logs("publisher ready")
        found = survey(config)
        assert [(daemon.state, daemon.pid) for daemon in (found.hub, found.publisher)] == [
            ("up", hub.process.pid),
            ("up", publisher.process.pid),
        ]
        for process in (hub.process, publisher.process):
            os.kill(process.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        found = survey(config)
        for daemon in (found.hub, found.publisher):
            assert daemon.state == "unknown"
            assert f"pid {daemon.pid}, is stopped" in daemon.in_words()
            assert daemon.remedy == f"kill -CONT {daemon.pid}"
            assert f"pid {daemon.pid}" in daemon.in_words()


# --- the report ---


def test_the_keys_of_the_report_are_what_is_promised(config: Config, inbox: Inbox) -> None:
    put(inbox)
    assert tuple(survey(config).to_json()) == status.JSON_KEYS


def test_an_instance_without_a_record_is_no_error(short: Path) -> None:
    nowhere = configuration.load({"WAKEHUB_HOME": str(short / "nowhere")})
    found = survey(nowhere)
    assert (found.boxes, found.exit) == ((), Exit.DONE)
    assert "no name is enrolled" in found.to_text()
    assert not (short / "nowhere").exists()


def test_who_is_enrolled_is_told_before_there_is_a_record(config: Config) -> None:
    ensure_agent(config, "alice")
    assert not config.paths.record.exists()
    found = survey(config)
    assert [(box.name, box.standing, box.presence.state) for box in found.boxes] == [("alice", "enrolled", "never")]
    assert found.exit is Exit.DONE
    assert "alice      nobody listened yet · nothing unread" in found.to_text()
    assert found.to_json()["names"][0]["unread"] == 0


def test_a_long_name_moves_its_own_line_only(config: Config, inbox: Inbox, capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 128
    for name in ("alice", "acme/deploy", long):
        put(inbox, name)
    lines = survey(config).to_text().splitlines()
    assert [line.find("never enrolled") for line in lines if "never enrolled" in line] == [15, 15, 132]
    assert run(["agents"]) == Exit.DONE
    lines = capsys.readouterr().out.splitlines()
    assert [line.find("never enrolled") for line in lines] == [13, 13, 130]


def test_a_registry_that_cannot_be_read_is_said_and_the_rest_is_told(config: Config, inbox: Inbox) -> None:
    put(inbox)
    config.paths.audit.write_bytes(b"nonsense\n")
    found = survey(config)
    assert "who is enrolled is not known" in found.to_text()
    assert [box.name for box in found.boxes] == ["alice"]


def test_text_of_others_is_made_visible(config: Config, inbox: Inbox) -> None:
    put(inbox, "a\x1b[2K\u202e")
    assert "a\\x1b[2K\\u202e" in survey(config).to_text()
    assert not set("\x1b\u202e") & set(survey(config).to_text())


# --- one truth (F85) ---


def never(config: Config, inbox: Inbox) -> None:
    """Nobody ever listened."""


def listening(config: Config, inbox: Inbox) -> None:
    hold(inbox, "acme/bob")


def by_namespace(config: Config, inbox: Inbox) -> None:
    hold(inbox, "acme/")


def left(config: Config, inbox: Inbox) -> None:
    inbox.leases.release(hold(inbox, "acme/bob").token, Now.read())


def displaced(config: Config, inbox: Inbox) -> None:
    hold(inbox, "acme/bob")
    hold(inbox, "acme/bob", take_over=True)


def died(config: Config, inbox: Inbox) -> None:
    hold(inbox, "acme/bob", process=dead())


def died_and_swept(config: Config, inbox: Inbox) -> None:
    died(config, inbox)
    inbox.leases.sweep(Now.read())


def unheard_of(config: Config, inbox: Inbox) -> None:
    now = Now.read().later(-2000 * LEASE_VOID_SECONDS)
    hold(inbox, "acme/bob", now=now, process=ProcessId.own()._replace(namespace=7))


def revoked(config: Config, inbox: Inbox) -> None:
    hold(inbox, "acme/bob")
    enrolment.revoke(config.paths, "acme/bob", NOW.ms / 1000)


def never_enrolled(config: Config, inbox: Inbox) -> None:
    hold(inbox, "acme/new")


@pytest.mark.parametrize(
    ("bring_about", "name", "state"),
    [
        (never, "acme/bob", "never"),
        (listening, "acme/bob", "listening"),
        (by_namespace, "acme/bob", "listening"),
        (left, "acme/bob", "left"),
        (displaced, "acme/bob", "listening"),
        (died, "acme/bob", "died"),
        (died_and_swept, "acme/bob", "died"),
        (unheard_of, "acme/bob", "died"),
        (revoked, "acme/bob", "listening"),
        (never_enrolled, "acme/new", "listening"),
    ],
)
def test_agents_send_status_and_why_never_disagree_about_who_is_there(
    config: Config,
    inbox: Inbox,
    capsys: pytest.CaptureFixture[str],
    bring_about: Callable[[Config, Inbox], None],
    name: str,
    state: str,
) -> None:
    """F85, F2."""
    ensure_agent(config, "acme/bob")
    bring_about(config, inbox)
    with stand_in_for_up(config.paths):
        sent = send(config, SendRequest(name, b"hello", "carol"))
    notes = [receipt.detail for receipt in sent.receipts if receipt.state is State.NOTE]
    nobody = [note for note in notes if note.startswith(f"nobody is listening for {name} ")]

    def report(*argv: str) -> dict[str, object]:
        capsys.readouterr()
        assert run([*argv, "--json"]) in (Exit.DONE, Exit.FAILED)
        found: dict[str, object] = json.loads(capsys.readouterr().out)
        return found

    def of(report: object) -> dict[str, object]:
        assert isinstance(report, list)
        (found,) = [each for each in report if each["name"] == name]
        return dict(found)

    by_status, by_agents = of(report("status")["names"]), of(report("agents")["agents"])
    assert by_status["presence"] == report("why", sent.row_ids[0])["presence"] == state
    assert bool(nobody) == (state != "listening")
    assert any("died" in note for note in nobody) == (state == "died")
    assert (by_agents["listener"] is None) == (state != "listening")
    assert by_agents["last_listened_ms"] == by_status["last_listened_ms"]
    assert (by_agents["last_listened_ms"] is None) == (state in ("listening", "never"))
    for key in ("state", "unread", "oldest_ms"):
        assert by_agents[key] == by_status[key], key


def test_agents_and_status_know_the_same_names(
    config: Config, inbox: Inbox, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two", "three"):
        ensure_agent(config, name)
    enrolment.close(config.paths, "two", NOW.ms / 1000)
    enrolment.revoke(config.paths, "three", NOW.ms / 1000)
    put(inbox, "four")
    for command, key in (("agents", "agents"), ("status", "names")):
        run([command, "--json"])
        found = {each["name"]: each["state"] for each in json.loads(capsys.readouterr().out)[key]}
        assert found == {"one": "enrolled", "two": "closed", "three": "revoked", "four": "never_enrolled"}


def test_the_hub_has_no_say_in_who_is_there(config: Config, inbox: Inbox, short: Path) -> None:
    """A wake that the hub keeps for an absent agent proves no listener."""
    with Daemon(short, "up") as up:
        up.says("ready: the hub answers")
        row_id = put(inbox, now=Now.read())
        until(lambda: list(poke(config.paths.publish_socket, [row_id])), "the publisher answers")
        found: Status = survey(config)
    assert [(box.name, box.presence.state) for box in found.boxes] == [("alice", "never")]
