"""The loop itself: real record, scripted backend, hours played in milliseconds where no real time is involved."""

import itertools
import math
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio
from relay_world import World
from trio.testing import MockClock

from wakehub.client.credentials import Credentials
from wakehub.client.doorbell import Reason
from wakehub.errors import Exit, Held, Unsafe
from wakehub.identity import enrolment
from wakehub.inbox.clock import Now
from wakehub.inbox.leases import Lease
from wakehub.inbox.refusals import NotStored, RecordBusy
from wakehub.processes import ProcessId
from wakehub.relay.backends import Backend, HandedOff, Never, NotNow, Outcome, OutputGone
from wakehub.relay.endings import Endings
from wakehub.relay.keyring import Keyring
from wakehub.relay.listener import Assignment, Listener
from wakehub.relay.message import Message
from wakehub.relay.notices import tell
from wakehub.relay.options import ListenOptions

NOW_S = 1_800_000_000


class Agent(Backend):
    """A backend that answers as the test says; behind the last answer it takes everything."""

    def __init__(self, *answers: Outcome | BaseException | float) -> None:
        self.answers = list(answers)
        self.got: list[str] = []
        self.reached = trio.Event()

    def check(self) -> None:
        pass

    async def deliver(self, message: Message) -> Outcome:
        self.got.append(message.text or "")
        self.reached.set()
        answer = self.answers.pop(0) if self.answers else HandedOff("read")
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, float):  # takes this long
            await trio.sleep(answer)
            return HandedOff("read")
        return answer


class Record:
    """The record, with trouble where the test wants it, counting what is asked; `behind` hears of each answer."""

    def __init__(self, world: World, **trouble: list[Exception]) -> None:
        self._inbox = world.inbox
        self._trouble = trouble
        self.asked: list[tuple[str, float]] = []
        self.behind: Callable[[str, object], None] = lambda asked, found: None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inbox, name)
        if not callable(found):
            return found

        def ask(*arguments: Any, **named: Any) -> Any:
            self.asked.append((name, trio.current_time()))
            if self._trouble.get(name):
                raise self._trouble[name].pop(0)
            answer = found(*arguments, **named)
            self.behind(name, answer)
            return answer

        return ask

    def times(self, name: str) -> list[float]:
        return [at for asked, at in self.asked if asked == name]


def listener(world: World, agent: Agent, inbox: Any = None, *, poll_s: int = 60, **options: Any) -> Listener:
    key = world.agent("alice")
    lease = world.inbox.leases.acquire(["alice"], ProcessId.own(), "alice", Now.read())
    assert isinstance(lease, Lease)
    credentials = Credentials("alice", "wakehub", key.pair, world.config.paths.bundle("alice"))
    task = Assignment(ListenOptions(**options), ("alice",), world.config.changed(poll_s=poll_s), credentials, False)
    return Listener(
        task,
        inbox or world.inbox,
        lease,
        agent,
        Keyring(world.config.paths, tell),
        wall=lambda: NOW_S + trio.current_time(),
    )


async def run_for(seconds: float, one: Listener) -> None:
    """Run it so long; then it is told to stop, as by a signal."""

    async def signalled() -> None:
        await trio.sleep(seconds)

    assert await run(one, signalled) is Exit.DONE


async def run(one: Listener, signalled: Callable[[], Awaitable[None]] = trio.sleep_forever) -> Exit:
    return await one.run(Endings(signalled, trio.sleep_forever))


async def until_told(event: Callable[[], bool]) -> None:
    while not event():  # noqa: ASYNC110  # nothing announces it
        await trio.sleep(0.01)


async def test_the_backstop_is_armed_without_any_hub_and_an_idle_hour_is_silent(
    world: World, autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """F33."""
    agent, record = Agent(), Record(world)
    await run_for(3600, listener(world, agent, record))
    read = record.times("next_for")
    gaps = [b - a for a, b in itertools.pairwise(read)]
    assert max(gaps) <= 60
    assert len(read) <= 62
    assert agent.got == []
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1  # there is no hub


@pytest.mark.parametrize("step", ["next_for", "next_due", "hand_off"])
async def test_a_row_that_comes_while_the_listener_looks_does_not_wait_for_the_backstop(
    world: World, autojump_clock: MockClock, step: str
) -> None:
    """F23: it is stored and rung for behind the step that can no longer see it."""
    world.store("first")
    agent, record = Agent(), Record(world)
    one = listener(world, agent, record)

    def come(asked: str, found: object) -> None:
        if asked == step and (step != "next_for" or found is None) and not late:
            late.extend(world.store("late"))
            one._bell.ring(Reason.WAKE)

    late: list[str] = []
    record.behind = come
    await run(one, lambda: until_told(lambda: len(agent.got) == 2))
    assert agent.got == ["first", "late"]
    assert trio.current_time() < 1
    assert world.event(late[0], "handed_off").woken_by in ("wake", "start")


async def test_a_wait_without_a_hub_sees_what_came_before_it_watched_the_record(
    world: World, autojump_clock: MockClock
) -> None:
    """F23: stored behind the first look, with nobody to ring for it."""
    agent, record = Agent(), Record(world)
    one = listener(world, agent, record, once=True, wait_s=300)

    def come(asked: str, found: object) -> None:
        if asked == "next_for" and not late:
            late.extend(world.store("late"))

    late: list[str] = []
    record.behind = come
    assert await run(one) is Exit.DONE
    assert agent.got == ["late"]
    assert trio.current_time() < 1
    assert world.event(late[0], "handed_off").woken_by == "watch"


async def test_a_shorter_backstop(world: World, autojump_clock: MockClock) -> None:
    record = Record(world)
    await run_for(100, listener(world, Agent(), record, poll_s=5))
    assert len(record.times("next_for")) == pytest.approx(21, abs=1)


async def test_the_lease_is_checked_every_2_s_and_renewed_every_30(world: World, autojump_clock: MockClock) -> None:
    one = listener(world, Agent())
    checks: list[tuple[str, float]] = []
    leases = world.inbox.leases
    real = {"find": leases.find, "renew": leases.renew}

    def watch(name: str) -> Callable[..., Lease | None]:
        def ask(*arguments: Any) -> Lease | None:
            checks.append((name, trio.current_time()))
            return real[name](*arguments)  # type: ignore[operator]

        return ask

    leases.find, leases.renew = watch("find"), watch("renew")  # type: ignore[method-assign]
    try:
        await run_for(301, one)  # the tenth renewal and the end must not fall together
    finally:
        leases.find, leases.renew = real["find"], real["renew"]  # type: ignore[method-assign]
    at = [when for _, when in checks]
    assert max(b - a for a, b in itertools.pairwise(at)) <= 2
    assert len([name for name, _ in checks if name == "renew"]) == 10


async def test_a_name_that_is_taken_over_ends_it(world: World, autojump_clock: MockClock) -> None:
    one = listener(world, Agent())

    async def take_over() -> None:
        await trio.sleep(5)
        world.inbox.leases.acquire(["alice"], ProcessId.own(), "alice", Now.read(), take_over=True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_over)
        with pytest.raises(Held, match="alice is no longer held here: displaced by pid"):
            await run(one)
    assert trio.current_time() <= 7


async def test_with_its_parent_gone_a_row_in_hand_is_put_back_at_once(world: World, autojump_clock: MockClock) -> None:
    """F83: a signal leaves it a second to finish; whoever would have read it is gone here."""
    (row_id,) = world.store("x")
    agent = Agent(5.5)
    agent.dies_with_parent = True
    with pytest.raises(OutputGone):
        await listener(world, agent).run(Endings(trio.sleep_forever, partial(trio.sleep, 5)))
    assert (agent.got, world.states([row_id])) == (["x"], ["unread"])
    assert trio.current_time() < 5.5


async def test_a_name_that_is_revoked_between_two_rows_gets_no_second_one(
    world: World, autojump_clock: MockClock
) -> None:
    """It is looked at before each hand-off, and not only every 2 s."""
    ids = world.store("one", "two")
    agent, record = Agent(), Record(world)
    one = listener(world, agent, record)

    def revoke(asked: str, found: object) -> None:
        if asked == "hand_off":
            enrolment.revoke(world.config.paths, "alice", time.time())

    record.behind = revoke
    with pytest.raises(Unsafe, match="alice was revoked"):
        await run(one)
    assert (agent.got, world.states(ids)) == (["one"], ["handed_off", "unread"])


async def test_a_row_in_hand_when_the_name_is_lost_is_not_acknowledged(world: World, autojump_clock: MockClock) -> None:
    (row_id,) = world.store("x")
    agent = Agent(3.0)
    one = listener(world, agent)

    async def take_over() -> None:
        await agent.reached.wait()
        world.inbox.leases.acquire(["alice"], ProcessId.own(), "alice", Now.read(), take_over=True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_over)
        with pytest.raises(Held):
            await run(one)
    assert all(event.kind != "handed_off" for event in world.inbox.events(row_id))


async def test_a_stop_lets_a_row_in_hand_finish(world: World, autojump_clock: MockClock) -> None:
    ids = world.store("x", "y")
    agent = Agent(0.9)
    one = listener(world, agent)
    assert await run(one, agent.reached.wait) is Exit.DONE
    assert world.states(ids) == ["handed_off", "unread"]


async def test_a_stop_abandons_a_row_that_takes_too_long(world: World, autojump_clock: MockClock) -> None:
    ids = world.store("x")
    agent = Agent(60.0)
    assert await run(listener(world, agent), agent.reached.wait) is Exit.DONE
    assert world.states(ids) == ["unread"]
    assert world.inbox.headers(ids)[0].redelivery == 1


@pytest.mark.parametrize("in_doubt", [True, False])
async def test_an_output_that_is_gone_puts_the_row_back(
    world: World, autojump_clock: MockClock, in_doubt: bool
) -> None:
    ids = world.store("x", "y")
    with pytest.raises(OutputGone):
        await run(listener(world, Agent(OutputGone("gone", in_doubt=in_doubt))))
    assert world.states(ids) == ["unread"] * 2
    assert [header.redelivery for header in world.inbox.headers(ids)] == [int(in_doubt), 0]


@pytest.mark.parametrize("trouble", [RecordBusy("busy"), NotStored("disk full")])
@pytest.mark.parametrize("where", ["next_for", "claim", "hand_off"])
async def test_a_record_that_is_busy_or_full_is_asked_again_and_nothing_is_printed_twice(
    world: World, autojump_clock: MockClock, where: str, trouble: Exception
) -> None:
    ids = world.store("x")
    agent = Agent()
    one = listener(world, agent, Record(world, **{where: [trouble, trouble]}), once=True)
    assert await run(one) is Exit.DONE
    assert agent.got == ["x"]
    assert world.states(ids) == ["handed_off"]
    assert trio.current_time() == pytest.approx(4, abs=0.1)


async def test_a_row_that_can_never_be_delivered_ends_as_failed(world: World, autojump_clock: MockClock) -> None:
    bad, good = world.store("bad", "good")
    one = listener(world, Agent(Never(65, "not for this agent")), once=True)
    assert await run(one) is Exit.DONE
    assert world.states([bad, good]) == ["failed", "handed_off"]
    event = world.event(bad, "failed")
    assert (event.code, event.detail) == (65, "not for this agent")


@pytest.mark.parametrize(
    ("answer", "where", "state"),
    [(NotNow("busy"), "attempt_failed", "unread"), (Never(65, "no"), "fail", "failed")],
)
async def test_an_outcome_is_recorded_although_the_record_was_busy(
    world: World, autojump_clock: MockClock, answer: Outcome, where: str, state: str
) -> None:
    ids = world.store("x")
    agent = Agent(answer)
    await run_for(3, listener(world, agent, Record(world, **{where: [RecordBusy("busy")]})))
    assert agent.got == ["x"]
    assert world.states(ids) == [state]


@pytest.mark.parametrize("busy", [True, False])
async def test_a_row_that_fails_comes_again_by_itself_after_a_second(world: World, busy: bool) -> None:
    """F8: busy is not failure; the wait is real."""
    (row_id,) = world.store("x")
    agent = Agent(NotNow("later", busy=busy))
    one = listener(world, agent)
    await run(one, lambda: until_told(lambda: len(agent.got) == 2))
    assert world.states([row_id]) == ["handed_off"]
    failed, done = world.event(row_id, "attempt_failed"), world.event(row_id, "handed_off")
    assert failed.retry_ms is not None
    assert done.at_ms >= failed.retry_ms >= failed.at_ms + 1000
    assert done.woken_by == "retry"
    (header,) = world.inbox.headers([row_id])
    assert (header.attempts, header.failures) == (1, 0 if busy else 1)


async def test_many_backstops_try_a_busy_agent_no_more_often_than_its_row_waits(
    world: World, autojump_clock: MockClock
) -> None:
    """F18: one attempt is outstanding, however often the listener looks meanwhile."""
    (row_id,) = world.store("x")
    agent, record = Agent(*[NotNow("busy", busy=True)] * 20), Record(world)
    began = time.monotonic()
    await run_for(120, listener(world, agent, record, poll_s=1))
    real_s = time.monotonic() - began  # rows wait by the real clock
    assert len(record.times("next_for")) >= 100
    assert 1 <= len(agent.got) <= 1 + math.log2(1 + real_s)
    (header,) = world.inbox.headers([row_id])
    assert (header.attempts, header.failures) == (len(agent.got), 0)


async def test_once_ends_behind_what_was_there(world: World, autojump_clock: MockClock) -> None:
    world.store("a", "b", "c")
    agent = Agent()
    assert await run(listener(world, agent, once=True)) is Exit.DONE
    assert agent.got == ["a", "b", "c"]
    assert trio.current_time() == 0


async def test_once_with_a_wait_gives_up_at_its_time(world: World, autojump_clock: MockClock) -> None:
    assert await run(listener(world, Agent(), once=True, wait_s=300)) is Exit.NOTHING
    assert trio.current_time() == pytest.approx(300, abs=0.1)


@pytest.mark.parametrize("interrupted", [False, True])
async def test_a_stop_before_the_first_row_is_not_taken_for_a_row(
    world: World, autojump_clock: MockClock, interrupted: bool
) -> None:
    """An agent's loop takes 0 for "a message came"."""
    ends = Endings(partial(trio.sleep, 5), trio.sleep_forever, lambda: interrupted)
    one = listener(world, Agent(), once=True, wait_s=300)
    if interrupted:
        with pytest.raises(KeyboardInterrupt):
            await one.run(ends)
    else:
        assert await one.run(ends) is Exit.NOTHING


@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.parametrize("once", [False, True])
async def test_a_stop_behind_a_row_or_of_one_that_stays_is_an_end_like_any(
    world: World, autojump_clock: MockClock, once: bool, interrupted: bool
) -> None:
    world.store("x")
    agent = Agent(0.5)
    one = listener(world, agent, once=once)
    assert await one.run(Endings(agent.reached.wait, trio.sleep_forever, lambda: interrupted)) is Exit.DONE


@pytest.mark.parametrize(
    ("answer", "said"),
    [(NotNow("no space"), "no space"), (NotNow("busy", busy=True), "busy"), (Never(65, "not for it"), "not for it")],
)
async def test_once_with_a_row_that_cannot_be_handed_off_is_not_nothing(
    world: World, autojump_clock: MockClock, capsys: pytest.CaptureFixture[str], answer: Outcome, said: str
) -> None:
    (row_id,) = world.store("x")
    assert await run(listener(world, Agent(answer), once=True)) is Exit.NOT_REACHED
    told = capsys.readouterr().err
    assert row_id in told
    assert said in told


async def test_once_with_a_row_that_waits_for_its_next_try_is_not_nothing(
    world: World, autojump_clock: MockClock
) -> None:
    """Another listener failed just before; rows of other senders than the one asked for do not count."""
    world.store("x")
    first = listener(world, Agent(NotNow("no space")), once=True)
    assert await run(first) is Exit.NOT_REACHED
    world.inbox.leases.release(first._token, Now.read())
    second = listener(world, Agent(), once=True)
    assert await run(second) is Exit.NOT_REACHED
    world.inbox.leases.release(second._token, Now.read())
    assert await run(listener(world, Agent(), once=True, sender="carl")) is Exit.NOTHING


async def test_a_registry_that_cannot_be_read_is_blamed_and_not_the_sender(
    world: World, autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    world.store("one", "two")
    agent = Agent()
    one = listener(world, agent)
    world.config.paths.audit.write_bytes(b"damaged")
    await run_for(1, one)
    told = [line for line in capsys.readouterr().err.splitlines() if "signature" in line]
    assert len(told) == 1
    assert "no signature can be verified: " in told[0]
    assert agent.got == ["one", "two"]
