"""One listening socket, and how many descriptors the hub may use (awh1.md §6).

Only the holder of the hub's lock touches a socket path. A socket that was bound here is known by device and inode;
it is unlinked only while the path still is that one, so that a slow drain never takes a successor's socket away.
"""

import contextlib
import os
import resource
import socket
import stat
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

import trio

from wakehub import files, sockets
from wakehub.errors import Misconfigured, Unsafe
from wakehub.limits import LISTEN_BACKLOG, MIN_CONNECTIONS, RESERVED_DESCRIPTORS, WANTED_DESCRIPTORS
from wakehub.visible import visible

_FIRST_PASSED_DESCRIPTOR = 3


class Place(Enum):
    """What lies at a socket's path now."""

    OURS = "ours"
    ABSENT = "absent"
    OTHER_SOCKET = "another socket"
    FOREIGN = "something that is not a socket"


class Listener:
    """A listening, non-blocking Unix socket and its path; `owned` is false for one that a supervisor passed to us.

    `sock` becomes another one when the path is bound anew; the one before is then closed.
    """

    def __init__(self, path: Path, sock: socket.socket, *, owned: bool = True) -> None:
        self.path = path
        self.sock = sock
        self.owned = owned
        self._identity: tuple[int, int] | None = _identity(path)

    @classmethod
    def bind(cls, path: Path) -> "Listener":
        """Bind and listen at `path`; raises as `sockets.bind` does."""
        return cls(path, sockets.bind(path, LISTEN_BACKLOG))

    def bind_anew(self) -> None:
        """Bind another socket at the path, whatever became of the one before; raises as `sockets.bind` does."""
        retired, self.sock = self.sock, sockets.bind(self.path, LISTEN_BACKLOG)
        self.owned = True
        self._identity = _identity(self.path)
        trio.lowlevel.notify_closing(retired)  # who waits for it looks at `sock` again
        retired.close()

    def look(self) -> Place:
        """Compare what lies at the path with what was bound."""
        try:
            found = os.lstat(self.path)
        except OSError:
            return Place.ABSENT
        if (found.st_dev, found.st_ino) == self._identity:
            return Place.OURS
        return Place.OTHER_SOCKET if stat.S_ISSOCK(found.st_mode) else Place.FOREIGN

    def withdraw(self) -> None:
        """Stop listening; remove the path if it still is our socket and we bound it ourselves."""
        if self.owned and self.look() is Place.OURS:
            self.path.unlink(missing_ok=True)
        self._identity = None
        self.sock.close()


def _identity(path: Path) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def passed_listeners(environ: Mapping[str, str]) -> dict[Path, Listener]:
    """Sockets that a supervisor passed (``LISTEN_FDS``, ``LISTEN_PID``), by the path they are bound to.

    One whose path is gone is left out: nobody can reach it. Raises `Misconfigured` (78) when one is not a listening
    Unix stream socket, `Unsafe` (77) when others may reach it.
    """
    if environ.get("LISTEN_PID") != str(os.getpid()) or not environ.get("LISTEN_FDS", "").isdecimal():
        return {}
    first = _FIRST_PASSED_DESCRIPTOR
    sockets = [_passed(fd) for fd in range(first, first + int(environ["LISTEN_FDS"]))]
    passed: dict[Path, Listener] = {}
    for sock in sockets:
        path = Path(sock.getsockname())
        if files.is_absent(path):
            sock.close()
            continue
        _check_private(path)
        passed[path] = Listener(path, sock, owned=False)
    return passed


def _passed(fd: int) -> socket.socket:
    try:
        sock = socket.socket(fileno=fd)
        listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise Misconfigured(
            f"descriptor {fd} from LISTEN_FDS is no socket",
            why=error.strerror or "",
            remedy="correct the socket unit",
        ) from error
    name = sock.getsockname()
    if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_STREAM or not listens or not isinstance(name, str):
        raise Misconfigured(
            f"descriptor {fd} from LISTEN_FDS cannot be used",
            why="it must be a listening Unix stream socket with a path",
            remedy="use ListenStream= with a path in the socket unit",
        )
    os.set_inheritable(fd, False)
    sock.setblocking(False)
    return sock


def _check_private(path: Path) -> None:
    """The posture of a socket that we did not bind: what `sockets.bind` would have made sure of."""
    sockets.check_directory(path.parent)
    files.check_directory(path.parent)
    found = os.lstat(path)
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid() or mode != 0o600:
        raise Unsafe(
            f"the passed socket {visible(str(path))} has mode {mode:04o} and belongs to uid {found.st_uid}",
            why=f"it must have 0600 and belong to uid {os.geteuid()}",
            remedy="set SocketMode=0600 in the socket unit",
        )


def connection_ceiling(configured: int) -> int:
    """How many connections may be held at once: raises the soft descriptor limit toward 4,096, keeps 32 in reserve.

    Raises `Misconfigured` (78) when fewer than 8 would be left, with different words for limit and setting.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(WANTED_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # a sandbox may not allow it: what there is has to do
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    usable = WANTED_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft - RESERVED_DESCRIPTORS
    if usable < MIN_CONNECTIONS:
        raise Misconfigured(
            f"the limit of open files is {soft}",
            why=f"{RESERVED_DESCRIPTORS} are reserved and at least {MIN_CONNECTIONS} connections are needed",
            remedy=f"raise it to at least {RESERVED_DESCRIPTORS + MIN_CONNECTIONS} (ulimit -n, or LimitNOFILE=)",
        )
    if configured < MIN_CONNECTIONS:
        raise Misconfigured(
            f"max_connections is {configured}",
            why=f"a hub of fewer than {MIN_CONNECTIONS} connections is of no use",
            remedy=f"set max_connections to at least {MIN_CONNECTIONS}",
        )
    return min(configured, usable)
