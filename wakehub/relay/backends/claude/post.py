"""One message through the socket of a session (receive.md §4, 3 and 4).

A connection of its own for each: authenticate where the session left us a token for that, say the message in one line,
close our half, and linger a moment for what the other end wants to say; then nothing of it is answered for. Whether it
was enqueued is for the transcript to say.
"""

import hashlib
import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from wakehub.client.claude_sessions import Session, read_theirs
from wakehub.identity import peercred
from wakehub.limits import (
    MAX_SESSION_FILE_BYTES,
    RECEIVE_BYTES,
    SESSION_CONNECT_MS,
    SESSION_LINGER_MS,
    SESSION_POST_MS,
)
from wakehub.visible import visible

_PRIORITY: Final = "next"


class NotPosted(Exception):
    """Why a message did not go out; `in_doubt` when a part of it did."""

    def __init__(self, reason: str, *, in_doubt: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.in_doubt = in_doubt


async def post(directory: Path, session: Session, text: str, message_id: str) -> None:
    """Say `text` to `session` as one peer message; `message_id` (a UUID) is the same when it is said again.

    Raises `NotPosted`.
    """
    path = session.socket
    if path is None:
        raise NotPosted(f"{session} has no messaging socket: it is too old, or set to take no messages")
    lines = _lines(_token(directory, session.pid, path), session.session_id, text, message_id)
    stream = await _connected(path, session)
    async with stream:
        with trio.move_on_after(SESSION_POST_MS / 1000) as limit:
            try:
                await stream.send_all(lines)
                await stream.send_eof()
            except (trio.BrokenResourceError, OSError) as error:
                raise NotPosted(f"{session} closed its socket on us", in_doubt=True) from error
        if limit.cancelled_caught:
            raise NotPosted(f"{session} did not read in {SESSION_POST_MS / 1000:g} s", in_doubt=True)
        with trio.move_on_after(SESSION_LINGER_MS / 1000), suppress(trio.BrokenResourceError, OSError):
            while await stream.receive_some(RECEIVE_BYTES):
                pass


def _lines(token: str | None, session_id: str, text: str, message_id: str) -> bytes:
    said: list[dict[str, object]] = [] if token is None else [{"type": "auth", "token": token}]
    said.append(
        {
            "type": "user",
            "session_id": session_id,
            "msg_id": message_id,
            "priority": _PRIORITY,
            "message": {"role": "user", "content": text},
        }
    )
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in said)


def _token(directory: Path, pid: int, path: Path) -> str | None:
    """The token that the session left for its peers beside its record; None where it asks for none."""
    name = f"{pid}.{hashlib.sha256(os.fsencode(path)).hexdigest()}.key"
    try:
        found = json.loads(read_theirs(directory / "sessions" / name, MAX_SESSION_FILE_BYTES) or b"{}")
        token = found.get("peerToken")
    except (ValueError, RecursionError, AttributeError):
        return None
    return token if isinstance(token, str) else None


async def _connected(path: Path, session: Session) -> trio.SocketStream:
    _check_socket(path, session)
    sock = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    try:
        with trio.move_on_after(SESSION_CONNECT_MS / 1000) as limit:
            await sock.connect(os.fspath(path))
        if limit.cancelled_caught:
            raise NotPosted(f"{session} does not answer at its socket")
        uid = peercred.read(sock).uid
        if uid != os.geteuid():
            raise NotPosted(f"the socket of {session} is served by uid {uid}")
        return trio.SocketStream(sock)
    except OSError as error:
        sock.close()
        raise NotPosted(_why(error, path, session)) from error
    except BaseException:
        sock.close()
        raise


def _check_socket(path: Path, session: Session) -> None:
    try:
        found = os.lstat(path)
    except OSError as error:
        raise NotPosted(_why(error, path, session)) from error
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
        raise NotPosted(f"{visible(str(path))} is no socket of ours")


def _why(error: OSError, path: Path, session: Session) -> str:
    if isinstance(error, PermissionError):
        return f"{visible(str(path))} may not be reached ({error.strerror}): a sandbox, perhaps"
    return f"{session} cannot be reached at its socket ({error.strerror or error})"
