"""Locks, and who holds them (formats.md, Directories; F48-F50)."""

import errno
import fcntl
import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from wakehub import __version__, files, locks
from wakehub.errors import CannotCreate, Exit, Held, Unsafe
from wakehub.locks import Lock


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def failing(number: int) -> Callable[..., int]:
    def fail(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    return fail


HOLD = (
    "import sys; from pathlib import Path; from wakehub.locks import Lock\n"
    "lock = Lock.acquire(Path(sys.argv[1]), what='a hub'); print('held', flush=True); sys.stdin.read()\n"
)


def holding(path: Path) -> "subprocess.Popen[str]":
    """Another process that holds the lock until its stdin is closed or it is killed."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_a_lock_is_held_by_one_and_names_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "hub.lock"
    with Lock.acquire(path, what="a hub") as lock:
        assert mode(path) == 0o600
        found = json.loads(path.read_bytes())
        assert found.keys() == {"pid", "start", "namespace", "since", "version"}
        assert locks.read_holder(path) == locks.Holder(os.getpid(), found["since"])
        with pytest.raises(Held, match=rf"a hub is already running: pid {os.getpid()} since {found['since']}") as held:
            Lock.acquire(path, what="a hub")
        assert held.value.exit is Exit.HELD
        assert lock.is_in_place()
    assert path.exists()
    assert not lock.is_in_place()
    lock.release()
    Lock.acquire(path, what="a hub").release()


def test_the_kernel_releases_the_lock_of_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "hub.lock"
    with holding(path) as holder:
        with pytest.raises(Held, match=f"pid {holder.pid}"):
            Lock.acquire(path, what="a hub")
        inode = path.stat().st_ino
        holder.kill()
        holder.wait()
        with Lock.acquire(path, what="a hub") as lock:
            assert path.stat().st_ino == inode
            assert locks.read_holder(path) == locks.Holder(os.getpid(), json.loads(path.read_bytes())["since"])
            assert lock.is_in_place()


def test_a_lock_can_be_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "init.lock"
    taken = threading.Event()

    def wait() -> None:
        with Lock.acquire(path, what="init", wait=True):
            taken.set()

    with holding(path) as holder:
        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not taken.is_set()
        holder.communicate()
        waiting.join()
    assert taken.is_set()


def test_a_lock_file_that_is_taken_away_does_not_make_two_holders(tmp_path: Path) -> None:
    path = tmp_path / "hub.lock"
    first = Lock.acquire(path, what="a hub")
    path.unlink()
    assert not first.is_in_place()
    with Lock.acquire(path, what="a hub") as second:
        assert second.is_in_place()
        assert not first.is_in_place()
    first.release()


def test_who_waited_for_a_file_that_was_taken_away_takes_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "init.lock"
    real = fcntl.flock

    def swap(fd: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        path.unlink()
        files.create(path, b"")
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", swap)
    with Lock.acquire(path, what="init", wait=True) as lock:
        assert lock.is_in_place()


def test_what_is_no_lock_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"target")
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "directory").mkdir(0o700)
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "open").write_bytes(b"")
    (tmp_path / "open").chmod(0o644)
    for name in ("link", "directory", "pipe", "open"):
        with pytest.raises(Unsafe):
            Lock.acquire(tmp_path / name, what="a hub")
    assert (tmp_path / "target").read_bytes() == b"target"
    with pytest.raises(CannotCreate, match="ENOENT"):
        Lock.acquire(tmp_path / "absent" / "hub.lock", what="a hub")


def test_a_full_disk_does_not_stand_in_the_way_of_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "hub.lock"
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", failing(errno.ENOSPC))
        with Lock.acquire(path, what="a hub"):
            with pytest.raises(Held, match="another process holds"):
                Lock.acquire(path, what="a hub")
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", failing(errno.ENOLCK))
        with pytest.raises(CannotCreate, match="ENOLCK"):
            Lock.acquire(path, what="a hub")


@pytest.mark.parametrize(
    "content", [b"", b"x", b"[]", b"{}", b'{"pid":"x","since":""}', b'{"pid":1}', b"\xff", b"x" * 5000]
)
def test_a_holder_that_cannot_be_told(tmp_path: Path, content: bytes) -> None:
    files.create(tmp_path / "hub.lock", content)
    assert locks.read_holder(tmp_path / "hub.lock") is None
    assert locks.read_holder(tmp_path / "absent") is None


def test_a_holder_is_shown_safely(tmp_path: Path) -> None:
    files.create(tmp_path / "hub.lock", json.dumps({"pid": 7, "since": "\x1b[2J"}).encode())
    assert locks.read_holder(tmp_path / "hub.lock") == locks.Holder(7, "\\x1b[2J")


def test_a_live_holder_is_the_process_that_took_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "hub.lock"
    with holding(path) as holder:
        found = locks.live_holder(path)
        assert found is not None
        assert (found.pid, found.version) == (holder.pid, __version__)
        holder.communicate()
    assert locks.read_holder(path) == found
    assert locks.live_holder(path) is None


def test_a_pid_that_another_process_has_now_is_no_holder(tmp_path: Path) -> None:
    path = tmp_path / "hub.lock"
    for started in ("1", ""):
        files.replace(path, json.dumps({"pid": os.getpid(), "start": started, "since": "x"}).encode())
        assert locks.live_holder(path) is None
