"""Files and directories of ours (formats.md; awh1.md §6; F43, F53, F54, F58, F63)."""

import errno
import fcntl
import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from wakehub import files
from wakehub.errors import CannotCreate, Exit, Unsafe


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    uid = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: uid)


def failing(number: int) -> Callable[..., int]:
    def fail(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    return fail


# --- directories ---


def test_a_directory_and_its_missing_parents_are_made_0700(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        files.private_directory(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(umask)
    assert [mode(tmp_path / part) for part in ("a", "a/b", "a/b/c")] == [0o700] * 3
    files.private_directory(tmp_path / "a" / "b" / "c")


def test_a_parent_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home").chmod(0o755)
    files.private_directory(tmp_path / "home" / "wakehub")
    assert mode(tmp_path / "home") == 0o755


@pytest.mark.parametrize("bits", [0o701, 0o710, 0o750, 0o755, 0o777, 0o1777, 0o704])
def test_a_directory_that_others_can_enter_is_refused_and_not_mended(tmp_path: Path, bits: int) -> None:
    place = tmp_path / "place"
    place.mkdir()
    place.chmod(bits)
    with pytest.raises(Unsafe, match=rf"{bits:04o}.*chmod 700") as refusal:
        files.private_directory(place)
    assert refusal.value.exit is Exit.PERMISSION
    assert mode(place) == bits


def test_links_and_files_are_no_directories(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(0o700)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "file").write_bytes(b"")
    for name, fault in (("link", "symbolic link"), ("dangling", "symbolic link"), ("file", "not a directory")):
        with pytest.raises(Unsafe, match=fault):
            files.private_directory(tmp_path / name)
    with pytest.raises((CannotCreate, Unsafe), match="file"):
        files.private_directory(tmp_path / "file" / "below")
    with pytest.raises(CannotCreate, match="dangling"):
        files.private_directory(tmp_path / "dangling" / "below")
    assert not (tmp_path / "nowhere").exists()


def test_a_directory_of_somebody_else_is_refused_with_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = os.geteuid()
    somebody_else(monkeypatch)
    with pytest.raises(Unsafe, match=f"belongs to uid {uid}.*WAKEHUB_HOME"):
        files.private_directory(tmp_path)


def test_a_directory_that_cannot_be_made_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "mkdir", failing(errno.EROFS))
    with pytest.raises(CannotCreate, match="EROFS") as refusal:
        files.private_directory(tmp_path / "a")
    assert refusal.value.exit is Exit.CANNOT_CREATE


def test_a_directory_that_is_gone_is_unsafe(tmp_path: Path) -> None:
    with pytest.raises(Unsafe, match="cannot be looked at"):
        files.check_directory(tmp_path / "gone")


def test_what_cannot_be_looked_at_is_not_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dangling").symlink_to("nowhere")
    assert files.is_absent(tmp_path / "x")
    assert files.is_absent(tmp_path / "x" / "y")
    assert not files.is_absent(tmp_path)
    assert not files.is_absent(tmp_path / "dangling")
    monkeypatch.setattr(os, "lstat", failing(errno.EACCES))
    with pytest.raises(Unsafe, match=r"EACCES.*sandbox"):
        files.is_absent(tmp_path)


# --- reading ---


@pytest.fixture
def owned(tmp_path: Path) -> Path:
    files.create(tmp_path / "owned", b"content")
    return tmp_path / "owned"


def test_a_file_of_ours_is_read(owned: Path) -> None:
    assert files.read_owned(owned, 7) == b"content"
    with files.opened(owned) as (fd, stamp):
        found = owned.stat()
        assert stamp == files.Stamp(found.st_dev, found.st_ino, found.st_mtime_ns, 7)
        assert not os.get_inheritable(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@pytest.mark.parametrize("bits", [0o400, 0o640, 0o604, 0o644, 0o666, 0o700, 0o4600])
def test_a_file_with_another_mode_is_not_read(owned: Path, bits: int) -> None:
    owned.chmod(bits)
    with pytest.raises(Unsafe, match=f"{bits:04o}.*must be exactly 0600"):
        files.read_owned(owned, 100)


def test_a_file_of_somebody_else_is_not_read(owned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    somebody_else(monkeypatch)
    with pytest.raises(Unsafe, match="belongs to uid"):
        files.read_owned(owned, 100)


def test_only_regular_files_are_read(tmp_path: Path, owned: Path) -> None:
    (tmp_path / "link").symlink_to(owned)
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "directory").mkdir(0o700)
    os.mkfifo(tmp_path / "pipe", 0o600)  # and nobody writes to it: opening must not wait
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for name in ("link", "dangling", "directory", "pipe", "socket"):
            with pytest.raises(Unsafe):
                files.read_owned(tmp_path / name, 100)
    with pytest.raises(Unsafe, match="ENOTDIR"):
        files.read_owned(owned / "below", 100)
    with pytest.raises(FileNotFoundError):
        files.read_owned(tmp_path / "absent", 100)


def test_no_more_is_read_than_was_bargained_for(owned: Path) -> None:
    with pytest.raises(Unsafe, match="has 7 bytes: the limit is 6"):
        files.read_owned(owned, 6)
    with files.opened(owned) as (fd, stamp):
        with owned.open("ab") as file:
            file.write(b"x" * 100)
        with pytest.raises(Unsafe, match="grew past 50"):
            files.read_all(fd, stamp, owned, 50)


def test_a_large_file_is_read_whole(tmp_path: Path) -> None:
    content = os.urandom(200_000)
    files.create(tmp_path / "large", content)
    assert files.read_owned(tmp_path / "large", 200_000) == content


# --- writing ---


@pytest.mark.parametrize("write", [files.create, files.replace])
def test_a_file_is_written_0600_and_nothing_else_is_left(tmp_path: Path, write: Callable[[Path, bytes], None]) -> None:
    for umask in (0, 0o077, 0o777):
        before = os.umask(umask)
        try:
            write(tmp_path / f"file{umask}", b"x" * 100_000)
        finally:
            os.umask(before)
        assert mode(tmp_path / f"file{umask}") == 0o600
        assert files.read_owned(tmp_path / f"file{umask}", 100_000) == b"x" * 100_000
    assert len(os.listdir(tmp_path)) == 3


def test_replacing_is_one_step_and_follows_no_link(tmp_path: Path, owned: Path) -> None:
    with owned.open("rb") as held:
        files.replace(owned, b"new")
        assert held.read() == b"content"
    assert owned.read_bytes() == b"new"
    (tmp_path / "target").write_bytes(b"target")
    (tmp_path / "link").symlink_to("target")
    files.replace(tmp_path / "link", b"new")
    assert (tmp_path / "target").read_bytes() == b"target"
    assert not (tmp_path / "link").is_symlink()


def test_replacing_mends_the_mode(owned: Path) -> None:
    owned.chmod(0o666)
    files.replace(owned, b"new")
    assert mode(owned) == 0o600


def test_creating_never_overwrites(tmp_path: Path, owned: Path) -> None:
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "directory").mkdir()
    for name in ("owned", "dangling", "directory"):
        with pytest.raises(FileExistsError):
            files.create(tmp_path / name, b"new")
    assert owned.read_bytes() == b"content"
    assert sorted(os.listdir(tmp_path)) == ["dangling", "directory", "owned"]


@pytest.mark.parametrize("call", ["write", "fsync", "rename", "fchmod"])
def test_when_the_disk_refuses_the_old_content_stands(owned: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """F63."""
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(errno.ENOSPC))
        with pytest.raises(CannotCreate, match=r"cannot write .*owned: No space left on device \(ENOSPC\)"):
            files.replace(owned, b"new")
    assert owned.read_bytes() == b"content"
    assert os.listdir(owned.parent) == ["owned"]


def test_when_the_disk_refuses_nothing_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for call in ("write", "fsync", "link"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing(errno.EDQUOT))
            with pytest.raises(CannotCreate, match="EDQUOT"):
                files.create(tmp_path / "new", b"new")
        assert os.listdir(tmp_path) == []


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:3]))
    files.create(tmp_path / "new", b"0123456789")
    monkeypatch.undo()
    assert (tmp_path / "new").read_bytes() == b"0123456789"


def test_the_longest_name_can_be_written(tmp_path: Path) -> None:
    name = "é" * 127
    files.create(tmp_path / name, b"x")
    files.replace(tmp_path / name, b"y")
    assert (tmp_path / name).read_bytes() == b"y"


def test_writing_into_nothing_says_so(tmp_path: Path) -> None:
    for write in (files.create, files.replace):
        with pytest.raises(CannotCreate, match="ENOENT"):
            write(tmp_path / "absent" / "file", b"")


def test_one_of_many_creates(tmp_path: Path) -> None:
    outcomes: list[bool] = []
    start = threading.Barrier(8)

    def attempt(number: int) -> None:
        start.wait()
        try:
            files.create(tmp_path / "one", bytes([number]) * 1000)
        except FileExistsError:
            outcomes.append(False)
        else:
            outcomes.append(True)

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [False] * 7 + [True]
    assert len(set(files.read_owned(tmp_path / "one", 1000))) == 1
    assert os.listdir(tmp_path) == ["one"]


# --- appending ---


def test_appending_makes_the_file_and_takes_turns(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with files.appendable(path) as fd:
        assert mode(path) == 0o600
        files.write_all(fd, b"one\n")
        with path.open("rb") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(BlockingIOError), files.appendable(path, wait=False):
            pass
    with files.appendable(path, wait=False) as fd:
        os.lseek(fd, 0, os.SEEK_SET)
        assert os.read(fd, 100) == b"one\n"
        os.lseek(fd, 0, os.SEEK_SET)
        files.write_all(fd, b"two\n")
    assert path.read_bytes() == b"one\ntwo\n"


def test_appending_only_to_a_file_of_ours(tmp_path: Path, owned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(owned)
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "directory").mkdir(0o700)
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (*(tmp_path / name for name in ("link", "dangling", "directory", "pipe")), owned / "below"):
        with pytest.raises(Unsafe), files.appendable(path):
            pass
    assert not (tmp_path / "nowhere").exists()
    there = f"ENOENT.*its directory is not there: mkdir -p {tmp_path}/absent"
    with pytest.raises(CannotCreate, match=there), files.appendable(tmp_path / "absent" / "log"):
        pass
    monkeypatch.setattr(os, "open", failing(errno.EACCES))
    with pytest.raises(Unsafe, match="sandbox"), files.appendable(owned):
        pass
