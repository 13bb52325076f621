"""The load client's connections: made with a greeting, written to and read from without an event loop."""

import select
import socket
import sys
from collections.abc import Iterable
from typing import Any, Final, NoReturn

from wakehub.bench.dialects import Dialect, Greeting, Wrong
from wakehub.limits import BENCH_PATIENCE_SECONDS
from wakehub.visible import visible

_RECEIVE_BYTES: Final = 65_536


class Fleet:
    """`count` connected agents that speak `dialect` at `address` (a path, or host and port)."""

    def __init__(self, dialect: Dialect, address: Any, *, crowd: bool) -> None:
        self.dialect = dialect
        self._address = address if isinstance(address, str) else tuple(address)
        self._crowd = crowd
        self.writers: list[socket.socket] = []
        self.readers: list[socket.socket] = []
        self._opened: list[socket.socket] = []

    def __len__(self) -> int:
        return len(self.readers)

    def partner(self, number: int, distance: int) -> int:
        """Whom an agent wakes."""
        return (number + distance) % len(self)

    def grow(self, count: int) -> None:
        """Connect agents, one behind the other, until there are `count`."""
        for number in range(len(self), count):
            lanes = []
            for lane in range(self.dialect.lanes):
                sock = self.dial()
                converse(sock, self.greeting(number, lane))
                lanes.append(sock)
            self.writers.append(lanes[0])
            self.readers.append(lanes[-1])

    def dial(self) -> socket.socket:
        """A connection on which nothing was said yet."""
        if isinstance(self._address, str):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        else:
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._opened.append(sock)
        sock.settimeout(BENCH_PATIENCE_SECONDS)
        sock.connect(self._address)
        _block(sock)
        return sock

    def greeting(self, number: int, lane: int) -> Greeting:
        """The conversation that connects an agent."""
        hears = self._crowd and (self.dialect.rotates or number > 0)
        return self.dialect.greet(number, lane, crowd=hears)

    def close(self) -> None:
        """Close every connection, greeted or not."""
        for sock in self._opened:
            sock.close()
        self.writers, self.readers, self._opened = [], [], []

    def take(self, reader: socket.socket, expected: bytes) -> None:
        """Read one message that must be `expected`."""
        data = reader.recv(len(expected))
        if data != expected:
            self.take_rest(reader, data, expected)

    def take_rest(self, reader: socket.socket, data: bytes, expected: bytes) -> None:
        """Read on: a message came in parts, or behind something that has to be answered."""
        while True:
            for noise, answer in self.dialect.noise.items():
                if data.startswith(noise):
                    data = data[len(noise) :]
                    reader.sendall(answer)
            if data == expected:
                return
            may_be_noise = data and any(noise.startswith(data) for noise in self.dialect.noise)
            if not expected.startswith(data) and not may_be_noise:
                raise Wrong(f"{visible(data[:80])!r} came instead of {visible(expected[:80])!r}")
            more = reader.recv(1 if may_be_noise else len(expected) - len(data))
            if not more:
                raise Wrong("the server closed a connection")
            data += more

    def answer_noise(self, reader: socket.socket) -> None:
        """Read what comes unasked, and answer it."""
        data = b""
        while data not in self.dialect.noise:
            more = reader.recv(1)
            data += more
            if not more or not any(noise.startswith(data) for noise in self.dialect.noise):
                raise Wrong(f"{visible(data[:80])!r} came unasked, or the end")
        reader.sendall(self.dialect.noise[data])

    def drop_answer(self, writer: socket.socket, size: int) -> None:
        """Read what the sender is answered."""
        while size > 0:
            data = writer.recv(size)
            if not data:
                raise Wrong("the server closed a connection")
            size -= len(data)


class PairFleet(Fleet):
    """The socketpair floor: what is written comes out at the other end, with nobody between."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect, "", crowd=False)

    def partner(self, number: int, distance: int) -> int:
        return number

    def grow(self, count: int) -> None:
        while len(self) < count:
            one, other = socket.socketpair()
            self._opened += [one, other]
            _block(one)
            _block(other)
            self.writers.append(one)
            self.readers.append(other)

    def take_rest(self, reader: socket.socket, data: bytes, expected: bytes) -> None:
        raise Wrong("a socketpair gave something else than was put in")


def converse(sock: socket.socket, greeting: Greeting) -> None:
    """Carry a greeting through on a blocking socket."""
    out = next(greeting)
    while True:
        if out:
            sock.sendall(out)
        data = sock.recv(_RECEIVE_BYTES)
        if not data:
            raise Wrong("the server closed a connection while it was greeted")
        try:
            out = greeting.send(data)
        except StopIteration:
            return


def _block(sock: socket.socket) -> None:
    """Blocking in the kernel, with the patience there: Python's own would add a poll to every call."""
    sock.settimeout(None)
    patience = int(BENCH_PATIENCE_SECONDS).to_bytes(8, sys.byteorder) + bytes(8)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)


if sys.platform == "linux":

    class Watch:
        """Which of many readers have something to read."""

        def __init__(self, fds: Iterable[int]) -> None:
            self._epoll = select.epoll()
            for fd in fds:
                self._epoll.register(fd, select.EPOLLIN)

        def ready(self) -> list[int]:
            """Wait for some; raises `Wrong` when none comes in 30 s."""
            return [fd for fd, _ in self._epoll.poll(BENCH_PATIENCE_SECONDS)] or _nothing()

        def ready_now(self) -> list[int]:
            """Those that need not be waited for."""
            return [fd for fd, _ in self._epoll.poll(0)]

        def close(self) -> None:
            self._epoll.close()

else:

    class Watch:
        """The same with poll."""

        def __init__(self, fds: Iterable[int]) -> None:
            self._poll = select.poll()
            for fd in fds:
                self._poll.register(fd, select.POLLIN)

        def ready(self) -> list[int]:
            return [fd for fd, _ in self._poll.poll(BENCH_PATIENCE_SECONDS * 1000)] or _nothing()

        def ready_now(self) -> list[int]:
            return [fd for fd, _ in self._poll.poll(0)]

        def close(self) -> None:
            """It holds nothing of the kernel's."""


def _nothing() -> NoReturn:
    raise Wrong(f"nothing came for {BENCH_PATIENCE_SECONDS} s")
