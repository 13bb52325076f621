"""What waits to be written to one connection (awh1.md §5.7).

Charge first, then enqueue (`add`); `_take` is the one place that releases. Sizes count the frame body (L), not the
prefix; lines of another wire have none. A frame of which some bytes have left stays at the head, charged whole, until
the rest has left as well.
"""

from collections import deque
from enum import Enum

from wakehub.hub.accounting import Budget
from wakehub.limits import PREFIX_BYTES


class Overflow(Enum):
    """Why a frame was not taken."""

    FRAMES = "recipient_frames"
    BYTES = "recipient_bytes"
    EGRESS = "egress"


class SendQueue:
    """At most `max_frames` frames and `max_bytes` bytes, all charged to `egress` as well."""

    __slots__ = ("_egress", "_max_bytes", "_max_frames", "_prefix", "_sent", "size", "waiting")

    def __init__(self, max_frames: int, max_bytes: int, egress: Budget, *, prefix: int = PREFIX_BYTES) -> None:
        self.waiting: deque[tuple[bytes, int]] = deque()
        """Frames and their deadlines (ms since the epoch, 0: never), for looking only."""
        self._max_frames = max_frames
        self._max_bytes = max_bytes
        self._egress = egress
        self._prefix = prefix
        self._sent = 0
        self.size = 0
        """Bytes waiting."""

    def __len__(self) -> int:
        return len(self.waiting)

    @property
    def is_slow(self) -> bool:
        """A slow consumer: at least half of the bytes are taken."""
        return self.size * 2 >= self._max_bytes

    def refusal(self, raw: bytes, spare: int = 0) -> Overflow | None:
        """What is too full for a whole frame, None when it fits; `spare` is how many bytes of the hub-wide budget it
        must leave to others."""
        size = len(raw) - self._prefix
        if len(self.waiting) >= self._max_frames:
            return Overflow.FRAMES
        if self.size + size > self._max_bytes:
            return Overflow.BYTES
        if not self._egress.covers(size, spare):
            return Overflow.EGRESS
        return None

    def add(self, raw: bytes, deadline_ms: int = 0, sent: int = 0) -> None:
        """Queue a frame that fits, of which `sent` bytes have left already if nothing else waits.

        `deadline_ms` (ms since the epoch, 0: never) is when it is no longer worth sending.
        """
        size = len(raw) - self._prefix
        charged = self._egress.charge(size)
        assert charged, "it does not fit"
        self.size += size
        if sent:
            assert not self.waiting, "bytes of another frame would come between"
            self._sent = sent
        self.waiting.append((raw, deadline_ms))

    def push(self, raw: bytes, deadline_ms: int = 0, spare: int = 0) -> Overflow | None:
        """Queue a whole frame, or say what is full and change nothing."""
        overflow = self.refusal(raw, spare)
        if overflow is None:
            self.add(raw, deadline_ms)
        return overflow

    def head(self) -> bytes | memoryview | None:
        """The bytes to send next; None when nothing waits."""
        if not self.waiting:
            return None
        raw = self.waiting[0][0]
        return memoryview(raw)[self._sent :] if self._sent else raw

    def sent(self, count: int) -> bytes | None:
        """`count` bytes of the head have left; return the frame when that was its last byte."""
        self._sent += count
        if self._sent < len(self.waiting[0][0]):
            return None
        return self._take()

    def drop_expired(self, wall_ms: int) -> int:
        """Drop frames at the head that are past their deadline and not begun; return how many."""
        dropped = 0
        while self.waiting and 0 < self.waiting[0][1] <= wall_ms and not self._sent:
            self._take()
            dropped += 1
        return dropped

    def clear(self) -> list[tuple[bytes, int]]:
        """Empty the queue; return what had not left as (frame, deadline), a half-sent frame included."""
        left = list(self.waiting)
        while self.waiting:
            self._take()
        return left

    def _take(self) -> bytes:
        raw, _ = self.waiting.popleft()
        size = len(raw) - self._prefix
        self.size -= size
        self._egress.release(size)
        self._sent = 0
        return raw
