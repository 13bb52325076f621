"""From a byte stream to delimited frames (awh1.md §1).

Feed bytes as they come; take frames until there is none. A length prefix over the ceiling is refused from its four
bytes alone, before one byte behind it is kept, and for good: "refused" is sticky.
"""

from wakehub.errors import ErrorCode, Violation
from wakehub.limits import MAX_FRAME_BYTES, PREFIX_BYTES
from wakehub.wire.frames import PREFIX


class FrameReader:
    """Holds at most one incomplete frame (≤ 4 + 1,304 bytes) between two feeds, once its frames are taken."""

    __slots__ = ("_at", "_data", "_refused")

    def __init__(self) -> None:
        self._data = b""
        self._at = 0
        self._refused: Violation | None = None

    def feed(self, data: bytes) -> None:
        """Append what came in. Bytes behind a refused prefix are dropped."""
        if self._refused is not None:
            return
        self._data = data if self._at == len(self._data) else self._data[self._at :] + data
        self._at = 0

    def next_frame(self) -> bytes | None:
        """The next whole frame with its prefix, or None until more bytes come.

        Raises `Violation` 413 at, and ever after, a prefix over the ceiling.
        """
        if self._refused is not None:
            raise self._refused
        data, at = self._data, self._at
        if len(data) - at < PREFIX_BYTES:
            return None
        (length,) = PREFIX.unpack_from(data, at)
        if length > MAX_FRAME_BYTES:
            self._data, self._at = b"", 0
            self._refused = Violation(ErrorCode.TOO_LARGE, f"frame exceeds {MAX_FRAME_BYTES} B")
            raise self._refused
        end = at + PREFIX_BYTES + length
        if end > len(data):
            return None
        self._at = end
        return data[at:end]

    @property
    def at_boundary(self) -> bool:
        """Whether EOF now is a clean end: no part of a frame is waiting for the rest."""
        return self._at == len(self._data) and self._refused is None
