"""The moment that is handed in."""

import time

from wakehub.inbox.clock import Now
from wakehub.processes import boot_id


def test_both_clocks_are_read_in_milliseconds() -> None:
    before = time.time_ns() // 1_000_000, time.monotonic_ns() // 1_000_000
    now = Now.read()
    after = time.time_ns() // 1_000_000, time.monotonic_ns() // 1_000_000
    assert before <= (now.ms, now.mono_ms) <= after
    assert before[1] <= now.mono_ms <= after[1]
    assert now.boot == boot_id()


def test_later_moves_both() -> None:
    assert Now(10, 20, "boot").later(5) == Now(15, 25, "boot")
