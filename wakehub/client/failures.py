"""Why a hub session could not begin or did end, told apart, with the words and the next step (receive.md §3, §5).

The reconnect ladder and the listener decide by `Failure`; a person reads the rest of `HubError`. EPERM and EACCES are
never "not running": a sandbox that keeps us from the socket looks like that.
"""

import errno
from enum import Enum
from pathlib import Path
from typing import Final

from wakehub.errors import ErrorCode, Exit, WakehubError
from wakehub.visible import visible
from wakehub.wire.payloads import Error

_MORE: Final = "wakehub --health says what to do"


class Failure(Enum):
    """The kinds of failure that call for different behaviour."""

    ABSENT = "absent"  # ENOENT: no socket
    REFUSED = "refused"  # ECONNREFUSED: a socket that nobody serves
    DENIED = "denied"  # EPERM, EACCES: a sandbox or a wrong owner
    TIMEOUT = "timeout"  # connected, and silence
    UNAUTHORIZED = "unauthorized"  # 401
    REPLACED = "replaced"  # 409: another session with this id
    CEILING = "ceiling"  # 507: no room for another connection
    VIOLATION = "violation"  # the hub broke AWH1, or says that we did
    WRONG_HUB = "wrong hub"  # the challenge names another hub id
    LOST = "lost"  # the stream ended


class HubError(WakehubError):
    """No session with the hub, or no longer; `failure` is the kind."""

    exit = Exit.UNAVAILABLE

    def __init__(self, failure: Failure, what: str, *, why: str = "", remedy: str = "") -> None:
        super().__init__(what, why=why, remedy=remedy)
        self.failure = failure
        if failure is Failure.DENIED:
            self.exit = Exit.PERMISSION


def from_os_error(error: OSError, socket: Path) -> HubError:
    """The failure behind an `OSError` of connecting to, reading from or writing to the hub's socket."""
    shown = visible(str(socket))
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR:
            return HubError(Failure.ABSENT, f"no hub at {shown}", remedy=_MORE)
        case errno.ECONNREFUSED:
            return HubError(Failure.REFUSED, f"no hub answers at {shown}", why="the socket is stale", remedy=_MORE)
        case errno.EPERM | errno.EACCES:
            return denied(error, shown)
        case _:
            return HubError(Failure.LOST, "the hub's connection ended", why=error.strerror or str(error))


def denied(error: OSError, shown: str) -> HubError:
    """EPERM or EACCES at the socket `shown`."""
    return HubError(
        Failure.DENIED,
        f"not allowed to connect to {shown}",
        why=f"{error.strerror}; this process seems to run in a sandbox, or the socket is another user's",
        remedy=f"allow Unix socket {shown} in the sandbox's settings",
    )


def from_answer(error: Error) -> HubError:
    """The failure that an error frame means which ends the connection, or which came in place of the welcome."""
    reason = visible(error.reason)
    match error.code:
        case ErrorCode.UNAUTHORIZED:
            return HubError(Failure.UNAUTHORIZED, "the hub refused this identity", why="401 unauthorized")
        case ErrorCode.REPLACED:
            return HubError(
                Failure.REPLACED,
                "another session took this one's place",
                why=f"409 {reason}",
                remedy="stop one of them",
            )
        case ErrorCode.OVERFLOW:
            return HubError(
                Failure.CEILING, "the hub has no room", why=f"507 {reason}", remedy="raise [hub] max_connections"
            )
        case code:
            return HubError(Failure.VIOLATION, "the hub ended the session", why=f"{int(code)} {reason}")
