"""A channel in a short base directory of its own, for the mesh's tests."""

import contextlib
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
from mesh_independent_client import Client

from wakehub.intercom.channels import Channel


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
        pids = {self.peers()["hub_pid"]} if self.directory.exists() else set()
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
        for pid in pids - {0, *(process.pid for process in self._started)}:  # one that a client started
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._log.close()


@pytest.fixture
def hub(base: Path) -> Iterator[HubProcess]:
    made = HubProcess(base)
    yield made
    made.end()
