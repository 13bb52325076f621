"""What ends a listener from outside: a signal, or the end of the process that started it (receive.md §3)."""

import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from wakehub.limits import PARENT_WATCH_MS

_STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Endings:
    """What to wait for: each returns when it happened. `is_interrupt`: the signal came from the keyboard."""

    signalled: Callable[[], Awaitable[None]]
    orphaned: Callable[[], Awaitable[None]]
    is_interrupt: Callable[[], bool] = lambda: False


@contextmanager
def endings(parent: int) -> Iterator[Endings]:
    """From here to its end SIGTERM, SIGINT and SIGHUP end nothing by themselves; `parent` is the parent's pid at start.

    Later ones are heard and change nothing: the end is on its way. One that was ignored when the process started (by
    nohup, or for a background job of `sh`) stays ignored. Not Trio's own receiver, which gives a second signal back to
    the process behind the block and so kills it on the last step.
    """
    caught = trio.Event()
    heard: list[int] = []
    token = trio.lowlevel.current_trio_token()

    def heed(number: int, frame: object) -> None:
        heard.append(number)
        token.run_sync_soon(caught.set, idempotent=True)

    heeded = [number for number in _STOPPING if signal.getsignal(number) is not signal.SIG_IGN]
    before = [signal.signal(number, heed) for number in heeded]
    try:
        yield Endings(caught.wait, partial(parent_gone, parent), lambda: heard[:1] == [signal.SIGINT])
    finally:
        for number, handler in zip(heeded, before, strict=True):
            signal.signal(number, handler)


async def parent_gone(parent: int) -> None:
    """Return when the process `parent`, which was this one's parent when it started, has ended (faults F39, F83).

    On Linux by a pidfd, at once; elsewhere, or where that is not to be had, by asking once a second who the parent is:
    an orphan gets another one.
    """
    try:
        fd = os.pidfd_open(parent)
    except (AttributeError, OSError):
        pass
    else:
        try:
            if os.getppid() == parent:  # else it ended before, and the pid may be someone else's
                await trio.lowlevel.wait_readable(fd)
            return
        finally:
            os.close(fd)
    while os.getppid() == parent:  # noqa: ASYNC110  # there is no event for it here
        await trio.sleep(PARENT_WATCH_MS / 1000)
