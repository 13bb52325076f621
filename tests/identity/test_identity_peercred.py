"""Peer credentials on both platforms (awh1.md §4.1)."""

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from wakehub.identity import peercred
from wakehub.identity.peercred import PeerCredentials, SameUidAuthorizer

# What macOS answers, by its <sys/ucred.h>, for a peer of uid 501, pid 4321, in the groups 20, 12, 61, 79.
XUCRED = bytes.fromhex("00000000f501000004000000140000000c0000003d0000004f000000") + bytes(48)
PEERPID = bytes.fromhex("e1100000")


def test_the_peer_of_a_socket_pair_is_this_process() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peercred.read(ours) == PeerCredentials(os.geteuid(), os.getpid())


def test_the_peer_of_an_accepted_connection_is_who_connected(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        program = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({str(path)!r}); s.recv(1)"
        with subprocess.Popen([sys.executable, "-c", program]) as client:
            connection, _ = listener.accept()
            with connection:
                assert peercred.read(connection) == PeerCredentials(os.geteuid(), client.pid)


def test_a_socket_without_a_peer_is_allowed_to_nobody() -> None:
    with socket.socket(socket.AF_UNIX) as lonely:
        try:
            found = peercred.read(lonely)
        except OSError:
            return
        assert found.pid is None
        assert not SameUidAuthorizer().allows(found)


def test_linux_answers() -> None:
    assert peercred.parse_ucred(struct.pack("=iII", 4321, 1000, 100)) == PeerCredentials(1000, 4321)
    assert peercred.parse_ucred(struct.pack("=iII", 1, 4_294_967_294, 0)) == PeerCredentials(4_294_967_294, 1)


@pytest.mark.parametrize("pid", [0, -1])
def test_a_pid_of_another_namespace_is_unknown(pid: int) -> None:
    assert peercred.parse_ucred(struct.pack("=iII", pid, 1000, 100)) == PeerCredentials(1000, None)
    assert peercred.parse_pid(struct.pack("=i", pid)) is None


def test_macos_answers() -> None:
    assert len(XUCRED) == 76
    assert peercred.parse_xucred(XUCRED) == 501
    assert peercred.parse_pid(PEERPID) == 4321


@pytest.mark.parametrize("answer", [b"", XUCRED[:-1], XUCRED + b"\0", b"\1" + XUCRED[1:]])
def test_an_answer_of_another_shape_is_no_credential(answer: bytes) -> None:
    with pytest.raises(OSError, match="peer credentials"):
        peercred.parse_xucred(answer)


@pytest.mark.parametrize("size", [0, 3, 5, 12])
def test_an_answer_of_another_size_is_none(size: int) -> None:
    with pytest.raises(OSError, match="peer credentials"):
        peercred.parse_pid(bytes(size))
    if size != 12:
        with pytest.raises(OSError, match="peer credentials"):
            peercred.parse_ucred(bytes(size))


class Mac:
    """A socket that answers as macOS does."""

    def __init__(self, pid: bytes | OSError) -> None:
        self.pid = pid

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes:
        assert level == 0
        if optname == 1:
            assert buflen == 76
            return XUCRED
        assert (optname, buflen) == (2, 4)
        if isinstance(self.pid, OSError):
            raise self.pid
        return self.pid


def test_macos_reads_both_options() -> None:
    assert peercred.read_macos(Mac(PEERPID)) == PeerCredentials(501, 4321)
    assert peercred.read_macos(Mac(OSError("ENOTCONN"))) == PeerCredentials(501, None)
    assert peercred.read_macos(Mac(bytes(4))) == PeerCredentials(501, None)


def test_only_ones_own_uid_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    authorizer = SameUidAuthorizer()
    assert authorizer.allows(PeerCredentials(1000, 7))
    assert authorizer.allows(PeerCredentials(1000, None))
    assert not authorizer.allows(PeerCredentials(1001, 7))
    assert not authorizer.allows(PeerCredentials(0, 1))
    assert not authorizer.allows(PeerCredentials(4_294_967_295, None))
