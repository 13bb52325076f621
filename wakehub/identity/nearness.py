"""Which known name a mistyped one meant (receive.md §2; fault F15)."""

import re
from collections.abc import Iterable
from typing import Final

_SEPARATORS = re.compile(r"[/._:-]+")
_DIGIT = re.compile(r"\d")
_LONG_WORD: Final = 8


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
