"""Wakes over a hub session that this very process holds (receive.md §5).

A sender never opens a session, and has the publisher wake for it. But a program that listens holds one already, and
where no publisher does it, that one wakes. Sessions live in the Trio loop of their subscription (`LentSession`), and
senders in other threads, or in the loop itself, which they block: then there is nothing to be had here.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wakehub.client.poke import Answer
from wakehub.client.wakes import wake_for
from wakehub.errors import ErrorCode, WakehubError
from wakehub.inbox.clock import Now
from wakehub.inbox.rows import Row
from wakehub.inbox.store import Inbox

if TYPE_CHECKING:
    from wakehub.client.lent_session import LentSession

_held: Final[dict[Path, list["LentSession"]]] = {}
_lock: Final = threading.Lock()


@contextmanager
def offered(socket: Path, session: "LentSession") -> Iterator[None]:
    """Within the block, senders in this process may wake over this session with the hub at `socket`."""
    with _lock:
        _held.setdefault(socket, []).append(session)
    try:
        yield
    finally:
        with _lock:
            _held[socket].remove(session)


def wake(socket: Path, rows: Sequence[Row], inbox: Inbox) -> list[Answer]:
    """Wake for `rows` by a session with the hub at `socket`, and record what it took or refused.

    The answers that there are within 2 s, none when this process has no such session; raises nothing.
    """
    session = _usable(socket)
    if session is None:
        return []
    with suppress(WakehubError):  # a record that cannot be read says nothing about who is to be woken
        now = Now.read()
        leases = [inbox.leases.resolve(row.recipient, now) for row in rows]
        targets = [lease.agent_id if lease else row.recipient for row, lease in zip(rows, leases, strict=True)]
        codes = session.deliver([(target, wake_for(row)) for target, row in zip(targets, rows, strict=True)])
        _record(inbox, list(zip(rows, codes, strict=False)))
        return [
            Answer(row.id, "hinted" if code is None else "refused", code, lease is not None)
            for row, lease, code in zip(rows, leases, codes, strict=False)
        ]
    return []


def _usable(socket: Path) -> "LentSession | None":
    with _lock:
        found = [session for session in _held.get(socket, ()) if session.is_usable()]
    return found[-1] if found else None


def _record(inbox: Inbox, told: Sequence[tuple[Row, int | None]]) -> None:
    for code in dict.fromkeys(code for _, code in told):
        if code != ErrorCode.RATE_LIMITED:
            ids = [row.id for row, found in told if found == code]
            with suppress(WakehubError):  # then the publisher wakes once more, which does no harm
                inbox.record_hint(ids, code, Now.read())
