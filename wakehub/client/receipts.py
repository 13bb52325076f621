"""What a sender asks for and what it is told, in the record's own words (receive.md §1 Receipts, §5).

A `Receipt` is said the moment it is known. Nothing here says "delivered": the states are what was proven.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal

from wakehub.errors import Exit
from wakehub.inbox.rows import RowClass
from wakehub.limits import DEFAULT_TTL_SECONDS

WaitFor = Literal["stored", "hinted", "handed-off", "answered"]


@dataclass(frozen=True, slots=True)
class SendRequest:
    """The flags of `wakehub send`.

    `to` is an address, or a namespace with its trailing slash for a broadcast; `body` its bytes as they are (at most
    256 KiB). `media_type` None means text if the body is UTF-8, else plain bytes. `sender` is `--as` (None: chosen by
    `client.names`). `ttl_s` is 1 s..7 days. `create` sends to a name never seen although a near one exists. `attach`
    are the files that go with it. `wait` is the state to wait for, at most `timeout_s` seconds.
    """

    to: str
    body: bytes
    sender: str | None = None
    re: str | None = None
    ttl_s: int = DEFAULT_TTL_SECONDS
    row_class: RowClass = "normal"
    media_type: str | None = None
    create: bool = False
    attach: tuple[Path, ...] = ()
    wait: WaitFor | None = None
    timeout_s: float = 60.0


class State(StrEnum):
    """How far a message provably came, or what was found on the way."""

    NOTE = "note"
    STORED = "stored"
    SPOOLED = "spooled"
    HINTED = "hinted"
    HINT_REFUSED = "hint_refused"
    NOT_HINTED = "not_hinted"
    HANDED_OFF = "handed_off"
    ANSWERED = "answered"
    EXPIRED = "expired"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Receipt:
    """One thing that became known `after_ms` milliseconds after the send began.

    `row_id` is empty for what concerns the whole send; `detail` says in words what a person should know.
    """

    state: State
    row_id: str
    after_ms: float
    detail: str = ""


@dataclass(slots=True)
class Receipts:
    """Says each receipt at once and keeps it."""

    tell: Callable[[Receipt], None]
    began: float = field(default_factory=time.monotonic)
    said: list[Receipt] = field(default_factory=list)

    def say(self, state: State, row_id: str = "", detail: str = "") -> None:
        """Tell now what became known."""
        receipt = Receipt(state, row_id, (time.monotonic() - self.began) * 1000, detail)
        self.said.append(receipt)
        self.tell(receipt)

    def note(self, detail: str) -> None:
        """Tell what is no state of a message."""
        self.say(State.NOTE, detail=detail)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the send began."""
        return time.monotonic() - self.began


@dataclass(frozen=True, slots=True)
class Sent:
    """How a send ended: who sent, the rows it made, every receipt, and the exit status that says the same.

    `digest` is the SHA-256 of the body, in hexadecimal; `size` its bytes.
    """

    sender: str
    row_ids: tuple[str, ...]
    size: int
    digest: str
    receipts: tuple[Receipt, ...]
    exit: Exit
