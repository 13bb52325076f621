"""What somebody would use instead, when it is installed: each as a process of our own, with its default settings.

They listen on a private Unix socket where they can, else on a free port of 127.0.0.1. One that already runs on the
machine is never used, and is not disturbed.
"""

import shutil
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from wakehub.bench.dialects.awh1 import HINT_BYTES
from wakehub.bench.stage import Stage, await_true
from wakehub.bench.systems import Served
from wakehub.processes import asked


@dataclass(frozen=True, slots=True)
class Peer:
    """A program that is found, and how it is started: `command` with SOCKET, PORT and PLACE put in."""

    name: str
    dialect: str
    command: tuple[str, ...]
    version: tuple[str, ...]

    def serve(self, stage: Stage, agents: int, cpus: Sequence[int]) -> Served:
        """Start it and wait until it takes connections; raises `Unavailable` (69) when it does not."""
        place = stage.directory("p")
        log = place / "log"
        address: Any = str(place / "s") if "SOCKET" in self.command else ("127.0.0.1", free_port())
        words = {"SOCKET": str(place / "s"), "PORT": str(address[1]), "PLACE": str(place)}
        process = stage.start([words.get(word, word) for word in self.command], log=log, cpus=cpus)
        await_true(self.name, lambda: _answers(address), process=process, log=log)
        return Served(process, address, self.dialect, {"size": HINT_BYTES})

    def told_version(self) -> str:
        """What it says it is, in one line."""
        lines = asked(*self.version).splitlines()
        return lines[0].strip() if lines else "version not told"


@dataclass(frozen=True, slots=True)
class _Wanted:
    name: str
    dialect: str
    program: str
    command: tuple[str, ...]
    version: tuple[str, ...]


_WANTED = (
    _Wanted(
        "redis", "resp", "redis-server", ("--port", "0", "--unixsocket", "SOCKET", "--dir", "PLACE"), ("--version",)
    ),
    _Wanted("nats", "nats", "nats-server", ("--addr", "127.0.0.1", "--port", "PORT"), ("--version",)),
    _Wanted("mosquitto", "mqtt", "mosquitto", ("-p", "PORT"), ("-h",)),
)
# Its own 5 s would close the connections for POST between two turns; and what it would log of each costs as much again.
_UVICORN = (
    sys.executable,
    "-P",
    "-m",
    "uvicorn",
    "wakehub.bench.sse:app",
    "--uds",
    "SOCKET",
    "--no-access-log",
    "--timeout-keep-alive",
    "3600",
)


def installed() -> tuple[list[Peer], dict[str, str]]:
    """The peers that are installed, and for each other one why it is left out."""
    found, missing = [], {}
    for wanted in _WANTED:
        program = _program(wanted.program)
        if program is None:
            missing[wanted.name] = f"{wanted.program} is not installed"
        else:
            version = (program, *wanted.version)
            found.append(Peer(wanted.name, wanted.dialect, (program, *wanted.command), version))
    if find_spec("uvicorn") is None:
        missing["sse"] = "the package uvicorn is not installed"
    else:
        version = (sys.executable, "-P", "-m", "uvicorn", "--version")
        found.append(Peer("sse", "sse", _UVICORN, version))
    return found, missing


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _program(name: str) -> str | None:
    """Where a program is; servers often lie where only the administrator's path leads."""
    elsewhere = [
        Path(place) / name for place in ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin", "/opt/homebrew/bin")
    ]
    return shutil.which(name) or next((str(path) for path in elsewhere if path.is_file()), None)


def _answers(address: Any) -> bool:
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.connect(address)
    return True
