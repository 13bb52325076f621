"""Which sessions are set to hold or refuse messages of other processes (receive.md §4, 8).

Claude Code decides that by its setting ``crossSessionInbound``: the one of the machine's manager rules, else the one of
the session's ``--settings``, else the user's; a project may make it stricter, never laxer. Unset, a session that
bypasses permission prompts holds messages. What is found here is advice: a message that is held stays unread.
"""

import json
import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from wakehub import files
from wakehub.client import claude_sessions as sessions
from wakehub.client.claude_sessions import Session
from wakehub.errors import Unsafe
from wakehub.files import Stamp
from wakehub.limits import MAX_SETTINGS_BYTES
from wakehub.processes import arguments
from wakehub.visible import visible

_KEY: Final = "crossSessionInbound"
_STRICTER: Final = ("hold", "refuse")
_BYPASS: Final = "bypassPermissions"


@dataclass(frozen=True, slots=True)
class Finding:
    """Why messages to `session` will wait, and the setting to make."""

    session: Session
    detail: str
    remedy: str


def findings(directory: Path, running: list[Session], managed: Path | None = None) -> list[Finding]:
    """What keeps messages from those of the `running` sessions that can be reached at all."""
    reachable = [session for session in running if session.socket is not None]
    found = [_finding(directory, session, managed or _managed_settings()) for session in reachable]
    return [finding for finding in found if finding is not None]


def _finding(directory: Path, session: Session, managed: Path) -> Finding | None:
    user = directory / "settings.json"
    words = arguments(session.pid)
    ruling = {
        "managed settings": _read(managed),
        "--settings": _from_flag(words, session.cwd),
        str(user): _read(user),
    }
    where, value = _effective(ruling, session.cwd)
    if value in _STRICTER:
        return Finding(session, f"{session} is set to {value} messages ({visible(where)})", _remedy(where, value))
    if value is None and _bypasses(words, [*ruling.values(), *_of_project(session.cwd).values()]):
        detail = f"{session} bypasses permission prompts, and so holds messages"
        return Finding(session, detail, _remedy(str(user), value))
    return None


def _effective(ruling: dict[str, dict[str, Any]], cwd: str) -> tuple[str, str | None]:
    """The value that counts, None if there is none, and where it comes from."""
    where, value = next(
        ((place, settings[_KEY]) for place, settings in ruling.items() if isinstance(settings.get(_KEY), str)),
        ("", None),
    )
    for place, settings in _of_project(cwd).items():
        if _strictness(settings.get(_KEY)) > _strictness(value):
            where, value = place, settings[_KEY]
    return where, value


def _strictness(value: object) -> int:
    return _STRICTER.index(value) + 1 if value in _STRICTER else 0


def _remedy(where: str, value: str | None) -> str:
    if where == "managed settings":
        return "ask who manages this machine to allow messages between sessions"
    return f'set "{_KEY}": "accept" in {visible(where)}, and start the session again'


def _bypasses(words: list[str], settings: list[dict[str, Any]]) -> bool:
    if "--dangerously-skip-permissions" in words or _BYPASS in _values(words, "--permission-mode"):
        return True
    modes = (each["permissions"].get("defaultMode") for each in settings if isinstance(each.get("permissions"), dict))
    return _BYPASS in modes


def _values(words: list[str], flag: str) -> Iterator[str]:
    """What a command line gives a flag, in either way of writing it."""
    for word, following in zip(words, [*words[1:], ""], strict=False):
        if word == flag:
            yield following
        elif word.startswith(f"{flag}="):
            yield word.removeprefix(f"{flag}=")


def _from_flag(words: list[str], cwd: str) -> dict[str, Any]:
    """The settings of ``--settings``, which is a file or JSON itself."""
    for given in _values(words, "--settings"):
        return _parse(given.encode("utf-8", "replace")) if given.lstrip().startswith("{") else _read(Path(cwd, given))
    return {}


def _of_project(cwd: str) -> dict[str, dict[str, Any]]:
    if not cwd.startswith("/"):
        return {}
    paths = [Path(cwd, ".claude", name) for name in ("settings.json", "settings.local.json")]
    return {str(path): _read(path) for path in paths}


def _managed_settings() -> Path:
    if sys.platform == "darwin":
        return Path("/Library/Application Support/ClaudeCode/managed-settings.json")
    return Path("/etc/claude-code/managed-settings.json")


def _read(path: Path) -> dict[str, Any]:
    """The settings in a file; none when there is no such file or it cannot be used."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a link is as good as a file here
    except (OSError, ValueError):
        return {}
    try:
        found = os.fstat(fd)
        is_file = stat.S_ISREG(found.st_mode)
        return _parse(files.read_all(fd, Stamp.of(found), path, MAX_SETTINGS_BYTES)) if is_file else {}
    except (OSError, Unsafe):
        return {}
    finally:
        os.close(fd)


def _parse(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def look(directory: Path) -> tuple[list[Session], list[Finding]]:
    """The sessions that run, and what keeps messages from them; raises as `sessions.scan` does."""
    running = sessions.scan(directory)
    return running, findings(directory, running)
