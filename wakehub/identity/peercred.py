"""Who the kernel says is at the other end of a Unix socket (awh1.md §4.1), on Linux and macOS.

The uid decides; the pid is for the log. A pid of 0 (the peer lives in another pid namespace) or none at all is
unknown, which is no reason to refuse.
"""

import os
import socket
import struct
import sys
from dataclasses import dataclass
from typing import Final, Protocol

_UCRED: Final = struct.Struct("=iII")  # Linux: pid, uid, gid
# macOS <sys/ucred.h>: version, uid, number of groups, padding, 16 groups
_XUCRED: Final = struct.Struct("=IIh2x16I")
_XUCRED_VERSION: Final = 0
_PID: Final = struct.Struct("=i")
# macOS <sys/un.h>; Python's socket module does not name them
_SOL_LOCAL: Final = 0
_LOCAL_PEERCRED: Final = 0x001
_LOCAL_PEERPID: Final = 0x002


@dataclass(frozen=True, slots=True)
class PeerCredentials:
    """The effective uid of the peer when it connected, and its pid where that is known."""

    uid: int
    pid: int | None


class ConnectedSocket(Protocol):
    """What is asked of a socket; those of the standard library and of Trio have it."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes: ...


def read(sock: ConnectedSocket) -> PeerCredentials:
    """The credentials of the peer of a connected Unix socket.

    Raises `OSError` when the kernel does not tell them; such a peer must be refused.
    """
    if sys.platform == "darwin":
        return read_macos(sock)
    return parse_ucred(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))


def read_macos(sock: ConnectedSocket) -> PeerCredentials:
    """By LOCAL_PEERCRED, and LOCAL_PEERPID where that answers."""
    uid = parse_xucred(sock.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED.size))
    try:
        pid = parse_pid(sock.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID, _PID.size))
    except OSError:
        pid = None
    return PeerCredentials(uid, pid)


def parse_ucred(answer: bytes) -> PeerCredentials:
    """Linux's ``struct ucred``: pid, uid, gid of 32 bits each; raises `OSError` for another size."""
    pid, uid, _ = _unpacked(_UCRED, answer)
    return PeerCredentials(uid, pid if pid > 0 else None)


def parse_xucred(answer: bytes) -> int:
    """The uid in macOS's ``struct xucred`` (76 bytes); raises `OSError` for another size or version."""
    version, uid, *_ = _unpacked(_XUCRED, answer)
    if version != _XUCRED_VERSION:
        raise OSError(f"peer credentials of unknown version {version}")
    return int(uid)


def parse_pid(answer: bytes) -> int | None:
    """A ``pid_t``; None when it is not a process's; raises `OSError` for another size."""
    (pid,) = _unpacked(_PID, answer)
    return int(pid) if pid > 0 else None


def _unpacked(layout: struct.Struct, answer: bytes) -> tuple[int, ...]:
    if len(answer) != layout.size:
        raise OSError(f"peer credentials of {len(answer)} B are not {layout.size} B")
    return layout.unpack(answer)


class Authorizer(Protocol):
    """Decides by the kernel's word alone whether a peer is listened to at all."""

    def allows(self, credentials: PeerCredentials) -> bool: ...


class SameUidAuthorizer:
    """Allows the hub's own effective uid and nobody else; root is no exception."""

    def __init__(self) -> None:
        self._uid = os.geteuid()

    def allows(self, credentials: PeerCredentials) -> bool:
        return credentials.uid == self._uid
