"""Who is there for a name: the one answer that `send`, `agents`, `status`, `top` and `why` give (faults F2, F28, F85).

It is the record's, made of leases: an enrolled name, a socket that can be connected to, or a wake that the hub took
prove nothing about a listener.
"""

from dataclasses import dataclass
from typing import Literal

from wakehub.inbox.clock import Now
from wakehub.inbox.store import Lease, Leases, PastLease

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
