"""A fresh record from a damaged one: what can be read and holds is kept, and what is missing is told (fault F68)."""

import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from wakehub.identity.keys import KeyPair
from wakehub.inbox.admission import Guard
from wakehub.inbox.clock import Now
from wakehub.inbox.database import scripts
from wakehub.inbox.leases import Lease
from wakehub.inbox.pages import PageFile
from wakehub.inbox.rebuild import Rebuilt, rebuild
from wakehub.inbox.rows import Attachment, Event, NewRow, Row, Seal
from wakehub.inbox.signing import Verified, signer, verify_row
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.processes import ProcessId

PAIRS = {name: KeyPair(bytes([number]) * 32) for number, name in enumerate(("bob", "carol"), 1)}
PAGE = 4096


def verdict(row: Row) -> Verified:
    pair = PAIRS.get(row.sender)
    return verify_row(row, pair.public if pair else None)


class World:
    """A record with rows in every state, closed and whole in its file; and what was in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "state" / "record.db"
        with SqliteInbox.open(self.path, guard=Guard(pair_per_minute=10_000)) as inbox:
            self._fill(inbox)
            self.rows = self.all_rows(inbox)
            self.events = {id: inbox.events(id) for id in self.rows}
        self.data = self.path.read_bytes()
        self._count = 0

    def _fill(self, inbox: SqliteInbox) -> None:
        rng, now = random.Random(1), Now.read().later(-3_600_000)
        lease = inbox.leases.acquire(["alice"], ProcessId.own(), "alice", now)
        assert isinstance(lease, Lease)
        for number in range(60):
            sender = rng.choice(["bob", "carol"])
            body = rng.randbytes(rng.choice([10, 500, 9_000])).hex().encode()
            files = (Attachment("a", 1, rng.randbytes(32)), Attachment("b", 2, rng.randbytes(32)))[: rng.randrange(3)]
            new = NewRow(sender, "alice" if number % 3 else "dave", body, signed=signer(PAIRS[sender]))
            (row,) = inbox.append(replace(new, attachments=files, ttl_s=60 if number % 11 == 5 else 86_400), now)
            inbox.record_hint([row.id], None, now)
            if number % 3 and number % 5:
                assert inbox.claim(row.id, lease.token, now)
                if number % 5 == 1:
                    assert inbox.hand_off(row.id, lease.token, "read", now)
                elif number % 5 == 2:
                    assert inbox.attempt_failed(row.id, lease.token, "busy", now.ms + 1000, now, busy=True)
                elif number % 10 == 3:
                    assert inbox.fail(row.id, lease.token, 65, "never", now)
        inbox.append([NewRow("alice", "eve", b"unsigned"), NewRow("alice", "eve", b"unsigned too")], now)
        inbox.expire(now.later(120_000))

    @staticmethod
    def all_rows(inbox: SqliteInbox) -> dict[str, Row]:
        with closing(sqlite3.connect(inbox._db.path)) as raw:
            ids = [id for (id,) in raw.execute("SELECT id FROM message ORDER BY seq")]
        found = {id: inbox.row(id) for id in ids}
        return {id: row for id, row in found.items() if row is not None}

    def rebuilt(self, data: bytes, judge: Callable[[Row], Verified] | None = verdict) -> "Outcome":
        self._count += 1
        bad, target = self.directory / f"bad-{self._count}", self.directory / f"new-{self._count}" / "record.db"
        bad.write_bytes(data)
        fd = os.open(bad, os.O_RDONLY)
        try:
            result = rebuild(PageFile(fd), target, judge)
        finally:
            os.close(fd)
        with SqliteInbox.open(target, create=False) as inbox:
            assert inbox.damage() == []
            rows = self.all_rows(inbox)
            outcome = Outcome(result, rows, {id: inbox.events(id) for id in rows}, target)
        outcome.is_honest_about(self)
        return outcome

    def flipped(self, page: int, at: int = 0, size: int = PAGE) -> bytes:
        start = page * PAGE + at
        bad = bytes(byte ^ 0xFF for byte in self.data[start : start + size])
        return self.data[:start] + bad + self.data[start + size :]

    @property
    def pages(self) -> range:
        return range(len(self.data) // PAGE)


class Outcome:
    def __init__(self, result: Rebuilt, rows: dict[str, Row], events: dict[str, list[Event]], path: Path) -> None:
        self.result = result
        self.rows = rows
        self.events = events
        self.path = path

    def is_honest_about(self, world: World) -> None:
        """The counts add up, nothing false was made up, and what was not handed off is there or is called lost."""
        result = self.result
        assert result.kept == len(self.rows)
        assert result.unread == sum(row.is_open for row in self.rows.values())
        assert self.rows.keys() <= world.rows.keys()
        missing = world.rows.keys() - self.rows.keys()
        assert len(missing) <= len(result.lost) + result.lost_ended
        open_missing = {id for id in missing if world.rows[id].is_open}
        assert len(open_missing) <= len(result.lost)
        assert len(open_missing - set(result.lost)) <= result.lost.count("")
        for id, row in self.rows.items():
            before = world.rows[id]
            assert (row.sender, row.recipient, row.body, row.digest) == (
                before.sender,
                before.recipient,
                before.body,
                before.digest,
            )
            assert row.state == ("unread" if before.state == "claimed" else before.state)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@contextmanager
def changed(world: World, statement: str, *values: object) -> Iterator[bytes]:
    """The record with one statement done to it behind everybody's back."""
    path = world.directory / "changed.db"
    path.write_bytes(world.data)
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("PRAGMA ignore_check_constraints = ON")
        raw.execute(statement, values)
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    yield path.read_bytes()
    path.unlink()


# --- a record without damage ---


def test_of_a_whole_record_everything_is_kept(world: World) -> None:
    outcome = world.rebuilt(world.data)
    result = outcome.result
    assert (result.kept, result.lost, result.lost_ended, result.unverified) == (len(world.rows), (), 0, 0)
    assert (result.illegible, result.signatures) == (0, True)
    states = {row.state for row in world.rows.values()}
    assert states == {"unread", "claimed", "handed_off", "failed", "expired"}
    forgotten = {"state": "", "claimed_ms": None, "hinted_ms": None, "retry_ms": 0, "redelivery": 0}
    for id, row in world.rows.items():
        assert replace(outcome.rows[id], **forgotten) == replace(row, **forgotten)
        assert outcome.events[id] == world.events[id]


def test_what_was_in_hand_comes_again_with_the_mark_and_what_was_told_to_the_hub_is_told_again(world: World) -> None:
    outcome = world.rebuilt(world.data)
    for id, row in world.rows.items():
        found = outcome.rows[id]
        assert found.redelivery == row.redelivery + (row.state == "claimed")
        if found.is_open:
            assert (found.hinted_ms, found.retry_ms, found.claimed_ms) == (None, 0, None)
        else:
            assert found.done_ms == row.done_ms


def test_counts_go_on_where_they_were_and_nobody_holds_a_name(world: World) -> None:
    outcome = world.rebuilt(world.data)
    with SqliteInbox.open(outcome.path) as inbox:
        assert inbox.leases.live(Now.read()) == []
        highest = max(row.rseq for row in world.rows.values() if row.recipient == "alice")
        assert inbox.watermark("alice") == highest
        (row,) = inbox.append(NewRow("bob", "alice", b"next"), Now.read())
        assert row.rseq == highest + 1
        assert row.seq > max(found.seq for found in world.rows.values())


def test_an_id_that_was_taken_from_a_spool_is_remembered(world: World) -> None:
    seal = Seal("m_0000000000000000000000000a", 1_000, 2_000, 0, "k", bytes(64))
    with changed(world, "INSERT INTO taken VALUES (?, ?)", seal.id, 1 << 50) as data:
        outcome = world.rebuilt(data)
    with SqliteInbox.open(outcome.path) as inbox, pytest.raises(Exception, match="stored already"):
        inbox.append(NewRow("bob", "alice", b"again", signed=seal), Now(1_500, 0, ""))


# --- damaged in its file ---


def test_every_page_in_turn(world: World) -> None:
    """Rows of other pages are all kept, whichever page it is: the first one, a root, a node, a leaf, an index."""
    lost = 0
    for page in world.pages:
        outcome = world.rebuilt(world.flipped(page))
        lost = max(lost, len(outcome.result.lost) + outcome.result.lost_ended)
        assert outcome.result.kept > 40, page
    assert lost > 0


def test_a_few_bytes_anywhere(world: World) -> None:
    rng = random.Random(2)
    for _ in range(60):
        page = rng.choice(world.pages)
        world.rebuilt(world.flipped(page, rng.randrange(PAGE - 8), rng.choice([1, 2, 8])))


def test_many_pages_at_once_and_a_file_that_ends_too_soon(world: World) -> None:
    rng = random.Random(3)
    for _ in range(6):
        data = bytearray(world.data)
        for page in rng.sample(world.pages, len(world.pages) // 3):
            data[page * PAGE : (page + 1) * PAGE] = rng.randbytes(PAGE)
        outcome_of_many(world, bytes(data))
        outcome_of_many(world, world.data[: rng.randrange(len(world.data))])


def outcome_of_many(world: World, data: bytes) -> None:
    """With so much gone a row may leave no trace at all; but nothing is made up."""
    target = world.directory / f"many-{len(os.listdir(world.directory))}"
    bad = target.with_suffix(".bad")
    bad.write_bytes(data)
    fd = os.open(bad, os.O_RDONLY)
    result = rebuild(PageFile(fd), target / "record.db", verdict)
    os.close(fd)
    with SqliteInbox.open(target / "record.db") as inbox:
        rows = world.all_rows(inbox)
        assert inbox.damage() == []
    assert len(rows) == result.kept
    for id, row in rows.items():
        assert row.body == world.rows[id].body


# --- damaged in what it says ---


def test_a_body_that_is_not_what_was_sent_is_not_handed_on(world: World) -> None:
    id = next(id for id, row in world.rows.items() if row.state == "unread")
    with changed(world, "UPDATE message SET body = ? WHERE id = ?", b"something else", id) as data:
        outcome = world.rebuilt(data)
    assert outcome.result.lost == (id,)
    assert id not in outcome.rows


@pytest.mark.parametrize(
    "column", ["sender", "recipient", "created_ms", "media_type", "re", "signed_hops", "signature"]
)
def test_what_the_signature_does_not_cover_as_it_is_is_not_handed_on(world: World, column: str) -> None:
    id = next(id for id, row in world.rows.items() if row.state == "unread" and row.signature)
    value = {"created_ms": 5, "signed_hops": 7, "signature": bytes(64)}.get(column, "mallory")
    with changed(world, f"UPDATE message SET {column} = ? WHERE id = ?", value, id) as data:
        assert world.rebuilt(data).result.lost == (id,)


def test_without_keys_the_digest_alone_decides_and_that_is_said(world: World) -> None:
    id = next(id for id, row in world.rows.items() if row.state == "unread" and row.signature)
    with changed(world, "UPDATE message SET signature = ? WHERE id = ?", bytes(64), id) as data:
        outcome = world.rebuilt(data, judge=None)
    assert outcome.result.lost == ()
    assert not outcome.result.signatures


def test_a_message_whose_list_of_files_is_illegible_is_kept_and_counted(world: World) -> None:
    id = next(id for id, row in world.rows.items() if row.state == "unread" and len(row.attachments) == 2)
    statement = "DELETE FROM attachment WHERE position = 1 AND message = (SELECT seq FROM message WHERE id = ?)"
    with changed(world, statement, id) as data:
        outcome = world.rebuilt(data)
    assert outcome.result.unverified == 1
    assert outcome.rows[id].attachments == world.rows[id].attachments[:1]
    assert verdict(outcome.rows[id]) == "no", "as it will be shown"


def test_an_older_image_of_a_row_does_not_undo_what_its_events_prove(world: World) -> None:
    id = next(id for id, row in world.rows.items() if row.state == "handed_off")
    with changed(world, "UPDATE message SET state = 'unread', done_ms = NULL WHERE id = ?", id) as data:
        outcome = world.rebuilt(data)
    assert outcome.rows[id].state == "handed_off"
    assert outcome.rows[id].done_ms == next(e.at_ms for e in world.events[id] if e.kind == "handed_off")


def test_numbers_that_collide_are_given_anew(world: World) -> None:
    """In a table that does not forbid it: both rows are kept, and later ones go on behind."""
    first, second = [id for id, row in world.rows.items() if row.recipient == "alice"][:2]
    path = world.directory / "collide.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        for script in scripts():
            raw.executescript(script.replace("    UNIQUE (recipient, rseq),\n", ""))
        raw.execute("ATTACH ? AS old", (str(world.path),))
        for table in ("message", "event", "attachment", "box"):
            raw.execute(f"INSERT INTO main.{table} SELECT * FROM old.{table}")
        raw.execute("UPDATE message SET rseq = ? WHERE id = ?", (world.rows[first].rseq, second))
    outcome = world.rebuilt(path.read_bytes())
    assert outcome.result.lost == ()
    numbers = [row.rseq for row in outcome.rows.values() if row.recipient == "alice"]
    assert len(set(numbers)) == len(numbers)
    assert max(numbers) == max(row.rseq for row in world.rows.values() if row.recipient == "alice") + 1


def test_a_number_that_cannot_be_is_given_anew(world: World) -> None:
    id = next(id for id, row in world.rows.items() if row.state == "unread")
    with changed(world, "UPDATE message SET rseq = -5 WHERE id = ?", id) as data:
        outcome = world.rebuilt(data)
    assert outcome.result.lost == ()
    assert outcome.rows[id].rseq > 0


def test_no_upgrade_has_changed_the_columns_that_a_row_is_recognised_by(tmp_path: Path) -> None:
    """An upgrade that does must teach `rebuild` both widths."""
    with closing(sqlite3.connect(":memory:")) as raw:
        widths = []
        for script in scripts():
            raw.executescript(script)
            widths.append([len(raw.execute(f"PRAGMA table_info({name})").fetchall()) for name in ("message", "event")])
    assert all(width == widths[0] for width in widths)
