"""Many real processes around one record, some of which are killed: nothing is lost, nothing is told that is not so."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO

import pytest
from inbox_conformance import drain, listen

from wakehub.inbox.clock import Now
from wakehub.inbox.sqlite import SqliteInbox

_ACTOR = Path(__file__).with_name("inbox_actor.py")


class Actor:
    """A process of `inbox_actor.py` that has said it is ready."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin
        assert process.stdout
        self.process = process
        self._stdin: IO[str] = process.stdin
        self._stdout: IO[str] = process.stdout

    def go(self) -> None:
        self._stdin.write("go\n")
        self._stdin.flush()

    def line(self) -> str:
        return self._stdout.readline().rstrip("\n")

    def lines(self) -> list[str]:
        """All that is left of what it says, when it has ended."""
        return self._stdout.read().splitlines()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


Start = Callable[[str, str, int], Actor]


@pytest.fixture
def start(record: Path) -> Iterator[Start]:
    actors: list[Actor] = []

    def begin(role: str, name: str, count: int) -> Actor:
        command = [sys.executable, str(_ACTOR), role, str(record), name, str(count)]
        actors.append(Actor(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)))
        return actors[-1]

    with SqliteInbox.open(record):
        yield begin
    for actor in actors:
        actor.kill()
        actor.process.communicate()


def gather(actors: list[Actor]) -> None:
    """Let all of them begin at once."""
    assert {actor.line() for actor in actors} == {"ready"}
    for actor in actors:
        actor.go()


def test_twenty_senders_on_a_barrier_while_a_reader_acknowledges(record: Path, start: Start) -> None:
    """F6: forty rows, forty ids, nothing overwritten, each handed off once, in its sender's order."""
    reader = start("listen", "alice", 40)
    senders = [start("send", f"sender-{number}", 2) for number in range(20)]
    gather([reader, *senders])
    ids = [id for sender in senders for id in sender.lines()]
    assert [sender.process.wait() for sender in senders] == [0] * 20
    done = [line.removeprefix("done ") for line in reader.lines() if line.startswith("done ")]
    assert reader.process.wait() == 0
    assert len(set(ids)) == 40
    assert sorted(done) == sorted(ids)
    with SqliteInbox.open(record) as inbox:
        rows = inbox.headers(ids)
        assert {row.rseq for row in rows} == set(range(1, 41))
        assert {row.redelivery for row in rows} == {0}
        for number in range(20):
            of_sender = [row.id for row in rows if row.sender == f"sender-{number}"]
            assert of_sender == sorted(of_sender, key=done.index)


def test_sixteen_processes_insert_while_a_backup_reads(record: Path, start: Start) -> None:
    """F61: a reader that keeps its snapshot all the while delays nobody; what was said to be stored is stored."""
    senders = [start("send", f"sender-{number}", 5) for number in range(16)]
    with closing(sqlite3.connect(record, isolation_level=None)) as backup:
        backup.execute("BEGIN")
        before = backup.execute("SELECT count(*) FROM message").fetchall()
        gather(senders)
        ids = [id for sender in senders for id in sender.lines()]
        assert [sender.process.wait() for sender in senders] == [0] * 16
        assert backup.execute("SELECT count(*) FROM message").fetchall() == before == [(0,)]
    with SqliteInbox.open(record) as inbox:
        assert sorted(row.id for row in inbox.unread("alice", limit=1000)) == sorted(ids)
        assert inbox.watermark("alice") == len(set(ids)) == 80


def test_a_sender_killed_in_mid_transaction_leaves_nothing_half_done(record: Path, start: Start) -> None:
    sender = start("send-slowly", "bob", 2)
    gather([sender])
    assert sender.line() == "inside"
    sender.go()
    assert sender.line() == "stored"
    assert sender.line() == "inside"
    sender.kill()
    with SqliteInbox.open(record) as inbox:
        assert [row.body for row in inbox.unread("alice")] == [b"slow"]
        assert inbox.watermark("alice") == 1
        with closing(sqlite3.connect(record)) as raw:
            assert raw.execute("SELECT count(*) FROM event").fetchall() == [(1,)]
            assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("told", [1, 7, 20])
def test_a_sender_killed_at_any_time_has_stored_what_it_said(record: Path, start: Start, told: int) -> None:
    sender = start("send", "bob", 10_000)
    gather([sender])
    said = [sender.line() for _ in range(told)]
    sender.kill()
    said += sender.lines()
    with SqliteInbox.open(record) as inbox:
        rows = inbox.unread("alice", limit=100_000)
        assert [row.id for row in rows][: len(said)] == said
        assert len(rows) <= len(said) + 1
        assert [row.rseq for row in rows] == list(range(1, len(rows) + 1))
        assert [row.body for row in rows] == [f"bob {number}".encode() for number in range(len(rows))]


@pytest.mark.parametrize("handed_off", [0, 3])
def test_a_listener_killed_between_claim_and_acknowledgement(record: Path, start: Start, handed_off: int) -> None:
    """F17, F1: what it had in hand comes again at once, marked, and nothing else does."""
    sender = start("send", "bob", 6)
    gather([sender])
    ids = sender.lines()
    listener = start("listen", "alice", 6)
    gather([listener])
    for id in ids[:handed_off]:
        assert [listener.line(), listener.line()] == [f"claimed {id} 0", f"done {id}"]
    assert listener.line() == f"claimed {ids[handed_off]} 0"
    listener.kill()
    done = {line.removeprefix("done ") for line in listener.lines() if line.startswith("done ")} | set(ids[:handed_off])
    with SqliteInbox.open(record) as inbox:
        open_rows = {row.id: row for row in inbox.unread("alice")}
        assert not done & open_rows.keys()
        claimed = {id for id, row in open_rows.items() if row.state == "claimed"}
        assert len(claimed) <= 1
        now = Now.read()
        lease = listen(inbox, "alice", now=now)
        assert len(drain(inbox, lease, now)) == len(open_rows)
        marked = {row.id for row in inbox.headers(ids) if row.redelivery == 1}
        assert marked == claimed


def test_the_name_of_a_killed_listener_is_free_at_once(record: Path, start: Start) -> None:
    first = start("listen", "alice", 1)
    gather([first])
    sender = start("send", "bob", 2)
    gather([sender])
    ids = sender.lines()
    assert first.line() == f"claimed {ids[0]} 0"
    first.kill()
    second = start("listen", "alice", 1)
    gather([second])
    assert second.line().startswith("claimed ")
    assert second.process.wait() == 0


def test_a_listener_hears_of_rows_by_the_change_token(record: Path, start: Start) -> None:
    listener = start("listen", "alice", 3)
    gather([listener])
    for _ in range(3):
        sender = start("send", "bob", 1)
        gather([sender])
        (id,) = sender.lines()
        assert [listener.line(), listener.line()] == [f"claimed {id} 0", f"done {id}"]
    assert listener.process.wait() == 0


def test_of_eight_that_want_one_name_one_gets_it(record: Path, start: Start) -> None:
    """F34: whoever comes first; all others are refused, and none of them believes otherwise."""
    wanting = [start("acquire", "reviewer", 1) for _ in range(8)]
    gather(wanting)
    assert sorted(each.line() for each in wanting) == ["held"] + ["refused"] * 7
    with SqliteInbox.open(record) as inbox:
        (lease,) = inbox.leases.live(Now.read())
        assert lease.process.pid in {each.process.pid for each in wanting}
