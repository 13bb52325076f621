"""What the tests of the record share: a moment, processes that are alive or dead, and a place for a record."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from wakehub.inbox.sqlite import SqliteInbox
from wakehub.processes import ProcessId, boot_id, pid_namespace, start_time

pytest.register_assert_rewrite("inbox_conformance")


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """Where a record may be made."""
    return tmp_path / "state" / "record.db"


@pytest.fixture
def inbox(record: Path) -> Iterator[SqliteInbox]:
    with SqliteInbox.open(record) as opened:
        yield opened


Process = tuple[ProcessId, Callable[[], None]]


@pytest.fixture
def start_process() -> Iterator[Callable[[], Process]]:
    """Starts real processes that wait; each comes with the function that kills it."""
    running: list[subprocess.Popen[bytes]] = []

    def kill(process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.communicate()

    def start() -> Process:
        process = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        running.append(process)
        started = start_time(process.pid)
        assert started is not None
        return ProcessId(process.pid, started, boot_id(), pid_namespace()), lambda: kill(process)

    yield start
    for process in running:
        kill(process)
