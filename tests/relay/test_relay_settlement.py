"""What becomes of a row that was handed over, on a real record."""

from dataclasses import replace

import pytest
from relay_world import World

from wakehub.client.doorbell import Reason
from wakehub.inbox.clock import Now
from wakehub.inbox.leases import Lease
from wakehub.inbox.rows import Row
from wakehub.processes import ProcessId
from wakehub.relay.backends import HandedOff, Never, NotNow
from wakehub.relay.settlement import Settlement


def hold(world: World) -> Lease:
    lease = world.inbox.leases.acquire(["alice"], ProcessId.own(), "alice", Now.read())
    assert isinstance(lease, Lease)
    return lease


def claimed(world: World, lease: Lease, **fields: str) -> Row:
    (row_id,) = world.store("x", **fields)
    row = world.inbox.claim(row_id, lease.token, Now.read())
    assert row is not None
    return row


def test_the_waits_between_attempts_double_to_10_min(world: World) -> None:
    """F18: attempts are counted and capped."""
    lease = hold(world)
    settlement = Settlement(world.inbox, lease.token, is_patient=True)
    waits = []
    for attempts in (0, 1, 2, 9, 10, 40, 10_000):
        row = claimed(world, lease, sender=f"s{attempts}")
        settlement.put_back(replace(row, attempts=attempts), NotNow("busy", busy=True))
        event = world.event(row.id, "attempt_failed")
        assert event.retry_ms is not None
        waits.append((event.retry_ms - event.at_ms) // 1000)
    assert waits == [1, 2, 4, 512, 600, 600, 600]


async def test_why_a_row_stays_is_said_once_until_the_reason_changes(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    lease = hold(world)
    settlement = Settlement(world.inbox, lease.token, is_patient=True)
    row = claimed(world, lease)
    for outcome in (NotNow("full 1"), NotNow("full 2"), NotNow("busy", busy=True), NotNow("gone"), NotNow("full 3")):
        await settlement.settle(row, outcome, Reason.START)
    said = [f"wakehub: {row.id} stays unread: {why}" for why in ("full 1", "gone", "full 3")]
    assert capsys.readouterr().err.splitlines() == said
    await settlement.settle(row, HandedOff("read"), Reason.START)
    await settlement.settle(row, NotNow("full 4"), Reason.START)
    assert "full 4" in capsys.readouterr().err


async def test_an_agent_that_stays_busy_is_trouble(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    lease = hold(world)
    settlement = Settlement(world.inbox, lease.token, is_patient=True)
    row = claimed(world, lease)
    for attempts in range(5):
        assert ("busy" in capsys.readouterr().err) == (attempts == 3)  # once the third one failed
        await settlement.settle(replace(row, attempts=attempts), NotNow("busy", busy=True), Reason.START)


async def test_without_patience_a_busy_agent_is_trouble(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    lease = hold(world)
    row = claimed(world, lease)
    await Settlement(world.inbox, lease.token, is_patient=False).settle(row, NotNow("busy", busy=True), Reason.START)
    assert f"{row.id} stays unread: busy" in capsys.readouterr().err


async def test_what_is_no_longer_ours_is_not_counted(world: World) -> None:
    lease = hold(world)
    settlement = Settlement(world.inbox, lease.token, is_patient=True)
    first, second = claimed(world, lease), claimed(world, lease, sender="carl")
    await settlement.settle(first, HandedOff("read"), Reason.START)
    await settlement.settle(second, Never(65, "no"), Reason.START)
    assert (settlement.handed_off, settlement.refused) == (1, 1)
    third, fourth = claimed(world, lease), claimed(world, lease, sender="carl")
    world.inbox.leases.release(lease.token, Now.read())
    await settlement.settle(third, HandedOff("read"), Reason.START)
    await settlement.settle(fourth, Never(65, "no"), Reason.START)
    settlement.abandon(fourth, in_doubt=True)
    assert (settlement.handed_off, settlement.refused) == (1, 1)
    assert not {"handed_off", "failed"} & set(world.states([third.id, fourth.id]))
