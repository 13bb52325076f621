"""A short directory for sockets, and tiny servers that do one thing each."""

import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Serve = Callable[[Callable[[socket.socket], object]], Path]


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory of ours, short enough for every socket."""
    path = Path(tempfile.mkdtemp(prefix="wo", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(autouse=True)
def no_sessions(short: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where Claude Code would have its sessions: those of the person who runs the tests are no part of them."""
    directory = short / "claude"
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(directory))
    return directory


@pytest.fixture
def serve(short: Path) -> Iterator[Serve]:
    """Serve one connection on a Unix socket with the given function; gives the socket's path."""
    threads: list[threading.Thread] = []
    listeners: list[socket.socket] = []

    def start(behave: Callable[[socket.socket], object]) -> Path:
        path = short / f"s{len(listeners)}.sock"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen(1)
        listeners.append(listener)

        def accept() -> None:
            connection, _ = listener.accept()
            with connection:
                behave(connection)

        threads.append(threading.Thread(target=accept))
        threads[-1].start()
        return path

    yield start
    for thread in threads:
        thread.join()
    for listener in listeners:
        listener.close()
