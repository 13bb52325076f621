"""Private Unix sockets (awh1.md §6; F46, F47)."""

import errno
import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from wakehub import files, sockets
from wakehub.errors import CannotCreate, Exit, Held, Misconfigured, Unsafe


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def failing(number: int) -> Callable[..., int]:
    def fail(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.fixture
def run() -> Iterator[Path]:
    """A directory that is short enough for sockets, wherever the tests run."""
    with tempfile.TemporaryDirectory(prefix="wh", dir="/tmp") as place:
        yield Path(place) / "run"


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
        return True


def test_a_socket_is_bound_private_and_answers(run: Path) -> None:
    with sockets.bind(run / "hub.sock", 4) as listener:
        assert mode(run) == 0o700
        assert mode(run / "hub.sock") == 0o600
        assert not listener.getblocking()
        assert not listener.get_inheritable()
        assert connects(run / "hub.sock")
        assert os.listdir(run) == ["hub.sock"]


def test_what_a_dead_process_left_is_replaced(run: Path) -> None:
    files.private_directory(run)
    for name in ("hub.sock", "hub.sock~"):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(run / name))
    assert not connects(run / "hub.sock")
    with sockets.bind(run / "hub.sock", 4):
        assert connects(run / "hub.sock")
        assert os.listdir(run) == ["hub.sock"]


@pytest.mark.parametrize("name", ["hub.sock", "hub.sock~"])
def test_what_is_no_socket_is_never_replaced(run: Path, name: str) -> None:
    files.private_directory(run)
    (run / "target").write_bytes(b"target")
    for make in (
        lambda path: path.write_bytes(b"x"),
        lambda path: path.symlink_to("target"),
        lambda path: path.mkdir(),
    ):
        make(run / name)
        with pytest.raises(Unsafe, match=r"not a socket.*next: mv "):
            sockets.bind(run / "hub.sock", 4)
        assert os.path.lexists(run / name)
        (run / name).rmdir() if (run / name).is_dir() else (run / name).unlink()


def test_no_socket_in_a_directory_of_others(run: Path) -> None:
    run.mkdir()
    run.chmod(0o755)
    with pytest.raises(Unsafe, match="0755"):
        sockets.bind(run / "hub.sock", 4)


def test_a_socket_that_cannot_be_put_in_place_is_closed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "rename", failing(errno.EACCES))
    with pytest.raises(CannotCreate, match=r"cannot bind .*hub\.sock: Permission denied"):
        sockets.bind(run / "hub.sock", 4)
    assert not connects(run / "hub.sock~")


def test_the_directory_of_the_sockets_is_counted_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """F46."""
    sockets.check_directory(Path("/" + "x" * 86))
    for path in (Path("/" + "x" * 87), Path("/" + "я" * 44)):
        with pytest.raises(Misconfigured, match=r"is 8[89] bytes long.*at most 87.*run = \"/") as refusal:
            sockets.check_directory(path)
        assert refusal.value.exit is Exit.CONFIG
    monkeypatch.setenv("HOME", "/" + "h" * 90)
    with pytest.raises(Misconfigured, match=r"run = \"/(run/user|tmp/wakehub-)"):
        sockets.check_directory(Path("/" + "x" * 87))


def test_a_socket_in_the_longest_directory_can_be_bound(run: Path) -> None:
    place = run / ("x" * (87 - len(os.fsencode(run)) - 1))
    assert len(os.fsencode(place)) == 87
    with sockets.bind(place / "publish.sock", 4):
        assert connects(place / "publish.sock")


def test_a_socket_that_answers_is_held_and_one_that_refuses_is_not(run: Path) -> None:
    """F47: stale is what refuses; a full backlog is no refusal."""
    sockets.refuse_live(run / "hub.sock", what="a hub")
    with sockets.bind(run / "hub.sock", 0):
        for _ in range(3):  # the second one fills the backlog
            with pytest.raises(Held, match=r"a process answers at .*hub\.sock"):
                sockets.refuse_live(run / "hub.sock", what="a hub")
    sockets.refuse_live(run / "hub.sock", what="a hub")
