"""A short directory for sockets, and tiny servers that do one thing each."""

import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon_process import Daemon

from wakehub import config as configuration
from wakehub.client.home import ensure_home
from wakehub.config import Config
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.inbox.store import Inbox

Serve = Callable[[Callable[[socket.socket], object]], Path]


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory of ours, short enough for every socket."""
    path = Path(tempfile.mkdtemp(prefix="wo", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)  # what ends behind its parent may still write


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


@pytest.fixture
def config(short: Path) -> Config:
    """An instance that was begun; nothing runs."""
    made = configuration.load({"WAKEHUB_HOME": str(short)})
    ensure_home(made)
    return made


@pytest.fixture
def inbox(config: Config) -> Iterator[Inbox]:
    with SqliteInbox.open(config.paths.record) as opened:
        yield opened


@pytest.fixture(scope="module")
def running() -> Iterator[Config]:
    """One instance with hub and publisher, for the tests that leave it as it is."""
    home = Path(tempfile.mkdtemp(prefix="wd", dir="/tmp"))
    with Daemon(home, "up") as up:
        up.says("ready: the hub answers")
        yield configuration.load({"WAKEHUB_HOME": str(home)})
    shutil.rmtree(home, ignore_errors=True)  # what ends behind its parent may still write
