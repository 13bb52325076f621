"""The reader of pages against SQLite itself, and against damage of every kind (fault F68)."""

import os
import random
import shutil
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from wakehub.inbox.pages import PageFile, Value

Tables = dict[str, list[tuple[Value, ...]]]


@contextmanager
def opened(path: Path) -> Iterator[PageFile]:
    fd = os.open(path, os.O_RDONLY)
    log = path.with_name(path.name + "-wal")
    try:
        yield PageFile(fd, log.read_bytes() if log.exists() else b"")
    finally:
        os.close(fd)


def legible(path: Path) -> tuple[Tables, int]:
    """Everything that is found, by its owner, each with its rowid in front where it has one; and what is illegible."""
    tables: Tables = defaultdict(list)
    with opened(path) as pages:
        for found in pages.entries():
            assert found.owner is not None
            values = found.values if found.rowid is None else (found.rowid, *found.values)
            tables[found.owner].append(values)
        return tables, pages.illegible


def told_by_sqlite(connection: sqlite3.Connection, table: str, *, has_rowid: bool = True) -> list[tuple[Value, ...]]:
    return connection.execute(f"SELECT {'rowid, ' if has_rowid else ''}* FROM {table}").fetchall()


def fill(connection: sqlite3.Connection, seed: int, rows: int = 200) -> None:
    """Tables with every kind of value and rows of every size, many of them deleted and changed again."""
    rng = random.Random(seed)
    connection.execute("CREATE TABLE plain (number INTEGER, word TEXT, data BLOB, point REAL)")
    connection.execute("CREATE TABLE keyed (name TEXT PRIMARY KEY, count INTEGER) WITHOUT ROWID")
    connection.execute("CREATE INDEX by_word ON plain (word, number)")
    for number in range(rows):
        whole = rng.choice(
            [0, 1, -1, 127, -128, 1 << 15, -(1 << 23), 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 63), None]
        )
        word = rng.choice(["", "ü" * rng.randrange(300), "x" * rng.randrange(20_000), None])
        data = rng.choice([None, rng.randbytes(rng.choice([0, 5, 4_000, 4_061, 4_062, 30_000]))])
        connection.execute(
            "INSERT INTO plain VALUES (?, ?, ?, ?)", (whole, word, data, rng.choice([None, 1.5, -2e300]))
        )
        connection.execute("INSERT INTO keyed VALUES (?, ?)", (f"{rng.random()}{'k' * rng.randrange(2_000)}", number))
    connection.execute("DELETE FROM plain WHERE rowid % 3 = 0")
    connection.execute("DELETE FROM keyed WHERE count % 3 = 0")
    connection.execute("INSERT INTO plain (rowid, word) VALUES (-5, 'negative')")
    connection.execute("UPDATE plain SET word = 'changed' WHERE rowid % 5 = 0")


@pytest.mark.parametrize(("page_size", "seed"), [(4096, 1), (4096, 2), (512, 3), (1024, 4), (65_536, 5)])
@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_what_sqlite_reads_is_found_and_nothing_else(tmp_path: Path, page_size: int, seed: int, journal: str) -> None:
    """With a write-ahead log that was never written back, and without one."""
    path = tmp_path / "some.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA page_size = {page_size}")
        connection.execute(f"PRAGMA journal_mode = {journal}")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("BEGIN")
        fill(connection, seed)
        connection.execute("COMMIT")
        found, illegible = legible(path)
        assert illegible == 0
        order = repr
        assert sorted(found["plain"], key=order) == sorted(told_by_sqlite(connection, "plain"), key=order)
        keyed = told_by_sqlite(connection, "keyed", has_rowid=False)
        assert sorted(found["keyed"], key=order) == sorted(keyed, key=order)
        indexed = connection.execute("SELECT word, number, rowid FROM plain").fetchall()
        assert sorted(found["by_word"], key=order) == sorted(indexed, key=order)
        assert len(found["sqlite_schema"]) == 3


def test_a_transaction_that_was_not_committed_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = wal")
        connection.execute("CREATE TABLE plain (x)")
        connection.execute("INSERT INTO plain VALUES (1)")
        connection.execute("PRAGMA cache_size = 1")  # so that it spills into the log at once
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO plain VALUES (?)", [(b"x" * 3_000,)] * 200)
        assert legible(path)[0]["plain"] == [(1, 1)]
        connection.execute("COMMIT")
        assert len(legible(path)[0]["plain"]) == 201


def test_of_a_damaged_log_what_was_committed_before_the_damage_counts_as_with_sqlite(tmp_path: Path) -> None:
    path, copy = tmp_path / "some.db", tmp_path / "copy"
    copy.mkdir()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = wal")
        connection.execute("CREATE TABLE plain (x)")
        for number in range(20):
            connection.execute("INSERT INTO plain VALUES (?)", (number,))
        shutil.copy(path, copy)
        log = bytearray((tmp_path / "some.db-wal").read_bytes())
    for at in range(0, len(log), 1_999):
        log[at] ^= 0xFF
        (copy / "some.db-wal").write_bytes(log)
        found = legible(copy / "some.db")[0]["plain"]
        log[at] ^= 0xFF
        shutil.copy(copy / "some.db", copy / "read.db")
        shutil.copy(copy / "some.db-wal", copy / "read.db-wal")
        (copy / "read.db-wal").write_bytes(
            bytes(byte ^ 0xFF if at == place else byte for place, byte in enumerate(log))
        )
        with closing(sqlite3.connect(copy / "read.db")) as connection:
            try:
                assert found == told_by_sqlite(connection, "plain")
            except sqlite3.OperationalError:  # not even the table is in what is left of the log
                assert found == []
        (copy / "read.db").unlink()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "some.db"
    with closing(sqlite3.connect(path)) as connection:
        fill(connection, 6, rows=30)
        connection.commit()
    return path


@pytest.mark.parametrize("harm", ["flipped", "zeroed", "random"])
def test_a_bad_page_costs_no_row_of_another_page(whole: Path, tmp_path: Path, harm: str) -> None:
    """Every page in turn. Rows that stand in other pages are found, also behind a root that is lost."""
    data = whole.read_bytes()
    with opened(whole) as pages:
        everything = {(found.rowid, found.values) for found in pages.entries()}
    rng = random.Random(7)
    for start in range(0, len(data), 4096):
        page = data[start : start + 4096]
        bad = {
            "flipped": bytes(byte ^ 0xFF for byte in page),
            "zeroed": bytes(4096),
            "random": rng.randbytes(4096),
        }[harm]
        path = tmp_path / "bad.db"
        path.write_bytes(data[:start] + bad + data[start + 4096 :])
        with opened(path) as pages:
            found = {(entry.rowid, entry.values) for entry in pages.entries()}
        whole_rows = {entry for entry in everything if not touched(entry, page)}
        assert whole_rows <= found, start // 4096


def touched(entry: tuple[int | None, tuple[Value, ...]], page: bytes) -> bool:
    """Whether an entry may have bytes in `page`, as its long values tell; of an entry without any it is not known."""
    raw = [value.encode() if isinstance(value, str) else value for value in entry[1] if isinstance(value, bytes | str)]
    if sum(map(len, raw)) < 64:
        return True
    return any(each[at : at + 16] in page for each in raw for at in range(0, len(each), 16))


def test_whatever_the_bytes_are_reading_ends_and_raises_nothing(whole: Path, tmp_path: Path) -> None:
    """Numbers that point anywhere: lengths, chains, children, lists of free pages that lead in circles."""
    data, rng = whole.read_bytes(), random.Random(8)
    path = tmp_path / "bad.db"
    for _ in range(60):
        bad = bytearray(data)
        for _ in range(rng.choice([1, 5, 200])):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        path.write_bytes(bad[: rng.choice([len(bad), rng.randrange(len(bad))])])
        with opened(path) as pages:
            for found in pages.entries():
                assert len(repr(found.values)) < 1 << 22


@pytest.mark.parametrize("content", [b"", b"x", b"SQLite format 3\0", bytes(100), bytes(5_000), os.urandom(100_000)])
def test_what_is_no_database_holds_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "some.db"
    path.write_bytes(content)
    path.with_name("some.db-wal").write_bytes(content)
    with opened(path) as pages:
        assert [found for found in pages.entries() if len(found.values) > 3] == []
