"""A hub served inside the test: real sockets, the real server; clock, verifier and limits of the test's choosing.

    async def test_something(serve):
        world = await serve()
        alice = await world.session("alice")
        await alice.send(Kind.PING)
        assert (await alice.frame()).kind is Kind.PONG

With pytest-trio's `autojump_clock` the hub's clock follows the mock clock, so that deadlines pass in no time.
"""

import contextlib
import os
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from pumped import pump_forever

from wakehub.hub.hub import Hub
from wakehub.identity.peercred import PeerCredentials
from wakehub.identity.verifier import Claim, Denied, Identity, Judge, Stale
from wakehub.limits import HubLimits
from wakehub.locks import Lock
from wakehub.server.listener import Listener
from wakehub.server.notify import Notifier
from wakehub.server.serve import Server
from wakehub.server.sockets import Sockets
from wakehub.wire.frames import Frame, Kind, decode, encode
from wakehub.wire.payloads import Error, Hello, Wake
from wakehub.wire.reader import FrameReader

HUB_ID = b"wakehub"
WALL_S = 1_800_000_000


class Trusting:
    """Believes every claimed id, unless it is in `denied`; `stale` is what an allowlist that is too old does."""

    def __init__(self) -> None:
        self.denied: dict[str, str] = {}
        self.prefixes: tuple[str, ...] = ("team",)
        self.stale = False

    def verify(self, claim: Claim, now_s: float) -> Identity | Denied:
        if self.stale:
            return Denied("allowlist_stale")
        return self._judge(claim.agent_id)

    def revalidation(self, now_s: float) -> Judge:
        return lambda identity: Stale() if self.stale else self._judge(identity.agent_id)

    def _judge(self, agent_id: str) -> Identity | Denied:
        label = self.denied.get(agent_id)
        return Denied(label) if label else Identity(agent_id, bytes(32), b"", self.prefixes)


class AllowAll:
    def allows(self, credentials: PeerCredentials) -> bool:
        return True


class AllowNobody:
    def allows(self, credentials: PeerCredentials) -> bool:
        return False


class Peer:
    """The other end of one connection; each wait for a frame is bounded by a minute of the test's clock."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self.sock = sock
        self.name = b""
        self._reader = FrameReader()

    async def frame(self) -> Frame:
        """The next frame; raises EOFError at the end of the stream."""
        with trio.fail_after(60):
            while (raw := self._reader.next_frame()) is None:
                data = await self.sock.recv(65536)
                if not data:
                    raise EOFError
                self._reader.feed(data)
        return decode(raw)

    async def rest(self) -> list[Frame]:
        """Every frame up to the end of the stream."""
        frames = []
        with contextlib.suppress(EOFError, ConnectionResetError):
            while True:
                frames.append(await self.frame())
        return frames

    async def error(self) -> tuple[int, str]:
        """Code and reason of the next frame, an error."""
        frame = await self.frame()
        assert frame.kind is Kind.ERROR
        found = Error.decode(frame.payload)
        return int(found.code), found.reason

    async def wake_id(self) -> bytes:
        """The row id of the next frame, a wake."""
        frame = await self.frame()
        assert frame.kind is Kind.WAKE
        return Wake.decode(frame.payload).row_id

    async def send_bytes(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[await self.sock.send(view) :]

    async def send(self, kind: Kind, to: bytes = b"", payload: bytes = b"", **stamps: int) -> None:
        await self.send_bytes(encode(Frame(kind, self.name, to, payload, **stamps)))

    def wake_bytes(self, to: bytes, row_id: bytes, **stamps: int) -> bytes:
        return encode(Frame(Kind.WAKE, self.name, to, Wake(row_id).encode(), **stamps))

    async def wake(self, to: bytes, row_id: bytes, **stamps: int) -> None:
        await self.send_bytes(self.wake_bytes(to, row_id, **stamps))

    def hello_bytes(self, name: str, *topics: bytes) -> bytes:
        self.name = name.encode()
        return encode(Frame(Kind.HELLO, self.name, payload=Hello(bytes(32), bytes(64), b"", topics).encode()))

    async def ping(self) -> list[Frame]:
        """What comes before the pong: nothing, if all that was sent was taken."""
        await self.send(Kind.PING)
        before = []
        while (frame := await self.frame()).kind is not Kind.PONG:
            before.append(frame)
        return before

    def close(self) -> None:
        self.sock.close()


@dataclass
class World:
    """A served hub."""

    server: Server
    sockets: Sockets
    verifier: Trusting
    logs: list[dict[str, Any]]
    directory: Path
    outcome: list[BaseException | None] = field(default_factory=list)
    """What `Server.run` ended with, once it has ended: None or what it raised."""
    peers: list[Peer] = field(default_factory=list)
    ended: trio.Event = field(default_factory=trio.Event)

    @property
    def hub(self) -> Hub:
        return self.server.hub

    async def connect(self, path: Path | None = None) -> Peer:
        """Connect and read nothing."""
        sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.peers.append(Peer(sock))
        await sock.connect(os.fspath(path or self.sockets.hub.path))
        return self.peers[-1]

    async def session(self, name: str, *topics: bytes) -> Peer:
        """Connect and go through the handshake."""
        peer = await self.connect()
        assert (await peer.frame()).kind is Kind.HELLO
        await peer.send_bytes(peer.hello_bytes(name, *topics))
        assert (await peer.frame()).kind is Kind.WELCOME
        return peer

    async def until(self, holds: Callable[[], Any]) -> None:
        """Look again and again until `holds()`, for what nothing announces; at most a minute of the test's clock."""
        with trio.fail_after(60):
            while not holds():  # noqa: ASYNC110 - what is looked at has no event that a test could wait for
                await trio.sleep(0.001)

    def refused(self, cause: str, label: str = "") -> int:
        return self.hub.counters.refused[cause, label]

    def events(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        return [entry for entry in self.logs if entry["event"] == event and fields.items() <= entry.items()]


@pytest.fixture
def run_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="wh", dir="/tmp") as name:
        yield Path(name)


Serve = Callable[..., Awaitable[World]]


@pytest.fixture
async def serve(nursery: trio.Nursery, run_directory: Path) -> AsyncIterator[Serve]:
    """Starts a hub and returns it once it has said that it is ready."""
    worlds: list[World] = []

    async def start(
        *,
        ceiling: int = 64,
        limits: HubLimits | None = None,
        authorizer: Any = None,
        environ: dict[str, str] | None = None,
        prepare: Callable[[Sockets], None] = lambda sockets: None,
        **options: Any,
    ) -> World:
        logs: list[dict[str, Any]] = []

        def keep(_logger: object, method: str, event: Any) -> Any:
            logs.append(dict(event) | {"level": method})
            raise structlog.DropEvent

        state = run_directory / "state"
        state.mkdir(mode=0o700, exist_ok=True)
        run = run_directory / "run"
        sockets = Sockets(
            Listener.bind(run / "hub.sock"),
            Listener.bind(run / "stats.sock"),
            Lock.acquire(state / "hub.lock", what="a hub"),
        )
        prepare(sockets)
        logger = structlog.wrap_logger(None, processors=[keep])
        verifier = Trusting()
        server = Server(
            Hub(HUB_ID, limits or HubLimits(), options.pop("verifier", verifier)),
            sockets,
            ceiling,
            authorizer=authorizer or AllowAll(),
            notifier=Notifier(environ or {}, logger),
            logger=logger,
            **({"clock": trio_clock} | options),
        )
        world = World(server, sockets, verifier, logs, run_directory)
        worlds.append(world)
        nursery.start_soon(pump_forever, world.server.pump)
        nursery.start_soon(_run, world)
        await world.until(lambda: world.events("hub ready") or world.outcome)
        return world

    yield start
    for world in worlds:
        for peer in world.peers:
            peer.close()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await world.ended.wait()
        world.sockets.close()


async def _run(world: World) -> None:
    try:
        await world.server.run()
        world.outcome.append(None)
    except Exception as error:
        world.outcome.append(error)
    finally:
        world.ended.set()


def trio_clock() -> tuple[int, int]:
    """The hub's clock (monotonic µs, wall ms) as the time of the trio run, mock or not."""
    now = trio.current_time()
    return int(now * 1e6) + 1, int((WALL_S + now) * 1e3)


def wall_clock() -> tuple[int, int]:
    return time.monotonic_ns() // 1000, time.time_ns() // 1_000_000
