"""Tell the publisher about new rows and hear what became of their wakes (formats.md, Poke).

One line of JSON goes out, one line per id comes back. Whatever happens here, the rows are stored already: a poke can
only make a wake earlier. What can go wrong is told apart, since "not running" and "not allowed" need different advice.
"""

import errno
import json
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, Literal

from wakehub.limits import MAX_ANSWER_LINE_BYTES, MAX_POKE_IDS, POKE_DEADLINE_MS, POKE_GRACE_MS

_VERSION: Final = 1
_STATES: Final = frozenset({"hinted", "refused", "hub_down"})


class Missing(Enum):
    """Why there is no answer for a row."""

    ABSENT = "publisher not running"
    DENIED = "not allowed to reach the publisher; this process seems to run in a sandbox"
    SILENT = "the publisher did not answer in time"
    GARBLED = "the publisher's answer was not understood"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the publisher said about one row: whether the hub took the wake, the code if not, and whether some process
    holds the recipient's name."""

    row_id: str
    state: Literal["hinted", "refused", "hub_down"]
    code: int | None
    holder: bool


def poke(socket_path: Path, row_ids: Sequence[str]) -> Iterator[tuple[str, Answer | Missing]]:
    """Ask the publisher to wake for each row; yield one outcome per id, as the answers come.

    Takes at most about 2.5 s for each 256 ids, whatever the publisher does. Raises nothing for what a publisher or its
    absence can cause.
    """
    for first in range(0, len(row_ids), MAX_POKE_IDS):
        yield from _exchange(socket_path, row_ids[first : first + MAX_POKE_IDS])


def _exchange(socket_path: Path, row_ids: Sequence[str]) -> Iterator[tuple[str, Answer | Missing]]:
    open_ids = dict.fromkeys(row_ids)
    missing = Missing.SILENT
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:  # which a sandbox may forbid, too
            for answer in _converse(sock, socket_path, row_ids):
                if answer.row_id in open_ids:
                    del open_ids[answer.row_id]
                    yield answer.row_id, answer
    except ValueError:
        missing = Missing.GARBLED
    except TimeoutError:
        pass
    except OSError as error:
        missing = _missing(error)
    for row_id in open_ids:
        yield row_id, missing


def _converse(sock: socket.socket, path: Path, row_ids: Sequence[str]) -> Iterator[Answer]:
    deadline = time.monotonic() + (POKE_DEADLINE_MS + POKE_GRACE_MS) / 1000  # the way there and back
    _set_deadline(sock, deadline)
    sock.connect(str(path))
    sock.sendall(json.dumps({"v": _VERSION, "ids": list(row_ids)}).encode() + b"\n")
    rest = b""
    while True:
        _set_deadline(sock, deadline)
        data = sock.recv(MAX_ANSWER_LINE_BYTES)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > MAX_ANSWER_LINE_BYTES:
            raise ValueError("line too long")
        for line in lines:
            yield _parse(line)


def _set_deadline(sock: socket.socket, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    sock.settimeout(left)


def _parse(line: bytes) -> Answer:
    """One answer line; raises `ValueError` (of which bad JSON and bad UTF-8 are kinds) for anything else."""
    found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError("not an object")
    row_id, state, code, holder = (found.get(key) for key in ("id", "state", "code", "holder"))
    if not isinstance(row_id, str) or state not in _STATES or not isinstance(holder, bool):
        raise ValueError("not an answer")
    if code is not None and (not isinstance(code, int) or isinstance(code, bool)):
        raise ValueError("code is no number")
    return Answer(row_id, state, code, holder)


def _missing(error: OSError) -> Missing:
    if error.errno in (errno.EPERM, errno.EACCES):
        return Missing.DENIED
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ECONNREFUSED):
        return Missing.ABSENT
    return Missing.SILENT
