"""The hub's loop: one poll of our own over every session's socket, with Trio as its guest (design.md, Data path).

Trio owns what lives: accepting, deadlines, backlogs, the end of each connection. The pump only moves bytes: a socket
becomes readable, its connection reads, lets the hub decide and writes, with no task switch, no cancel scope and no
system call of Trio's between two wakes.

    poll ─┬─ a connection's socket ───▶ recv ─▶ hub ─▶ send
          └─ Trio has something to do ─▶ one tick of the guest

Why a guest: the same hub in three shapes, every check on, 256 agents, hub and load on one CPU; medians of five rounds:

                                      a Trio task      one Trio task      Trio as the     Redis in
                                      for each         that pumps         guest           between
    one wake every 2 ms, p50          115 µs           91 µs              56 µs           44 µs
    the same, CPU for each            92 µs            87 µs              47 µs           29 µs
    under full load, CPU for each     24 µs            12 µs              11 µs           6 µs

A task that waits goes through Trio's scheduler and two more system calls, and on a quiet hub that is most of a wake.
The price: Trio then waits in a thread, so that a connection that comes alone costs half as much again.
`wakehub bench --only latency,hot,rejoin` measures today's shape on your machine.
"""

import contextlib
import select
import socket
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from wakehub.limits import PUMP_BATCH

Reader = Callable[[int, int], None]
"""What is called when a socket can be read, with the time: monotonic µs and wall clock ms."""


if sys.platform == "linux":

    class _Poll:
        """Which descriptors can be read (or have failed), level-triggered."""

        def __init__(self) -> None:
            self._epoll = select.epoll()
            self.fileno = self._epoll.fileno
            self.close = self._epoll.close

        def add(self, fd: int) -> None:
            self._epoll.register(fd, select.EPOLLIN)

        def remove(self, fd: int) -> None:
            self._epoll.unregister(fd)

        def ready(self, *, wait: bool) -> list[int]:
            return [fd for fd, _ in self._epoll.poll(-1 if wait else 0, PUMP_BATCH)]

else:

    class _Poll:
        """Which descriptors can be read (or have failed), level-triggered."""

        def __init__(self) -> None:
            self._kqueue = select.kqueue()
            self.fileno = self._kqueue.fileno
            self.close = self._kqueue.close

        def add(self, fd: int) -> None:
            self._kqueue.control([select.kevent(fd, select.KQ_FILTER_READ, select.KQ_EV_ADD)], 0)

        def remove(self, fd: int) -> None:
            self._kqueue.control([select.kevent(fd, select.KQ_FILTER_READ, select.KQ_EV_DELETE)], 0)

        def ready(self, *, wait: bool) -> list[int]:
            return [event.ident for event in self._kqueue.control(None, PUMP_BATCH, None if wait else 0)]


class Pump:
    """Calls each added socket's reader when it can be read; `clock` gives the time once for each batch.

    A reader must not raise: there is nobody here who could say whose fault it was.
    """

    def __init__(self, clock: Callable[[], tuple[int, int]]) -> None:
        self._clock = clock
        self._poll = _Poll()
        self._readers: dict[int, Reader] = {}
        self.fileno = self._poll.fileno
        self.close = self._poll.close

    def add(self, sock: socket.socket, reader: Reader) -> None:
        """Begin to watch a non-blocking socket."""
        self._poll.add(sock.fileno())
        self._readers[sock.fileno()] = reader

    def remove(self, sock: socket.socket) -> None:
        """Stop watching; nothing if it was not watched. To be called before the socket is closed."""
        if self._readers.pop(sock.fileno(), None) is not None:
            self._poll.remove(sock.fileno())

    def turn(self, *, wait: bool) -> None:
        """Serve what can be read now, at most 64 sockets once each; with `wait`, sleep until there is something."""
        ready = self._poll.ready(wait=wait)
        now_us, wall_ms = self._clock()
        readers = self._readers
        for fd in ready:
            reader = readers.get(fd)
            if reader is not None:  # else one before it in this batch ended it
                reader(now_us, wall_ms)

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        """Run `main` under Trio, and the pump beside it, until `main` returns; raises what it raises."""
        ticks: deque[Callable[[], object]] = deque()
        outcome: list[Any] = []
        calling, called = socket.socketpair()
        with calling, called:
            calling.setblocking(False)
            called.setblocking(False)

            def call_from_thread(tick: Callable[[], object]) -> None:
                ticks.append(tick)
                with contextlib.suppress(BlockingIOError):  # so many calls are under way that one more adds nothing
                    calling.send(b"\0")

            self.add(called, lambda now_us, wall_ms: _drain(called))
            trio.lowlevel.start_guest_run(
                main,
                run_sync_soon_threadsafe=call_from_thread,
                run_sync_soon_not_threadsafe=ticks.append,
                done_callback=outcome.append,
            )
            while not outcome:
                self.turn(wait=not ticks)
                for _ in range(len(ticks)):
                    ticks.popleft()()
            self.remove(called)
        outcome[0].unwrap()


def _drain(sock: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        sock.recv(4096)
