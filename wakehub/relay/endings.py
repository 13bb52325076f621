"""What ends a listener from outside: a signal, or the end of the process that started it (receive.md §3)."""

import os
import signal
from typing import Final

import trio

from wakehub.limits import PARENT_WATCH_MS

_STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


async def signalled() -> None:
    """Return at the first SIGTERM, SIGINT or SIGHUP.

    One that was ignored when the process started (by nohup, or for a background job of `sh`) stays ignored.
    """
    heeded = [number for number in _STOPPING if signal.getsignal(number) is not signal.SIG_IGN]
    if not heeded:
        await trio.sleep_forever()
    with trio.open_signal_receiver(*heeded) as received:
        await anext(aiter(received))


async def parent_gone() -> None:
    """Return when the parent of this process, as it is now, has ended (faults F39, F83).

    On Linux by a pidfd, at once; elsewhere, or where that is not to be had, by asking once a second who the parent is:
    an orphan gets another one.
    """
    parent = os.getppid()
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
