"""One connection's bytes: in to the hub's decisions, out of the session's queue (awh1.md §5).

One Trio task owns each connection from its accept to its close. The bytes come by the pump: it receives without
blocking, lets the hub decide, and writes at once whatever comes of it: between reading a wake and writing it there is
no task switch, no cancel scope and no log call. Only what the kernel would not take is left to a writer task of the
recipient's own, which ends with the backlog.
"""

import socket
from typing import Any, Protocol

import trio

from wakehub.errors import Violation
from wakehub.hub.hub import Hub
from wakehub.hub.session import Session
from wakehub.identity.verifier import Claim
from wakehub.limits import RECEIVE_BYTES
from wakehub.server.pump import Pump
from wakehub.wire.reader import FrameReader


class Host(Protocol):
    """What a connection asks of the process it lives in."""

    hub: Hub
    pump: Pump
    log: Any

    def clock(self) -> tuple[int, int]:
        """Monotonic µs and wall clock ms."""

    def flush(self, started_us: int = 0, wall_ms: int = 0) -> None:
        """Write what the hub put into any queue."""

    def admit(self, session: Session, claim: Claim) -> None:
        """Have a hello verified, and admitted or refused."""

    def flush_deadline(self) -> float:
        """Until when (trio clock) a closing connection may flush."""

    def forget(self, session: Session) -> None:
        """The connection is closed."""


class Connection:
    """Owns `sock` (non-blocking) from its accept to its close."""

    def __init__(self, host: Host, sock: socket.socket, session: Session) -> None:
        self.sock = sock
        self._host = host
        self._session = session
        self._recv = sock.recv
        self._send = sock.send
        self._reader = FrameReader()
        self._nursery: trio.Nursery | None = None
        self._has_writer = False
        self._broken = False
        self._scope = trio.CancelScope()
        self._last_words = trio.CancelScope(shield=True)
        session.transmit = self._transmit

    async def run(self) -> None:
        """Serve the connection to its end; returns when the socket is closed and everything it held is released."""
        try:
            with self._scope:
                async with trio.open_nursery() as self._nursery:
                    self._host.pump.add(self.sock, self._readable)
                    self._host.flush()  # the challenge
                    await trio.sleep_forever()
        finally:
            self._host.pump.remove(self.sock)
            try:
                await self._flush_at_end()
            finally:
                trio.lowlevel.notify_closing(self.sock)
                self.sock.close()
                self._host.forget(self._session)

    @property
    def agent(self) -> bytes:
        """The agent that was proven, empty before."""
        return self._session.agent

    def stop(self) -> None:
        """Stop reading; what is queued is still flushed."""
        self._host.pump.remove(self.sock)
        self._scope.cancel()

    def give_up(self) -> None:
        """Stop reading and flushing."""
        self.stop()
        self._last_words.cancel()

    def flush(self, wall_ms: int) -> None:
        """Write what the session's queue holds, as far as the kernel takes it now; a closed session then ends."""
        if not self._has_writer and not self._write(wall_ms) and self._nursery is not None:
            self._has_writer = True
            self._nursery.start_soon(self._write_out)
        if not self._session.is_open:
            self.stop()

    def _transmit(self, raw: bytes) -> int:
        """Offer a frame to the kernel, past the queue, in which nothing waits; how many of its bytes that took."""
        try:
            return self._send(raw)
        except BlockingIOError:
            return 0
        except OSError:
            self._break()
            return 0

    def _break(self) -> None:
        self._broken = True
        self._host.hub.eof(self._session, inside_frame=False)

    def _write(self, wall_ms: int) -> bool:
        """Write what the kernel takes now; False when it does not take all."""
        delivery, session = self._host.hub.delivery, self._session
        data = delivery.output(session, wall_ms)
        while data is not None:
            try:
                count = self._send(data)
            except BlockingIOError:
                return False
            except OSError:
                self._break()
                return True
            data = delivery.sent(session, count, wall_ms)
        return True

    def _readable(self, now_us: int, wall_ms: int) -> None:
        """The pump's call: read once, and take what is whole by then."""
        try:
            data = self._receive()
            if data and self._reader.is_one_frame(data):
                self._take_frame(data, now_us, wall_ms)
            else:
                self._feed(data)
                self._take_frames(now_us, wall_ms)
        except Exception:  # a bug costs one connection, not the hub
            self._host.log.exception("connection failed", session=self._session.number)
            self.give_up()

    def _receive(self) -> bytes | None:
        """What the kernel has; None when that is nothing yet, empty at the end of the stream."""
        try:
            return self._recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def _feed(self, data: bytes | None) -> None:
        if data:
            self._reader.feed(data)
        elif data is not None:
            self._host.hub.eof(self._session, inside_frame=not self._reader.at_boundary)
            self._host.flush()

    def _take_frames(self, now_us: int, wall_ms: int) -> None:
        """Hand every whole frame to the hub at this time.

        Each frame's effects are written before the next is looked at: one read can hold more wakes for somebody than
        a queue does, and only who does not read may overflow.
        """
        session, reader = self._session, self._reader
        while session.is_open:
            try:
                raw = reader.next_frame()
            except Violation:
                self._host.hub.refuse_prefix(session)
                self._host.flush()
                break
            if raw is None:
                break
            self._take_frame(raw, now_us, wall_ms)

    def _take_frame(self, raw: bytes, now_us: int, wall_ms: int) -> None:
        claim = None
        try:
            claim = self._host.hub.receive(self._session, raw, now_us, wall_ms)
        except Exception:  # a bug costs one frame, not the hub (§5.4, 500)
            self._host.log.exception("internal error on a frame", session=self._session.number)
            self._host.hub.failed(self._session)
        if claim is not None:
            self._host.admit(self._session, claim)
        self._host.flush(now_us, wall_ms)

    async def _write_out(self) -> None:
        """Write until nothing waits, as the kernel takes it; `flush` leaves it to this meanwhile."""
        self._has_writer = True
        while True:
            done = self._write(self._host.clock()[1])
            self._host.flush()  # the room that this made may have healed others
            if done and (self._broken or not self._session.queue):
                break
            await trio.lowlevel.wait_writable(self.sock)
        self._has_writer = False

    async def _flush_at_end(self) -> None:
        with self._last_words:
            self._last_words.deadline = self._host.flush_deadline()
            await self._write_out()
