"""A hub for the client's tests: real Unix sockets and the real wire layer, behaviour written by the test.

`serve` runs a script per connection, in order; behind the last script it goes on with that one.
"""

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from wakehub.errors import ErrorCode
from wakehub.wire.frames import Frame, Kind, decode, encode
from wakehub.wire.payloads import Error, Hello, Wake, Welcome
from wakehub.wire.reader import FrameReader

HUB = b"wakehub"
NOW_S = 1_800_000_000


class Link:
    """The hub's end of one connection, frame by frame."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.agent = b""
        self._reader = FrameReader()

    async def send(self, kind: Kind, payload: bytes = b"", from_id: bytes = HUB) -> None:
        await self.stream.send_all(encode(Frame(kind, from_id, self.agent, payload)))

    async def receive(self) -> Frame | None:
        """The next frame, None at the end of the stream."""
        while (raw := self._reader.next_frame()) is None:
            data = await self.stream.receive_some()
            if not data:
                return None
            self._reader.feed(data)
        return decode(raw)

    async def challenge(self) -> Hello:
        """Challenge, and take the hello."""
        await self.send(Kind.HELLO, bytes(32))
        frame = await self.receive()
        assert frame is not None
        assert frame.kind is Kind.HELLO
        self.agent = frame.from_id
        return Hello.decode(frame.payload)

    async def admit(self, base_ms: int = 250, jitter_ms: int = 750) -> None:
        """Challenge, take any hello, welcome."""
        await self.challenge()
        await self.welcome(base_ms, jitter_ms)

    async def welcome(self, base_ms: int = 250, jitter_ms: int = 750) -> None:
        await self.send(Kind.WELCOME, Welcome(1, 0, 0, False, base_ms, jitter_ms).encode())

    async def refuse(self, code: ErrorCode, reason: str = "no") -> None:
        await self.send(Kind.ERROR, Error(code, reason).encode())

    async def wake(self, row_id: str = "m_1", namespace: bytes = b"_inbox/alice", watermark: int = 0) -> None:
        payload = Wake(row_id.encode(), namespace, b"bob", b"", watermark).encode()
        await self.send(Kind.WAKE, payload, b"bob")

    async def until_closed(self, frames: list[Frame] | None = None) -> list[Frame]:
        """What the client still sends, to its end, also put into `frames` as it comes; pings are answered."""
        frames = [] if frames is None else frames
        while (frame := await self.receive()) is not None:
            frames.append(frame)
            if frame.kind is Kind.PING:
                await self.send(Kind.PONG)
        return frames


Script = Callable[[Link], Awaitable[object]]


class ScriptedHub:
    """What came in so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connections = 0
        self.connected_at: list[float] = []
        self.ended: list[trio.Event] = []

    async def all_ended(self) -> None:
        """Every connection so far is over, on this side as well."""
        for event in self.ended:
            await event.wait()


@asynccontextmanager
async def serve(path: Path, scripts: Sequence[Script]) -> AsyncIterator[ScriptedHub]:
    hub = ScriptedHub(path)

    async def handle(stream: trio.SocketStream) -> None:
        script = scripts[min(hub.connections, len(scripts) - 1)]
        hub.connections += 1
        hub.connected_at.append(trio.current_time())
        ended = trio.Event()
        hub.ended.append(ended)
        async with stream:
            try:
                await script(Link(stream))
            except trio.BrokenResourceError:
                pass  # the client went first
        ended.set()

    with socket.socket(socket.AF_UNIX) as raw:
        raw.bind(os.fspath(path))  # not Trio's bind: it takes a thread, and a mock clock does not wait for threads
        raw.setblocking(False)
        sock = trio.socket.from_stdlib_socket(raw)
        sock.listen(16)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, handle, [trio.SocketListener(sock)])
            try:
                yield hub
            finally:
                nursery.cancel_scope.cancel()
                os.unlink(path)
