"""Who is there for a name: the one answer that `send`, `agents`, `status`, `top` and `why` give (faults F2, F28, F85).

It is the record's, made of leases: an enrolled name, a socket that can be connected to, or a wake that the hub took
prove nothing about a listener.
"""

from dataclasses import dataclass
from typing import Final, Literal

from wakehub.inbox.clock import Now
from wakehub.inbox.leases import Lease, Leases, PastLease
from wakehub.inbox.rows import Event, Row
from wakehub.inbox.store import Inbox
from wakehub.limits import FAILURES_BEFORE_PASSED, OVERDUE_SECONDS

_TRIES: Final = ("claimed", "attempt_failed")
State = Literal["listening", "left", "died", "never"]


@dataclass(frozen=True, slots=True)
class Presence:
    """Who takes what is sent to `name`: `listener`, a live lease on it or on a namespace above it; else who did last.

    `last` is None while somebody listens and when nobody ever did.
    """

    name: str
    listener: Lease | None
    last: PastLease | None

    @property
    def state(self) -> State:
        """`died` when the last listener ended without saying so; `left` when it released the name or lost it."""
        if self.listener is not None:
            return "listening"
        if self.last is None:
            return "never"
        return "died" if self.last.reason in ("died", "expired") else "left"

    @property
    def since_ms(self) -> int | None:
        """When this state began (milliseconds since the epoch); None when nobody ever listened."""
        if self.listener is not None:
            return self.listener.since_ms
        return None if self.last is None else self.last.ended_ms


def presence(leases: Leases, name: str, now: Now) -> Presence:
    """Who is there for `name` at `now`."""
    listener = leases.resolve(name, now)
    return Presence(name, listener, None if listener is not None else leases.last_holder(name, now))


def is_left_alone(event: Event) -> bool:
    """Whether a listener said by `event` that it does not even try, since the agent is not there (`Inbox.leave`)."""
    return event.kind == "attempt_failed" and event.retry_ms is None


def stuck(inbox: Inbox, row: Row, found: Presence) -> Event | None:
    """The event that says why the listener that is there does not get rid of `row`, which is open; else None.

    That is when its agent is not there, or when it was tried several times in vain.
    """
    if found.listener is None:
        return None
    since_ms = found.listener.since_ms
    failed = [each for each in inbox.events(row.id) if each.kind == "attempt_failed" and each.at_ms >= since_ms]
    if not failed or not (is_left_alone(failed[-1]) or len(failed) >= FAILURES_BEFORE_PASSED):
        return None
    return failed[-1]


def left_since(inbox: Inbox, row: Row, found: Presence, now: Now) -> int | None:
    """Since when (milliseconds since the epoch) the listener that is there leaves `row`, which is open; else None.

    That begins when the row was stored or, if that was later, when the listener came. Whoever holds a namespace hands
    rows over to agents that may not be there, and does not even claim the rows of such: it leaves what it has in hand,
    or tried in the last 20 min in vain.
    """
    listener = found.listener
    if listener is None:
        return None
    since_ms = max(row.stored_ms, listener.since_ms)
    if row.recipient in listener.names:
        return since_ms
    tries = [
        each
        for each in inbox.events(row.id)
        if each.kind in _TRIES and each.at_ms >= listener.since_ms and not is_left_alone(each)
    ]
    if not tries:
        return None
    is_given_up = tries[-1].kind == "attempt_failed" and now.ms - tries[-1].at_ms > OVERDUE_SECONDS * 1000
    return None if is_given_up else since_ms
