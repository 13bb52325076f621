"""Agents that come and go, each with a lane of its own: `wakehub relay` (receive.md §4)."""

import json
import signal
from collections.abc import Awaitable, Callable, Collection, Hashable
from functools import partial
from pathlib import Path

import pytest
import trio
from fake_claude import Does, fake_claude, until
from relay_world import KILLED_BEFORE_ACKNOWLEDGING, World, ended, stopped
from trio.testing import MockClock

from wakehub.client.credentials import Credentials
from wakehub.errors import Exit
from wakehub.inbox.clock import Now
from wakehub.inbox.leases import Lease
from wakehub.inbox.refusals import RecordDamaged
from wakehub.processes import ProcessId
from wakehub.relay.backends import Backend, HandedOff, NotNow, Outcome, OutputGone
from wakehub.relay.backends.claude.deliver import Sessions
from wakehub.relay.endings import Endings
from wakehub.relay.keyring import Keyring
from wakehub.relay.listener import Assignment, Listener
from wakehub.relay.message import Message
from wakehub.relay.options import ListenOptions, ToClaude

NOW_S = 1_800_000_000


class Agents(Backend):
    """Agents of whom some are there; each takes as long for a message as `seconds` says, or answers as it says."""

    is_apart = True
    deadline_s = 90.0

    def __init__(self, *there: str, **seconds: float | Outcome | BaseException) -> None:
        self.there = set(there)
        self.seconds = seconds
        self.got: list[tuple[str, str, float]] = []
        self.in_hand = 0

    def check(self) -> None:
        if "nobody" in self.there:
            raise OutputGone("nobody is there")

    def exists(self, agent: str) -> bool:
        return agent in self.there

    def list_agents(self) -> Collection[Hashable]:
        return set(self.there)

    async def deliver(self, message: Message) -> Outcome:
        answer = self.seconds.get(message.row.recipient.rpartition("/")[2], 0.0)
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, int | float):
            self.in_hand += 1
            await trio.sleep(answer)
            self.in_hand -= 1
            answer = HandedOff("read")
        self.got.append((message.row.recipient, message.text or "", trio.current_time()))
        return answer


def listener(world: World, backend: Backend, *names: str, **options: object) -> Listener:
    held = names or ("acme/",)
    agent = "acme/relay" if held == ("acme/",) else held[0]
    key = world.agent(agent)
    lease = world.inbox.leases.acquire(held, ProcessId.own(), agent, Now.read())
    assert isinstance(lease, Lease)
    credentials = Credentials(agent, "wakehub", key.pair, world.config.paths.bundle(agent))
    task = Assignment(ListenOptions(**options), held, world.config, credentials, False)  # type: ignore[arg-type]
    keyring = Keyring(world.config.paths)
    return Listener(task, world.inbox, lease, backend, keyring, wall=lambda: NOW_S + trio.current_time())


async def run(one: Listener, until_then: Callable[[], Awaitable[None]] = trio.sleep_forever) -> Exit:
    return await one.run(Endings(until_then, trio.sleep_forever))


async def test_rows_of_an_agent_that_is_not_there_are_not_touched_and_it_is_said_why(
    world: World, autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    here, away = *world.store("x", to="acme/here"), *world.store("y", to="acme/away")
    agents = Agents("acme/here")
    await run(listener(world, agents), partial(trio.sleep, 3600))
    assert world.states([here, away]) == ["handed_off", "unread"]
    assert [event.kind for event in world.inbox.events(away)] == ["stored", "attempt_failed"]
    assert world.event(away, "attempt_failed").detail == "its agent is not there"
    assert capsys.readouterr().err.count(f"{away} stays unread: its agent is not there") == 1
    (header,) = world.inbox.headers([away])
    assert (header.attempts, header.redelivery) == (0, 0)


async def test_an_agent_that_comes_gets_them_within_a_second(world: World, autojump_clock: MockClock) -> None:
    """F37."""
    ids = world.store("x", "y", to="acme/late")
    agents = Agents()

    async def come() -> None:
        await trio.sleep(30.5)
        agents.there.add("acme/late")
        await until(lambda: len(agents.got) == 2)

    await run(listener(world, agents), come)
    assert world.states(ids) == ["handed_off"] * 2
    assert all(30.5 <= at <= 32 for _, _, at in agents.got)
    assert world.event(ids[0], "handed_off").woken_by == "agent"


async def test_a_slow_agent_keeps_no_other_waiting_and_its_own_come_in_order(
    world: World, autojump_clock: MockClock
) -> None:
    world.store("1", "2", to="acme/slow")
    world.store("a", sender="carl", to="acme/slow")
    world.store("3", "4", to="acme/quick")
    agents = Agents("acme/slow", "acme/quick", slow=20.0)
    await run(listener(world, agents), partial(trio.sleep, 100))
    quick = [at for name, _, at in agents.got if name == "acme/quick"]
    slow = [(text, at) for name, text, at in agents.got if name == "acme/slow"]
    assert max(quick) < 1
    assert [text for text, _ in slow] == ["1", "2", "a"]
    assert [at for _, at in slow] == pytest.approx([20, 40, 60], abs=1)


async def test_a_row_that_comes_while_its_lane_is_busy_is_found(world: World, autojump_clock: MockClock) -> None:
    world.store("1", to="acme/slow")
    agents = Agents("acme/slow", slow=20.0)
    one = listener(world, agents)

    async def add() -> None:
        await trio.sleep(10)
        world.store("2", to="acme/slow")
        await until(lambda: len(agents.got) == 2)

    await run(one, add)
    assert [at for _, _, at in agents.got] == pytest.approx([20, 40], abs=1)


async def test_an_agent_that_goes_in_the_middle_leaves_the_rest_unread(world: World, autojump_clock: MockClock) -> None:
    ids = world.store("1", "2", to="acme/x")
    agents = Agents("acme/x", x=5.0)

    async def go() -> None:
        await until(lambda: agents.in_hand)
        agents.there.clear()
        await trio.sleep(3600)

    await run(listener(world, agents), go)
    assert world.states(ids) == ["handed_off", "unread"]


async def test_a_row_that_is_put_back_is_due_by_itself(world: World, autojump_clock: MockClock) -> None:
    """The wait for it, a second in real time, begins when its lane ends, whatever else was waited for."""
    (row_id,) = world.store("x", to="acme/x")
    agents = Agents("acme/x", x=NotNow("later", busy=True))
    await run(listener(world, agents), lambda: until(lambda: len(agents.got) == 2))
    due = world.event(row_id, "attempt_failed")
    assert due.retry_ms is not None
    assert due.retry_ms - due.at_ms == 1000


async def test_the_first_wait_can_be_longer(world: World, autojump_clock: MockClock) -> None:
    (row_id,) = world.store("x", to="acme/x")
    agents = Agents("acme/x", x=NotNow("later", retry_s=60))
    await run(listener(world, agents), lambda: until(lambda: agents.got))
    event = world.event(row_id, "attempt_failed")
    assert event.retry_ms is not None
    assert event.retry_ms - event.at_ms == 60_000


async def test_once_ends_when_every_lane_has(world: World, autojump_clock: MockClock) -> None:
    ids = [*world.store("1", to="acme/slow"), *world.store("2", "3", to="acme/quick"), *world.store("4", to="acme/off")]
    agents = Agents("acme/slow", "acme/quick", slow=20.0)
    assert await run(listener(world, agents, once=True)) is Exit.DONE
    assert world.states(ids) == ["handed_off"] * 3 + ["unread"]
    assert trio.current_time() == pytest.approx(20, abs=1)


async def test_once_with_nobody_there_says_what_is_left(
    world: World, autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    world.store("1", to="acme/off")
    assert await run(listener(world, Agents(), once=True)) is Exit.NOT_REACHED
    assert "1 unread for acme/ left for later" in capsys.readouterr().err


async def test_a_stop_lets_every_row_in_hand_finish_for_a_second(world: World, autojump_clock: MockClock) -> None:
    ids = [*world.store("1", to="acme/quick"), *world.store("2", to="acme/slow")]
    agents = Agents("acme/slow", "acme/quick", slow=60.0, quick=0.5)
    await run(listener(world, agents), lambda: until(lambda: agents.in_hand == 2))
    assert world.states(ids) == ["handed_off", "unread"]
    assert [header.redelivery for header in world.inbox.headers(ids)] == [0, 1]


async def test_what_goes_wrong_in_a_lane_ends_the_listener(world: World, autojump_clock: MockClock) -> None:
    world.store("1", to="acme/bad")
    with pytest.raises(RecordDamaged):
        await run(listener(world, Agents("acme/bad", bad=RecordDamaged("damaged"))))


async def test_nobody_there_at_all_ends_it(world: World, autojump_clock: MockClock) -> None:
    agents = Agents()

    async def go() -> None:
        await trio.sleep(10)
        agents.there.add("nobody")
        await trio.sleep_forever()

    with pytest.raises(OutputGone):
        await run(listener(world, agents), go)


async def test_a_more_specific_holder_in_the_namespace_keeps_its_rows(world: World, autojump_clock: MockClock) -> None:
    (row_id,) = world.store("1", to="acme/x")
    world.inbox.leases.acquire(["acme/x"], ProcessId.own(), "acme/x", Now.read())
    agents = Agents("acme/x")
    await run(listener(world, agents), partial(trio.sleep, 100))
    assert world.states([row_id]) == ["unread"]


# --- with sessions ---


async def test_a_session_that_was_busy_elsewhere_gets_all_of_it_in_order(
    world: World, autojump_clock: MockClock
) -> None:
    """F8: the agent is away for ten minutes, five messages arrive: all are kept, none failed, each handed off once."""
    async with fake_claude(world.directory / "c") as claude:
        backend = Sessions(ToClaude(exit_after_s=0), ["acme/"], world.config.paths, claude.environ)
        ids = world.store(*"12345", to="acme/review")

        async def play() -> None:
            await trio.sleep(600)
            assert world.states(ids) == ["unread"] * 5
            session = await claude.start("review", Does.DELAY)
            await until(lambda: world.states(ids) == ["handed_off"] * 5)
            assert [got.row_id for got in session.got] == ids

        await run(listener(world, backend), play)
    assert all(header.attempts == 0 for header in world.inbox.headers(ids))
    assert world.event(ids[0], "handed_off").proof == "transcript"


async def test_a_sender_is_never_told_that_a_dead_session_has_it(world: World, autojump_clock: MockClock) -> None:
    """F2: the record of the session remains, its process does not."""
    async with fake_claude(world.directory / "c") as claude:
        session = await claude.start()
        session.die()
        backend = Sessions(ToClaude(exit_after_s=0), ["acme/"], world.config.paths, claude.environ)
        ids = world.store("x", to="acme/review")
        await run(listener(world, backend), partial(trio.sleep, 3600))
    assert world.states(ids) == ["unread"]
    assert [event.kind for event in world.inbox.events(ids[0])] == ["stored", "attempt_failed"]
    assert world.event(ids[0], "attempt_failed").detail == "no session called review is running"


# --- as processes ---


async def test_relay_as_people_run_it(world: World) -> None:
    ids = [*world.store("one", to="acme/review"), *world.store("two", to="acme/absent")]
    async with fake_claude(world.directory / "c") as claude:
        session = await claude.start("review", token="t")
        process = world.start("relay", "--namespace", "acme/", "--backend", "claude", environ=claude.environ)
        await trio.to_thread.run_sync(world.until_state, ids[0], "handed_off")
        late = await claude.start("absent")
        await trio.to_thread.run_sync(world.until_state, ids[1], "handed_off")
        status, said = await trio.to_thread.run_sync(stopped, process)
    assert status == 0
    assert "listening as acme/ (as given) until stopped; each message to its Claude Code session" in said
    assert [got.row_id for got in (*session.got, *late.got)] == ids
    event = world.event(ids[0], "handed_off")
    assert (event.by, event.proof) == ("acme/", "transcript")
    assert world.event(ids[1], "handed_off").woken_by == "agent"


async def test_killed_between_the_proof_and_the_acknowledgement_it_comes_again_with_its_mark(world: World) -> None:
    """F17."""
    (row_id,) = world.store("x", to="acme/review")
    arguments = ("--as", "acme/review", "--once", "--backend", "claude")
    async with fake_claude(world.directory / "c") as claude:
        session = await claude.start()
        killed = world.listen(*arguments, environ=claude.environ, command=KILLED_BEFORE_ACKNOWLEDGING)
        assert await trio.to_thread.run_sync(killed.wait, 20) == -signal.SIGKILL
        assert world.states([row_id]) == ["claimed"]
        again = world.listen(*arguments, environ=claude.environ)
        assert (await trio.to_thread.run_sync(ended, again))[0] == 0
    assert world.states([row_id]) == ["handed_off"]
    assert ["redelivery 1]" in got.text for got in session.got] == [False, True]


def test_a_relay_takes_its_namespace_over_from_the_one_before(world: World, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("relay", "--namespace", "acme/", "--poll", "1", "--exec", "sh", "-c", f"cat >>{out}")
    first = world.start(*arguments)
    world.until_held("acme/")
    second = world.start(*arguments)
    status, said = ended(first)
    assert status == 75
    assert f"displaced by pid {second.pid}" in said
    (row_id,) = world.store("x", to="acme/any/one")
    world.until_state(row_id, "handed_off")
    assert json.loads(out.read_text())["to"] == "acme/any/one"
    assert stopped(second)[0] == 0


def test_a_relay_without_any_session_ends_and_frees_its_name(world: World) -> None:
    ids = world.store("x", to="acme/review")
    relay = world.start(
        "relay", "--namespace", "acme/", "--backend", "claude", "--opt", "exit_after=1",
        environ={"CLAUDE_CONFIG_DIR": str(world.directory / "c")},
    )  # fmt: skip
    status, said = ended(relay)
    assert status == 74
    assert "no Claude Code session has been running for 1 s" in said
    assert not world.is_held("acme/")
    assert world.states(ids) == ["unread"]


def test_a_relay_says_what_it_needs(world: World) -> None:
    status, said = ended(world.start("relay", "--namespace", "acme/"))
    assert status == 2
    assert "--backend claude, or --exec CMD" in said
    status, said = ended(world.start("relay", "--namespace", "acme/", "--backend", "nope"))
    assert status == 2
    assert "one of file, claude, or --exec" in said
    status, said = ended(world.start("relay", "--backend", "claude"))
    assert status == 2
    assert "--namespace" in said
