"""The reconnect ladder (receive.md §3), without a clock and with its randomness handed in.

Every failed attempt doubles the step, 250 ms to 60 s, and every delay gets a fresh random part on top, so that many
clients do not return as one. The ladder starts anew only after a session that lasted 30 s: a hub that accepts and
closes is not hammered. Two failures have a lower or a fixed step: a socket that is absent or refuses is a hub that
restarts (2 s at most, and it does not drive the step higher), and a 401 is worth another try every 60 s or when a
file that it may depend on changes, which the caller watches.
"""

import random
from collections.abc import Callable
from typing import Final

from wakehub.client.failures import Failure
from wakehub.limits import (
    DISPLACED_RECONNECT_MS,
    RECONNECT_BASE_MS,
    RECONNECT_CAP_MS,
    RECONNECT_CAP_RESTARTING_MS,
    RECONNECT_JITTER_MS,
    RECONNECT_RESET_AFTER_SECONDS,
    UNAUTHORIZED_RETRY_SECONDS,
)

_RESTARTING: Final = frozenset({Failure.ABSENT, Failure.REFUSED})


class Ladder:
    """How long to wait before the next attempt, in milliseconds.

    `draw` gives a number in [0, 1).
    """

    def __init__(self, draw: Callable[[], float] = random.random) -> None:
        self._draw = draw
        self._base_ms = RECONNECT_BASE_MS
        self._jitter_ms = RECONNECT_JITTER_MS
        self._step_ms = self._base_ms

    def advise(self, base_ms: int, jitter_ms: int) -> None:
        """Take over what a welcome advises; kept within 1 ms..60 s, since a bad advice must not stop the client."""
        self._base_ms = min(max(base_ms, 1), RECONNECT_CAP_MS)
        self._jitter_ms = min(jitter_ms, RECONNECT_CAP_MS)
        self._step_ms = max(self._step_ms, self._base_ms)

    def session_ended(self, lasted_s: float) -> None:
        """A session ended after `lasted_s` seconds; one of 30 s or more starts the ladder anew."""
        if lasted_s >= RECONNECT_RESET_AFTER_SECONDS:
            self._step_ms = self._base_ms

    def delay_ms(self, failure: Failure) -> float:
        """The delay behind this failure; each call is one step of the ladder."""
        if failure is Failure.UNAUTHORIZED:
            return UNAUTHORIZED_RETRY_SECONDS * 1000 + self._jitter()
        if failure is Failure.REPLACED:
            self._step_ms = max(self._step_ms, DISPLACED_RECONNECT_MS)
        cap_ms = RECONNECT_CAP_RESTARTING_MS if failure in _RESTARTING else RECONNECT_CAP_MS
        delay_ms = min(self._step_ms, cap_ms)
        self._step_ms = max(self._step_ms, min(self._step_ms * 2, cap_ms))
        return delay_ms + self._jitter()

    def _jitter(self) -> float:
        return self._draw() * self._jitter_ms
