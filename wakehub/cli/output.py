"""What the commands print, and the one place where an error becomes words and an exit status.

Rules: reports go to stdout and are flushed as they are made; errors go to stderr as ``wakehub: what: why`` and
``  next: remedy``. Text that others wrote is shown through `visible`. A reader that has gone away is no fault of ours
to shout about: the command stops quietly with 74. A descriptor 0, 1 or 2 that is closed is filled with /dev/null
first, so that no socket or database file can ever take its place and be written to.
"""

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from wakehub.errors import Exit, WakehubError
from wakehub.visible import visible


class OutputGone(WakehubError):
    """Standard output cannot be written (exit 74); `quiet` when its reader simply left."""

    exit = Exit.OUTPUT_GONE

    def __init__(self, why: str, *, quiet: bool = False) -> None:
        super().__init__(
            "the output cannot be written", why=why, remedy="give the command a standard output that can be written"
        )
        self.quiet = quiet


def guard() -> None:
    """Fill closed standard descriptors and let no character that the terminal cannot show become a traceback."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, so exactly this one
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def say(text: str, *, end: str = "\n") -> None:
    """Write one piece of a report and flush it; raises `OutputGone` when that fails."""
    if sys.stdout is None:
        raise OutputGone("standard output is closed")
    try:
        sys.stdout.write(text + end)
        sys.stdout.flush()
    except BrokenPipeError:
        _abandon_stdout()
        raise OutputGone("its reader is gone", quiet=True) from None
    except OSError as error:
        _abandon_stdout()
        raise OutputGone(error.strerror or "the write failed") from error


def say_json(value: Mapping[str, Any] | list[Any]) -> None:
    """Write a report as one line of JSON; plain ASCII, so that it is exact whatever the locale."""
    say(json.dumps(value, separators=(", ", ": ")))


def complain(error: WakehubError) -> int:
    """Tell a person what is wrong, why and what to do next; returns the exit status of `error`."""
    if not (isinstance(error, OutputGone) and error.quiet):
        lines = "wakehub: " + visible(error.what) + (f": {visible(error.why)}" if error.why else "")
        if error.remedy:
            lines += f"\n  next: {visible(error.remedy)}"
        warn(lines)
    return int(error.exit)


def warn(text: str) -> None:
    """Write a line to stderr; a stderr that is gone is not worth a second error."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


def _abandon_stdout() -> None:
    """What is left in the buffer goes nowhere, or the interpreter would complain about it once more at its end."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
