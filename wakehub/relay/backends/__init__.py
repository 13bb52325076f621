"""How a message gets in front of an agent, and what proves it (receive.md §4).

A backend delivers one message at a time and answers with one of three outcomes; the loop acknowledges a row for
`HandedOff` and for nothing else. `OutputGone` means that no message can be delivered here any more.

Most backends have one outlet that is always there. Where each agent has an outlet of its own that comes and goes
(`is_apart`), the loop asks first whether an agent is there, leaves the rows of those who are not unread and untouched,
and lets no agent wait for another.
"""

from abc import abstractmethod
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Protocol

from wakehub.errors import Exit, WakehubError
from wakehub.limits import BACKEND_DEADLINE_SECONDS, ROW_RETRY_FIRST_SECONDS
from wakehub.relay.message import Message


@dataclass(frozen=True, slots=True)
class HandedOff:
    """The agent provably has it; `proof` names the proof and is kept in the record."""

    proof: str


@dataclass(frozen=True, slots=True)
class NotNow:
    """It did not work this time. `busy` is no failure; `in_doubt`: the agent may have seen it nevertheless.

    `retry_s` is the wait in seconds behind a first attempt; it doubles with each one, to at most 10 minutes.
    """

    reason: str
    busy: bool = False
    in_doubt: bool = False
    retry_s: int = ROW_RETRY_FIRST_SECONDS


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
    """One way to deliver; `mode` says it in words, for the person who started the listener.

    `dies_with_parent`: the output is of no use once the process that started us is gone. `deadline_s`: how long a
    hand-off may take, in seconds. `is_apart`: every agent has an outlet of its own.
    """

    mode: str = ""
    dies_with_parent: bool = False
    deadline_s: float = BACKEND_DEADLINE_SECONDS
    is_apart: bool = False

    @abstractmethod
    async def deliver(self, message: Message) -> Outcome:
        """Put the message in front of the agent and prove it.

        Raises `OutputGone`. Being cancelled leaves the message in doubt.
        """

    @abstractmethod
    def check(self) -> None:
        """Raise `OutputGone` when there is nobody to deliver to any more; asked about once a second."""

    def exists(self, agent: str) -> bool:
        """Whether there is somewhere to deliver messages for the address `agent` to, as of the last look."""
        return True

    def absence(self, agent: str) -> str:
        """Why `exists` says no, in words."""
        return "its agent is not there"

    def list_agents(self) -> Collection[Hashable]:
        """Who is there, as of the last `check`; one that was not there before is a reason to look for its rows."""
        return ()
