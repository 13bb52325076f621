"""The sockets the hub listens on, and how many descriptors it may use (awh1.md §6).

Only the holder of the hub's lock touches a socket path. A socket that was bound here is known by device and inode;
it is unlinked only while the path still is that one, so that a slow drain never takes a successor's socket away.
"""

import os
import resource
import socket
import stat
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from wakehub import files
from wakehub.errors import Misconfigured
from wakehub.limits import LISTEN_BACKLOG, MIN_CONNECTIONS, RESERVED_DESCRIPTORS, WANTED_DESCRIPTORS

_FIRST_PASSED_DESCRIPTOR = 3


class Place(Enum):
    """What lies at a socket's path now."""

    OURS = "ours"
    ABSENT = "absent"
    OTHER_SOCKET = "another socket"
    FOREIGN = "something that is not a socket"


class Listener:
    """A listening, non-blocking Unix socket and its path; `owned` is false for one that a supervisor passed to us."""

    def __init__(self, path: Path, sock: socket.socket, *, owned: bool = True) -> None:
        self.path = path
        self.sock = sock
        self.owned = owned
        found = os.lstat(path)
        self._identity = (found.st_dev, found.st_ino)

    @classmethod
    def bind(cls, path: Path) -> "Listener":
        """Bind and listen at `path`; raises as `files.bind_socket` does."""
        return cls(path, files.bind_socket(path, LISTEN_BACKLOG))

    def look(self) -> Place:
        """Compare what lies at the path with what was bound."""
        try:
            found = os.lstat(self.path)
        except OSError:
            return Place.ABSENT
        if (found.st_dev, found.st_ino) == self._identity:
            return Place.OURS
        return Place.OTHER_SOCKET if stat.S_ISSOCK(found.st_mode) else Place.FOREIGN

    def unlink(self) -> None:
        """Remove the path if it still is our socket and we bound it ourselves."""
        if self.owned and self.look() is Place.OURS:
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        self.sock.close()


def passed_listeners(environ: Mapping[str, str]) -> dict[Path, Listener]:
    """Sockets that a supervisor passed (``LISTEN_FDS``, ``LISTEN_PID``), by the path they are bound to.

    Raises `Misconfigured` (78) when one is not a listening Unix stream socket.
    """
    if environ.get("LISTEN_PID") != str(os.getpid()) or not environ.get("LISTEN_FDS", "").isdecimal():
        return {}
    passed: dict[Path, Listener] = {}
    for fd in range(_FIRST_PASSED_DESCRIPTOR, _FIRST_PASSED_DESCRIPTOR + int(environ["LISTEN_FDS"])):
        try:
            sock = socket.socket(fileno=fd)
        except OSError as error:
            raise Misconfigured(
                f"descriptor {fd} from LISTEN_FDS is no socket", why=str(error), remedy="correct the socket unit"
            ) from error
        listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        name = sock.getsockname()
        if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_STREAM or not listens or not isinstance(name, str):
            raise Misconfigured(
                f"descriptor {fd} from LISTEN_FDS cannot be used",
                why="it must be a listening Unix stream socket with a path",
                remedy="use ListenStream= with a path in the socket unit",
            )
        os.set_inheritable(fd, False)
        sock.setblocking(False)
        passed[Path(name)] = Listener(Path(name), sock, owned=False)
    return passed


def connection_ceiling(configured: int) -> int:
    """How many connections may be held at once: raises the soft descriptor limit toward 4,096, keeps 32 in reserve.

    Raises `Misconfigured` (78) when fewer than 8 would be left, with different words for limit and setting.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(WANTED_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
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
