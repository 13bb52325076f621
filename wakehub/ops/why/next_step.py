"""What happens to a message next, and what a person can do about it.

That is told from the row's state, who is there for its recipient, and what stands in its way.
"""

from collections.abc import Sequence
from typing import Final

from wakehub.client.presence import Presence, is_left_alone, left_since, stuck
from wakehub.errors import ErrorCode
from wakehub.identity.registry import Registry
from wakehub.inbox.clock import Now
from wakehub.inbox.rows import Event, Row
from wakehub.inbox.store import Inbox
from wakehub.limits import FAILURES_BEFORE_PASSED, MAX_BACKSTOP_SECONDS, OVERDUE_SECONDS
from wakehub.ops.why.life import clock

_LOOKED_AT: Final = 10


class NextStep:
    """What happens to a row next, and what a person can do about it."""

    def __init__(
        self, inbox: Inbox, row: Row, events: Sequence[Event], there: Presence, registry: Registry, now: Now
    ) -> None:
        self._inbox = inbox
        self._row = row
        self._events = events
        self._there = there
        self._registry = registry
        self._now = now

    def in_words(self) -> str:
        """In one sentence; "nothing" where the message has come to its end."""
        match self._row.state:
            case "handed_off":
                return self._handed_off()
            case "expired":
                return "nothing: its time was over, and its text is gone; send it again if it still matters"
            case "failed":
                return f"nothing: it can never be handed off ({self._last('failed')}); send another one"
            case "claimed" if not self._is_void():
                return f"{self._listener()} has it in hand; if that process dies, the message comes again"
            case _:
                return self._waiting()

    def _handed_off(self) -> str:
        answer = next((event.detail for event in self._events if event.kind == "answered"), None)
        if answer is not None:
            return f"nothing: it was answered by {answer}"
        if self._there.state == "listening" or self._row.class_ == "fyi":
            return f"nothing: {self._row.recipient} has it, and has not answered"
        return f"nothing: {self._row.recipient} has it, and has not answered; nobody listens there now"

    def _waiting(self) -> str:
        row, now = self._row, self._now
        if row.expires_ms <= now.ms:
            return "its time is over; the publisher ends it, and tells its sender"
        if closed := self._closed():
            return closed
        if self._there.listener is None:
            return self._nobody()
        if row.retry_ms > now.ms:
            wait_s = -(-(row.retry_ms - now.ms) // 1000)
            return f"{self._listener()} tries again in {wait_s} s ({self._last('attempt_failed')})"
        if blocker := self._blocker():
            return f"it waits behind {blocker.id}, an earlier message of {row.sender}; wakehub why {blocker.id}"
        return self._for_listener()

    def _for_listener(self) -> str:
        """The row is due and somebody is there."""
        listener = self._there.listener
        assert listener is not None
        if (why := stuck(self._inbox, self._row, self._there)) is not None and is_left_alone(why):
            return self._awaited(why.detail)
        waited_ms = self._now.ms - max(self._row.stored_ms, listener.since_ms)
        if waited_ms > OVERDUE_SECONDS * 1000:
            if left_since(self._inbox, self._row, self._there, self._now) is None:
                return self._awaited(f"the agent of {self._row.recipient} is not there")
            return (
                f"{self._listener()} should have taken it long ago; see whether it or its reader hangs, and restart it"
            )
        if self._row.class_ == "fyi":
            return f"fyi wakes nobody; {self._listener()} looks at least every {MAX_BACKSTOP_SECONDS} s"
        if self._row.hinted_ms is not None:
            return (
                f"{self._listener()} was woken; it takes it now, or when it looks next, within {MAX_BACKSTOP_SECONDS} s"
            )
        return f"{self._listener()} {self._unwoken()}; it looks at least every {MAX_BACKSTOP_SECONDS} s"

    def _awaited(self, why: str) -> str:
        return f"{self._listener()} hands it over as soon as it can: {why}"

    def _unwoken(self) -> str:
        match self._row.hint_code:
            case None:
                return "was not woken yet (is the publisher up? wakehub status)"
            case ErrorCode.UNKNOWN:
                return "is not connected to the hub"
            case code:
                return f"could not be woken ({code})"

    def _nobody(self) -> str:
        name, last = self._row.recipient, self._there.last
        kept = f"it is kept until {clock(self._row.expires_ms)}; wakehub listen --as {name}"
        if last is None:
            return f"nobody has listened for {name} yet; {kept}"
        died = f" (pid {last.pid} died)" if self._there.state == "died" else ""
        hinted = "; that the hub took the wake brings no reader" if self._row.hinted_ms is not None else ""
        return f"nobody is listening for {name} since {clock(last.ended_ms)}{died}{hinted}; {kept}"

    def _closed(self) -> str:
        agent = self._registry.agents.get(self._row.recipient)
        if agent is None or agent.closed_at is None:
            return ""
        ends = clock(self._row.expires_ms)
        return f"{agent.agent_id} was closed on {clock(agent.closed_at * 1000)}; it waits there in vain until {ends}"

    def _blocker(self) -> Row | None:
        """The earlier row of the same sender that this one must not pass (store.py, rule 5)."""
        for earlier in self._inbox.unread(self._row.recipient, senders=[self._row.sender], limit=_LOOKED_AT):
            if earlier.rseq >= self._row.rseq:
                return None
            if earlier.failures < FAILURES_BEFORE_PASSED and earlier.expires_ms > self._now.ms:
                return earlier
        return None

    def _is_void(self) -> bool:
        """Whether the process that claimed the row no longer is the one that listens: then the claim counts no more."""
        listener = self._there.listener
        claim = next((event.detail for event in reversed(self._events) if event.kind == "claimed"), "")
        return listener is None or claim != f"pid {listener.process.pid}"

    def _listener(self) -> str:
        listener = self._there.listener
        return (
            f"pid {listener.process.pid}, which listens for {' and '.join(listener.names)}," if listener else "nobody"
        )

    def _last(self, kind: str) -> str:
        """The reason that the last event of that kind gave."""
        event = next(event for event in reversed(self._events) if event.kind == kind)
        return ": ".join(part for part in (str(event.code) if event.code else "", event.detail) if part)
