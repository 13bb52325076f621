"""One connection to a hub, seen from the client's side: it can send any bytes, and says in words what came instead.

Reading is strict: a frame that the hub's own rules would refuse is a mismatch, wherever it comes. Every wait ends with
the case's time. A connection that the hub has closed takes what is sent to it in silence: what matters is what the hub
said before that.
"""

import contextlib
import socket
import struct
import time
from dataclasses import dataclass
from typing import Final, NoReturn

from wakehub.errors import ErrorCode, Violation
from wakehub.limits import MAGIC, VERSION
from wakehub.ops.conformance.outcome import Mismatch, Stop
from wakehub.visible import visible
from wakehub.wire.frames import PREFIX, Frame, Kind, decode
from wakehub.wire.payloads import Error, Wake, Welcome
from wakehub.wire.reader import FrameReader

_HEADER: Final = struct.Struct(">4sBBBBBBHQI")
_RECEIVE_BYTES: Final = 1 << 16


def now_ms() -> int:
    """The time as frames are stamped with it: milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def body(
    kind: int,
    from_id: bytes = b"conformance",
    to_id: bytes = b"",
    payload: bytes = b"",
    *,
    ts_ms: int = 0,
    ttl_ms: int = 0,
    magic: bytes = MAGIC,
    version: int = VERSION,
    flags: int = 0,
    reserved: int = 0,
    payload_len: int | None = None,
) -> bytes:
    """A frame without its length prefix; whatever the header's fields can hold, right or wrong."""
    size = len(payload) if payload_len is None else payload_len
    header = _HEADER.pack(magic, version, kind, flags, len(from_id), len(to_id), reserved, size, ts_ms, ttl_ms)
    return header + from_id + to_id + payload


def prefixed(frame_body: bytes) -> bytes:
    """The frame as it goes on the stream."""
    return PREFIX.pack(len(frame_body)) + frame_body


@dataclass(frozen=True, slots=True)
class Received:
    """A frame that came, and its very bytes, prefix included."""

    frame: Frame
    raw: bytes

    @property
    def wake(self) -> Wake:
        """Its payload, when it is a wake; raises `Mismatch`."""
        try:
            return Wake.decode(self.frame.payload)
        except Violation as violation:
            raise Mismatch(f"a wake that is malformed: {violation.reason}") from violation

    @property
    def error(self) -> Error:
        """Its payload, when it is an error; raises `Mismatch`."""
        try:
            return Error.decode(self.frame.payload)
        except Violation as violation:
            raise Mismatch(f"an error that is malformed: {violation.reason}") from violation

    def is_error(self, code: ErrorCode) -> bool:
        """Whether it is an error with that code."""
        return self.frame.kind is Kind.ERROR and self.error.code == code

    def __str__(self) -> str:
        frame = self.frame
        match frame.kind:
            case Kind.ERROR:
                return visible(f"error {self.error.code} {self.error.reason!r}")
            case Kind.WAKE:
                return visible(f"a wake {self.wake.row_id.decode()!r} from {frame.from_id.decode()!r}")
        return f"a {frame.kind.name.lower()}"


class Peer:
    """A connected socket. `deadline` (monotonic seconds) ends every wait; one wait lasts at most `patience_s`.

    `hub_id` and `nonce` are the challenge's, `agent` and `welcome` the session's, once there is one; `claimed` is the
    agent id of a hello that was sent. `is_displaced` is set when another session of the agent was opened from here.
    """

    def __init__(self, sock: socket.socket, deadline: float, patience_s: float) -> None:
        self.hub_id = b""
        self.nonce = b""
        self.claimed = b""
        self.agent = b""
        self.welcome: Welcome | None = None
        self.is_displaced = False
        self._sock = sock
        self._deadline = deadline
        self._patience_s = patience_s
        self._reader = FrameReader()
        self._ended = False
        self._found: Received | None = None

    def close(self) -> None:
        self._sock.close()

    # --- sending ----------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Any bytes. Raises `Mismatch` when the hub does not take them in time."""
        self._sock.settimeout(self._time_left())
        try:
            self._sock.sendall(data)
        except TimeoutError:
            raise Mismatch("the hub does not read") from None
        except OSError:
            pass  # it has closed; what it said before is still to be read

    def send_frame(
        self, kind: int, to_id: bytes = b"", payload: bytes = b"", *, ts_ms: int = 0, ttl_ms: int = 0
    ) -> bytes:
        """A frame of the session's agent; returns its bytes."""
        raw = prefixed(body(kind, self.agent, to_id, payload, ts_ms=ts_ms, ttl_ms=ttl_ms))
        self.send(raw)
        return raw

    def send_wake(self, to_id: bytes, row_id: bytes, *, ts_ms: int = 0, ttl_ms: int = 0) -> bytes:
        """A wake with nothing but a row id; returns its bytes."""
        return self.send_frame(Kind.WAKE, to_id, Wake(row_id).encode(), ts_ms=ts_ms, ttl_ms=ttl_ms)

    def send_end(self) -> None:
        """End the stream in this direction; the other stays open."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    # --- receiving --------------------------------------------------------------------------------------------

    def receive(self, patience_s: float | None = None) -> Received | None:
        """The next frame, None at the end of the stream. Raises `Mismatch` when neither comes in time."""
        patience = self._patience_s if patience_s is None else patience_s
        if not self._await(min(self._deadline, time.monotonic() + patience)):
            raise Mismatch(f"nothing for {patience:.3g} s")
        found, self._found = self._found, None
        if self.agent and not self.is_displaced and found is not None and found.is_error(ErrorCode.REPLACED):
            raise Stop(f"the agent {visible(self.agent)} is in use by another program, which replaced our session")
        return found

    def read(self) -> Received:
        """The next frame; raises `Mismatch` when the stream ends instead."""
        found = self.receive()
        if found is None:
            _came(found)
        return found

    def has_more(self, within_s: float = 0) -> bool:
        """Whether a frame or the end of the stream is there, or comes within that time."""
        return self._await(time.monotonic() + within_s)

    def check_time(self) -> None:
        """Raise `Mismatch` when the case's time is up."""
        self._time_left()

    def expect_silence(self, until: float) -> None:
        """Neither a frame nor the end may come before that time (monotonic seconds)."""
        if self._await(until):
            _came(self._found)

    def expect(self, kind: Kind) -> Received:
        """The next frame, which must be of this kind."""
        found = self.read()
        if found.frame.kind is not kind:
            _came(found)
        return found

    def expect_error(self, code: ErrorCode) -> str:
        """The next frame must be an error with this code, from the hub, to this session's agent; gives the reason."""
        found = self.expect(Kind.ERROR)
        if found.error.code != code:
            _came(found)
        self.expect_from_hub(found)
        return found.error.reason

    def expect_from_hub(self, found: Received) -> None:
        """A frame of the hub's own must be from the hub's id; to the session's agent, or nobody before the welcome."""
        if self.hub_id and found.frame.from_id != self.hub_id:
            raise Mismatch(f"{found}, from {visible(found.frame.from_id)}")
        if found.frame.to_id not in ((self.agent,) if self.agent else (b"", self.claimed)):
            raise Mismatch(f"{found}, to {visible(found.frame.to_id) or 'nobody'}")

    def expect_wake(self, row_id: bytes) -> Received:
        """The next frame must be a wake for this row."""
        found = self.expect(Kind.WAKE)
        if found.wake.row_id != row_id:
            _came(found)
        return found

    def expect_bytes(self, sent: bytes) -> None:
        """The next frame must be a wake, and the very bytes that were sent."""
        found = self.expect(Kind.WAKE)
        if found.raw != sent:
            raise Mismatch(f"{found}, of other bytes than were sent")

    def expect_made(self, found: Received) -> None:
        """A wake must be one of the hub's own making for this session's agent (§5.6)."""
        self.expect_from_hub(found)
        wake, inbox = found.wake, b"_inbox/" + self.agent
        if wake.sender or wake.digest or wake.watermark or wake.namespace not in (inbox, b""):
            raise Mismatch(f"{found} that says more than the hub knows")

    def expect_pending(self, count: int, ids: int, *, lagged: bool) -> None:
        """The welcome must have said that so many wakes wait, of so many ids, and whether some ids are missing."""
        assert self.welcome is not None
        found = (self.welcome.pending_count, self.welcome.pending_ids, self.welcome.lagged)
        if found != (count, ids, lagged):
            raise Mismatch(f"a welcome with count {found[0]}, ids {found[1]}, lagged {found[2]:d}")

    def expect_end(self) -> None:
        """Nothing but the end of the stream may come."""
        found = self.receive()
        if found is not None:
            _came(found)

    def expect_refusal(self, code: ErrorCode) -> str:
        """One error with this code, and the end; gives the reason."""
        reason = self.expect_error(code)
        self.expect_end()
        return reason

    def expect_quiet(self) -> None:
        """Ping, and nothing may come before the pong: whatever was sent was taken, and caused nothing here."""
        before = self.before_pong()
        if before:
            _came(before[0])

    def expect_only_error(self, code: ErrorCode) -> str:
        """Ping, and one error with this code must come before the pong, nothing else; gives the reason."""
        reason = self.expect_error(code)
        self.expect_quiet()
        return reason

    def before_pong(self) -> list[Received]:
        """Ping; what comes before the pong."""
        self.send_frame(Kind.PING)
        before = []
        while (found := self.read()).frame.kind is not Kind.PONG:
            before.append(found)
        return before

    def leave(self) -> None:
        """End the stream, wait for the hub to have noticed, and close."""
        self.send_end()
        while self.receive() is not None:
            pass
        self.close()

    def read_off(self, until: float) -> None:
        """Read whatever comes, and judge none of it, until the end of the stream or that time (monotonic seconds)."""
        with contextlib.suppress(OSError):
            while (left := until - time.monotonic()) > 0:
                self._sock.settimeout(left)
                if not self._sock.recv(_RECEIVE_BYTES):
                    return

    # --- bytes ------------------------------------------------------------------------------------------------

    def _await(self, until: float) -> bool:
        """Whether a frame (now in `_found`) or the end of the stream came before that time."""
        while self._found is None:
            self._found = self._next()
            if self._found is None and (self._ended or not self._fill(until)):
                return self._ended
        return True

    def _next(self) -> Received | None:
        try:
            while (raw := self._reader.next_frame()) is not None:
                found = Received(decode(raw), raw)
                if found.frame.kind is not Kind.PING or not self.agent:
                    return found
                self.send_frame(Kind.PONG)  # a hub may ask whether we are there
        except Violation as violation:
            raise Mismatch(f"a frame that no hub may send: {violation.reason}") from violation
        return None

    def _fill(self, until: float) -> bool:
        """Take in what comes, or the end of the stream; False when neither comes before that time."""
        self.check_time()
        self._sock.settimeout(max(until - time.monotonic(), 0))
        try:
            data = self._sock.recv(_RECEIVE_BYTES)
        except (TimeoutError, BlockingIOError):
            return False
        except OSError:
            data = b""  # reset: closed with bytes of ours unread
        if data:
            self._reader.feed(data)
        elif self._reader.at_boundary:
            self._ended = True
        else:
            raise Mismatch("the end of the stream inside a frame")
        return True

    def _time_left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise Mismatch("no end within the case's time")
        return left


def _came(found: Received | None) -> NoReturn:
    raise Mismatch("the end of the stream" if found is None else str(found))
