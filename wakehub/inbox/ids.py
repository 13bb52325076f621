"""Ids of rows and of broadcasts: sortable, unguessable enough, never reused (receive.md §1).

An id is a letter, an underscore and 26 Crockford base-32 digits: 48 bits of milliseconds, then 80 random bits. Within
one process each id is greater than the one before, also within one millisecond and after the clock was set back.
"""

import os
import re
import secrets
import threading
from typing import Final

_DIGITS: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_LENGTH: Final = 26
_RANDOM_BITS: Final = 80
_ROW_ID: Final = re.compile(rf"m_[0-7][{_DIGITS}]{{{_LENGTH - 1}}}")


class _Series:
    """The last number given out by this process; a forked child begins its own series."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def next(self, now_ms: int) -> int:
        with self._lock:
            self._last = max(self._last + 1, now_ms << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS))
            return self._last


_series = _Series()


def _begin_anew() -> None:
    global _series
    _series = _Series()


os.register_at_fork(after_in_child=_begin_anew)


def new_id(now_ms: int) -> str:
    """A new row id, ``m_`` + 26 characters, for the moment `now_ms` (milliseconds since the epoch)."""
    return "m_" + _text(_series.next(now_ms))


def new_group(now_ms: int) -> str:
    """A new id for the rows of one broadcast, ``g_`` + 26 characters."""
    return "g_" + _text(_series.next(now_ms))


def is_row_id(text: str) -> bool:
    """Whether `text` has the form of a row id."""
    return _ROW_ID.fullmatch(text) is not None


def made_ms(id: str) -> int:
    """When a row id was made, in milliseconds since the epoch, by the clock of whoever made it."""
    number = 0
    for digit in id[2:]:
        number = number << 5 | _DIGITS.index(digit)
    return number >> _RANDOM_BITS


def _text(number: int) -> str:
    return "".join(_DIGITS[number >> 5 * place & 31] for place in reversed(range(_LENGTH)))
