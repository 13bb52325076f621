"""The Python API beside a real hub: woken at once, waking without a publisher, and hubs that are killed."""

import functools
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
import trio
from daemon_process import Daemon, until

import wakehub
from wakehub import files
from wakehub.client import own_sessions
from wakehub.client.receipts import State
from wakehub.config import Config
from wakehub.errors import Exit, Held, WakehubError
from wakehub.identity import enrolment
from wakehub.identity.allowlist import Allowlist, sign
from wakehub.identity.owner import load_owner, read_registry
from wakehub.identity.registry import to_allowlist
from wakehub.ops import health

PATIENCE_S = 60.0


class Hub:
    """A real hub of the instance that admits alice and bob; no publisher runs."""

    def __init__(self, config: Config, opened: ExitStack) -> None:
        self._config = config
        self._opened = opened
        for name in ("alice", "bob"):
            enrolment.enroll(config.paths, name, config.hub_id, time.time())
        self.sign()
        self.start()

    def sign(self) -> None:
        """An allowlist that does not run out while a test does."""
        found = to_allowlist(read_registry(self._config.paths), time.time())
        lasting = Allowlist(found.refreshed_at, 43_200, found.agents)
        files.replace(self._config.allowlist, sign(lasting, load_owner(self._config.paths)))

    def start(self) -> None:
        self._daemon = self._opened.enter_context(Daemon(self._config.paths.run.parent, "serve"))
        self._daemon.logs("hub ready")

    def kill(self) -> None:
        self._daemon.stop(9)

    def sessions(self) -> int:
        lines = health.read_metrics(self._config).splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("wakehub_recipients "))

    def has(self, sessions: int) -> None:
        """Wait until it has so many sessions, all of this process, which knows of them."""
        known = own_sessions._held.setdefault(self._config.hub_socket, [])
        until(lambda: self.sessions() == sessions == len(known), f"{sessions} sessions")


@pytest.fixture
def hub(instance: Config) -> Iterator[Hub]:
    with ExitStack() as opened:
        yield Hub(instance, opened)


def post(to: str, text: str, sender: str) -> wakehub.Sent:
    return wakehub.send(to, text, sender=sender)


async def post_from_trio(to: str, text: str, sender: str) -> wakehub.Sent:
    return await trio.to_thread.run_sync(post, to, text, sender)


async def has(hub: Hub, sessions: int) -> None:
    await trio.to_thread.run_sync(hub.has, sessions)


def states(sent: wakehub.Sent) -> list[State]:
    return [receipt.state for receipt in sent.receipts if receipt.state is not State.NOTE]


def said(sent: wakehub.Sent) -> str:
    return "\n".join(f"{receipt.state} {receipt.detail}" for receipt in sent.receipts)


def was_woken(record, sent: wakehub.Sent) -> bool:
    """Whether its reader looked because of the hub: for the wake, or still for the welcome when the wake came."""
    looked = [event.woken_by for event in record.events(sent.row_ids[0]) if event.kind == "handed_off"]
    return looked in (["wake"], ["welcome"])


async def test_a_subscribed_program_wakes_another_without_a_publisher(hub, record):
    async with wakehub.subscribe("alice") as alice, wakehub.subscribe("bob") as bob:
        await has(hub, 2)
        sent = await post_from_trio("alice", "hello", "bob")
        assert states(sent) == [State.STORED, State.HINTED], said(sent)
        with trio.fail_after(PATIENCE_S):
            message = await anext(alice)
            await message.ack()
            answer = await post_from_trio("bob", "hello too", "alice")
            await (await anext(bob)).ack()
    assert was_woken(record, sent)
    assert was_woken(record, answer)
    assert [event.proof for event in record.events(sent.row_ids[0]) if event.kind == "hinted"] == ["pong"]


def test_a_blocking_program_wakes_while_it_works_on_a_message(hub, record):
    post("bob", "work", "carol")
    with closing(wakehub.listen("bob")) as messages:
        message = next(messages)
        hub.has(1)
        sent = post("bob", "more work", "bob")
        assert states(sent) == [State.STORED, State.HINTED], said(sent)
        message.ack()
        next(messages).ack()
    assert "nobody" not in said(sent)


async def test_in_the_loop_itself_a_message_is_stored_and_wakes_nobody(hub):
    async with wakehub.subscribe("bob"):
        await has(hub, 1)
        sent = post("alice", "hello", "bob")
    assert (states(sent), sent.exit) == ([State.STORED, State.NOT_HINTED], Exit.DONE)
    assert "publisher not running" in said(sent)


async def test_behind_the_block_there_is_no_session_to_wake_over(hub):
    async with wakehub.subscribe("bob"):
        await has(hub, 1)
    await has(hub, 0)
    assert states(await post_from_trio("alice", "hello", "bob")) == [State.STORED, State.NOT_HINTED]


async def test_a_killed_hub_costs_a_subscriber_time_and_no_message(hub, record):
    """What is sent while there is no hub is read by looking; the next hub is found, and wakes again."""
    async with wakehub.subscribe("bob", poll_s=1) as messages:
        await has(hub, 1)
        hub.kill()
        meanwhile = await post_from_trio("bob", "meanwhile", "bob")
        assert states(meanwhile) == [State.STORED, State.NOT_HINTED], said(meanwhile)
        with trio.fail_after(PATIENCE_S):
            got = await anext(messages)
            await got.ack()
            hub.start()
            await has(hub, 1)
            later = await post_from_trio("bob", "later", "bob")
            assert states(later) == [State.STORED, State.HINTED], said(later)
            again = await anext(messages)
            await again.ack()
    assert ([got.text, again.text], got.redelivery, again.redelivery) == (["meanwhile", "later"], 0, 0)
    assert not [event for event in record.events(meanwhile.row_ids[0]) if event.kind == "hinted"]


def test_a_killed_hub_costs_a_blocking_program_no_message(hub, record):
    first = post("bob", "first", "carol")
    with closing(wakehub.listen("bob", poll_s=1)) as messages:
        message = next(messages)
        hub.has(1)
        hub.kill()
        message.ack()  # the record alone decides
        post("bob", "second", "carol")
        second = next(messages)
        assert second.text == "second"
        hub.start()
        hub.has(1)
        second.ack()
        third = post("bob", "third", "bob")
        assert states(third) == [State.STORED, State.HINTED], said(third)
        next(messages).ack()
    assert [record.headers([sent.row_ids[0]])[0].state for sent in (first, third)] == ["handed_off"] * 2


async def test_a_second_subscriber_is_refused_and_the_first_one_goes_on(hub, record):
    """F34: the one that was there keeps its session with the hub, and is woken by it."""
    async with wakehub.subscribe("alice") as first:
        await has(hub, 1)
        with pytest.raises(Held, match="alice is held by another listener") as refusal:
            async with wakehub.subscribe("alice"):
                pass
        assert "alice-2" in refusal.value.remedy
        assert await trio.to_thread.run_sync(hub.sessions) == 1
        async with wakehub.subscribe("bob"):
            await has(hub, 2)
            sent = await post_from_trio("alice", "hello", "bob")
        with trio.fail_after(PATIENCE_S):
            await (await anext(first)).ack()
    assert was_woken(record, sent)


async def test_a_take_over_moves_name_and_session(hub, record):
    """F34: the displaced one is told, what it had in hand comes again to the other, and the hub wakes that one."""
    in_hand = await post_from_trio("alice", "in hand", "bob")
    async with wakehub.subscribe("alice") as first:
        message = await anext(first)
        async with wakehub.subscribe("alice", take_over=True) as second:
            with pytest.raises(Held):
                await anext(first)
            with pytest.raises(Held):
                await message.ack()
            with trio.fail_after(PATIENCE_S):
                again = await anext(second)
                await again.ack()
                assert (again.id, again.redelivery) == (in_hand.row_ids[0], 1)
                await has(hub, 1)
                sent = await post_from_trio("alice", "to the second", "alice")
                assert states(sent) == [State.STORED, State.HINTED], said(sent)
                await (await anext(second)).ack()
    assert record.count_unread("alice") == 0


@pytest.mark.parametrize(
    ("call", "exit", "what"),
    [
        (functools.partial(wakehub.send, "nobody at all", "x", sender="bob"), Exit.DATA, "is not an address"),
        (functools.partial(wakehub.send, "alicf", "x", sender="bob"), Exit.NO_RECIPIENT, "did you mean alice"),
        (functools.partial(wakehub.send, "carol", "x", sender="bob"), Exit.NO_RECIPIENT, "carol was closed on"),
        (functools.partial(wakehub.send, "alice", "x" * 300_000, sender="bob"), Exit.DATA, "262144"),
        (functools.partial(wakehub.send, "alice", "x", sender="bob", ttl=0), Exit.DATA, "cannot be kept for 0 s"),
        (lambda: next(wakehub.listen("carol")), Exit.PERMISSION, "carol was closed"),
        (lambda: next(wakehub.listen("alice", poll_s=61)), Exit.CONFIG, "61"),
        (lambda: next(wakehub.listen("no/")), Exit.DATA, "no/"),
        (lambda: next(wakehub.listen("alice", namespaces=["acme"])), Exit.USAGE, "is no namespace"),
    ],
)
def test_what_a_user_can_do_wrong_is_told_and_stores_nothing(hub, instance, record, call, exit, what):
    enrolment.enroll(instance.paths, "carol", instance.hub_id, time.time())
    enrolment.close(instance.paths, "carol", time.time())
    with pytest.raises(WakehubError) as refusal:
        call()
    assert what in str(refusal.value)
    assert (refusal.value.exit, bool(refusal.value.remedy)) == (exit, True)
    assert [record.count_unread(name) for name in ("alice", "carol")] == [0, 0]
