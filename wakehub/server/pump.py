import select
from collections.abc import Callable
import socket
import collections
import os
import trio


class Pump:
    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[], None]] = {}

    def add(self, sock: socket.socket, reader: Callable[[], None]) -> None:
        fd = sock.fileno()
        self._readers[fd] = reader
        self._epoll.register(fd, select.EPOLLIN)

    def remove(self, sock: socket.socket) -> None:
        fd = sock.fileno()
        del self._readers[fd]
        self._epoll.unregister(fd)

    def turn(self, timeout: float) -> None:
        readers = self._readers
        for fd, _ in self._epoll.poll(timeout, 64):
            reader = readers.get(fd)
            if reader is not None:
                reader()

    async def run(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            self.turn(0)


def run(main, pump) -> None:
    todo = collections.deque()
    outcome = []
    a, b = socket.socketpair()
    b.setblocking(False)
    a.setblocking(False)
    pump.add(b, lambda: b.recv(4096))

    def threadsafe(fn):
        todo.append(fn)
        try:
            a.send(b"x")
        except BlockingIOError:
            pass

    trio.lowlevel.start_guest_run(
        main,
        run_sync_soon_threadsafe=threadsafe,
        run_sync_soon_not_threadsafe=todo.append,
        done_callback=outcome.append,
    )
    while not outcome:
        pump.turn(0 if todo else -1)
        for _ in range(len(todo)):
            todo.popleft()()
    outcome[0].unwrap()
