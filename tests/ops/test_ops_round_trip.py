"""A message that really goes around, and how it says where it stopped (fault F84)."""

import contextlib
import json
import os
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from daemon_process import Daemon, environment, started, until

from wakehub import files, locks
from wakehub.client.home import ensure_agent, ensure_home
from wakehub.client.receipts import SendRequest
from wakehub.client.send import send
from wakehub.config import Config
from wakehub.errors import BadData, NoRecipient
from wakehub.identity import enrolment
from wakehub.identity.addresses import DOCTOR
from wakehub.identity.allowlist import sign
from wakehub.identity.owner import load_owner, read_registry
from wakehub.identity.registry import to_allowlist
from wakehub.inbox import filesystem
from wakehub.inbox.clock import Now
from wakehub.inbox.rows import NewRow, furthest
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.ops import health, round_trip
from wakehub.ops.round_trip import LEGS, travel
from wakehub.paths import choose

LISTENER = """
import sys
from wakehub.config import load
from wakehub.inbox.clock import Now
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.processes import ProcessId
with SqliteInbox.open(load().paths.record) as inbox:
    inbox.leases.acquire([sys.argv[1]], ProcessId.own(), sys.argv[1], Now.read())
    print("held", flush=True)
    input()
"""


@pytest.fixture
def config(short: Path) -> Config:
    """An instance that is set up; nothing runs."""
    config = Config.at(choose({"WAKEHUB_HOME": str(short)}))
    ensure_home(config, explicit=True)
    SqliteInbox.open(config.paths.record).close()
    return config


@pytest.fixture
def hub_alone(config: Config) -> Iterator[Config]:
    """A real hub that admits the doctor for a minute, and no publisher."""
    enrolment.enroll_doctor(config.paths, time.time())
    allowlist = to_allowlist(read_registry(config.paths), time.time())
    files.replace(config.allowlist, sign(allowlist, load_owner(config.paths)))
    with Daemon(config.paths.run.parent, "serve") as hub:
        hub.logs("hub ready")
        yield config


@contextmanager
def publisher_that_says(path: Path, **answer: object) -> Iterator[None]:
    """Answer one poke with `answer` for each id, and do nothing else about it."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as lines:
            for row_id in json.loads(lines.readline())["ids"]:
                line = {"id": row_id, "state": "hinted", "code": None, "holder": True} | answer
                connection.sendall(json.dumps(line).encode() + b"\n")

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()


def lines_of_the_registry(config: Config) -> int:
    return len(config.paths.audit.read_bytes().splitlines())


def sample(config: Config, name: str) -> int:
    text = health.read_metrics(config)
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(f"wakehub_{name} "))


def rows(config: Config) -> dict[str, str]:
    """The state of every row that was ever stored for the doctor, by id."""
    with contextlib.closing(sqlite3.connect(config.paths.record)) as record:
        return dict(record.execute("SELECT id, state FROM message WHERE recipient = ?", (DOCTOR,)))


# --- a message arrives ---


def test_every_leg_is_measured_in_order(running: Config) -> None:
    trip = travel(running)
    assert trip.arrived, trip
    assert tuple(trip.legs) == LEGS
    assert all(ms > 0 for ms in trip.legs.values())
    assert (trip.stopped_at, trip.why) == ("", "")


def test_it_is_a_real_row_with_every_receipt(running: Config) -> None:
    before = rows(running).keys()
    assert travel(running).arrived
    (id,) = rows(running).keys() - before
    with SqliteInbox.open(running.paths.record) as inbox:
        events = {event.kind: event for event in inbox.events(id)}
        assert furthest(events.values()) == "handed_off"
    assert {"stored", "hinted", "claimed", "handed_off"} <= events.keys()
    assert events["handed_off"].woken_by == "wake"
    assert events["handed_off"].proof == ("read" if sys.platform == "linux" else "buffered")


def test_it_leaves_nothing_behind_but_one_enrolment(running: Config) -> None:
    assert travel(running).arrived
    lines, files_before = lines_of_the_registry(running), sorted(running.paths.agents.iterdir())
    for _ in range(2):
        assert travel(running).arrived
    assert lines_of_the_registry(running) == lines
    assert sorted(running.paths.agents.iterdir()) == files_before
    with SqliteInbox.open(running.paths.record) as inbox:
        assert inbox.unread(DOCTOR) == []
        assert [box for box in inbox.boxes_with_unread() if box.name == DOCTOR] == []
        assert inbox.leases.holder(DOCTOR, Now.read()) is None
        last = inbox.leases.last_holder(DOCTOR, Now.read())
    assert last is not None
    assert last.reason == "released"
    until(lambda: sample(running, "recipients") == 1, "only the publisher is connected")


def test_nobody_sees_the_doctor_among_the_agents(running: Config) -> None:
    assert travel(running).arrived
    assert read_registry(running.paths).names() == []
    done = subprocess.run(
        [sys.executable, "-m", "wakehub", "agents", "--json"],
        env=environment(running.paths.run.parent),
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout) == {"agents": []}


def test_nobody_else_acts_as_the_doctor_or_writes_to_it(running: Config) -> None:
    assert travel(running).arrived
    with pytest.raises(BadData, match="nobody acts as wakehub-doctor"):
        ensure_agent(running, DOCTOR)
    with pytest.raises(NoRecipient, match="no mailbox"):
        send(running, SendRequest(to=DOCTOR, body=b"hello", sender="alice"))


def test_two_doctors_at_once_both_see_their_message_arrive(running: Config) -> None:
    words, pipes = [sys.executable, "-m", "wakehub", "doctor", "--json"], {"stdout": subprocess.PIPE}
    env = environment(running.paths.run.parent)
    with started(words, env=env, **pipes) as one, started(words, env=env, **pipes) as other:
        said = [json.loads(process.communicate()[0]) for process in (one, other)]
    assert [report["round_trip"]["arrived"] for report in said] == [True, True], said


def test_what_a_killed_doctor_left_unread_is_ended_by_the_next(running: Config) -> None:
    with SqliteInbox.open(running.paths.record) as inbox:
        (row,) = inbox.append(NewRow(DOCTOR, DOCTOR, b"left over"), Now.read())
        assert travel(running).arrived
        found = inbox.row(row.id)
    assert found is not None
    assert found.state == "failed"


def test_a_revoked_doctor_is_enrolled_anew(running: Config) -> None:
    assert travel(running).arrived
    enrolment.revoke(running.paths, DOCTOR, time.time())
    assert travel(running).arrived


def test_without_the_owner_key_the_enrolled_doctor_still_travels(running: Config) -> None:
    assert travel(running).arrived
    away = running.paths.owner_key.with_name("away")
    running.paths.owner_key.rename(away)
    try:
        assert travel(running).arrived
    finally:
        away.rename(running.paths.owner_key)


# --- it does not, and says where ---


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing will ever come, a moment shows as much as 5 s do."""
    for patience in ("ROUND_TRIP_LEG_SECONDS", "ENROLMENT_WAIT_SECONDS"):
        monkeypatch.setattr(round_trip, patience, 0.1)


def test_without_an_identity_nothing_is_sent_and_that_is_said(config: Config) -> None:
    config.paths.owner_key.unlink()
    trip = travel(config)
    assert (trip.legs, trip.stopped_at) == ({}, "")
    assert not trip.arrived
    assert str(config.paths.owner_key) in trip.why
    assert trip.remedy


def test_while_another_doctor_does_not_end_nothing_is_sent(config: Config, impatient: None) -> None:
    enrolment.enroll_doctor(config.paths, time.time())
    with holding(config, DOCTOR) as pid:
        trip = travel(config)
    assert (trip.legs, trip.stopped_at) == ({}, "")
    assert f"pid {pid}" in trip.why


@contextmanager
def holding(config: Config, name: str) -> Iterator[int]:
    """Another process that listens under `name`; it gives its pid."""
    command = [sys.executable, "-c", LISTENER, name]
    env = environment(config.paths.run.parent)
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process.pid
        process.communicate(b"\n")


def test_no_record(config: Config) -> None:
    config.paths.record.unlink()
    trip = travel(config)
    assert trip.stopped_at == "row"
    assert not config.paths.record.exists()


@contextmanager
def no_file_grows() -> Iterator[None]:
    """As on a full disk; what exists keeps its size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("enrolled", [False, True])
def test_a_record_that_takes_no_row(config: Config, enrolled: bool) -> None:
    if enrolled:
        enrolment.enroll_doctor(config.paths, time.time())
    lines = lines_of_the_registry(config)
    with SqliteInbox.open(config.paths.record), no_file_grows():
        trip = travel(config)
    assert (trip.legs, trip.stopped_at) == ({}, "row")
    assert "cannot be written" in trip.why
    assert trip.remedy == filesystem.to_make_room(config.paths.state)
    assert lines_of_the_registry(config) == lines


def test_a_hub_that_is_not_there(config: Config, impatient: None) -> None:
    trip = travel(config)
    assert (trip.legs, trip.stopped_at) == ({}, "session")


def test_a_stopped_hub(running: Config) -> None:
    """The kernel accepts for a stopped process; the message must not be called on its way."""
    holder = locks.live_holder(running.paths.lock("hub"))
    assert holder is not None
    assert travel(running).arrived
    os.kill(holder.pid, signal.SIGSTOP)
    try:
        trip = travel(running)
    finally:
        os.kill(holder.pid, signal.SIGCONT)
    assert trip.stopped_at == "session"
    assert f"the hub, pid {holder.pid}, is stopped" in trip.why
    assert trip.remedy == f"kill -CONT {holder.pid}"
    until(lambda: travel(running).arrived, "the hub and its publisher are back")


def test_a_stopped_publisher(running: Config) -> None:
    holder = locks.live_holder(running.paths.lock("publish"))
    assert holder is not None
    assert travel(running).arrived
    os.kill(holder.pid, signal.SIGSTOP)
    try:
        trip = travel(running)
    finally:
        os.kill(holder.pid, signal.SIGCONT)
    assert (tuple(trip.legs), trip.stopped_at) == (("row",), "poke")
    assert f"the publisher, pid {holder.pid}, is stopped" in trip.why
    assert trip.remedy == f"kill -CONT {holder.pid}"
    until(lambda: travel(running).arrived, "the publisher is back")
    assert {"failed", "handed_off"} == set(rows(running).values())


def test_no_publisher(hub_alone: Config) -> None:
    trip = travel(hub_alone)
    assert (tuple(trip.legs), trip.stopped_at) == (("row",), "poke")
    assert "publisher not running" in trip.why
    assert "wakehub publish" in trip.remedy
    assert list(rows(hub_alone).values()) == ["failed"]


def test_a_publisher_that_promises_and_does_nothing(hub_alone: Config, impatient: None) -> None:
    with publisher_that_says(hub_alone.paths.publish_socket):
        trip = travel(hub_alone)
    assert (tuple(trip.legs), trip.stopped_at) == (("row", "poke"), "wake")
    assert "no wake came" in trip.why


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"state": "hub_down"}, "no session with the hub"),
        ({"state": "refused", "code": 404}, r"refused the wake (404)"),
        ({"id": "m_other"}, "did not answer"),
        ({"holder": "x"}, "not understood"),
    ],
)
def test_a_publisher_that_promises_nothing(hub_alone: Config, answer: dict[str, object], why: str) -> None:
    with publisher_that_says(hub_alone.paths.publish_socket, **answer):
        trip = travel(hub_alone)
    assert trip.stopped_at == "poke"
    assert why in trip.why


def test_a_hub_that_would_refuse_the_doctor_is_explained(hub_alone: Config) -> None:
    allowlist = to_allowlist(read_registry(hub_alone.paths), time.time() - 61)
    files.replace(hub_alone.allowlist, sign(allowlist, load_owner(hub_alone.paths)))
    trip = travel(hub_alone)
    assert trip.stopped_at == "session"
    assert "stale" in trip.why
    assert trip.remedy == "wakehub publish (the hub runs alone)"


def test_a_hub_of_another_name(hub_alone: Config) -> None:
    trip = travel(hub_alone.changed(hub_id="another"))
    assert trip.stopped_at == "session"
    assert "'wakehub'" in trip.why
