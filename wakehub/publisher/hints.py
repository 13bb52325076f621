"""What waits in the publisher for a wake, and what it says to the sender about that (formats.md, Poke)."""

from dataclasses import dataclass
from typing import Literal

from wakehub.client.wakes import wake_for
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
