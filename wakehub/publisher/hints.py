"""What the publisher says to the hub about a row, and to the sender about that (formats.md, Poke).

A wake carries no content: id and watermark tell the recipient what to look for; sender, namespace and digest only save
it a look. They are what gives way, in the order sender, namespace, digest, when all of it exceeds 256 bytes.
"""

from dataclasses import dataclass
from typing import Literal

from wakehub.errors import Violation
from wakehub.inbox.rows import Header
from wakehub.wire.payloads import Wake


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the wake for one row.

    `hinted`: the hub took it. `refused`: the hub answered with `code`; 429 moreover while the wake has yet to be sent,
    404 for an id that names no row, and None for a row that wakes nobody (class fyi). `hub_down`: there was no session
    to send it on; it is sent when there is one. `holder`: some live process holds the recipient's name.
    """

    state: Literal["hinted", "refused", "hub_down"]
    code: int | None = None
    holder: bool = False


@dataclass(slots=True)
class Box:
    """The rows of one recipient that wait for a wake: one wake is enough, however many they are.

    `target` is the agent id to wake: that of the session which holds the recipient's name, else the recipient itself.
    """

    recipient: str
    target: str
    holder: bool
    rows: dict[str, Header]

    def wake(self) -> Wake:
        """The wake for the newest row; its watermark tells of the older ones."""
        return wake_for(max(self.rows.values(), key=lambda row: row.rseq))


def wake_for(row: Header) -> Wake:
    """The wake for `row`, within 256 bytes; an id alone always fits."""
    full = Wake(row.id.encode(), f"_inbox/{row.recipient}".encode(), row.sender.encode(), row.digest, row.rseq)
    without_sender = full._replace(sender=b"")
    without_namespace = without_sender._replace(namespace=b"")
    bare = without_namespace._replace(digest=b"")
    return next((wake for wake in (full, without_sender, without_namespace) if _fits(wake)), bare)


def _fits(wake: Wake) -> bool:
    try:
        wake.encode()
    except (Violation, ValueError):  # over 256 bytes in all, or over 255 in one field
        return False
    return True
