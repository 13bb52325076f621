"""A Claude Code configuration directory with sessions that take messages, well or badly.

Each session has a real process behind its pid, a record in ``sessions/``, a Unix socket and a JSONL transcript, as the
real program has them (receive.md §4). What it does with each message is scripted: see `Does`.
"""

import hashlib
import json
import os
import re
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any

import trio

from wakehub.processes import start_time


class Does(Enum):
    """What a session does with one message."""

    ACCEPT = auto()  # enqueues it
    ACCEPT_AS_USER = auto()  # shows it as a message of a peer, at once read
    HOLD = auto()  # keeps it until `release`
    DROP = auto()  # reads it and forgets it
    DELAY = auto()  # enqueues it 20 s later
    DUPLICATE = auto()  # enqueues it twice
    DIE_BEFORE = auto()  # ends when it has read it, before it wrote anything down
    DIE_AFTER = auto()  # enqueues it, and ends before it is read
    SWAP = auto()  # takes a new session id first, as with /clear, and enqueues it there
    RESET = auto()  # cuts the connection in the middle
    STARVE = auto()  # accepts the connection and never reads


@dataclass
class Got:
    """A message as it came: when (Trio's clock), its text, and all that was said on the connection."""

    at: float
    text: str
    lines: list[dict[str, Any]]

    @property
    def row_id(self) -> str:
        found = re.search(r"m_[0-9a-z]{26}", self.text)
        assert found
        return found[0]


@dataclass
class FakeSession:
    """One session; `script` is used up message by message, and behind its end everything is accepted."""

    config: Path
    process: subprocess.Popen[bytes]
    script: list[Does] = field(default_factory=list)
    session_id: str = "11111111-aaaa-4bbb-8ccc-000000000001"
    name: str = "review"
    kind: str = "interactive"
    cwd: str = "/home/someone/my project"
    started_at: int = 1_800_000_000_000
    has_socket: bool = True
    token: str | None = None
    got: list[Got] = field(default_factory=list)
    held: list[Got] = field(default_factory=list)
    open_connections: int = 0
    most_connections: int = 0

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def record_path(self) -> Path:
        return self.config / "sessions" / f"{self.pid}.json"

    @property
    def socket_path(self) -> Path:
        return self.config / f"{self.pid}.sock"

    @property
    def transcript(self) -> Path:
        return self.config / "projects" / re.sub("[^A-Za-z0-9]", "-", self.cwd) / f"{self.session_id}.jsonl"

    def write_record(self, **changes: Any) -> None:
        record = {
            "pid": self.pid,
            "sessionId": self.session_id,
            "name": self.name,
            "nameSource": "user",
            "kind": self.kind,
            "cwd": self.cwd,
            "startedAt": self.started_at,
            "procStart": start_time(self.pid),
            "peerProtocol": 1,
            "version": "2.1.224",
        }
        if self.has_socket:
            record["messagingSocketPath"] = str(self.socket_path)
        self.record_path.write_text(json.dumps(record | changes))

    def write_token(self) -> None:
        digest = hashlib.sha256(os.fsencode(self.socket_path)).hexdigest()
        path = self.config / "sessions" / f"{self.pid}.{digest}.key"
        path.write_text(json.dumps({"peerToken": self.token}))

    def rename(self, name: str) -> None:
        self.name = name
        self.write_record()

    def clear(self) -> None:
        """``/clear``: another session id in the same process, another transcript."""
        self.session_id = f"{self.session_id[:-1]}{int(self.session_id[-1]) + 1}"
        self.write_record()

    def write(self, row: dict[str, Any]) -> None:
        self.transcript.parent.mkdir(parents=True, exist_ok=True)
        with self.transcript.open("ab") as file:
            file.write(json.dumps(row).encode() + b"\n")

    def enqueue(self, text: str) -> None:
        self.write({"type": "queue-operation", "operation": "enqueue", "sessionId": self.session_id, "content": text})

    def release(self) -> None:
        """What was held is let in."""
        for got in self.held:
            self.enqueue(got.text)
        self.held.clear()

    def die(self) -> None:
        """As by kill -9: its record and its socket stay behind."""
        self.process.kill()
        self.process.wait()

    @property
    def is_dead(self) -> bool:
        return self.process.returncode is not None

    # --- serving ---

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with trio.socket.socket(trio.socket.AF_UNIX) as listener:
            await listener.bind(str(self.socket_path))
            listener.listen(16)
            async with trio.open_nursery() as nursery:
                task_status.started()
                while True:
                    connection, _ = await listener.accept()
                    nursery.start_soon(self._attend, connection)

    async def _attend(self, connection: trio.socket.SocketType) -> None:
        self.open_connections += 1
        self.most_connections = max(self.most_connections, self.open_connections)
        try:
            with connection:
                does = self.script.pop(0) if self.script else Does.ACCEPT
                if does is Does.STARVE:
                    await trio.sleep_forever()
                data = bytearray()
                with suppress(OSError):
                    while piece := await connection.recv(65536):
                        data += piece
                        if does is Does.RESET:
                            return
                if data:
                    await self._take([json.loads(line) for line in data.splitlines()], does)
        finally:
            self.open_connections -= 1

    async def _take(self, lines: list[dict[str, Any]], does: Does) -> None:
        if self.token is not None:
            assert lines[0] == {"type": "auth", "token": self.token}, "a real one closes the connection on us"
        got = Got(trio.current_time(), lines[-1]["message"]["content"], lines)
        self.got.append(got)
        match does:
            case Does.ACCEPT:
                self.enqueue(got.text)
            case Does.ACCEPT_AS_USER:
                content = [{"type": "text", "text": f"<from-a-peer>\n{got.text}</from-a-peer>"}]
                self.write(
                    {"type": "user", "origin": {"kind": "peer"}, "message": {"role": "user", "content": content}}
                )
            case Does.HOLD:
                self.held.append(got)
            case Does.DELAY:
                await trio.sleep(20)
                self.enqueue(got.text)
            case Does.DUPLICATE:
                self.enqueue(got.text)
                self.enqueue(got.text)
            case Does.DIE_BEFORE:
                self.die()
            case Does.DIE_AFTER:
                self.enqueue(got.text)
                self.die()
            case Does.SWAP:
                self.clear()
                self.enqueue(got.text)


class FakeClaude:
    """The configuration directory, and the sessions that run in it."""

    def __init__(self, config: Path, nursery: trio.Nursery) -> None:
        self.config = config
        self._nursery = nursery
        self.sessions: list[FakeSession] = []
        (config / "sessions").mkdir(parents=True)

    @property
    def environ(self) -> dict[str, str]:
        return {"CLAUDE_CONFIG_DIR": str(self.config)}

    async def start(self, name: str = "review", *script: Does, **fields: Any) -> FakeSession:
        """Start a session; it is there, and its socket answers, when this returns."""
        process = _some_process()
        values = {"session_id": f"11111111-aaaa-4bbb-8ccc-0000000000{len(self.sessions):02}1"} | fields
        session = FakeSession(self.config, process, list(script), name=name, **values)
        self.sessions.append(session)
        if session.has_socket:
            await self._nursery.start(session.serve)
        if session.token is not None:
            session.write_token()
        session.write_record()
        return session

    def close(self) -> None:
        for session in self.sessions:
            session.die()
            assert session.process.stdin is not None
            session.process.stdin.close()


def _some_process() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)


@asynccontextmanager
async def fake_claude(config: Path) -> AsyncIterator[FakeClaude]:
    async with trio.open_nursery() as nursery:
        fake = FakeClaude(config, nursery)
        try:
            yield fake
        finally:
            fake.close()
            nursery.cancel_scope.cancel()


async def until(holds: Callable[[], Any]) -> None:
    """Wait, in small steps of Trio's clock, for what nothing announces."""
    while not holds():  # noqa: ASYNC110
        await trio.sleep(0.05)
