"""The hub's loop: sockets served beside Trio, and Trio as its guest (design.md, Data path)."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
import trio

from wakehub.limits import PUMP_BATCH
from wakehub.server.pump import Pump

PATIENCE_S = 60.0


@pytest.fixture
def pump() -> Iterator[Pump]:
    made = Pump(lambda: (7, 8))
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.settimeout(PATIENCE_S)
        yield ours, theirs


def test_a_reader_is_called_with_the_time_while_there_is_something_to_read(pump, pair):
    ours, theirs = pair
    calls = []
    pump.add(ours, lambda *now: calls.append(now))
    pump.turn(wait=False)
    assert calls == []
    theirs.send(b"x")
    pump.turn(wait=True)
    pump.turn(wait=True)
    assert calls == [(7, 8), (7, 8)], "as long as nobody reads it"
    ours.recv(1)
    pump.turn(wait=False)
    assert len(calls) == 2


def test_the_end_of_a_stream_is_something_to_read(pump, pair):
    ours, theirs = pair
    seen = []
    pump.add(ours, lambda *_: seen.append(ours.recv(1)))
    theirs.close()
    pump.turn(wait=True)
    assert seen == [b""]


def test_who_is_removed_is_not_called_even_within_the_batch(pump):
    with contextlib.ExitStack() as stack:
        ours = []
        for _ in range(5):
            a, b = socket.socketpair()
            stack.enter_context(a)
            stack.enter_context(b).send(b"x")
            ours.append(a)
        calls = []

        def end_all(*_: int) -> None:
            calls.append(1)
            for sock in ours:
                pump.remove(sock)

        for sock in ours:
            pump.add(sock, end_all)
        pump.turn(wait=True)
        pump.turn(wait=False)
        assert calls == [1]
        for sock in ours:
            pump.remove(sock)  # again: nothing


def test_a_batch_is_bounded_and_nobody_is_left_out(pump):
    with contextlib.ExitStack() as stack:
        calls: list[int] = []
        for number in range(PUMP_BATCH + 10):
            a, b = socket.socketpair()
            stack.enter_context(a)
            stack.enter_context(b).send(b"x")

            def reader(now_us: int, wall_ms: int, a: socket.socket = a, number: int = number) -> None:
                a.recv(1)
                calls.append(number)

            pump.add(a, reader)
        pump.turn(wait=True)
        assert len(calls) == PUMP_BATCH
        pump.turn(wait=True)
        assert sorted(calls) == list(range(PUMP_BATCH + 10))


def test_it_runs_trio_to_its_end(pump):
    seen = []

    async def main() -> None:
        await trio.sleep(0.001)
        seen.append(await trio.to_thread.run_sync(threading.get_ident))

    pump.run(main)
    assert seen
    assert seen != [threading.get_ident()]


def test_it_raises_what_trio_ends_with(pump):
    async def main() -> None:
        raise LookupError("so")

    with pytest.raises(LookupError, match="so"):
        pump.run(main)


class Steps(trio.abc.Instrument):
    """Counts how often any task runs, and how often Trio waits for input and output."""

    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1

    def after_io_wait(self, timeout: float) -> None:
        self.count += 1


def test_what_the_pump_moves_costs_trio_nothing(pump, pair):
    """A hundred questions and answers, and Trio does not run once in all of them."""
    ours, theirs = pair
    steps, counts = Steps(), []

    def echo(now_us: int, wall_ms: int) -> None:
        counts.append(steps.count)
        ours.send(ours.recv(1))

    def ask() -> None:
        for _ in range(100):
            theirs.send(b"x")
            assert theirs.recv(1) == b"x"

    async def main() -> None:
        trio.lowlevel.add_instrument(steps)
        pump.add(ours, echo)
        await trio.to_thread.run_sync(ask)
        pump.remove(ours)

    pump.run(main)
    assert len(counts) == 100
    assert len(set(counts[1:])) == 1, "the thread's start may still be under way at the first"


def test_a_reader_can_wake_a_task_and_end_a_scope(pump, pair):
    ours, theirs = pair
    woken = trio.Event()
    theirs.send(b"x")

    async def main() -> None:
        with trio.CancelScope() as scope:

            def reader(now_us: int, wall_ms: int) -> None:
                pump.remove(ours)
                woken.set()
                scope.cancel()

            pump.add(ours, reader)
            await trio.sleep_forever()
        await woken.wait()

    pump.run(main)
    assert woken.is_set()


def test_a_socket_that_never_falls_silent_does_not_keep_trio_from_running(pump, pair):
    ours, theirs = pair
    theirs.send(b"never read")
    turns = []

    async def main() -> None:
        pump.add(ours, lambda *_: turns.append(1))
        for _ in range(10):
            await trio.sleep(0.001)
        pump.remove(ours)

    pump.run(main)
    assert turns
