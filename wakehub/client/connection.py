"""One AWH1 session over a Unix socket, for Trio (awh1.md §2, §3, §5.2, §5.3).

`connect` goes through challenge, hello and welcome, or says by `HubError` which of the things that can go wrong did.
Inside, `HubSession.receive` gives the events in order; hub pings are answered on the way and never seen. Several tasks
may send; one may receive. An error that leaves the session open is an event, since a wake followed by a ping proves
itself by what comes before the pong; one that ends it is raised.
"""

import socket as stdlib_socket
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

import trio

from wakehub.client.failures import Failure, HubError, from_answer, from_os_error
from wakehub.errors import ErrorCode, Violation
from wakehub.identity.delegation import Bundle
from wakehub.limits import BACKLOG_RETRY_MS, CLIENT_READ_BYTES, HANDSHAKE_DEADLINE_MS
from wakehub.visible import visible
from wakehub.wire import transcript
from wakehub.wire.frames import Kind
from wakehub.wire.payloads import Error, Hello, Wake, Welcome
from wakehub.wire.protocol import Challenge, ClientProtocol, Event, Pinged

_Expected = TypeVar("_Expected", Challenge, Welcome)
_ENDING: Final = frozenset(code.value for code in ErrorCode if code.ends_session)


class HubSession:
    """An authenticated session; made by `connect`. `welcome` is what the hub admitted it with."""

    welcome: Welcome

    def __init__(self, sock: trio.socket.SocketType, path: Path, bundle: Bundle) -> None:
        self.agent_id = bundle.agent_id
        self._socket = sock
        self._path = path
        self._bundle = bundle
        self._protocol = ClientProtocol(bundle.agent_id.encode())
        self._nonce = b""
        self._events: deque[Event] = deque()
        self._broken: HubError | None = None
        self._sending = trio.Lock()

    async def receive(self) -> Event:
        """The next event, in the order the hub sent them.

        Raises `HubError` when the session is over: replaced, unauthorized, a violation on either side, or the stream
        ended. Cancelling loses no event.
        """
        while True:
            event = await self._next()
            if isinstance(event, Pinged):
                await self._send(self._protocol.pong())
            elif isinstance(event, Error) and event.code in _ENDING:
                raise from_answer(event)
            else:
                return event

    async def wake(self, to: bytes | str, wake: Wake, *, ttl_ms: int = 0) -> None:
        """Send one wake to an agent id or a ``#topic``, stamped with the wall clock; nothing answers a good one.

        Raises `HubError` when the connection is gone, `Violation` when the wake cannot be encoded.
        """
        to_id = to.encode() if isinstance(to, str) else to
        await self._send(self._protocol.wake(to_id, wake, ts_ms=time.time_ns() // 1_000_000, ttl_ms=ttl_ms))

    async def ping(self, payload: bytes = b"") -> None:
        """Send a ping (at most 32 bytes); `Ponged` comes behind every error for what was sent before it."""
        await self._send(self._protocol.ping(payload))

    async def subscribe(self, topics: Sequence[bytes]) -> None:
        """Ask for topics; `Acknowledged` comes when the hub has applied it, an `Error` when it refused."""
        await self._send(self._protocol.subscribe(topics))

    async def unsubscribe(self, topics: Sequence[bytes]) -> None:
        """Give topics up; answered as `subscribe` is."""
        await self._send(self._protocol.unsubscribe(topics))

    async def depart(self) -> None:
        """Tell the hub to forget this agent; it closes the session without an answer."""
        signed = transcript.membership(Kind.DEPART, self._bundle.hub_id.encode(), self._nonce, self._protocol.agent_id)
        await self._send(self._protocol.depart(self._bundle.delegate.sign(signed)))

    async def aclose(self) -> None:
        """Close the connection; the hub keeps the agent known."""
        self._socket.close()
        await trio.lowlevel.checkpoint()

    async def _handshake(self, topics: tuple[bytes, ...]) -> None:
        challenge = await self._expect(Challenge)
        if challenge.hub_id != self._bundle.hub_id.encode():
            raise HubError(
                Failure.WRONG_HUB,
                f"the hub at {visible(str(self._path))} is '{visible(challenge.hub_id)}'",
                why=f"this identity is for '{visible(self._bundle.hub_id)}'",
                remedy="give --hub-id, or --socket of the hub that is meant",
            )
        self._nonce = challenge.nonce
        signed = transcript.hello(challenge.hub_id, challenge.nonce, self._protocol.agent_id, topics)
        delegate = self._bundle.delegate
        hello = Hello(delegate.public, delegate.sign(signed), self._bundle.certificate, topics)
        await self._send(self._protocol.hello(hello))
        self.welcome = await self._expect(Welcome)

    async def _expect(self, kind: type[_Expected]) -> _Expected:
        event = await self._next()
        if isinstance(event, Error):
            raise from_answer(event)
        assert isinstance(event, kind), event  # the protocol's table lets nothing else through
        return event

    async def _next(self) -> Event:
        while not self._events:
            if self._broken is not None:
                raise self._broken
            await self._read()
        return self._events.popleft()

    async def _read(self) -> None:
        try:
            data = await self._socket.recv(CLIENT_READ_BYTES)
        except OSError as error:
            raise from_os_error(error, self._path) from error
        except trio.ClosedResourceError:
            raise HubError(Failure.LOST, "the session was closed here") from None
        try:
            if data:
                self._events.extend(self._protocol.receive_data(data))
            else:
                self._protocol.receive_eof()
                self._broken = HubError(Failure.LOST, "the hub closed the connection")
        except Violation as violation:  # what came whole before it is still in the queue
            self._broken = HubError(Failure.VIOLATION, "the hub broke the protocol", why=visible(str(violation)))

    async def _send(self, data: bytes) -> None:
        async with self._sending:
            view = memoryview(data)
            try:
                while view:
                    view = view[await self._socket.send(view) :]
            except OSError as error:
                raise from_os_error(error, self._path) from error
            except trio.ClosedResourceError:
                raise HubError(Failure.LOST, "the session was closed here") from None
            except trio.Cancelled:
                if len(view) != len(data):  # half a frame is out: nothing behind it would be understood
                    self._socket.close()
                raise


@asynccontextmanager
async def connect(
    socket_path: Path,
    bundle: Bundle,
    topics: Sequence[bytes] = (),
    *,
    timeout_s: float = HANDSHAKE_DEADLINE_MS / 1000,
) -> AsyncIterator[HubSession]:
    """Open a session as ``bundle.agent_id`` with up to 8 topics, and close it behind the block.

    Raises `HubError` with its `Failure`: the socket is absent, refuses or is denied; no welcome within `timeout_s`
    seconds; 401, 507; another hub id than the bundle's; a violation.
    """
    with stdlib_socket.socket(stdlib_socket.AF_UNIX, stdlib_socket.SOCK_STREAM) as raw:
        raw.setblocking(False)
        with trio.move_on_after(timeout_s) as handshake:
            await _dial(raw, socket_path)
            session = HubSession(trio.socket.from_stdlib_socket(raw), socket_path, bundle)
            await session._handshake(tuple(topics))
        if handshake.cancelled_caught:
            raise HubError(
                Failure.TIMEOUT,
                f"the hub at {visible(str(socket_path))} does not answer",
                why=f"no welcome within {timeout_s:g} s",
                remedy="wakehub --health says more",
            )
        try:
            yield session
        finally:
            session._socket.close()


async def _dial(raw: stdlib_socket.socket, path: Path) -> None:
    """Connect without blocking. A full backlog is EAGAIN on Linux and nothing tells when it has room (unix(7))."""
    while True:
        try:
            raw.connect(str(path))
        except BlockingIOError:
            await trio.sleep(BACKLOG_RETRY_MS / 1000)
        except OSError as error:
            raise from_os_error(error, path) from error
        else:
            await trio.lowlevel.checkpoint()
            return
