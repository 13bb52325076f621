"""What the publisher does to the record now and then."""

import pytest
import trio
from trio.testing import MockClock

from wakehub.client.home import ensure_home
from wakehub.config import Config
from wakehub.identity import enrolment
from wakehub.identity.keys import KeyPair
from wakehub.inbox.clock import Now
from wakehub.inbox.signing import signer, verify_row
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.inbox.store import NewRow, RecordBusy, Row
from wakehub.limits import KEEP_HANDED_OFF_SECONDS, SWEEP_ROWS, SWEEP_SECONDS
from wakehub.publisher.sweep import Sweeper


def past(seconds: int) -> Now:
    return Now.read().later(-seconds * 1000)


def store(inbox: SqliteInbox, *recipients: str, ago_s: int, ttl_s: int = 60) -> list[Row]:
    return inbox.append([NewRow("bob", name, b"hi", ttl_s=ttl_s) for name in recipients], past(ago_s))


def test_an_expired_row_comes_back_to_its_sender_as_a_notice_that_wakes_nobody(
    inbox: SqliteInbox, key: KeyPair
) -> None:
    (row,) = store(inbox, "alice", ago_s=61)
    (fresh,) = store(inbox, "alice", ago_s=59)
    Sweeper(inbox, signer(key)).sweep()
    assert inbox.unread("alice") == [fresh]
    (notice,) = inbox.unread("bob")
    assert (notice.sender, notice.class_) == ("wakehub-publisher", "fyi")
    assert verify_row(notice, key.public) == "yes"
    assert row.id in str((notice.re, notice.body))
    assert [header.id for header in inbox.unhinted()] == [fresh.id]


def test_one_sweep_takes_all_of_them_however_many(inbox: SqliteInbox, key: KeyPair) -> None:
    names = [f"agent-{n % 8}" for n in range(SWEEP_ROWS + 9)]
    store(inbox, *names[:200], ago_s=8 * 86_400)
    store(inbox, *names[200:], ago_s=8 * 86_400)
    Sweeper(inbox, signer(key)).sweep()
    assert sum(inbox.count_unread(name) for name in set(names)) == 0
    assert inbox.count_unread("bob") == len(names)


def test_rows_that_ended_a_week_ago_go_and_open_ones_never(inbox: SqliteInbox, key: KeyPair) -> None:
    ended_ago = KEEP_HANDED_OFF_SECONDS + 60
    (done,) = store(inbox, "alice", ago_s=ended_ago + 60)
    inbox.ack([done.id], "alice", None, past(ended_ago))
    (open_row,) = store(inbox, "alice", ago_s=6 * 86_400, ttl_s=7 * 86_400)
    Sweeper(inbox, signer(key)).sweep()
    assert inbox.row(done.id) is None
    assert inbox.unread("alice") == [open_row]


def test_a_name_enrolled_anew_does_not_inherit_the_old_mail(config: Config, inbox: SqliteInbox, key: KeyPair) -> None:
    ensure_home(config, explicit=True)
    now_s = Now.read().ms / 1000
    sweeper = Sweeper(inbox, signer(key))

    def registry() -> enrolment.Registry:
        return enrolment.read_registry(config.paths)

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
            nursery.start_soon(Sweeper(busy, signer(key)).run)
            while inbox.count_unread("alice"):  # noqa: ASYNC110 - the record tells nobody
                await trio.sleep(SWEEP_SECONDS / 10)  # on a clock that jumps
            nursery.cancel_scope.cancel()
    assert busy.sweeps >= 2
    assert trio.current_time() - began >= SWEEP_SECONDS


@pytest.mark.parametrize("rows", [0, 1])
def test_a_second_sweep_finds_nothing(inbox: SqliteInbox, key: KeyPair, rows: int) -> None:
    store(inbox, *["alice"] * rows, ago_s=61)
    sweeper = Sweeper(inbox, signer(key))
    sweeper.sweep()
    token = inbox.changed()
    sweeper.sweep()
    assert inbox.changed() == token
