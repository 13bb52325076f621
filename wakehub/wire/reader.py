"""From a byte stream to delimited frames (awh1.md §1).

Feed bytes as they come; take frames until there is none. A length prefix over the ceiling is refused from its four
bytes alone, before one byte behind it is kept, and for good: "refused" is sticky.
"""

from wakehub.errors import ErrorCode, Violation
from wakehub.limits import MAX_FRAME_BYTES, PREFIX_BYTES
from wakehub.wire.frames import PREFIX


class FrameReader:
    """Keeps at most one incomplete frame (< 4 + 1,304 bytes) between two feeds, once its frames are taken."""

    __slots__ = ("_at", "_data", "_refused")

    def __init__(self) -> None:
        self._data = b""
        self._at = 0
        self._refused = False

    def feed(self, data: bytes) -> None:
        """Append what came in. Bytes behind a refused prefix are dropped."""
        if not self._refused:
            self._data = self._data[self._at :] + data
            self._at = 0

    def is_one_frame(self, data: bytes) -> bool:
        """Whether `data`, which came in just now, is exactly one frame, so that it need not be fed: the usual case."""
        return (
            not self._data
            and not self._refused
            and PREFIX_BYTES <= len(data) <= PREFIX_BYTES + MAX_FRAME_BYTES
            and PREFIX.unpack_from(data)[0] == len(data) - PREFIX_BYTES
        )

    def next_frame(self) -> bytes | None:
        """The next whole frame with its prefix, or None until more bytes come.

        Raises `Violation` 413 at, and ever after, a prefix over the ceiling.
        """
        data, at = self._data, self._at
        if len(data) - at >= PREFIX_BYTES:
            (length,) = PREFIX.unpack_from(data, at)
            end = at + PREFIX_BYTES + length
            if length > MAX_FRAME_BYTES:
                self._refused = True
                self._data, self._at = b"", 0
            elif end <= len(data):
                self._at = end
                return data[at:end]
        if self._refused:
            # Made anew each time: one exception object would collect tracebacks, and what they hold.
            raise Violation(ErrorCode.TOO_LARGE, f"frame exceeds {MAX_FRAME_BYTES} B")
        if at:  # let go of what was taken: an idle connection keeps only its unfinished frame
            self._data, self._at = data[at:], 0
        return None

    @property
    def at_boundary(self) -> bool:
        """Whether EOF now is a clean end: no part of a frame is waiting for the rest."""
        return self._at == len(self._data) and not self._refused
