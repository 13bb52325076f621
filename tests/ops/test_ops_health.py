"""`--health` tells apart what calls for different things (faults F47, F57)."""

import contextlib
import errno
import os
import queue
import socket
import stat
from pathlib import Path

import pytest

from wakehub.config import Config
from wakehub.errors import ErrorCode, Exit, Unavailable
from wakehub.ops import health
from wakehub.paths import choose
from wakehub.wire.frames import Frame, Kind, encode
from wakehub.wire.payloads import Error

CHALLENGE = encode(Frame(Kind.HELLO, b"wakehub", b"", bytes(range(32))))


def counted_at(stats_socket: Path) -> Config:
    """An instance whose hub serves its counters there."""
    return Config.at(choose({"WAKEHUB_HOME": str(stats_socket.parent)})).changed(stats_socket=stats_socket)


def drain(connection: socket.socket) -> None:
    """Wait until the peer has closed."""
    while connection.recv(4096):
        pass


def saying(data: bytes):
    """A server that says `data`, and waits for the peer to leave."""

    def behave(connection: socket.socket) -> None:
        connection.sendall(data)
        drain(connection)

    return behave


def test_a_challenge_is_an_answer(serve):
    found = health.check(serve(saying(CHALLENGE)), "wakehub")
    assert (found.state, found.exit, found.hub_id) == ("answers", Exit.DONE, "wakehub")
    assert "✓" in found.to_text()


def test_the_hub_is_sent_nothing(serve):
    got: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def behave(connection: socket.socket) -> None:
        connection.sendall(CHALLENGE)
        got.put(connection.recv(4096))

    health.check(serve(behave), "wakehub")
    assert got.get() == b""


def test_a_challenge_may_come_in_pieces(serve):
    def behave(connection: socket.socket) -> None:
        for byte in CHALLENGE:
            connection.sendall(bytes([byte]))
        drain(connection)

    assert health.check(serve(behave), "wakehub").state == "answers"


def test_another_hub_is_named(serve):
    found = health.check(serve(saying(CHALLENGE)), "ai-memory-wake-hub")
    assert (found.state, found.hub_id, found.exit) == ("other_hub", "wakehub", Exit.UNREACHABLE)
    assert "--hub-id wakehub" in found.remedy


def test_missing(short):
    found = health.check(short / "hub.sock", "wakehub")
    assert (found.state, found.exit) == ("missing", Exit.UNREACHABLE)
    assert "start the hub" in found.remedy


def test_missing_directory_and_a_file_in_its_place(short):
    (short / "file").touch()
    assert health.check(short / "no" / "hub.sock", "wakehub").state == "missing"
    assert health.check(short / "file" / "hub.sock", "wakehub").state == "missing"


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, lambda path: path.symlink_to("elsewhere"), os.mkfifo])
def test_what_is_not_a_socket(short, make):
    make(short / "hub.sock")
    found = health.check(short / "hub.sock", "wakehub")
    assert found.state == "not_a_socket"
    assert found.remedy


def test_a_link_to_a_living_socket_is_not_followed(short, serve):
    path = serve(saying(CHALLENGE))
    (short / "link.sock").symlink_to(path)
    assert health.check(short / "link.sock", "wakehub").state == "not_a_socket"
    assert health.check(path, "wakehub").state == "answers"


def test_a_stale_socket_is_refused(short):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short / "hub.sock"))
        listener.listen()
    found = health.check(short / "hub.sock", "wakehub")
    assert found.state == "refused"
    assert "start the hub" in found.remedy


def test_a_datagram_socket_is_unexpected(short):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(short / "hub.sock"))
        assert health.check(short / "hub.sock", "wakehub").state == "unexpected"


def test_silence_behind_a_connection_is_a_timeout_and_not_absence(serve):
    found = health.check(serve(drain), "wakehub", deadline_ms=50)
    assert (found.state, found.exit) == ("timeout", Exit.UNREACHABLE)
    assert "stopped or overloaded" in found.why


def test_a_full_backlog_is_a_timeout(short):
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(str(short / "hub.sock"))
        listener.listen(0)
        waiting.connect(str(short / "hub.sock"))
        assert health.check(short / "hub.sock", "wakehub", deadline_ms=50).state == "timeout"


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\0\0\0\x20" + bytes(32),
        encode(Frame(Kind.PONG, b"wakehub")),
        CHALLENGE[4:],
    ],
)
def test_garbage_is_unexpected(serve, data):
    found = health.check(serve(saying(data)), "wakehub", deadline_ms=500)
    assert found.state == "unexpected"


def test_another_error_in_place_of_a_challenge_is_unexpected(serve):
    frame = encode(Frame(Kind.ERROR, b"wakehub", b"", Error(ErrorCode.UNAUTHORIZED, "unauthorized").encode()))
    assert health.check(serve(saying(frame)), "wakehub").state == "unexpected"


def test_the_ceiling_is_told(serve):
    frame = encode(
        Frame(Kind.ERROR, b"wakehub", b"", Error(ErrorCode.OVERFLOW, "hub at its connection ceiling").encode())
    )
    found = health.check(serve(saying(frame)), "wakehub")
    assert found.state == "full"
    assert "max_connections" in found.remedy


@pytest.mark.parametrize("said", [b"", CHALLENGE[:10]])
def test_a_connection_that_ends_early(serve, said):
    assert health.check(serve(lambda connection: connection.sendall(said)), "wakehub").state == "closed"


@pytest.mark.parametrize("code", [errno.EPERM, errno.EACCES, errno.EAFNOSUPPORT])
def test_a_sandbox_is_not_mistaken_for_absence(short, monkeypatch, code):
    """The machine that runs the tests forbids nothing, so the kernel's answer is put in its place."""

    class Forbidden(socket.socket):
        def connect(self, address: object) -> None:
            raise OSError(code, os.strerror(code))

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short / "hub.sock"))
        monkeypatch.setattr(health.socket, "socket", Forbidden)
        found = health.check(short / "hub.sock", "wakehub")
    assert found.state == "denied"
    assert "sandbox" in found.why
    assert "sandbox" in found.remedy


def test_a_socket_of_another_user_is_not_connected_to(short, monkeypatch):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short / "hub.sock"))
        listener.listen()
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert health.check(short / "hub.sock", "wakehub").state == "not_ours"
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_a_path_that_no_socket_can_have(short, monkeypatch):
    deep = short / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("hub.sock")
    found = health.check(deep / "hub.sock", "wakehub")
    assert found.state == "missing"
    assert "too long" in found.why


def test_the_json_has_the_documented_keys_whatever_was_found(short, serve):
    for path in (short / "absent", serve(saying(CHALLENGE))):
        assert tuple(health.check(path, "wakehub").to_json()) == health.JSON_KEYS


def test_what_the_peer_says_cannot_reach_the_terminal(serve):
    name = "evil\u202e" + "x"
    found = health.check(serve(saying(encode(Frame(Kind.HELLO, name.encode(), b"", bytes(32))))), "wakehub")
    assert "\u202e" not in found.to_text()
    assert found.to_json()["hub_id"] == name


def test_metrics_are_read_to_their_end(serve):
    text = "# TYPE wakehub_accepted counter\nwakehub_accepted_total 1\n# EOF\n"
    assert health.read_metrics(counted_at(serve(lambda connection: connection.sendall(text.encode())))) == text


@pytest.mark.parametrize("said", [b"", b"wakehub_accepted_total 1\n"])
def test_metrics_that_are_cut_short_are_none(serve, said):
    with pytest.raises(Unavailable):
        health.read_metrics(counted_at(serve(lambda connection: connection.sendall(said))))


def test_endless_metrics_are_cut(serve):
    def behave(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection.sendall(bytes(1 << 16))

    with pytest.raises(Unavailable, match="more than"):
        health.read_metrics(counted_at(serve(behave)))


def test_no_metrics_without_a_hub(short):
    with pytest.raises(Unavailable, match="nothing is there"):
        health.read_metrics(counted_at(short / "stats.sock"))


def test_nothing_is_changed(short):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short / "hub.sock"))
        before = os.lstat(short / "hub.sock")
        health.check(short / "hub.sock", "wakehub")
        after = os.lstat(short / "hub.sock")
    assert os.listdir(short) == ["hub.sock"]
    assert (before.st_ino, stat.S_IMODE(before.st_mode)) == (after.st_ino, stat.S_IMODE(after.st_mode))
