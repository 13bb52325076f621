"""The file: made whole by one of many, with its modes, upgraded in steps, refused when it is not ours or not whole."""

import contextlib
import os
import resource
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from daemon_process import started

from wakehub.errors import Exit, Misconfigured, Unsafe
from wakehub.inbox import database
from wakehub.inbox.clock import Now
from wakehub.inbox.database import Database, scripts
from wakehub.inbox.refusals import NoRecord, NotStored, RecordBusy, RecordDamaged, RecordReplaced, RecordUnwritable
from wakehub.inbox.rows import NewRow
from wakehub.inbox.sqlite import SqliteInbox

_OPENERS = 8
_OPEN = """
import sys
from pathlib import Path
from wakehub.inbox.clock import Now
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.inbox.rows import NewRow
print("ready", flush=True)
sys.stdin.readline()
with SqliteInbox.open(Path(sys.argv[1])) as inbox:
    inbox.append(NewRow(sys.argv[2], "alice", b"first"), Now.read())
"""
_FULL = """
import resource, sys
from pathlib import Path
from wakehub.errors import Exit
from wakehub.inbox.clock import Now
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.inbox.admission import Guard
from wakehub.inbox.refusals import NotStored
from wakehub.inbox.rows import NewRow
with SqliteInbox.open(Path(sys.argv[1]), guard=Guard(pair_per_minute=10_000)) as inbox:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    stored = []
    try:
        while True:
            stored += inbox.append([NewRow("bob", "alice", b"x" * 60_000) for _ in range(3)], Now.read())
    except NotStored as refused:
        assert refused.exit == Exit.CANNOT_CREATE and "not stored" in str(refused), refused
    assert len(stored) >= 3 and len(stored) % 3 == 0
    assert [row.id for row in inbox.unread("alice", limit=1000)] == [row.id for row in stored]
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    (after,) = inbox.append(NewRow("bob", "alice", b"again"), Now.read())
    assert after.rseq == len(stored) + 1
"""


@contextmanager
def raw(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def pragma(path: Path, name: str) -> object:
    with raw(path) as connection:
        return connection.execute(f"PRAGMA {name}").fetchall()[0][0]


def store(path: Path, body: bytes = b"x") -> None:
    with SqliteInbox.open(path) as inbox:
        inbox.append(NewRow("bob", "alice", body), Now.read())


# --- making ---


def test_a_new_record_is_whole_private_and_alone(record: Path) -> None:
    old = os.umask(0)
    try:
        with SqliteInbox.open(record) as inbox:
            inbox.append(NewRow("bob", "alice", b"x"), Now.read())
            found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in record.parent.iterdir()}
    finally:
        os.umask(old)
    assert found == {"record.db": 0o600, "record.db-wal": 0o600, "record.db-shm": 0o600}
    assert stat.S_IMODE(record.parent.stat().st_mode) == 0o700
    assert pragma(record, "journal_mode") == "wal"
    assert pragma(record, "user_version") == len(scripts())
    assert pragma(record, "integrity_check") == "ok"


def test_a_commit_reaches_the_disk_before_it_returns(record: Path) -> None:
    with closing(Database.open(record, create=True)) as opened, opened.reading():
        assert opened.execute("PRAGMA synchronous") == [(2,)]  # FULL
        assert opened.execute("PRAGMA foreign_keys") == [(1,)]


def test_every_table_is_strict(record: Path) -> None:
    store(record)
    with raw(record) as connection:
        tables = connection.execute("PRAGMA table_list").fetchall()
    ours = {name: strict for _, name, _, _, _, strict in tables if not name.startswith("sqlite_")}
    assert set(ours) == {"message", "event", "attachment", "box", "taken", "lease", "past_lease", "activity"}
    assert set(ours.values()) == {1}


def test_without_create_an_absent_record_is_named(record: Path) -> None:
    for _ in range(2):
        with pytest.raises(NoRecord, match="the publisher makes it, or the first send") as refused:
            SqliteInbox.open(record, create=False)
        assert refused.value.exit == Exit.CONFIG
        assert not record.exists()
        record.parent.mkdir(mode=0o700, exist_ok=True)


def test_many_processes_make_one_record(record: Path) -> None:
    command = [sys.executable, "-c", _OPEN, str(record)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(started([*command, f"sender-{n}"], **pipes)) for n in range(_OPENERS)]
        assert [process.stdout.readline() for process in running if process.stdout] == ["ready\n"] * _OPENERS
        for process in running:
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in running:
            process.communicate()
        assert [process.returncode for process in running] == [0] * _OPENERS
    with SqliteInbox.open(record, create=False) as inbox:
        assert [row.rseq for row in inbox.unread("alice")] == list(range(1, _OPENERS + 1))
    assert [path.name for path in record.parent.iterdir()] == ["record.db"]


def test_a_path_with_every_odd_character(tmp_path: Path) -> None:
    path = tmp_path / "a?b=c#d%20 é&mode=memory" / "record.db"
    store(path)
    store(path)
    with SqliteInbox.open(path, create=False) as inbox:
        assert inbox.count_unread("alice") == 2


# --- refusing ---


def test_a_directory_open_to_others_is_refused(record: Path) -> None:
    record.parent.mkdir(mode=0o755)
    record.parent.chmod(0o755)
    for create in (True, False):
        with pytest.raises(Unsafe, match="0700"):
            SqliteInbox.open(record, create=create)


@pytest.mark.parametrize("kind", ["readable", "executable", "link", "directory", "fifo"])
def test_a_file_that_is_not_as_it_must_be_is_refused(record: Path, kind: str) -> None:
    store(record)
    aside = record.with_name("aside")
    if kind in ("link", "directory", "fifo"):
        record.rename(aside)
    {
        "readable": lambda: record.chmod(0o640),
        "executable": lambda: record.chmod(0o700),
        "link": lambda: record.symlink_to(aside),
        "directory": record.mkdir,
        "fifo": lambda: os.mkfifo(record, 0o600),
    }[kind]()
    with pytest.raises(Unsafe) as refused:
        SqliteInbox.open(record)
    assert refused.value.remedy


def test_a_newer_schema_is_refused_and_left_as_it_is(record: Path) -> None:
    store(record)
    with raw(record) as connection:
        connection.execute("PRAGMA user_version = 4711")
    before = record.read_bytes()
    with pytest.raises(Misconfigured, match="4711") as refused:
        SqliteInbox.open(record)
    assert refused.value.exit == Exit.CONFIG
    assert record.read_bytes() == before


def test_the_database_of_another_program_is_refused(record: Path) -> None:
    record.parent.mkdir(mode=0o700)
    record.touch(0o600)
    with raw(record) as connection:
        connection.execute("CREATE TABLE t (a)")
    before = record.read_bytes()
    with pytest.raises(Misconfigured, match="not a record"):
        SqliteInbox.open(record)
    assert record.read_bytes() == before


def test_an_sqlite_without_strict_tables_is_refused(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))
    with pytest.raises(Misconfigured, match=r"3\.37"):
        SqliteInbox.open(record)


# --- damage (F68) ---


def _flip(path: Path, at: int, size: int) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + size] = bytes(byte ^ 0xA5 for byte in content[at : at + size])
    path.write_bytes(content)


@pytest.mark.parametrize("damage", ["header", "empty", "text", "cut", "pages"])
def test_a_damaged_file_names_the_doctor(record: Path, damage: str) -> None:
    store(record, b"x" * 100_000)
    size = record.stat().st_size
    if damage == "header":
        _flip(record, 0, 100)
    elif damage == "empty":
        record.write_bytes(b"")
    elif damage == "text":
        record.write_bytes(b"not a database\n" * 1000)
    elif damage == "cut":
        os.truncate(record, 4096 * 3)
    else:
        _flip(record, 4096, size - 4096)
    before = record.read_bytes()
    with pytest.raises(RecordDamaged, match="wakehub doctor --repair") as refused:
        _use(record)
    assert refused.value.exit == Exit.UNAVAILABLE
    assert record.read_bytes() == before


def test_a_full_disk_is_no_damage(record: Path) -> None:
    """Even opening it to read needs room, for what the processes share."""
    store(record)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        with pytest.raises(NotStored, match="free space"):
            SqliteInbox.open(record, create=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _use(record: Path) -> None:
    with SqliteInbox.open(record) as inbox:
        for row in inbox.unread("alice"):
            inbox.events(row.id)


# --- writing under trouble ---


def test_a_full_disk_stores_nothing_and_recovers(record: Path) -> None:
    """F63: the limit on the file's size stands for the disk; the write fails in the kernel."""
    assert subprocess.run([sys.executable, "-c", _FULL, str(record)], check=False).returncode == 0
    assert pragma(record, "integrity_check") == "ok"


def test_a_full_database_stores_nothing_and_reading_goes_on(inbox: SqliteInbox) -> None:
    inbox.append(NewRow("bob", "alice", b"before"), Now.read())
    with inbox._db.reading():
        ((pages,),) = inbox._db.execute("PRAGMA page_count")
        inbox._db.execute(f"PRAGMA max_page_count = {pages + 5}")
    with pytest.raises(NotStored, match="full"):
        inbox.append([NewRow("bob", "alice", b"x" * 200_000), NewRow("bob", "carol", b"x")], Now.read())
    assert [row.body for row in inbox.unread("alice")] == [b"before"]
    assert inbox.boxes() == ["alice"]
    with inbox._db.reading():
        inbox._db.execute("PRAGMA max_page_count = 1000000")
    inbox.append(NewRow("bob", "alice", b"x" * 200_000), Now.read())
    assert inbox.count_unread("alice") == 2


def test_a_lock_that_is_kept_is_said_and_reading_goes_on(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "SQLITE_BUSY_MS", 20)
    store(record)
    with SqliteInbox.open(record) as inbox, raw(record) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(RecordBusy):
            inbox.append(NewRow("bob", "alice", b"x"), Now.read())
        assert inbox.count_unread("alice") == 1
        holder.execute("ROLLBACK")
        inbox.append(NewRow("bob", "alice", b"x"), Now.read())


def test_who_waits_for_the_lock_asks_anew_again_and_again(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite itself asks ever more seldom: in a crowd one of many found the lock taken for the whole time."""
    monkeypatch.setattr(database, "SQLITE_BUSY_MS", 40)
    monkeypatch.setattr(database, "SQLITE_TURN_MS", 10)
    store(record)
    with SqliteInbox.open(record) as inbox, raw(record) as holder:
        asked: list[str] = []
        inbox._db._connection.set_trace_callback(asked.append)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(RecordBusy):
            inbox.append(NewRow("bob", "alice", b"x"), Now.read())
        assert asked.count("BEGIN IMMEDIATE") == 4
        inbox._db._connection.set_trace_callback(None)
        (timeout,) = inbox._db._connection.execute("PRAGMA busy_timeout").fetchone()
        assert timeout == 40


def test_a_record_that_may_not_be_written_is_told_apart(inbox: SqliteInbox) -> None:
    with inbox._db.reading():
        inbox._db.execute("PRAGMA query_only = ON")
    with pytest.raises(RecordUnwritable, match="sandbox") as refused:
        inbox.append(NewRow("bob", "alice", b"x"), Now.read())
    assert refused.value.exit == Exit.PERMISSION


# --- one connection, many threads ---


def test_threads_share_one_record(inbox: SqliteInbox) -> None:
    failures: list[BaseException] = []

    def work(sender: str) -> None:
        try:
            for number in range(20):
                inbox.append(NewRow(sender, "alice", str(number).encode()), Now.read())
                inbox.unread("alice", limit=5)
                inbox.changed()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(f"s{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    rows = inbox.unread("alice", limit=1000)
    assert [row.rseq for row in rows] == list(range(1, 121))
    for number in range(6):
        assert [row.body for row in rows if row.sender == f"s{number}"] == [str(n).encode() for n in range(20)]


def test_a_reading_sees_one_state_throughout(record: Path) -> None:
    store(record)
    with SqliteInbox.open(record) as inbox, inbox._db.reading():
        before = inbox.count_unread("alice")
        store(record)
        assert inbox.count_unread("alice") == before


@pytest.mark.parametrize("became", ["is gone", "is another file"])
def test_a_file_that_lost_its_name_is_not_worked_on(inbox: SqliteInbox, record: Path, became: str) -> None:
    """Who goes on with it reads what nobody writes, and writes what nobody reads."""
    for part in record.parent.glob(f"{record.name}*"):
        part.unlink()
    if became == "is another file":
        store(record)
    works = (
        inbox.changed,
        lambda: inbox.unread("alice"),
        lambda: inbox.leases.find(b"token"),
        lambda: inbox.leases.renew(b"token", Now.read()),
        lambda: inbox.append(NewRow("bob", "alice", b"x"), Now.read()),
    )
    for work in works:
        with pytest.raises(RecordReplaced, match=f"{record}.* {became}") as refused:
            work()
        assert refused.value.exit == Exit.UNAVAILABLE
        assert refused.value.why
        assert refused.value.remedy
    if became == "is another file":
        with SqliteInbox.open(record) as anew:
            assert anew.count_unread("alice") == 1


def test_a_place_that_cannot_be_looked_at_ends_nothing(inbox: SqliteInbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a sandbox that came later: the file that is open is still the record, for all that can be told."""

    def masked(path: object) -> os.stat_result:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(database.os, "lstat", masked)
    assert inbox.unread("alice") == []


def test_closing_twice_is_harmless(record: Path) -> None:
    inbox = SqliteInbox.open(record)
    inbox.close()
    inbox.close()


# --- upgrades ---


def test_a_record_is_upgraded_step_by_step_and_keeps_its_rows(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(record, b"old")
    shutil.copy(record, record.with_name("copy.db"))
    steps = [
        *scripts(),
        "CREATE TABLE second (a TEXT) STRICT; -- a comment; with a semicolon\nINSERT INTO second VALUES (';');",
        "ALTER TABLE second ADD COLUMN b INTEGER;\n",
    ]
    monkeypatch.setattr(database, "scripts", lambda: steps)
    with SqliteInbox.open(record) as inbox:
        assert [row.body for row in inbox.unread("alice")] == [b"old"]
    with raw(record) as connection:
        assert connection.execute("SELECT a, b FROM second").fetchall() == [(";", None)]
    assert pragma(record, "user_version") == len(steps)


def test_many_upgrade_one_record_at_once(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(record)
    steps = [*scripts(), *(f"CREATE TABLE step_{number} (a TEXT) STRICT;" for number in range(20))]
    monkeypatch.setattr(database, "scripts", lambda: steps)
    barrier = threading.Barrier(_OPENERS)

    def open_at_once(_: int) -> None:
        barrier.wait()
        SqliteInbox.open(record).close()

    with ThreadPoolExecutor(_OPENERS) as pool:
        assert list(pool.map(open_at_once, range(_OPENERS))) == [None] * _OPENERS
    assert pragma(record, "user_version") == len(steps)


def test_an_upgrade_that_fails_leaves_the_schema_before_it(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(record)
    steps = [*scripts(), "CREATE TABLE half (a TEXT) STRICT;\nCREATE TABLE message (a TEXT) STRICT;"]
    with monkeypatch.context() as patch:
        patch.setattr(database, "scripts", lambda: steps)
        with pytest.raises(sqlite3.OperationalError, match="already exists"):
            SqliteInbox.open(record)
    assert pragma(record, "user_version") == len(scripts())
    with raw(record) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'half'").fetchall() == [(0,)]
    store(record)


def test_an_open_record_goes_on_through_an_upgrade_by_another(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SqliteInbox.open(record) as inbox:
        monkeypatch.setattr(database, "scripts", lambda: [*scripts(), "CREATE TABLE second (a TEXT) STRICT;"])
        with SqliteInbox.open(record) as newer:
            newer.append(NewRow("bob", "alice", b"new"), Now.read())
        inbox.append(NewRow("bob", "alice", b"old"), Now.read())
        assert [row.body for row in inbox.unread("alice")] == [b"new", b"old"]
