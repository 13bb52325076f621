"""Names and leases: what a lease is, and what a store does with them (receive.md §2; formats.md, Leases).

A lease is one process's right to a set of names; its token is what every claim and acknowledgement must show. The most
specific live lease that covers an address is the one that its rows go to.

A lease ends in four ways: it is released, displaced by a take-over, not renewed for 300 s, or its process is provably
dead, which counts at once. A store keeps the facts and asks the rules in `tenure`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from wakehub.inbox.clock import Now
from wakehub.processes import ProcessId


@dataclass(frozen=True, slots=True)
class Lease:
    """One process's right to `names`, shown by `token` (16 bytes; a secret of that process).

    `agent_id` is the id of its hub session, `session` the logical session (`$WAKEHUB_SESSION`), `host` the machine's
    name. `since_ms` and `renewed_ms` are wall-clock milliseconds, `renewed_mono_ms` is on the clock of `process.boot`.
    `status` is what it says about its agent to everybody who looks; empty: nothing.
    """

    names: tuple[str, ...]
    token: bytes = field(repr=False)
    agent_id: str
    process: ProcessId
    session: str | None
    host: str
    since_ms: int
    renewed_ms: int
    renewed_mono_ms: int
    status: str = ""


@dataclass(frozen=True, slots=True)
class HeldBy:
    """The answer to `acquire` when another process holds `name`: its lease, and a free name to take instead."""

    name: str
    lease: Lease
    alternative: str | None


LeaseEnd = Literal["released", "displaced", "expired", "died"]


@dataclass(frozen=True, slots=True)
class PastLease:
    """A lease on `name` that is over: who had it, until when, and why; `by_pid` is who displaced it."""

    name: str
    agent_id: str
    pid: int
    host: str
    since_ms: int
    ended_ms: int
    reason: LeaseEnd
    by_pid: int | None = None


class Leases(Protocol):
    """Who listens under which name. The store keeps the facts and asks the rules of `tenure`."""

    def acquire(
        self,
        names: Sequence[str],
        process: ProcessId,
        agent_id: str,
        now: Now,
        *,
        session: str | None = None,
        host: str = "",
        take_over: bool = False,
        status: str = "",
    ) -> Lease | HeldBy:
        """Take every one of `names` under one new token, or none of them.

        A name is free when no lease has it, when the lease that has it is not live, or when that lease belongs to the
        same `session` (not None): a restarted session takes its own name back. Otherwise the answer is `HeldBy`; with
        `take_over` the holder is displaced instead. A displaced or dead lease becomes a `PastLease`. Raises `BadData`
        for an empty list, an empty name or one over 128 bytes.
        """
        ...

    def renew(self, token: bytes, now: Now) -> Lease | None:
        """Begin another 300 s; the lease with the names it still has, or None when it has none any more.

        A lease that ran out but was not taken by another is renewed: its names were free, and it is here.
        """
        ...

    def release(self, token: bytes, now: Now) -> None:
        """Give all names of `token` up at once; nothing happens when it has none."""
        ...

    def find(self, token: bytes) -> Lease | None:
        """The lease of `token` with the names it still has; a reading only, for the check before each hand-off."""
        ...

    def holder(self, name: str, now: Now) -> Lease | None:
        """The live lease on exactly `name`."""
        ...

    def resolve(self, address: str, now: Now) -> Lease | None:
        """The live lease that rows to `address` go to: most specific first (`tenure.covering`)."""
        ...

    def live(self, now: Now) -> list[Lease]:
        """Every live lease, in the order of its first name."""
        ...

    def stale(self, now: Now) -> list[Lease]:
        """Every lease that is not live and was not swept yet, in the order of its first name."""
        ...

    def last_holder(self, address: str, now: Now) -> PastLease | None:
        """The lease that covered `address` and ended last, swept or not; None when nobody ever listened there."""
        ...

    def lost(self, token: bytes) -> list[PastLease]:
        """What `token` held and holds no more: tells a displaced listener by whom and when."""
        ...

    def sweep(self, now: Now) -> list[PastLease]:
        """End every lease that is not live and say which; rows are never touched. Clamps renewals in the future."""
        ...
