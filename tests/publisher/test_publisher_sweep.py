"""What the publisher does to the record now and then."""

import os
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from wakehub.client.home import ensure_home
from wakehub.config import Config
from wakehub.identity import enrolment
from wakehub.identity.keys import KeyPair
from wakehub.identity.owner import read_registry
from wakehub.identity.registry import Registry
from wakehub.inbox.attachments import Attachments
from wakehub.inbox.clock import Now
from wakehub.inbox.envelope import Envelope
from wakehub.inbox.refusals import AlreadyStored, RecordBusy
from wakehub.inbox.rows import NewRow, Row, Seal
from wakehub.inbox.signing import signer, verify_row
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.limits import KEEP_HANDED_OFF_SECONDS, SWEEP_ROWS, SWEEP_SECONDS
from wakehub.publisher.sweep import Sweeper


def past(seconds: int) -> Now:
    return Now.read().later(-seconds * 1000)


def store(inbox: SqliteInbox, *recipients: str, ago_s: int, ttl_s: int = 60) -> list[Row]:
    return inbox.append([NewRow("bob", name, b"hi", ttl_s=ttl_s) for name in recipients], past(ago_s))


def sweeper_of(config: Config, inbox: SqliteInbox, key: KeyPair, **options: int) -> Sweeper:
    return Sweeper(inbox, signer(key), Attachments.of(config.paths), **options)


def test_an_expired_row_comes_back_to_its_sender_as_a_notice_that_wakes_nobody(
    config: Config, inbox: SqliteInbox, key: KeyPair
) -> None:
    (row,) = store(inbox, "alice", ago_s=61)
    (fresh,) = store(inbox, "alice", ago_s=59)
    sweeper_of(config, inbox, key).sweep()
    assert inbox.unread("alice") == [fresh]
    (notice,) = inbox.unread("bob")
    assert (notice.sender, notice.class_) == ("wakehub-publisher", "fyi")
    assert verify_row(notice, key.public) == "yes"
    assert row.id in str((notice.re, notice.body))
    assert [header.id for header in inbox.unhinted()] == [fresh.id]


def test_one_sweep_takes_all_of_them_however_many(config: Config, inbox: SqliteInbox, key: KeyPair) -> None:
    names = [f"agent-{n % 8}" for n in range(SWEEP_ROWS + 9)]
    store(inbox, *names[:200], ago_s=8 * 86_400)
    store(inbox, *names[200:], ago_s=8 * 86_400)
    sweeper_of(config, inbox, key).sweep()
    assert sum(inbox.count_unread(name) for name in set(names)) == 0
    assert inbox.count_unread("bob") == len(names)


def test_rows_that_ended_a_week_ago_go_and_open_ones_never(config: Config, inbox: SqliteInbox, key: KeyPair) -> None:
    ended_ago = KEEP_HANDED_OFF_SECONDS + 60
    (done,) = store(inbox, "alice", ago_s=ended_ago + 60)
    inbox.ack([done.id], "alice", None, past(ended_ago))
    (open_row,) = store(inbox, "alice", ago_s=6 * 86_400, ttl_s=7 * 86_400)
    sweeper_of(config, inbox, key).sweep()
    assert inbox.row(done.id) is None
    assert inbox.unread("alice") == [open_row]


def test_the_time_that_rows_are_kept_can_be_chosen_and_an_id_is_remembered_while_it_could_come_again(
    config: Config, inbox: SqliteInbox, key: KeyPair
) -> None:
    """F21: an envelope of the same id may still lie in a spool when the row that it became is gone already."""
    sender = KeyPair.generate()
    envelope = Envelope.seal(NewRow("bob", "alice", b"once", ttl_s=3600), signer(sender), past(100))
    inbox.append(envelope.row(1), past(100))
    (long_ago,) = store(inbox, "alice", ago_s=100, ttl_s=60)
    inbox.ack([envelope.id, long_ago.id], "alice", None, past(90))
    sweeper_of(config, inbox, key, keep_s=120).sweep()
    assert inbox.row(envelope.id) is not None
    sweeper_of(config, inbox, key, keep_s=60).sweep()
    assert inbox.row(envelope.id) is inbox.row(long_ago.id) is None
    with pytest.raises(AlreadyStored):
        inbox.append(envelope.row(1), Now.read())


def test_a_row_that_was_not_spooled_is_remembered_too(config: Config, inbox: SqliteInbox, key: KeyPair) -> None:
    (row,) = inbox.append(NewRow("bob", "alice", b"once", ttl_s=3600, signed=signer(key)), past(100))
    inbox.ack([row.id], "alice", None, past(90))
    sweeper_of(config, inbox, key, keep_s=60).sweep()
    seal = Seal(row.id, row.created_ms, row.expires_ms, 0, "k", row.signature or b"")
    with pytest.raises(AlreadyStored):
        inbox.append(NewRow("bob", "alice", b"once", signed=seal), Now.read())


def test_files_go_with_the_row_that_they_belong_to(
    config: Config, inbox: SqliteInbox, key: KeyPair, home: Path
) -> None:
    attachments, source = Attachments.of(config.paths), home / "notes.md"
    source.write_bytes(b"notes")
    with attachments.adding([source]) as files:
        (row,) = inbox.append(NewRow("bob", "alice", b"see", attachments=files), past(100))
    attachments.hand_over(row)
    sweeper = sweeper_of(config, inbox, key, keep_s=60)
    sweeper.sweep()
    inbox.ack([row.id], "alice", None, past(90))
    assert len(os.listdir(config.paths.blobs)) == len(os.listdir(config.paths.files)) == 1
    sweeper.sweep()
    assert os.listdir(config.paths.blobs) == os.listdir(config.paths.files) == []


def test_a_name_enrolled_anew_does_not_inherit_the_old_mail(config: Config, inbox: SqliteInbox, key: KeyPair) -> None:
    ensure_home(config, explicit=True)
    now_s = Now.read().ms / 1000
    sweeper = sweeper_of(config, inbox, key)

    def registry() -> Registry:
        return read_registry(config.paths)

    (early,) = store(inbox, "alice", ago_s=1)
    enrolment.enroll(config.paths, "alice", config.hub_id, now_s)
    sweeper.open_boxes(registry())
    assert inbox.unread("alice") == [early]  # what came before the first enrolment is inherited
    enrolment.close(config.paths, "alice", now_s)
    enrolment.enroll(config.paths, "alice", config.hub_id, now_s)
    sweeper.open_boxes(registry())
    assert inbox.unread("alice") == []
    assert "wakehub-publisher" not in inbox.boxes()
    sweeper.open_boxes(None)


class BusyOnce(SqliteInbox):
    """A record that another process has locked the first time; `sweeps` are the times it was swept."""

    sweeps = 0

    def expire(self, *args: object, **options: object) -> list[object]:  # type: ignore[override]
        self.sweeps += 1
        if self.sweeps == 1:
            raise RecordBusy("the record is locked")
        return super().expire(*args, **options)  # type: ignore[arg-type, return-value]


async def test_trouble_with_the_record_is_met_by_the_next_round(
    config: Config, inbox: SqliteInbox, key: KeyPair, autojump_clock: MockClock
) -> None:
    store(inbox, "alice", ago_s=61)
    began = trio.current_time()
    with BusyOnce.open(config.paths.record) as busy:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sweeper_of(config, busy, key).run)
            while not inbox.count_unread("bob"):  # noqa: ASYNC110 - the record tells nobody when the notice comes
                await trio.sleep(SWEEP_SECONDS / 10)  # on a clock that jumps
            nursery.cancel_scope.cancel()
    assert busy.sweeps >= 2
    assert trio.current_time() - began >= SWEEP_SECONDS


@pytest.mark.parametrize("rows", [0, 1])
def test_a_second_sweep_finds_nothing(config: Config, inbox: SqliteInbox, key: KeyPair, rows: int) -> None:
    store(inbox, *["alice"] * rows, ago_s=61)
    sweeper = sweeper_of(config, inbox, key)
    sweeper.sweep()
    token = inbox.changed()
    sweeper.sweep()
    assert inbox.changed() == token
