"""A channel in a short base directory of its own, for the mesh's tests."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon_process import until
from mesh_independent_client import Client

from wakehub.intercom.channels import Channel
from wakehub.locks import live_holder


@pytest.fixture
def base() -> Iterator[Path]:
    """A base directory for channels, 0700, short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="ic", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def channel(base: Path) -> Iterator[Channel]:
    with Channel.open(base, "room") as opened:
        yield opened


class HubProcess:
    """Hubs of the channel ``room`` below a base, as real processes; whatever was started is ended behind the test."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.directory = base / "room"
        self.socket = self.directory / "hub.sock"
        self._log = (base / "log").open("a+b")
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *, code: str = "", **popen: Any) -> subprocess.Popen[bytes]:
        """Start one, or `code` in its place; not waited for."""
        words = ["-c", code] if code else ["-m", "wakehub.intercom", str(self.base), "room"]
        process = subprocess.Popen(
            [sys.executable, "-P", *words], stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, **popen
        )
        self._started.append(process)
        return process

    def ready(self, **popen: Any) -> subprocess.Popen[bytes]:
        """Start one, and wait until somebody is welcomed."""
        process = self.start(**popen)
        with Client(self.socket) as client:
            assert client.greet("first")["type"] == "welcome"
            client.end()
            assert client.hear() is None
        return process

    def peers(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.directory / "peers.json").read_bytes())
        except FileNotFoundError:
            return {"hub_pid": 0, "active_sessions": []}
        return found

    def log(self) -> str:
        return (self.base / "log").read_text()

    def texts(self, session: str) -> list[str]:
        """The texts in an inbox."""
        path = self.directory / f"inbox_{session}.ndjson"
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [json.loads(line)["payload"]["text"] for line in lines]

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
        self._log.close()
        until(self._is_nobody_left, "every hub that a client started has ended")

    def _is_nobody_left(self) -> bool:
        """Kill who holds the lock; True once nobody does, and nobody is starting (which keeps the log locked)."""
        if is_locked(self.directory / "hub.lock"):
            holder = live_holder(self.directory / "hub.lock")
            if holder is not None and holder.pid != os.getpid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(holder.pid, signal.SIGKILL)
            return False
        return not is_locked(self.directory / "hub.log")


def is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        pass
    except BlockingIOError:
        return True
    return False


@pytest.fixture
def hub(base: Path) -> Iterator[HubProcess]:
    made = HubProcess(base)
    yield made
    made.end()
