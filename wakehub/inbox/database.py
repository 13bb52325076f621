"""One SQLite file, opened so that a commit is a promise: made whole, upgraded in steps, shared by many processes.

A new database is built under a temporary name and linked into place, so that no process ever sees it half made, and
the switch to the write-ahead log, which SQLite cannot wait for, never meets another user of the file. Upgrades are
numbered scripts, each one transaction that also sets `user_version`. Writing begins with BEGIN IMMEDIATE: it waits for
the lock, but never fails half-way for want of it.

One connection and one lock serve all threads of a process. A second connection only watches `PRAGMA data_version`,
which tells of the commits of others, the first connection among them.

We never open the file by ourselves once SQLite has it: closing any descriptor of it would drop the locks that this
process holds on it (POSIX). It is judged by lstat, in a directory that only we can enter; before each use, too, since
what is written into a file that has lost its name is seen by nobody else.
"""

import contextlib
import os
import secrets
import sqlite3
import stat
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from wakehub import files, ownership
from wakehub.errors import CannotCreate, Misconfigured, WakehubError
from wakehub.inbox.filesystem import check_local, is_unwritable, to_make_room
from wakehub.inbox.refusals import NoRecord, NotStored, RecordBusy, RecordDamaged, RecordReplaced, RecordUnwritable
from wakehub.limits import SQLITE_BUSY_MS, SQLITE_TURN_MS
from wakehub.visible import visible

_APPLICATION_ID: Final = 0x77616B65  # "wake"; tells our file from any other database
_OLDEST_SQLITE: Final = (3, 37, 0)  # STRICT tables
_NO_ROOM: Final = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_TRUNCATE,
    sqlite3.SQLITE_IOERR_SHMOPEN,
    sqlite3.SQLITE_IOERR_SHMSIZE,
)
_DOCTOR: Final = "wakehub doctor --repair"

Params = Mapping[str, object] | tuple[object, ...]


class Database:
    """The record's file. `Database.open` makes one; every method may be called from any thread."""

    def __init__(
        self, path: Path, there: os.stat_result, connection: sqlite3.Connection, watcher: sqlite3.Connection
    ) -> None:
        self.path = path.absolute()
        self._there = there
        self._connection = connection
        self._watcher = watcher
        self._lock = threading.RLock()

    @classmethod
    def open(cls, path: Path, *, create: bool) -> "Database":
        """Open the database at `path`, made first when there is none and `create` is true; upgrade its schema.

        Raises `NoRecord`, `Unsafe` (owner, mode, kind of file), `Misconfigured` (shared file system, newer schema,
        SQLite too old), `CannotCreate`, and what `transaction` raises.
        """
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            raise Misconfigured(
                f"SQLite {sqlite3.sqlite_version} is too old",
                why=f"the record needs {'.'.join(map(str, _OLDEST_SQLITE))}",
                remedy="use a Python with a newer one",
            )
        _check_place(path, create)
        with _translated(path, writing=create):
            if create and not os.path.lexists(path):
                _make_or_say_why(path)
            there = _check_file(path)
            with contextlib.ExitStack() as opened:
                connection = opened.enter_context(contextlib.closing(_connect(path)))
                _check_application(path, connection)
                _upgrade(path, connection)
                watcher = opened.enter_context(contextlib.closing(_connect(path)))
                opened.pop_all()
        return cls(path, there, connection, watcher)

    def add_function(self, name: str, count: int, function: Any) -> None:
        """Let statements call the pure `function` of `count` arguments as `name`."""
        self._connection.create_function(name, count, function, deterministic=False)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All statements inside are one transaction, committed at the end and undone when an exception leaves it.

        Raises `NotStored` (disk full, input/output error), `RecordBusy`, `RecordUnwritable`, `RecordDamaged`,
        `RecordReplaced`.
        """
        with self._lock, _translated(self.path, writing=True):
            self._check_place()
            with _immediate(self._connection):
                yield

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """All statements inside see one state of the record. Raises `RecordBusy`, `RecordDamaged`, `RecordReplaced`."""
        with self._lock, _translated(self.path, writing=False):
            if self._connection.in_transaction:
                yield
                return
            self._check_place()
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._connection.execute("ROLLBACK")

    def execute(self, statement: str, params: Params = ()) -> list[tuple[Any, ...]]:
        """Run one statement inside `transaction` or `reading`; all rows of its result.

        Text that is no Unicode, such as an argument or a variable with a stray byte, is taken with that byte escaped:
        it finds nothing, and breaks nothing.
        """
        try:
            return self._connection.execute(statement, params).fetchall()
        except UnicodeEncodeError:
            return self._connection.execute(statement, _escaped(params)).fetchall()

    def stream(self, statement: str) -> Iterator[tuple[Any, ...]]:
        """As `execute`, but one row after another, for a result that may be as large as the record."""
        return iter(self._connection.execute(statement))

    def data_version(self) -> int:
        """A number that changes with every commit to the file but for those of the watching connection: it has none."""
        with self._lock, _translated(self.path, writing=False):
            self._check_place()
            return int(self._watcher.execute("PRAGMA data_version").fetchall()[0][0])

    def _check_place(self) -> None:
        """Raise `RecordReplaced` when the file at the path is another than the one that is open, or there is none."""
        try:
            if os.path.samestat(os.lstat(self.path), self._there):
                return
            became = "is another file"
        except (FileNotFoundError, NotADirectoryError):
            became = "is gone"
        except OSError:
            return  # it cannot be told
        raise RecordReplaced(
            f"the record {visible(str(self.path))} {became} since this process opened it",
            why="it was removed or replaced, and nobody else sees what is written here",
            remedy="start it again",
        )

    def close(self) -> None:
        """Close both connections; closing twice is harmless."""
        with self._lock:
            self._watcher.close()
            self._connection.close()


def scripts() -> list[str]:
    """The upgrade scripts, in order: script n (from 1) leads from schema n-1 to schema n."""
    found = sorted(Path(__file__).with_name("schema").glob("*.sql"))
    assert [int(path.name[:3]) for path in found] == list(range(1, len(found) + 1)), (
        "scripts are numbered without a gap"
    )
    return [path.read_text("utf-8") for path in found]


def _check_place(path: Path, create: bool) -> None:
    if create:
        files.private_directory(path.parent)
    elif os.path.lexists(path.parent):
        files.check_directory(path.parent)
    if not create and not os.path.lexists(path):
        raise NoRecord(
            f"there is no record at {visible(str(path))}",
            remedy="the publisher makes it, or the first send",
        )
    check_local(path.parent)


def _check_file(path: Path) -> os.stat_result:
    found = os.lstat(path)
    unsafe = ownership.fault(found, path)
    is_only_tighter = stat.S_ISREG(found.st_mode) and not stat.S_IMODE(found.st_mode) & 0o177
    if unsafe is not None and not (is_only_tighter and found.st_uid == os.geteuid()):
        raise unsafe
    if found.st_size == 0:
        raise _damaged(path, "it is empty")
    return found


def _make_or_say_why(path: Path) -> None:
    try:
        _make(path)
    except OSError as error:
        if files.is_denied(error):
            raise _unwritable(path, error.strerror or str(error)) from error
        raise CannotCreate(
            f"cannot make the record {visible(str(path))}",
            why=error.strerror or str(error),
            remedy="free space, or mend the directory's mode, then try again",
        ) from error


def _make(path: Path) -> None:
    """Build an empty record beside `path` and link it there, unless another process was first."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}~")
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    try:
        with contextlib.closing(_connect(temporary)) as connection:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            _upgrade(temporary, connection)
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path, follow_symlinks=False)
    finally:
        for name in (temporary, *(temporary.with_name(temporary.name + end) for end in ("-wal", "-shm"))):
            name.unlink(missing_ok=True)
    where = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(where)
    finally:
        os.close(where)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(os.fsencode(path.absolute()))}?mode=rw",
        uri=True,
        timeout=SQLITE_BUSY_MS / 1000,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        for pragma in ("synchronous = FULL", "foreign_keys = ON", "cell_size_check = ON", "trusted_schema = OFF"):
            connection.execute(f"PRAGMA {pragma}").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def _check_application(path: Path, connection: sqlite3.Connection) -> None:
    if _pragma(connection, "application_id") != _APPLICATION_ID:
        raise Misconfigured(
            f"{visible(str(path))} is not a record of wakehub",
            why="it is a database of something else",
            remedy="name another directory with --state-dir",
        )
    if (mode := _pragma(connection, "journal_mode")) != "wal":
        raise _damaged(path, f"its journal mode is {mode}")
    if _pragma(connection, "user_version") < 1:  # it was made whole before it had its name
        raise _damaged(path, "it has no schema number")


def _upgrade(path: Path, connection: sqlite3.Connection) -> None:
    known = scripts()
    while (version := _pragma(connection, "user_version")) != len(known):
        if version > len(known):
            raise Misconfigured(
                f"{visible(str(path))} has schema {version}",
                why=f"this wakehub knows schemas up to {len(known)}, and never goes back",
                remedy="use the newer wakehub that wrote it",
            )
        with _immediate(connection):
            if _pragma(connection, "user_version") == version:  # else another process has done this step
                for statement in _statements(known[version]):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {version + 1}")


def _escaped(params: Params) -> Params:
    def escape(value: object) -> object:
        return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value

    if isinstance(params, Mapping):
        return {name: escape(value) for name, value in params.items()}
    return tuple(escape(value) for value in params)


def _pragma(connection: sqlite3.Connection, name: str) -> Any:
    return connection.execute(f"PRAGMA {name}").fetchall()[0][0]


def _statements(script: str) -> Iterator[str]:
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


@contextlib.contextmanager
def _immediate(connection: sqlite3.Connection) -> Iterator[None]:
    _take_turn(connection)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # SQLite may have rolled back by itself
            connection.execute("ROLLBACK")
        raise


def _take_turn(connection: sqlite3.Connection) -> None:
    """Begin to write, once no other process does.

    SQLite has no queue: who asks when the lock happens to be free has it, and who waits asks ever more seldom, so that
    in a crowd somebody found it taken 10 s long. Asked anew each time, it begins with short pauses again.
    """
    connection.execute(f"PRAGMA busy_timeout = {SQLITE_TURN_MS}").fetchall()
    try:
        for left in reversed(range(max(1, SQLITE_BUSY_MS // SQLITE_TURN_MS))):
            try:
                connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if not left or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
    finally:
        connection.execute(f"PRAGMA busy_timeout = {SQLITE_BUSY_MS}").fetchall()


@contextlib.contextmanager
def _translated(path: Path, *, writing: bool) -> Iterator[None]:
    """Raise what SQLite reports as the error that says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        translated = _meaning(path, error, writing)
        if translated is None:
            raise
        raise translated from error


def _meaning(path: Path, error: sqlite3.Error, writing: bool) -> WakehubError | None:
    code = getattr(error, "sqlite_errorcode", None)
    shown, why = visible(str(path)), visible(str(error))
    writing = writing or code in _NO_ROOM  # opening it to read makes its shared memory
    match None if code is None else code & 0xFF:
        case sqlite3.SQLITE_FULL | sqlite3.SQLITE_IOERR if writing:
            return NotStored(
                f"not stored: {shown} cannot be written",
                why=why,
                remedy=f"{to_make_room(path.parent)}, try again",
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return RecordBusy(
                f"nothing was changed in {shown}",
                why=f"another process kept it locked for {SQLITE_BUSY_MS // 1000} s",
                remedy="try again",
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return _unwritable(path, why)
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_IOERR:
            return _damaged(path, why)
        case None if isinstance(error, sqlite3.OperationalError):  # Python's own: text that is not UTF-8
            return _damaged(path, why)
    return None


def _unwritable(path: Path, why: str) -> RecordUnwritable:
    remedy = "inside a sandbox, allow writing to its directory; else mend the modes"
    if is_unwritable(path.parent):
        remedy = to_make_room(path.parent)
    return RecordUnwritable(f"{visible(str(path))} cannot be opened for writing", why=why, remedy=remedy)


def _damaged(path: Path, why: str) -> RecordDamaged:
    return RecordDamaged(f"the record {visible(str(path))} is damaged", why=why, remedy=_DOCTOR)
