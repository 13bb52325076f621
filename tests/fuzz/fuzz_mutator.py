"""Makes new inputs out of old ones; the same seed makes the same inputs.

Blind mutation of a format full of lengths dies at the first of them. So an insertion or a deletion often repairs the
length fields that cover it (one byte, as `LP`, or two, big-endian), and a target may repair the rest (`Target.repair`).
"""

import random
from collections.abc import Sequence
from typing import TypeVar

Thing = TypeVar("Thing")
MAX_INPUT_BYTES = 4096
_INTERESTING = [
    *(value.to_bytes(1, "big") for value in (0, 1, 8, 9, 10, 11, 23, 24, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255)),
    *(value.to_bytes(2, "big") for value in (0, 1, 255, 256, 257, 389, 390, 391, 1023, 1024, 1025, 32767, 65535)),
    *(value.to_bytes(4, "big") for value in (0, 1, 23, 24, 1304, 1305, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)),
    *(value.to_bytes(8, "big") for value in (0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)),
    *(text.encode() for text in ("#", "\x00", "\n", "\x7f", "\x85", "\u200e", "é", "🔔", "#_inbox/", "a2a-hub")),
    b"\xc0\x80", b"\xed\xa0\x80", b"\xff", b"\xf4\x90\x80\x80", b"AWH1", b'"', b"{", b"[", b"null", b"1e9", b"\\ud800",
]  # fmt: skip


class Mutator:
    """Mutates inputs of one target; `corpus` is what it splices from, and may grow meanwhile."""

    def __init__(self, seed: str, corpus: Sequence[bytes]) -> None:
        self._random = random.Random(seed)
        self._corpus = corpus
        self._steps = (self._flip, self._set, self._insert, self._delete, self._repeat, self._splice, self._cut)

    def next_input(self) -> bytes:
        """One of the corpus after one to eight mutations, mostly few."""
        data = bytearray(self.pick(self._corpus))
        for _ in range(1 + int(self._random.random() ** 4 * 8)):
            self.pick(self._steps)(data)
        return bytes(data[:MAX_INPUT_BYTES])

    def pick(self, things: Sequence[Thing]) -> Thing:
        return things[int(self._random.random() * len(things))]

    def chance(self, share: float) -> bool:
        return self._random.random() < share

    def _at(self, data: bytearray) -> int:
        return int(self._random.random() * (len(data) + 1))

    def _flip(self, data: bytearray) -> None:
        if data:
            data[min(self._at(data), len(data) - 1)] ^= 1 << self._random.getrandbits(3)

    def _set(self, data: bytearray) -> None:
        at, value = self._at(data), self.pick(_INTERESTING)
        data[at : at + len(value)] = value

    def _insert(self, data: bytearray) -> None:
        new = self.pick(_INTERESTING) if self.chance(0.5) else self._random.randbytes(1 + self._random.getrandbits(4))
        self._replace(data, self._at(data), 0, new)

    def _delete(self, data: bytearray) -> None:
        self._replace(data, self._at(data), 1 + self._random.getrandbits(4), b"")

    def _repeat(self, data: bytearray) -> None:
        at = self._at(data)
        self._replace(data, at, 0, data[at : at + self._random.getrandbits(7)])

    def _splice(self, data: bytearray) -> None:
        other = self.pick(self._corpus)
        begin, end = sorted((int(self._random.random() * (len(other) + 1)), int(self._random.random() * len(other))))
        self._replace(data, self._at(data), end - begin if self.chance(0.5) else 0, other[begin:end])

    def _cut(self, data: bytearray) -> None:
        del data[self._at(data) :]

    def _replace(self, data: bytearray, at: int, size: int, new: bytes | bytearray) -> None:
        """Put `new` where `size` bytes were; sometimes mend each length in front that covers the place."""
        grown = len(new) - len(data[at : at + size])
        if self.chance(0.3):
            for where in range(max(0, at - 256), min(at, len(data))):
                if where + 1 + data[where] == at + size or (where + 1 + data[where] >= at + size and self.chance(0.3)):
                    data[where] = (data[where] + grown) & 0xFF
                elif where + 2 < at and where + 2 + int.from_bytes(data[where : where + 2], "big") == at + size:
                    fits = int.from_bytes(data[where : where + 2], "big") + grown
                    data[where : where + 2] = (fits & 0xFFFF).to_bytes(2, "big")
        data[at : at + size] = new
