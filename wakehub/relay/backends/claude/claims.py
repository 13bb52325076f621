"""`wakehub claim`: which session is the shared endpoint of a workspace, `<ws>/claude` (receive.md §4, 2).

A claim is a file in the state directory, one for each endpoint, and means one session (`routing.Bond`): it holds while
that session runs, whatever id it takes on, and again when it is resumed under the id it had. A later claim takes its
place. It is a wish, not a right: a file that is not as it must be is no claim, and messages go to the session that was
started last.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wakehub import files
from wakehub.client import claude_sessions as sessions
from wakehub.client.claude_sessions import Session
from wakehub.errors import Unavailable, Unsafe
from wakehub.identity import strict_json
from wakehub.identity.addresses import check_address, check_namespace
from wakehub.limits import MAX_SESSION_FILE_BYTES
from wakehub.paths import Paths
from wakehub.relay.backends.claude.routing import SHARED, Bond

_VERSION: Final = 1
_KEYS: Final = {"v", "pid", "started", "session_id"}


@dataclass(frozen=True, slots=True)
class Claim:
    """The shared endpoint `address` is `session`."""

    address: str
    session: Session


def claim(paths: Paths, namespace: str | None, directory: Path, environ: Mapping[str, str]) -> Claim:
    """Make the session that this process runs in the shared endpoint of `namespace` (None: of plain names).

    Raises `BadData` (65) for what is no namespace, `Unavailable` (69) outside a session, `CannotCreate` (73).
    """
    address = check_address(f"{check_namespace(namespace)}{SHARED}" if namespace is not None else SHARED)
    session = own_session(directory, environ)
    value = {"v": _VERSION, "pid": session.pid, "started": session.started, "session_id": session.session_id}
    files.private_directory(paths.claims)
    files.replace(paths.claim(address), json.dumps(value).encode() + b"\n")
    return Claim(address, session)


def own_session(directory: Path, environ: Mapping[str, str]) -> Session:
    """The session that this process runs in, by `$CLAUDE_CODE_SESSION_ID`; raises `Unavailable` (69)."""
    session_id = environ.get("CLAUDE_CODE_SESSION_ID")
    if not session_id:
        raise Unavailable(
            "this is no Claude Code session", why="CLAUDE_CODE_SESSION_ID is not set", remedy="run it inside of one"
        )
    found = Bond(session_id).find(sessions.scan(directory))
    if found is None:
        raise Unavailable(
            "the session that this runs in is not among those that run",
            why=f"no record in {directory / 'sessions'} has its id",
            remedy="see CLAUDE_CONFIG_DIR, and that Claude Code is 2.1.224 or newer",
        )
    return found


def claimed(paths: Paths, address: str) -> Bond | None:
    """The session that claimed the shared endpoint `address`; None when none did."""
    try:
        found = strict_json.parse(files.read_owned(paths.claim(address), MAX_SESSION_FILE_BYTES), _KEYS)
        process = (strict_json.integer(found, "pid", 1, 1 << 31), strict_json.text(found, "started"))
        return Bond(strict_json.text(found, "session_id"), process)
    except (OSError, Unsafe, ValueError):
        return None
