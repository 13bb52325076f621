"""Who is there for a name, as leases come and go (faults F2, F85)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from wakehub.client.presence import Presence, left_since, presence, stuck
from wakehub.inbox.clock import Now
from wakehub.inbox.leases import Lease
from wakehub.inbox.rows import NewRow
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.inbox.store import Inbox
from wakehub.limits import LEASE_VOID_SECONDS
from wakehub.processes import ProcessId

START = Now.read()


@pytest.fixture
def inbox(run_directory: Path) -> Iterator[Inbox]:
    with SqliteInbox.open(run_directory / "record.db") as opened:
        yield opened


def hold(inbox: Inbox, *names: str, process: ProcessId | None = None, take_over: bool = False) -> Lease:
    lease = inbox.leases.acquire(names, process or ProcessId.own(), names[0], START, take_over=take_over)
    assert isinstance(lease, Lease)
    return lease


def seen(inbox: Inbox, name: str = "acme/bob", seconds: float = 1) -> Presence:
    return presence(inbox.leases, name, START.later(round(seconds * 1000)))


def test_nobody_ever_listened(inbox: Inbox) -> None:
    found = seen(inbox)
    assert found == Presence("acme/bob", None, None)
    assert (found.state, found.since_ms) == ("never", None)


@pytest.mark.parametrize("name", ["acme/bob", "acme/"])
def test_a_listener_holds_the_name_or_a_namespace_above_it(inbox: Inbox, name: str) -> None:
    lease = hold(inbox, name)
    found = seen(inbox)
    assert found.listener is not None
    assert found.listener.token == lease.token
    assert (found.state, found.since_ms, found.last) == ("listening", START.ms, None)
    assert seen(inbox, "other/bob").state == "never"


def test_a_listener_that_left(inbox: Inbox) -> None:
    inbox.leases.release(hold(inbox, "acme/bob").token, START.later(500))
    found = seen(inbox)
    assert (found.state, found.since_ms) == ("left", START.ms + 500)


def test_a_listener_that_was_displaced_is_there_as_the_other_one(inbox: Inbox) -> None:
    hold(inbox, "acme/bob")
    second = hold(inbox, "acme/bob", take_over=True)
    found = seen(inbox)
    assert found.listener is not None
    assert found.listener.token == second.token
    inbox.leases.release(second.token, START.later(500))
    assert seen(inbox).state == "left"


def test_a_listener_whose_process_is_gone_died_at_its_last_sign_of_life(inbox: Inbox) -> None:
    hold(inbox, "acme/bob", process=ProcessId.own()._replace(started="another"))
    for _ in range(2):
        found = seen(inbox)
        assert (found.state, found.since_ms) == ("died", START.ms)
        inbox.leases.sweep(START.later(1000))


def test_a_listener_that_was_not_heard_of_for_too_long_counts_as_dead(inbox: Inbox) -> None:
    hold(inbox, "acme/bob", process=ProcessId.own()._replace(namespace=7))
    assert seen(inbox, seconds=LEASE_VOID_SECONDS - 1).state == "listening"
    assert seen(inbox, seconds=LEASE_VOID_SECONDS + 1).state == "died"


def test_the_more_specific_listener_counts(inbox: Inbox) -> None:
    hold(inbox, "acme/")
    specific = hold(inbox, "acme/bob")
    inbox.leases.release(specific.token, START.later(500))
    found = seen(inbox)
    assert found.listener is not None
    assert found.listener.names == ("acme/",)


# --- since when a listener leaves a row ---

MINUTE_MS = 60_000


def left(inbox: Inbox, to: str, minutes: float = 30) -> int | None:
    now = START.later(round(minutes * MINUTE_MS))
    (row,) = inbox.unread(to, limit=1)
    lease = inbox.leases.live(START.later(1))[0]
    return left_since(inbox, row, Presence(to, lease, None), now)


def test_who_holds_the_very_name_leaves_what_waits(inbox: Inbox) -> None:
    hold(inbox, "acme/bob")
    inbox.append(NewRow("alice", "acme/bob", b"hello"), START.later(5))
    assert left(inbox, "acme/bob") == START.ms + 5


def test_who_holds_a_namespace_does_not_leave_the_rows_of_an_agent_that_is_absent(inbox: Inbox) -> None:
    """A relay does not even claim them."""
    hold(inbox, "acme/")
    inbox.append(NewRow("alice", "acme/bob", b"hello"), START)
    assert left(inbox, "acme/bob") is None


def test_who_holds_a_namespace_leaves_what_it_has_in_hand(inbox: Inbox) -> None:
    lease = hold(inbox, "acme/")
    (row,) = inbox.append(NewRow("alice", "acme/bob", b"hello"), START)
    assert inbox.claim(row.id, lease.token, START.later(10)) is not None
    assert left(inbox, "acme/bob") == START.ms


def test_who_holds_a_namespace_and_said_why_it_does_not_try_leaves_nothing(inbox: Inbox) -> None:
    lease = hold(inbox, "acme/")
    (row,) = inbox.append(NewRow("alice", "acme/bob", b"hello"), START)
    there = Presence("acme/bob", lease, None)
    assert stuck(inbox, row, there) is None
    inbox.leave("acme/bob", lease.token, "asleep", START.later(4 * MINUTE_MS))
    assert left(inbox, "acme/bob", 5) is None
    why = stuck(inbox, row, there)
    assert why is not None
    assert (why.id, why.detail) == (row.id, "asleep")
    assert stuck(inbox, row, Presence("acme/bob", None, None)) is None


def test_what_was_tried_three_times_in_vain_is_stuck(inbox: Inbox) -> None:
    lease = hold(inbox, "acme/")
    (row,) = inbox.append(NewRow("alice", "acme/bob", b"hello"), START)
    there = Presence("acme/bob", lease, None)
    for tried in range(1, 4):
        assert stuck(inbox, row, there) is None
        now = START.later(tried)
        assert inbox.claim(row.id, lease.token, now)
        assert inbox.attempt_failed(row.id, lease.token, "busy", now.ms, now, busy=True)
    assert stuck(inbox, row, there) is not None


@pytest.mark.parametrize(("minutes", "is_left"), [(15, True), (35, False)])
def test_who_holds_a_namespace_leaves_what_it_tries_in_vain_until_it_tries_no_more(
    inbox: Inbox, minutes: float, is_left: bool
) -> None:
    lease = hold(inbox, "acme/")
    (row,) = inbox.append(NewRow("alice", "acme/bob", b"hello"), START)
    tried = START.later(10 * MINUTE_MS)
    inbox.leases.renew(lease.token, tried)
    assert inbox.claim(row.id, lease.token, tried) is not None
    assert inbox.attempt_failed(row.id, lease.token, "busy", tried.ms + 1_000, tried)
    assert (left(inbox, "acme/bob", minutes) is not None) == is_left
