"""The moment at which something happens to the record, as one value that callers hand in.

Times of rows are wall-clock milliseconds, since people read them and they outlive a boot. Leases and claims are judged
by the monotonic clock as well: a wall clock that is set must not free the name of a process that is alive, nor keep the
name of a dead one (formats.md, Leases: "clamped against steps"). Both are read once, together.
"""

import time
from typing import NamedTuple

from wakehub.processes import boot_id


class Now(NamedTuple):
    """`ms`: milliseconds since the epoch. `mono_ms`: milliseconds on the clock of the boot that `boot` names."""

    ms: int
    mono_ms: int
    boot: str

    @classmethod
    def read(cls) -> "Now":
        return cls(time.time_ns() // 1_000_000, time.monotonic_ns() // 1_000_000, boot_id())

    def later(self, ms: int) -> "Now":
        """The moment `ms` milliseconds after this one, on both clocks."""
        return Now(self.ms + ms, self.mono_ms + ms, self.boot)
