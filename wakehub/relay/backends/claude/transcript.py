"""What a session wrote down about what it got: the only proof of a hand-off (receive.md §4, 3 and 5).

A transcript is ``projects/<cwd>/<session id>.jsonl``, one JSON object per line, appended to while the session runs. A
message was enqueued when a row that was written after the post says so and holds the header of our block: the id where
the header has it, not an id that somebody quotes in a body, an answer's ``re`` or a reply hint.
"""

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from wakehub.client.claude_sessions import Session
from wakehub.limits import MAX_LOOK_BYTES

_NOT_PLAIN: Final = re.compile("[^A-Za-z0-9]")


class Look:
    """Watches for one message in the transcripts of a session, from the first post on.

    A session changes its transcript with ``/clear``: the new one is looked at from its beginning, the old one further.
    """

    def __init__(self, directory: Path, row_id: str) -> None:
        self._projects = directory / "projects"
        self._row_id = row_id
        self._tails: dict[str, _Tail] = {}
        self._is_found = False

    def follow(self, session: Session) -> None:
        """Look at the transcript that the session has now, too."""
        if session.session_id not in self._tails:
            tail = _Tail(self._projects, session)
            if not self._tails:
                tail.skip()
            self._tails[session.session_id] = tail

    def finds(self) -> bool:
        """Whether a transcript shows by now that the message was enqueued."""
        if not self._is_found:
            self._is_found = any(proves(row, self._row_id) for tail in self._tails.values() for row in tail.read())
        return self._is_found


def proves(row: object, row_id: str) -> bool:
    """Whether a row of a transcript shows that the message `row_id` was enqueued in that session."""
    match row:
        case {"type": "queue-operation", "operation": "enqueue", "content": content}:
            pass
        case {"type": "user", "origin": {"kind": "peer"}, "message": {"content": content}}:
            pass
        case _:
            return False
    header = re.compile(rf"^(?!\| ).*\b{re.escape(row_id)} from ", re.MULTILINE)
    return any(header.search(text) for text in _texts(content))


def _texts(content: Any) -> Iterator[str]:
    """The texts of a message: it is one, or a list of parts of which some have one."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, dict):
        yield from _texts(content.get("text", content.get("content")))
    elif isinstance(content, list):
        for part in content:
            yield from _texts(part)


class _Tail:
    """The rows of one transcript, from some place in it on. It may not be there yet."""

    def __init__(self, projects: Path, session: Session) -> None:
        self._projects = projects
        self._usual = projects / _NOT_PLAIN.sub("-", session.cwd) / f"{session.session_id}.jsonl"
        self._path: Path | None = None
        self._inode: tuple[int, int] | None = None
        self._at = 0

    def skip(self) -> None:
        """Begin behind what is there now, but for a line that is not complete yet."""
        fd = self._open()
        if fd is not None:
            with open(fd, "rb") as file:
                self._at = _last_line_end(file.fileno())

    def read(self) -> Iterator[object]:
        """The rows that are complete and new since the last time; at most some 8 MiB of them, the rest next time."""
        fd = self._open()
        if fd is None:
            return
        with open(fd, "rb") as file:
            file.seek(self._at)
            end = self._at + MAX_LOOK_BYTES
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._at += len(line)
                try:
                    yield json.loads(line)
                except (ValueError, RecursionError):
                    pass
                if self._at >= end:
                    return

    def _open(self) -> int | None:
        path = self._path or self._find()
        if path is None:
            return None
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            self._path = None
            return None
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            os.close(fd)
            return None
        self._path = path
        inode = (found.st_dev, found.st_ino)
        if inode != self._inode or found.st_size < self._at:  # another file is there, or it was written anew
            self._inode, self._at = inode, 0
        return fd

    def _find(self) -> Path | None:
        """Where it is: by the session's directory, else wherever its id is found."""
        if self._usual.exists():
            return self._usual
        return next(iter(sorted(self._projects.glob(f"*/{self._usual.name}"))), None)


def _last_line_end(fd: int) -> int:
    """Where the last complete line of a file ends."""
    size = os.fstat(fd).st_size
    at = size
    while at:
        start = max(0, at - 65_536)
        newline = os.pread(fd, at - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        at = start
    return 0
