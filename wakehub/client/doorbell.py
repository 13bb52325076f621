"""The latch between what wakes a listener and what it reads (receive.md §3; fault F23).

Whoever learns that something may be there rings; the reader arms, then reads, then waits. A ring behind the arming
stays until it is answered, so nothing can fall between "empty" and "asleep"; any number of rings are one read.
"""

from enum import StrEnum

import trio


class Reason(StrEnum):
    """Why the inbox is read; recorded as `woken_by` with what is found."""

    START = "start"  # the listener began
    WELCOME = "welcome"  # a session began
    WAKE = "wake"  # the hub forwarded a wake
    GAP = "gap"  # a wake's watermark shows that another one was missed
    CLOCK = "clock"  # the machine slept, or its clock was set
    RETRY = "retry"  # a row that failed is due again
    WATCH = "watch"  # the record's file changed
    AGENT = "agent"  # an agent that was not there is there now
    BACKSTOP = "backstop"  # nothing was heard for the poll interval


class Doorbell:
    """Rung or not, and why first."""

    def __init__(self) -> None:
        self._reason: Reason | None = None
        self._rung = trio.Event()

    @property
    def is_rung(self) -> bool:
        return self._reason is not None

    def ring(self, reason: Reason) -> None:
        """Something may be there. Behind an unanswered ring it changes nothing."""
        if self._reason is None:
            self._reason = reason
            self._rung.set()

    def arm(self) -> None:
        """From here on every ring counts; the reader calls this before it reads."""
        if self._reason is not None:
            self._reason = None
            self._rung = trio.Event()

    async def wait(self, until: float, otherwise: Reason) -> Reason:
        """The reason of the first ring since `arm`, or `otherwise` at `until` (Trio's clock, seconds)."""
        with trio.move_on_at(until):
            await self._rung.wait()
        return otherwise if self._reason is None else self._reason
