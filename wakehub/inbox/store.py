"""The record as its callers see it: what can be done with it, and what every store must hold to.

The inbox row is the record: whatever else fails may cost time, never a message and never a false "delivered"
(receive.md). `Inbox` and `leases.Leases` say everything that a second store must do, and
`tests/inbox/inbox_conformance.py` checks it.

    unread ──claim──▶ claimed ──hand_off──▶ handed_off      a claim whose lease is lost, or whose deadline has
      ▲                 │  │ └──fail───────▶ failed         passed, is void: the row counts as unread again
      └─release─────────┘  │
      └─attempt_failed─────┘    unread ──expire──▶ expired      unread ──ack──▶ handed_off (proof "manual")

Rules for a store:

1. Every operation is one transaction: all of it happened and lasts, or none of it and an exception says so. When an
   operation returns, its effect survives a kill -9 of every process and is seen by all of them.
2. `claim`, `hand_off`, `attempt_failed`, `leave`, `fail`, `release` do nothing, and say so, unless `token` belongs to a
   lease that is live at `now` (`tenure.is_live`) and covers the row's recipient. `claim` and `leave` moreover want the
   most specific such lease. The check and the change are one atomic statement.
3. An *open* row is one in state `unread` or `claimed`: nobody has provably got it yet. An open row leaves only by
   `hand_off`, `ack`, `fail`, `expire` or `open_box`; no removal of leases or agents touches it.
4. `rseq` counts the rows of one recipient 1, 2, 3, …; nothing that a caller may show depends on rows of others.
5. Rows of one recipient are handed off in the order of `rseq` per sender: an open row that was not handed off yet
   holds back later rows of the same sender, until it has failed three times; then they pass it (formats.md, Rows).
6. Every change of state adds an event; events are never changed, and go only with their row.
7. No operation takes longer for rows that are no longer open, however many there are.
8. Every operation on a record that was removed or replaced since it was opened raises `RecordReplaced`: nobody else
   sees what would be done there.

Everything is synchronous and may be called from any thread. `now` is always given (`clock.Now`).
"""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, Self

from wakehub.inbox.clock import Now
from wakehub.inbox.leases import Lease, Leases
from wakehub.inbox.rows import Event, Header, NewRow, Row, Signer, State
from wakehub.limits import BACKEND_DEADLINE_SECONDS, KEEP_HANDED_OFF_SECONDS, SWEEP_ROWS


@dataclass(frozen=True, slots=True)
class BoxCount:
    """A box that has open rows: how many, and when the oldest was created (milliseconds since the epoch)."""

    name: str
    unread: int
    oldest_ms: int


@dataclass(frozen=True, slots=True)
class Activity:
    """What happened to the rows of the box `name`, pruned ones included.

    `hinted_ms` and `handed_off_ms` say when a wake was last taken and a row last handed off (milliseconds since the
    epoch; None: never). `woken_by` counts the hand-offs by what had made the listener look (`wake`, `backstop`, …).
    """

    name: str
    hinted_ms: int | None
    handed_off_ms: int | None
    woken_by: Mapping[str, int]


AckState = Literal["acknowledged", "already", "held", "unknown"]


@dataclass(frozen=True, slots=True)
class Ack:
    """What became of one id of `ack`.

    `already`: it was no longer open (`state` says how it ended). `held`: another session listens under that name
    (`holder`), so only that one may take the row. `unknown`: there is no such row.
    """

    id: str
    outcome: AckState
    state: State | None = None
    holder: Lease | None = None


class Inbox(Protocol):
    """The record. See the head of this module for the rules that every implementation keeps."""

    @property
    def leases(self) -> Leases:
        """Names and who holds them, in the same store and under the same transactions."""
        ...

    # --- storing ---

    def append(self, new: NewRow | Sequence[NewRow], now: Now) -> list[Row]:
        """Store one row, or several in one transaction, each with its `stored` event; return them as stored.

        The record gives id, `rseq`, times, digest and hops, and signs where `signed` is a `Signer`. A row whose `re`
        names a known row has its hops plus one; if it goes back from that row's recipient to its sender, that row
        gets an `answered` event.

        Raises `BadData` (over a limit, ttl, media type, an empty or over-long address, a namespace as recipient),
        `LoopGuard`, `AlreadyStored` (the id of a `Seal` or the key of an `Arrival` is known), `NoRecipient`
        (`generation` is behind that of the box), `NotStored`, `RecordBusy`, `RecordUnwritable`, `RecordDamaged`.
        Nothing was stored then.
        """
        ...

    def open_box(self, name: str, generation: int, now: Now) -> int:
        """Say which enrolment of `name` its box belongs to now; never goes back.

        Open rows of an earlier enrolment end as `failed` (code 67): the new owner of the name does not inherit them.
        Rows for a name that was never enrolled count as of its first enrolment. Returns how many rows ended.
        """
        ...

    # --- reading; changes nothing ---

    def unread(
        self,
        recipient: str,
        *,
        after: int = 0,
        limit: int = 100,
        senders: Collection[str] | None = None,
        now: Now | None = None,
    ) -> list[Row]:
        """The unread rows of `recipient` with `rseq` over `after`, oldest first, filtered first and then limited.

        Unread is an open row whose time is not over at `now` (None: at this moment), as it is for `next_for`.
        """
        ...

    def count_unread(self, recipient: str, *, senders: Collection[str] | None = None, now: Now | None = None) -> int:
        """How many unread rows `recipient` has; `now` as above."""
        ...

    def boxes_with_unread(self, *, now: Now | None = None) -> list[BoxCount]:
        """Every box that has unread rows, by name; `now` as above."""
        ...

    def boxes(self) -> list[str]:
        """Every name that ever got a row or was enrolled, sorted."""
        ...

    def watermark(self, recipient: str) -> int:
        """The highest `rseq` given out for `recipient`, 0 when there was none."""
        ...

    def row(self, id: str) -> Row | None:
        """The row, or None when there is none (any more)."""
        ...

    def headers(self, ids: Sequence[str]) -> list[Header]:
        """The rows of `ids` that exist, without bodies, in the order of storing."""
        ...

    def events(self, id: str) -> list[Event]:
        """What happened to the row, in order of entry."""
        ...

    def attached(self, digests: Iterable[bytes]) -> set[bytes]:
        """Those of `digests` (SHA-256, 32 bytes each) by which a row that has not expired has a file."""
        ...

    def near_ids(self, text: str, limit: int = 3) -> list[str]:
        """At most `limit` ids that begin as `text` does for longer than all others, in their order.

        `text` may be the beginning of an id, or one that was mistyped; `text` itself is not among them.
        """
        ...

    def activity(self) -> list[Activity]:
        """What happened in each box in which anything did, by name."""
        ...

    def changed(self) -> Hashable:
        """A token that differs from an earlier one if anything was committed in between, by this or any process.

        Cheap enough to ask for every 50 ms. Only tokens of one `Inbox` object can be compared.
        """
        ...

    def damage(self) -> list[str]:
        """What is wrong with the record as it is stored, read to its last byte; empty when nothing is.

        Takes as long as reading all of it does. Raises `RecordDamaged` when it cannot even be read.
        """
        ...

    # --- handing off ---

    def next_for(
        self, names: Sequence[str], token: bytes, now: Now, *, senders: Collection[str] | None = None
    ) -> Header | None:
        """The oldest row that the holder of `token` may claim now, for any of `names`; None when there is none.

        `names` are addresses and namespaces; only recipients whose most specific live lease has `token` count. A row
        is passed over when it has expired, is claimed by a live claim, waits for its next try, or is held back by an
        earlier one (rule 5). `senders` picks among what is left.
        """
        ...

    def next_due(self, names: Sequence[str], token: bytes, now: Now) -> int | None:
        """When (milliseconds since the epoch, after `now`) the next waiting row may be tried; None: nothing waits.

        Rows that are due already do not count: `next_for` gives them, or they wait behind one that counts here.
        """
        ...

    def claim(self, id: str, token: bytes, now: Now, *, deadline_s: float = BACKEND_DEADLINE_SECONDS) -> Row | None:
        """Claim an unread row for one hand-off; the row as it is now, or None when it cannot be claimed.

        The claim is void 30 s after `deadline_s`, the time that the backend may take, or when the lease is lost. A row
        whose last claim ended void may have been seen already: its `redelivery` grows by one.
        """
        ...

    def hand_off(self, id: str, token: bytes, proof: str, now: Now, *, woken_by: str | None = None) -> bool:
        """Acknowledge a row that `token` has claimed and that was provably handed off; False: nothing was changed."""
        ...

    def attempt_failed(
        self,
        id: str,
        token: bytes,
        reason: str,
        retry_ms: int,
        now: Now,
        *,
        busy: bool = False,
        in_doubt: bool = False,
    ) -> bool:
        """Put a claimed row back to be tried again at `retry_ms` (milliseconds since the epoch, ≤ 10 min ahead).

        `busy`: the agent had no time, which is no failure and does not let later rows pass. `in_doubt`: it may have
        seen the message nevertheless, so `redelivery` grows. False: nothing was changed.
        """
        ...

    def leave(
        self, recipient: str, token: bytes, reason: str, now: Now, *, senders: Collection[str] | None = None
    ) -> list[str]:
        """Enter why the holder of `token`, to whom they go, leaves the unread rows of `recipient` as they are.

        An `attempt_failed` event without a next try, for each row for which that lease did not give this reason last.
        No attempt is counted. Returns the ids of up to 256 rows that got one, oldest first.
        """
        ...

    def fail(self, id: str, token: bytes, code: int, reason: str, now: Now) -> bool:
        """End a claimed row that can never be delivered; False: nothing was changed."""
        ...

    def release(self, id: str, token: bytes, now: Now, *, in_doubt: bool = False) -> bool:
        """Put a claimed row back as if it had not been touched (`in_doubt` as above); False: nothing was changed."""
        ...

    def ack(self, ids: Sequence[str], by: str, session: str | None, now: Now) -> list[Ack]:
        """Acknowledge open rows by hand, each on its own: proof `manual`, event by `by`.

        A row is acknowledged when no live lease covers its recipient, or the most specific one is of `session`.
        """
        ...

    # --- the publisher's side ---

    def unhinted(self, limit: int = SWEEP_ROWS, *, refused: bool = False) -> list[Header]:
        """Open rows of class normal whose wake the hub has not taken, oldest first.

        Those for which a wake was refused are left out, unless `refused`.
        """
        ...

    def record_hint(self, ids: Sequence[str], code: int | None, now: Now, *, detail: str = "") -> None:
        """Record that the hub took the wake for each row (`code` None: `hinted`) or refused it (`hint_refused`)."""
        ...

    def expire(self, now: Now, *, signed: Signer | None = None, limit: int = SWEEP_ROWS) -> list[Header]:
        """End up to `limit` open rows whose time is over; returns them.

        The body goes; tombstone and events stay. The sender of each gets a row of class fyi from `wakehub-publisher`,
        signed by `signed`; rows of the system's own principals go without notice. A row in the hands of a live claim is
        left until the claim ends.
        """
        ...

    def prune(self, now: Now, *, keep_s: int = KEEP_HANDED_OFF_SECONDS, limit: int = SWEEP_ROWS) -> int:
        """Remove up to `limit` rows that ended more than `keep_s` seconds ago; never an open one. Returns how many.

        Also forgets what nobody needs any more: ids taken from spools over 8 days ago, ended leases but for the last
        one of each name.
        """
        ...

    def close(self) -> None:
        """Give up the connection; the object is of no use afterwards."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
