"""Points in time as RFC 3339 text (awh1.md §4.2): read strictly, written in one form.

Read: ``YYYY-MM-DDTHH:MM:SS``, up to nine fractional digits, then ``Z`` or a numeric offset; T and Z are capitals, 32
bytes at most. A leap second (``:60``) is refused: no second of the epoch stands for it, so that two readers could
order it differently. Written: whole seconds with ``Z``. In between, time is an integer number of nanoseconds since
the epoch, which holds every stamp exactly.
"""

import re
from datetime import datetime, timedelta
from typing import Final

from wakehub.limits import MAX_STAMP_BYTES

NS: Final = 1_000_000_000
_EPOCH: Final = datetime(1970, 1, 1)
_STAMP: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})"
    r"(?:\.([0-9]{1,9}))?(?:Z|([+-])([0-9]{2}):([0-9]{2}))"
)


def parse(text: str | bytes) -> int:
    """Nanoseconds since the epoch of a stamp (negative before 1970); raises `ValueError` for anything else."""
    if isinstance(text, bytes):
        text = text.decode("ascii")
    if len(text) > MAX_STAMP_BYTES or (match := _STAMP.fullmatch(text)) is None:
        raise ValueError("not an RFC 3339 time")
    *clock, fraction, sign, hours, minutes = match.groups()
    year, month, day, hour, minute, second = (int(part) for part in clock)
    if sign and not (int(hours) < 24 and int(minutes) < 60):
        raise ValueError("not an RFC 3339 offset")
    since = datetime(year, month, day, hour, minute, second) - _EPOCH  # both in UTC
    seconds = since.days * 86_400 + since.seconds
    if sign:
        offset = int(hours) * 3600 + int(minutes) * 60
        seconds += offset if sign == "-" else -offset
    return seconds * NS + int((fraction or "").ljust(9, "0"))


def mint(unix_seconds: int) -> str:
    """``YYYY-MM-DDTHH:MM:SSZ`` for whole seconds since the epoch."""
    moment = _EPOCH + timedelta(seconds=unix_seconds)
    return moment.isoformat(timespec="seconds") + "Z"
