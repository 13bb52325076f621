"""What a row of the record is, from what a sender gives to what happened to it (formats.md, Rows)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from wakehub.limits import DEFAULT_TTL_SECONDS

TEXT: Final = "text/plain; charset=utf-8"
BYTES: Final = "application/octet-stream"

RowClass = Literal["normal", "fyi"]
State = Literal["unread", "claimed", "handed_off", "failed", "expired"]
EventKind = Literal[
    "stored",
    "hint_refused",
    "hinted",
    "claimed",
    "attempt_failed",
    "failed",
    "expired",
    "handed_off",
    "answered",
]
"""What can happen to a row, in the order of rank: the highest one that happened says how far the row came."""

_RANK: Final[tuple[EventKind, ...]] = get_args(EventKind)


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that belongs to a row: its base name, size in bytes, and SHA-256 (32 bytes). The bytes lie elsewhere."""

    name: str
    size: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs the row while it is stored: `sign` maps the bytes to sign to a signature (64 bytes)."""

    key_id: str
    sign: Callable[[bytes], bytes] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Seal:
    """What the sender fixed and signed before the row came here (an envelope from a spool).

    `hops` is what the signature covers; the hops that count are computed by the record and may differ. Without a
    signature the row is unsigned: it was written by somebody who holds a bundle in the place of the enrolled key.
    """

    id: str
    created_ms: int
    expires_ms: int
    hops: int
    key_id: str | None
    signature: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a message was in the system that it came from: `key` names it there, `created_ms` says when it was made.

    A second row with the same key (1..128 bytes) is refused, as long as ids from spools are remembered. A time that is
    still to come counts as now, since a message cannot be read before it was written.
    """

    key: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class NewRow:
    """A row to store. `body` is kept byte for byte, at most 256 KiB; `ttl_s` is 1 s..7 days (a `Seal` overrides it).

    `re` is the id of the row that this one answers; `group` the common id of a broadcast's rows (`ids.new_group`).
    `generation` says which enrolment of the recipient's name is meant: 1 for the first and for a name never enrolled,
    one more each time the name is enrolled anew. `origin`: `local`, `spool`, `intercom`. A row with an `arrival` is as
    old as that says, and is kept for `ttl_s` from now on.
    """

    sender: str
    recipient: str
    body: bytes = field(repr=False)
    media_type: str = TEXT
    re: str | None = None
    group: str | None = None
    class_: RowClass = "normal"
    ttl_s: int = DEFAULT_TTL_SECONDS
    signed: Signer | Seal | None = None
    origin: str = "local"
    generation: int = 1
    attachments: tuple[Attachment, ...] = ()
    arrival: Arrival | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A row without its body.

    `seq` orders all rows and is never shown; `rseq` is the recipient's own dense count (formats.md, Rows). Times are
    milliseconds since the epoch. `size` and `digest` (SHA-256, 32 bytes) are the body's. `signed_hops` is what the
    signature covers. `attempts` counts hand-offs that did not succeed, `failures` those of them that were not just
    "busy"; before `retry_ms` it is not tried again. `redelivery` counts the times it may have been seen already.
    `is_out_of_order`: it failed so often that a later row of its sender was handed off before it.
    """

    seq: int
    id: str
    sender: str
    recipient: str
    rseq: int
    generation: int
    re: str | None
    group: str | None
    class_: RowClass
    hops: int
    signed_hops: int
    created_ms: int
    expires_ms: int
    stored_ms: int
    media_type: str
    size: int
    digest: bytes
    key_id: str | None
    signature: bytes | None = field(repr=False)
    origin: str
    state: State
    attempts: int
    failures: int
    redelivery: int
    retry_ms: int
    claimed_ms: int | None
    hinted_ms: int | None
    hint_code: int | None
    done_ms: int | None
    attachments: tuple[Attachment, ...] = ()
    is_out_of_order: bool = False

    @property
    def is_open(self) -> bool:
        """Whether nobody has provably got it yet and it may still be handed off."""
        return self.state in ("unread", "claimed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Header):
    """A whole row. `body` is None once the row has expired: a tombstone is left."""

    body: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to a row, at `at_ms`, through `by` (an address, or who acted).

    `proof` says what proves it; `code` and `detail` say more: the reason of a refusal or failure, the id of the answer.
    `retry_ms` is the next try after a failed attempt, `woken_by` what made the listener look (`wake`, `backstop`, …).
    """

    id: str
    kind: EventKind
    at_ms: int
    by: str = ""
    proof: str = ""
    code: int | None = None
    detail: str = ""
    retry_ms: int | None = None
    woken_by: str | None = None


def furthest(events: Iterable[Event]) -> EventKind | None:
    """How far the row came: the event of the highest rank, whatever the times say (formats.md, Rows)."""
    return max((event.kind for event in events), key=_RANK.index, default=None)
