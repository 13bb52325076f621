"""Which name this process acts under, and which known name a mistyped one meant (receive.md §2; formats.md).

The first that is given counts: `--as`, `$WAKEHUB_AGENT`, the name of the working directory. The same process tree in
the same directory thus always has the same name, and every command prints the one it took.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wakehub.errors import Exit, WakehubError
from wakehub.identity.enrolment import check_address, is_reserved, name_from_directory

_SEPARATORS = re.compile(r"[/._:-]+")
_DIGIT = re.compile(r"\d")
_LONG_WORD: Final = 8


@dataclass(frozen=True, slots=True)
class OwnName:
    """The name a process acts under, and where it came from, in words."""

    name: str
    source: str


def choose(given: str | None, environ: Mapping[str, str] = os.environ, directory: Path | None = None) -> OwnName:
    """The own name: `given` (`--as`), else `$WAKEHUB_AGENT`, else the base name of `directory` (default: the cwd).

    Raises `BadData` (65) for a name that was given and is no address, `WakehubError` (2) when the directory gives none.
    """
    if given:
        return OwnName(check_address(given), "--as")
    if from_environment := environ.get("WAKEHUB_AGENT"):
        return OwnName(check_address(from_environment), "$WAKEHUB_AGENT")
    try:
        name = name_from_directory((directory or Path.cwd()).name)
    except OSError:  # the directory is gone
        name = None
    if name is None or is_reserved(name):
        raise WakehubError(
            "no name to act under",
            why="this directory's name gives none",
            remedy="give one with --as NAME or WAKEHUB_AGENT",
            exit=Exit.USAGE,
        )
    return OwnName(name, "this directory")


def near(name: str, known: Iterable[str]) -> list[str]:
    """The known names that `name` may be a slip of the finger for, sorted.

    A name that differs by a digit, or by a word of one letter, is a sibling (`reviewer-2`, `worker-b`), not a slip;
    one or two letters changed, left out, doubled or swapped inside a longer word are, as are case and separators.
    """
    return sorted(other for other in set(known) if other != name and _is_near(name, other))


def _is_near(name: str, other: str) -> bool:
    mine, others = _words(name), _words(other)
    if "".join(mine) == "".join(others):
        return True
    if len(mine) != len(others):
        return False
    return all(a == b or _is_slip(a, b) for a, b in zip(mine, others, strict=True))


def _words(name: str) -> list[str]:
    return _SEPARATORS.split(name.casefold())


def _is_slip(a: str, b: str) -> bool:
    if _DIGIT.findall(a) != _DIGIT.findall(b) or min(len(a), len(b)) < 3:
        return False
    if sorted(a) == sorted(b):
        return _distance(a, b) == 1
    if min(len(a), len(b)) < 4:
        return False
    return _distance(a, b) <= (2 if min(len(a), len(b)) >= _LONG_WORD else 1)


def _distance(a: str, b: str) -> int:
    """How many letters were inserted, left out, changed or swapped with their neighbour (optimal string alignment)."""
    before: list[int] = []
    above = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            cost = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        before, above = above, row
    return above[-1]
