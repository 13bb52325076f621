"""A client of the mesh written straight from its specification (intercom.md §1 to §4), with plain sockets and json.

It uses nothing of the package, so that both cannot share a misunderstanding.
"""

import fcntl
import json
import os
import secrets
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PATIENCE_S = 60.0


def envelope(kind: str, sender: str, to: Any = "*", channel: str = "room", **more: Any) -> dict[str, Any]:
    """The eight keys in their order, and `more`; a value of ... leaves a key out."""
    found = {
        "id": "msg_" + secrets.token_hex(6),
        "type": kind,
        "from_session": sender,
        "to_session": to,
        "channel": channel,
        "reply_to": None,
        "payload": {},
        "timestamp": datetime.now(UTC).isoformat(),
    } | more
    return {key: value for key, value in found.items() if value is not ...}


def chat(sender: str, to: Any, text: str, **more: Any) -> dict[str, Any]:
    return envelope("chat", sender, to, payload={"text": text}, **more)


class Client:
    """One connection to a hub's socket."""

    def __init__(self, path: Path) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.settimeout(PATIENCE_S)
        self._rest = b""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._sock.connect(os.fspath(path))
                return
            except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
                if time.monotonic() > deadline:
                    self._sock.close()
                    raise
                time.sleep(0.01)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._sock.close()

    def say(self, *documents: dict[str, Any]) -> None:
        self.say_bytes(b"".join(json.dumps(each).encode("ascii") + b"\n" for each in documents))

    def say_bytes(self, data: bytes) -> None:
        self._sock.sendall(data)

    def end(self) -> None:
        self._sock.shutdown(socket.SHUT_WR)

    def hear(self) -> dict[str, Any] | None:
        """The next object that is no heartbeat; None once the hub has closed."""
        while (line := self._line()) is not None:
            found: dict[str, Any] = json.loads(line)
            if found["type"] != "heartbeat":
                return found
        return None

    def _line(self) -> bytes | None:
        while b"\n" not in self._rest:
            try:
                data = self._sock.recv(65_536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def greet(self, session: str, kind: str = "announce") -> dict[str, Any]:
        self.say(envelope(kind, session, "hub"))
        found = self.hear()
        assert found is not None, "closed without an answer"
        return found

    def hear_to_the_end(self) -> list[dict[str, Any]]:
        return list(iter(self.hear, None))


def poll(directory: Path, session: str) -> list[dict[str, Any]]:
    """Read what is unread in an inbox, as a client of another make does: offset, lines, offset."""
    inbox, offset_file = directory / f"inbox_{session}.ndjson", directory / f"offset_{session}.json"
    if not inbox.exists():
        return []
    with inbox.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        document = json.loads(offset_file.read_text()) if offset_file.exists() else {}
        file.seek(document.get("offset", 0))
        data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        document |= {
            "offset": document.get("offset", 0) + len(whole),
            "updated_at": datetime.now(UTC).isoformat(),
        }
        temporary = offset_file.with_suffix(".tmp")
        temporary.write_text(json.dumps(document))
        temporary.rename(offset_file)
    return [json.loads(line) for line in whole.splitlines()]


def append(directory: Path, session: str, document: dict[str, Any]) -> None:
    """Put a line into an inbox without a hub."""
    with (directory / f"inbox_{session}.ndjson").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(document).encode() + b"\n")
