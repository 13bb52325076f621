"""What the words of a command line may be: durations, paths, whole numbers. Each refuses with the form it expects."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"([0-9]{1,9})([smhd]?)")


def duration(*, least: int, most: int | None = None) -> Callable[[str], int]:
    """A type for argparse: ``90``, ``90s``, ``15m``, ``24h`` or ``7d`` as whole seconds within `least`..`most`."""

    def parse(text: str) -> int:
        found = _DURATION.fullmatch(text)
        if found is None:
            raise argparse.ArgumentTypeError(f"{text!r} is no duration; write 90, 90s, 15m, 24h or 7d")
        seconds = int(found[1]) * _UNITS[found[2]]
        if seconds < least or (most is not None and seconds > most):
            bounds = f"{least} s to {most} s" if most is not None else f"{least} s or more"
            raise argparse.ArgumentTypeError(f"{text!r} is {seconds} s; it must be {bounds}")
        return seconds

    return parse


def whole_number(*, least: int) -> Callable[[str], int]:
    """A type for argparse: a whole number of at least `least`, in plain ASCII digits."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least {least}")
        return int(text)

    return parse


def path(text: str) -> Path:
    """A type for argparse: a path, made absolute by the caller."""
    if not text:
        raise argparse.ArgumentTypeError("a path must not be empty")
    return Path(text)
