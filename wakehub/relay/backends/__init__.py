"""How a message gets in front of an agent, and what proves it (receive.md §4).

A backend delivers one message at a time and answers with one of three outcomes; the loop acknowledges a row for
`HandedOff` and for nothing else. `OutputGone` means that no message can be delivered here any more.
"""

from dataclasses import dataclass
from typing import Protocol

from wakehub.errors import Exit, WakehubError
from wakehub.relay.message import Message


@dataclass(frozen=True, slots=True)
class HandedOff:
    """The agent provably has it; `proof` names the proof and is kept in the record."""

    proof: str


@dataclass(frozen=True, slots=True)
class NotNow:
    """It did not work this time. `busy` is no failure; `in_doubt`: the agent may have seen it nevertheless."""

    reason: str
    busy: bool = False
    in_doubt: bool = False


@dataclass(frozen=True, slots=True)
class Never:
    """It can never be delivered; `code` is an exit or error code for the record."""

    code: int
    reason: str


Outcome = HandedOff | NotNow | Never


class OutputGone(WakehubError):
    """Nobody is there to deliver to (exit 74); `in_doubt`: the message in hand may have been seen."""

    exit = Exit.OUTPUT_GONE

    def __init__(self, what: str, *, in_doubt: bool = False) -> None:
        super().__init__(what, why="nothing more is acknowledged; unread messages wait", remedy="listen again")
        self.in_doubt = in_doubt


def orphan() -> OutputGone:
    """What ends a listener whose output is of no use without the process that started it."""
    return OutputGone("the process that started this listener is gone")


class Backend(Protocol):
    """One way to deliver.

    `dies_with_parent` says whether the output is of no use once the process that started us is gone.
    """

    @property
    def dies_with_parent(self) -> bool: ...

    async def deliver(self, message: Message) -> Outcome:
        """Put the message in front of the agent and prove it.

        Raises `OutputGone`. Being cancelled leaves the message in doubt.
        """
        ...

    def check(self) -> None:
        """Raise `OutputGone` when there is nobody to deliver to any more; asked about once a second."""
        ...
