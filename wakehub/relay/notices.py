"""What a listener says to the person beside it, on standard error; standard output is for messages only.

A program that listens has its own ways to talk to people: `told_to` says where notices go in place of standard error,
for everything that is started within the block.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

from wakehub.identity.addresses import is_reserved
from wakehub.inbox.clock import Now
from wakehub.inbox.store import Inbox
from wakehub.inbox.tenure import covers
from wakehub.visible import visible


def tell(line: str) -> None:
    """Say one line; if nobody can be told, that is no reason to stop."""
    _say.get()(line)


@contextmanager
def told_to(say: Callable[[str], None]) -> Iterator[None]:
    """Within this block, and in the tasks and threads that Trio starts in it, lines go to `say`."""
    before = _say.set(say)
    try:
        yield
    finally:
        _say.reset(before)


def _on_standard_error(line: str) -> None:
    try:
        print(f"wakehub: {line}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass


_say: ContextVar[Callable[[str], None]] = ContextVar("say", default=_on_standard_error)


def clock(ms: int) -> str:
    """A time of the record (milliseconds since the epoch) for a person."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def nothing_for(inbox: Inbox, names: Sequence[str]) -> str:
    """Which box is empty, or what is left in it, and which others of this user are not (receive.md §2; fault F35)."""
    boxes = [box for box in inbox.boxes_with_unread() if not is_reserved(box.name)]
    own = [box for box in boxes if any(covers(name, box.name) for name in names)]
    left = sum(box.unread for box in own)
    listed = ", ".join(names)
    line = f"{left} unread for {listed} left for later" if left else f"nothing unread for {listed}"
    others = [f"{visible(box.name)} {box.unread}" for box in boxes if box not in own]
    return f"{line}; unread elsewhere: {', '.join(others)}" if others else line


def wrong_box(inbox: Inbox, names: Sequence[str], now: Now) -> str | None:
    """For a listener that stays: `nothing_for` if its boxes are empty, but others that nobody listens for are not."""
    boxes = [box.name for box in inbox.boxes_with_unread() if not is_reserved(box.name)]
    if any(covers(name, box) for name in names for box in boxes):
        return None
    is_unheard = any(inbox.leases.resolve(box, now) is None for box in boxes)
    return nothing_for(inbox, names) if is_unheard else None
