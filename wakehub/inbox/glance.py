"""A look at the record that costs little: how much waits for one name (receive.md §7; fault F86).

For hooks, which run at every turn of every session. It makes nothing, upgrades nothing and takes no part in the
record's life: it reads one file of ours, in the way that every reader does (`sqlite.py`), without the code of the rest.
"""

import sqlite3
from pathlib import Path

from wakehub import files
from wakehub.inbox import tenure
from wakehub.inbox.clock import Now
from wakehub.limits import SQLITE_BUSY_MS
from wakehub.processes import ProcessId

_UNREAD = """SELECT count(*) FROM message INDEXED BY message_open
    WHERE recipient = ? AND state IN ('unread', 'claimed') AND expires_ms > ?"""
_LEASE = """SELECT pid, started, boot, pid_namespace, renewed_ms, renewed_mono_ms FROM lease WHERE name = ?"""


def unattended(path: Path, name: str, now: Now) -> int:
    """How many messages wait for `name` in the record at `path`; 0 when a live listener takes them, or none is there.

    Raises `Unsafe` for a file that is not ours alone, and `OSError` when the record cannot be read now.
    """
    try:
        with files.opened(path):  # judged before SQLite opens it; behind that, closing it would drop SQLite's locks
            pass
    except FileNotFoundError:
        return 0
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=SQLITE_BUSY_MS / 1000)
        try:
            ((unread,),) = connection.execute(_UNREAD, (name, now.ms)).fetchall()
            return unread if unread and not _is_attended(connection, name, now) else 0
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise OSError(f"the record cannot be read: {error}") from error


def _is_attended(connection: sqlite3.Connection, name: str, now: Now) -> bool:
    found = (values for each in tenure.covering(name) for values in connection.execute(_LEASE, (each,)).fetchall())
    return any(tenure.is_live(ProcessId(*process), wall, mono, now) for *process, wall, mono in found)
