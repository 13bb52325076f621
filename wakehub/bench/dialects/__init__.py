"""How the load client speaks to each system: bytes that are prepared beforehand, and how a connection begins.

A dialect knows no socket. `greet` is a generator that yields bytes to send and is sent what came in, so that the same
code serves one connection that blocks and a thousand that do not. Everything else is the exact bytes of a message on
its way in and on its way out, so that every message can be compared, and costs the load client one send and one read.

All systems carry the same: `message`, as many bytes as the hint that the publisher sends.
"""

from collections.abc import Generator, Mapping
from typing import Any, Final, Protocol

CROWD: Final = "bench/all"
"""Where a broadcast goes, in other systems' words."""

Greeting = Generator[bytes, bytes, None]
"""Yields bytes to send (empty: nothing) and is sent what was received next; returns when the agent is connected."""


class Wrong(Exception):
    """What was measured is not what should have been: something else came, or nothing."""


class Dialect(Protocol):
    """One system's language. Agents are numbers from 0; a *broadcast* goes to the whole crowd."""

    lanes: int
    """Connections per agent: 1, or 2 (the first is written to, the last read from)."""

    rotates: bool
    """Whether anyone in the crowd may broadcast, and does not hear itself; else agent 0 sends and is not in it."""

    noise: Mapping[bytes, bytes]
    """What may come at any time between messages, and what is to be answered."""

    def greet(self, agent: int, lane: int, *, crowd: bool) -> Greeting:
        """Connect `agent`; with `crowd` it hears broadcasts."""

    def wake(self, sender: int, recipient: int) -> bytes:
        """What the sender writes."""

    def heard(self, sender: int, recipient: int) -> bytes:
        """What the recipient reads then, exactly."""

    def answer_bytes(self, sender: int, recipient: int) -> int:
        """How many bytes the sender is answered."""

    def broadcast(self, sender: int) -> bytes:
        """What the sender of a broadcast writes."""

    def heard_broadcast(self, sender: int) -> bytes:
        """What each of the crowd reads then."""

    def broadcast_answer_bytes(self, sender: int, listeners: int) -> int:
        """How many bytes the sender of a broadcast is answered."""


def load(name: str, options: dict[str, Any]) -> Dialect:
    """The dialect of that name; `options` are its own."""
    from importlib import import_module

    module = import_module(f"wakehub.bench.dialects.{name}")
    made: Dialect = module.make(**options)
    return made


def agent_id(number: int) -> str:
    """The name of an agent in every system."""
    return f"bench/{number:04}"


def message(sender: int, recipient: int, size: int) -> bytes:
    """What another system carries in the place of a hint: printable, `size` bytes, different for each pair."""
    return f"m_{sender:04}{recipient:04}".ljust(size, ".").encode()


def until(complete: bytes, received: bytes = b"") -> Generator[bytes, bytes, bytes]:
    """Receive until `complete` has come; returns all that has."""
    while complete not in received:
        received += yield b""
    return received
