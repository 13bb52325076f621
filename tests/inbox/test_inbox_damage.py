"""What `wakehub doctor` asks of the record: is it whole, and what is left of listeners that died (faults F28, F68)."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from daemon_process import started

from wakehub.identity.addresses import DOCTOR
from wakehub.inbox.clock import Now
from wakehub.inbox.refusals import RecordDamaged
from wakehub.inbox.rows import NewRow
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.processes import ProcessId, boot_id, pid_namespace, start_time


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A record of some pages, closed, with nothing left in its log."""
    path = tmp_path / "state" / "record.db"
    with SqliteInbox.open(path) as inbox:
        for _ in range(8):
            inbox.append(NewRow("bob", "alice", b"x" * 3000), Now.read())
    return path


def flip(path: Path, at: int, size: int = 4096) -> None:
    """Turn every bit of `size` bytes of the file."""
    data = bytearray(path.read_bytes())
    data[at : at + size] = bytes(byte ^ 0xFF for byte in data[at : at + size])
    path.write_bytes(data)


def test_a_whole_record_has_no_damage(path: Path) -> None:
    with SqliteInbox.open(path, create=False) as inbox:
        assert inbox.damage() == []


def test_every_flipped_page_is_told(path: Path) -> None:
    """Whichever page it is: of a table, of an index, or of a body's overflow."""
    whole = path.read_bytes()
    for at in range(4096, len(whole), 4096):
        path.write_bytes(whole)
        flip(path, at)
        assert told(path), f"page {at // 4096} of {len(whole) // 4096}"


def told(path: Path) -> bool:
    try:
        with SqliteInbox.open(path, create=False) as inbox:
            return bool(inbox.damage())
    except RecordDamaged:
        return True


def test_a_file_that_is_no_database(path: Path) -> None:
    flip(path, 0)
    with pytest.raises(RecordDamaged, match="wakehub doctor"):
        SqliteInbox.open(path, create=False)


def test_a_dead_listener_is_stale_until_it_is_swept(path: Path) -> None:
    words = [sys.executable, "-c", "input()"]
    with SqliteInbox.open(path) as inbox, started(words, stdin=subprocess.PIPE) as child:
        process = ProcessId(child.pid, start_time(child.pid) or "", boot_id(), pid_namespace())
        now = Now.read()
        inbox.leases.acquire(["alice"], process, "alice", now)
        inbox.leases.acquire(["bob"], ProcessId.own(), "bob", now)
        assert inbox.leases.stale(now) == []
        child.communicate(b"\n")
        assert [lease.names for lease in inbox.leases.stale(now)] == [("alice",)]
        assert inbox.leases.stale(now) == inbox.leases.stale(now), "a look changes nothing"
        inbox.leases.sweep(now)
        assert inbox.leases.stale(now) == []


def test_rows_of_the_systems_own_principals_expire_without_notice(path: Path) -> None:
    with SqliteInbox.open(path) as inbox:
        now = Now.read()
        inbox.append(NewRow(DOCTOR, DOCTOR, b"x", ttl_s=1), now)
        assert [row.recipient for row in inbox.expire(now.later(2000))] == [DOCTOR]
        assert inbox.unread(DOCTOR) == []


def test_a_changed_body_is_told_although_sqlite_sees_nothing_wrong(path: Path) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("UPDATE message SET body = zeroblob(3000) WHERE rseq = 3")
        raw.commit()
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    with SqliteInbox.open(path, create=False) as inbox:
        (found,) = inbox.damage()
        assert inbox.unread("alice")[2].id in found


def test_text_that_is_none_is_damage(path: Path) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("UPDATE message SET origin = CAST(x'ff' AS TEXT) WHERE rseq = 3")
        raw.commit()
    with SqliteInbox.open(path, create=False) as inbox, pytest.raises(RecordDamaged, match="UTF-8"):
        inbox.unread("alice")


def test_a_schema_number_that_cannot_be_is_damage(path: Path) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA user_version = 0")
    with pytest.raises(RecordDamaged, match="no schema number"):
        SqliteInbox.open(path, create=False)
