"""A channel, an instance and a bridge between them, as real processes, for tests that kill them.

The peer on the mesh is written from intercom.md §1 to §4 with plain sockets and files, and none of the package's code.
"""

import contextlib
import fcntl
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PATIENCE_S = 60.0
"""How long a wait for something that must happen goes on before a test fails (never slept through)."""


def until(holds: Callable[[], Any], what: str) -> Any:
    """Look again and again until `holds()` is true, and return that."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < deadline, f"it never came to pass: {what}"
        time.sleep(0.01)
    return found


class World:
    """`home` is a WAKEHUB_HOME, `mesh` a base directory of channels; both short-lived and short-named."""

    def __init__(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="wm", dir="/tmp"))
        self.home = self.base / "home"
        self.mesh = self.base / "mesh"
        self.mesh.mkdir(mode=0o700)
        self.channel = self.mesh / "dev"
        units = self.base / "config" / "systemd" / "user"
        units.mkdir(parents=True)  # a unit of this instance: no command starts hub and publisher by itself
        (units / "wakehub.service").write_text(f"[Service]\nEnvironment=CONFIGURATION_DIRECTORY={self.home}\n")
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("WAKEHUB_", "XDG_", "AGY_", "CLAUDE")) and not name.endswith("_DIRECTORY")
        }
        self.environ = kept | {
            "WAKEHUB_HOME": str(self.home),
            "XDG_CONFIG_HOME": str(self.base / "config"),
            "AGY_IPC_DIR": str(self.mesh),
        }
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, *argv: str, log: str, cwd: Path | None = None) -> subprocess.Popen[bytes]:
        """`wakehub argv`, its output at the end of the files ``log.out`` and ``log.err``."""
        with (self.base / f"{log}.out").open("ab") as out, (self.base / f"{log}.err").open("ab") as err:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "wakehub", *argv],
                env=self.environ,
                cwd=cwd or self.base,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        self._running.append(process)
        return process

    def run(self, *argv: str, cwd: Path | None = None, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """`wakehub argv`, to its end."""
        return subprocess.run(
            [sys.executable, "-P", "-m", "wakehub", *argv],
            env=self.environ,
            cwd=cwd or self.base,
            input=stdin,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def said(self, log: str) -> str:
        return (self.base / f"{log}.err").read_text()

    def up(self) -> None:
        """Hub and publisher of the instance, ready."""
        self.start("up", log="up")
        until(lambda: b"ready:" in (self.base / "up.out").read_bytes(), "`wakehub up` is ready")

    def hub(self) -> subprocess.Popen[bytes]:
        """The channel's hub, answering."""
        process = self.start("intercom", "daemon", "--channel", "dev", log="hub")
        until(self.answers, "the channel's hub answers")
        return process

    def answers(self) -> bool:
        try:
            with Peer(self.channel) as probe:
                return probe.register(f"probe-{secrets.token_hex(4)}")
        except OSError:
            return False

    def bridge(self, *more: str) -> subprocess.Popen[bytes]:
        """A bridge that carries alice as rowan, at work."""
        before = self.said("bridge").count("listening as") if (self.base / "bridge.err").exists() else 0
        words = ("intercom", "bridge", "--channel", "dev", "--session", "rowan", "--as", "alice")
        process = self.start(*words, *more, log="bridge")
        until(lambda: self.said("bridge").count("listening as") > before, "the bridge is at work")
        return process

    def spooled(self, session: str) -> list[dict[str, Any]]:
        """What is in a session's mailbox, in order."""
        try:
            data = (self.channel / f"inbox_{session}.ndjson").read_bytes()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in data.split(b"\n") if line]

    def end(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._running:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        hub = self._hub_pid()
        if hub is not None:  # one that a command started in the background
            with contextlib.suppress(ProcessLookupError):
                os.kill(hub, signal.SIGKILL)
        shutil.rmtree(self.base, ignore_errors=True)

    def _hub_pid(self) -> int | None:
        """The pid of a hub that has the channel's lock, as that says."""
        try:
            with (self.channel / "hub.lock").open() as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return int(json.load(lock)["pid"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return None


def kill9(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


class Peer:
    """Someone else on the channel: one connection to its hub."""

    def __init__(self, channel: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(5)
        self._buffer = b""
        try:
            self.sock.connect(os.fspath(channel / "hub.sock"))
        except OSError:
            self.sock.close()
            raise

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def register(self, session: str) -> bool:
        self.sock.sendall(line(envelope("register", session, "hub", {})))
        return self.read()["type"] == "welcome"

    def send(self, chat: dict[str, Any]) -> None:
        """Send a chat and have its receipt; `OSError` when the hub died before it came."""
        self.sock.sendall(line(chat | {"receipt": True}))
        while True:
            found = self.read()
            if found["type"] == "receipt" and found["reply_to"] == chat["id"]:
                return

    def read(self) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            data = self.sock.recv(65536)
            if not data:
                raise ConnectionResetError("the hub closed")
            self._buffer += data
        first, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(first)


def envelope(kind: str, sender: str, to: str, payload: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": f"msg_{secrets.token_hex(6)}",
        "type": kind,
        "from_session": sender,
        "to_session": to,
        "channel": "dev",
        "reply_to": None,
        "payload": payload,
        "timestamp": "2026-11-30T12:00:00+00:00",
    } | more


def line(found: dict[str, Any]) -> bytes:
    return json.dumps(found).encode() + b"\n"


def send_all(channel: Path, chats: list[dict[str, Any]], progress: Counter[str]) -> None:
    """Have each chat spooled, in order, whatever becomes of the hub meanwhile: one without a receipt is sent again."""
    waiting = list(chats)
    deadline = time.monotonic() + PATIENCE_S
    while waiting:
        assert time.monotonic() < deadline, "the hub never came back"
        try:
            with Peer(channel) as peer:
                while waiting:
                    peer.send(waiting[0])
                    del waiting[0]
                    progress["sent"] += 1
        except OSError:
            select.select([], [], [], 0.02)


@contextlib.contextmanager
def world() -> Iterator[World]:
    made = World()
    try:
        yield made
    finally:
        made.end()
