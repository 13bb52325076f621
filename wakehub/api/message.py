"""A message as a program gets it, and how it says that it has it.

    handed to the program ──ack()──▶ acknowledged, proof "program"
            ├──the next one is asked for──▶ unread again: it comes once more, marked as a redelivery
            └──the subscription ends──────▶ the same

`Hand` is the place between the listener's loop, which waits in it for the answer, and the program, which gives it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Final, Self

import trio

from wakehub.errors import Held
from wakehub.inbox.rows import RowClass, State
from wakehub.inbox.signing import Verified
from wakehub.limits import RECORD_WATCH_MS
from wakehub.relay import message as relayed
from wakehub.relay.backends import HandedOff, NotNow, Outcome

_PROOF: Final = "program"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message, as its sender wrote it; nothing is made visible or cut.

    `body` are its bytes, `text` the same as text, or None when it is none. `re` is the id of the message it answers.
    `verified` is `yes`, `no`, `at_the_time` or `unsigned` (`wakehub guide guarantees`). `redelivery` counts how often
    the program may have had it before. `age_s` (seconds) is as of now, `created_ms` milliseconds since the epoch.
    `is_from_outside`: its sender is of another workspace, so it informs and can authorise nothing. `files` are copies
    of what came with it, None in the place of a lost one; a message that is only looked at has none yet.
    """

    id: str
    sender: str
    to: str
    re: str | None
    group: str | None
    row_class: RowClass
    media_type: str
    body: bytes = field(repr=False)
    text: str | None = field(repr=False)
    verified: Verified
    redelivery: int
    age_s: int
    created_ms: int
    is_stale: bool
    is_from_outside: bool
    files: tuple[Path | None, ...]

    @classmethod
    def of(cls, found: relayed.Message, **more: Any) -> Self:
        """The message for programs that `found` is."""
        row = found.row
        return cls(
            id=row.id,
            sender=row.sender,
            to=row.recipient,
            re=row.re,
            group=row.group,
            row_class=row.class_,
            media_type=row.media_type,
            body=found.body,
            text=found.text,
            verified=found.verified,
            redelivery=row.redelivery,
            age_s=found.age_s,
            created_ms=row.created_ms,
            is_stale=found.is_stale,
            is_from_outside=found.is_from_outside,
            files=found.files or (),
            **more,
        )


class Hand:
    """One message between loop and program; everything here happens in the loop's thread.

    `state` tells the state of its row as long as the loop is about it, None when nothing can become of it any more.
    """

    def __init__(self, row_id: str, expires_ms: int, state: "Callable[[Hand], State | None]") -> None:
        self.row_id = row_id
        self.expires_ms = expires_ms
        self._state = state
        self._given = trio.Event()
        self._outcome: Outcome = HandedOff(_PROOF)
        self._is_recorded = False

    async def outcome(self) -> Outcome:
        """What the program made of it, as soon as that is known."""
        await self._given.wait()
        return self._outcome

    def pass_over(self) -> None:
        """The program went on without an acknowledgement."""
        self._put_back(NotNow("the program went on without acknowledging it", in_doubt=True))

    def lapse(self) -> None:
        """Its time was over before the program asked for it, which has not seen it."""
        self._put_back(NotNow("its time was over before the program asked for it", busy=True))

    def _put_back(self, outcome: Outcome) -> None:
        if not self._given.is_set():
            self._outcome = outcome
            self._given.set()

    async def acknowledge(self) -> None:
        """See that it is recorded as handed off, and return then; raises `Held` (75) when that cannot be any more."""
        self._given.set()
        state: State | None = "claimed"
        for pause_s in chain(repeat(0, 3), repeat(RECORD_WATCH_MS / 1000)):
            if self._is_recorded or state != "claimed":
                break
            await trio.sleep(pause_s)  # the loop records it within its next steps, or when the record is free again
            state = self._state(self)
            self._is_recorded = self._is_recorded or state == "handed_off"
        if not self._is_recorded:
            raise self.lost()

    def lost(self) -> Held:
        """The error for an acknowledgement that comes too late."""
        return Held(
            f"{self.row_id} is not acknowledged",
            why="the program had gone on without that, or its subscription or its name was lost",
            remedy="expect the message again, marked as a redelivery",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Received(Message):
    """A message of `subscribe`, which must be acknowledged."""

    hand: Hand = field(repr=False, compare=False)

    async def ack(self) -> None:
        """Acknowledge it: it was taken, and does not come again. Returns once that is recorded.

        Raises `Held` (75) when it cannot be acknowledged any more, since the program went on, the subscription ended,
        or another process took the name: it comes again then. A second time changes nothing.
        """
        await self.hand.acknowledge()


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken(Message):
    """A message of `listen`, which must be acknowledged."""

    acknowledge: Callable[[], None] = field(repr=False, compare=False)

    def ack(self) -> None:
        """As `Received.ack`, for programs without Trio; may be called from any thread."""
        self.acknowledge()

    @classmethod
    def from_received(cls, message: Received, acknowledge: Callable[[], None]) -> Self:
        """The same message for a program without Trio."""
        shared = {each.name: getattr(message, each.name) for each in fields(Message)}
        return cls(**shared, acknowledge=acknowledge)
