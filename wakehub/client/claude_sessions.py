"""The Claude Code sessions that run here, by what each says about itself (receive.md §4, 1).

A session writes ``sessions/<pid>.json`` and removes it when it ends; killed, it leaves it. So a record counts only
while the process it names is that very process: its pid lives, and started when the record says. The files are
another program's: they are read with suspicion (own uid, regular, no link, bounded), and unknown keys are its business.
"""

import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from wakehub import files, processes
from wakehub.errors import Unsafe
from wakehub.files import Stamp
from wakehub.limits import MAX_SESSION_FILE_BYTES
from wakehub.visible import visible

_RECORD: Final = re.compile(r"([1-9][0-9]{0,9})\.json")
_SESSION_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
_MOST_ANCESTORS: Final = 64
_LSTART: Final = "%a %b %d %H:%M:%S %Y"
_ZONE_STEP_MINUTES: Final = 15
_FARTHEST_ZONE_HOURS: Final = 14


class Session(NamedTuple):
    """A session that runs. `session_id` names its transcript and changes with ``/clear``; pid and start time stay.

    `started` is as `processes.start_time` tells it; `started_at` (milliseconds since the epoch) is the session's own
    word. `socket` None: it takes no messages. `name` may be the user's or the session's own (`name_source`).
    """

    pid: int
    started: str
    session_id: str
    cwd: str
    kind: str
    name: str
    name_source: str
    started_at: float
    socket: Path | None
    protocol: str

    @property
    def is_interactive(self) -> bool:
        return self.kind == "interactive"

    @property
    def users_name(self) -> str:
        """The name that the user gave it; empty when there is none, or one that it made up itself and may change."""
        return self.name if self.name_source == "user" else ""

    def is_same_process(self, other: "Session") -> bool:
        return (self.pid, self.started) == (other.pid, other.started)

    def __str__(self) -> str:
        return f"session {visible(self.name) or 'without a name'} (pid {self.pid})"


def directory(environ: Mapping[str, str]) -> Path:
    """Where Claude Code keeps its sessions, transcripts and settings."""
    given = environ.get("CLAUDE_CONFIG_DIR")
    return Path(given) if given else Path(environ.get("HOME") or Path.home()) / ".claude"


def scan(directory: Path) -> list[Session]:
    """Every session that runs, by pid. `directory` is Claude Code's own; without one there is no session.

    Raises `Unsafe` (77) when it is there and may not be looked at.
    """
    try:
        names = os.listdir(directory / "sessions")
    except PermissionError as error:
        raise Unsafe(
            f"cannot look for sessions in {visible(str(directory / 'sessions'))}",
            why=error.strerror or "permission denied",
            remedy="run this outside the sandbox that hides it, or set CLAUDE_CONFIG_DIR",
        ) from error
    except OSError:
        return []
    pids = sorted(int(found[1]) for name in names if (found := _RECORD.fullmatch(name)))
    return [session for pid in pids if (session := read(directory, pid)) is not None]


def own(environ: Mapping[str, str]) -> Session | None:
    """The session that this process runs in: the nearest one among its ancestors, else `$CLAUDE_CODE_SESSION_ID`'s.

    The variable goes stale with ``/clear``, ancestors do not; who was orphaned has only the variable. None outside of
    any session, and where sessions may not be looked at.
    """
    where = directory(environ)
    if not os.path.isdir(where / "sessions"):  # Path.is_dir raises where it may not be looked at
        return None
    pid: int | None = os.getppid()
    for _ in range(_MOST_ANCESTORS):
        if pid is None or pid <= 1:
            break
        if (session := read(where, pid)) is not None:
            return session
        pid = processes.parent(pid)
    try:
        found = scan(where)
    except Unsafe:
        return None
    return next((each for each in found if each.session_id == environ.get("CLAUDE_CODE_SESSION_ID")), None)


def read(directory: Path, pid: int) -> Session | None:
    """What the session of process `pid` says about itself now; None when there is none, or it is not to be believed."""
    data = read_theirs(directory / "sessions" / f"{pid}.json", MAX_SESSION_FILE_BYTES)
    record = _object(data)
    if record is None or record.get("pid") != pid or isinstance(record["pid"], bool):
        return None
    session_id = record.get("sessionId")
    started = processes.start_time(pid)
    if started is None or not isinstance(session_id, str) or not _SESSION_ID.fullmatch(session_id):
        return None
    if not _is_same_start(record.get("procStart"), started):
        return None
    return Session(
        pid=pid,
        started=started,
        session_id=session_id,
        cwd=_text(record, "cwd"),
        kind=_text(record, "kind"),
        name=_text(record, "name"),
        name_source=_text(record, "nameSource"),
        started_at=_number(record, "startedAt"),
        socket=_socket(record),
        protocol=str(record.get("peerProtocol", "")),
    )


def read_theirs(path: Path, limit: int) -> bytes | None:
    """The content of a file that another program of this user wrote; None when it is not such a file, or too large."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            return None
        return files.read_all(fd, Stamp.of(found), path, limit)
    except (OSError, Unsafe):
        return None
    finally:
        os.close(fd)


def _object(data: bytes | None) -> dict[str, Any] | None:
    try:
        found = json.loads(data or b"")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _text(record: dict[str, Any], key: str) -> str:
    value = record.get(key)
    try:
        return value if isinstance(value, str) and value.encode() else ""
    except UnicodeEncodeError:  # JSON can spell lone surrogates
        return ""


def _number(record: dict[str, Any], key: str) -> float:
    value = record.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _socket(record: dict[str, Any]) -> Path | None:
    path = _text(record, "messagingSocketPath")
    return Path(path) if path.startswith("/") and "\0" not in path else None


def _is_same_start(told: object, started: str) -> bool:
    """Whether a record's ``procStart`` is the start time of the process that has its pid now.

    Where either does not tell, the living pid must do. Elsewhere than on Linux both are what ps says, but in whichever
    time zone each program asked in.
    """
    if not isinstance(told, str | int) or told == "" or not started:
        return True
    if str(told) == started:
        return True
    from datetime import datetime, timedelta  # rarely needed, and a hook comes this way (fault F86)

    try:
        gap = abs(datetime.strptime(str(told), _LSTART) - datetime.strptime(started, _LSTART))
    except ValueError:
        return False
    return gap <= timedelta(hours=_FARTHEST_ZONE_HOURS) and not gap % timedelta(minutes=_ZONE_STEP_MINUTES)
