"""Every file and directory we own is opened, checked and written here (formats.md; awh1.md §6).

Rules: a file is opened with O_NOFOLLOW and judged by fstat of what was opened, never by its name; it is written as a
temporary beside its place, relative to the directory's descriptor, synced, renamed; a directory is made 0700 and
never chmod-ed when it is not as it must be.
"""

import contextlib
import errno
import fcntl
import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from wakehub.errors import CannotCreate, Unsafe
from wakehub.ownership import elsewhere, fault, may_be_ours, owner_in_words, quoted, to_move_away
from wakehub.visible import visible

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def private_directory(path: Path) -> None:
    """Make `path` as 0700 (and missing ancestors as well), or check that it is ours alone.

    Raises `Unsafe` when it is no real directory, not ours, or open to group or others; `CannotCreate` when it cannot
    be made.
    """
    if is_absent(path.parent):
        private_directory(path.parent)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        check_directory(path)
    except OSError as error:
        raise CannotCreate(
            f"cannot create directory {visible(str(path))}",
            why=why(error),
            remedy="create it as 0700, or choose another place with WAKEHUB_HOME",
        ) from error
    else:
        check_directory(path)  # the umask may have taken bits away from us, and a race may have put another there


def check_directory(path: Path) -> None:
    """Raise `Unsafe` unless `path` is a real directory, owned by us, without a group or other bit."""
    shown = visible(str(path))
    try:
        found = os.lstat(path)
    except OSError as error:
        raise Unsafe(f"directory {shown} cannot be looked at", why=why(error), remedy="see who changed it") from error
    if not stat.S_ISDIR(found.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "not a directory"
        raise Unsafe(
            f"{shown} is {kind}", why="it must be a real directory", remedy=f"{to_move_away(path)}, or {elsewhere()}"
        )
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid():
        raise Unsafe(
            f"directory {shown} belongs to {owner_in_words(found.st_uid)} and has mode {mode:04o}",
            why=f"it must belong to uid {os.geteuid()}, and is not ours to change",
            remedy=elsewhere(),
        )
    if mode & 0o077:
        raise Unsafe(
            f"directory {shown} has mode {mode:04o}",
            why="group or others may enter it; it must be 0700",
            remedy=f"chmod 700 {quoted(path)}, or {elsewhere()}" if may_be_ours(path) else elsewhere(),
        )


def is_denied(error: OSError) -> bool:
    """Whether this process may not do it, be it by mode, by a sandbox, or on a file system mounted read-only."""
    return error.errno in (errno.EPERM, errno.EACCES, errno.EROFS)


def is_absent(path: Path) -> bool:
    """Whether nothing at all is at `path`. What cannot be looked at is not absent: raises `Unsafe` (exit 77)."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return True
    except OSError as error:
        raise Unsafe(
            f"cannot tell whether {visible(str(path))} is there",
            why=why(error),
            remedy="run this outside the sandbox that hides it, or mend the mode of its directory",
        ) from error
    return False


class Stamp(NamedTuple):
    """What tells one state of a file from the next: device, inode, mtime in ns, size in bytes."""

    device: int
    inode: int
    mtime_ns: int
    size: int

    @classmethod
    def of(cls, found: os.stat_result) -> "Stamp":
        return cls(found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)

    @classmethod
    def at(cls, path: Path) -> "Stamp | None":
        """That of what lies at `path`, of a link itself; None when nothing lies there, or it cannot be told."""
        try:
            return cls.of(os.lstat(path))
        except OSError:
            return None


class Spare:
    """A descriptor kept in reserve for a file that must be read even when there is none left (EMFILE, ENFILE).

    Whoever takes all descriptors of a process or of the machine must not decide what it can judge. For one thread.
    """

    def __init__(self) -> None:
        self._fd = -1
        self.keep()

    def keep(self) -> None:
        """Take the descriptor, if one is to be had."""
        if self._fd < 0:
            with contextlib.suppress(OSError):
                self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def open(self, path: Path) -> int:
        """`os.open` of `path` for reading, on the spare descriptor when no other is left."""
        try:
            return os.open(path, _READ)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or self._fd < 0:
                raise
        self.drop()
        return os.open(path, _READ)

    def drop(self) -> None:
        """Give the descriptor up."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.drop()


@contextlib.contextmanager
def opened(path: Path, spare: Spare | None = None) -> Iterator[tuple[int, Stamp]]:
    """Open an existing file of ours for reading and check the descriptor: regular, own uid, exactly 0600.

    Yields the descriptor and its `Stamp`. With a `spare`, also when no other descriptor is left. Raises `Unsafe` when a
    check fails, `FileNotFoundError` when it is absent, `PermissionError` when it cannot be opened.
    """
    try:
        fd = os.open(path, _READ) if spare is None else spare.open(path)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENOTDIR):
            raise _not_a_file(path, error) from error
        raise
    try:
        yield fd, checked(fd, path)
    finally:
        os.close(fd)
        if spare is not None:
            spare.keep()


def read_owned(path: Path, limit: int) -> bytes:
    """The whole content of a file of ours, at most `limit` bytes; raises as `opened` does, and `Unsafe` when larger."""
    with opened(path) as (fd, stamp):
        return read_all(fd, stamp, path, limit)


def read_all(fd: int, stamp: Stamp, path: Path, limit: int) -> bytes:
    """Read the file behind `fd` to its end; raises `Unsafe` when it holds more than `limit` bytes."""
    if stamp.size > limit:
        raise Unsafe(f"{visible(str(path))} has {stamp.size} bytes", why=f"the limit is {limit}", remedy="replace it")
    parts: list[bytes] = []
    left = limit + 1
    while left and (part := os.read(fd, min(left, 1 << 16))):
        parts.append(part)
        left -= len(part)
    if not left:
        raise Unsafe(f"{visible(str(path))} grew past {limit} bytes", why="it was being written", remedy="try again")
    return b"".join(parts)


def replace(path: Path, data: bytes) -> None:
    """Put `data` at `path` (0600) in one step: temporary with O_EXCL beside it, fsync, rename, fsync the directory.

    Raises `CannotCreate` when it cannot be written (disk full, permission); the old content then still stands.
    """
    with draft(path.parent, path.name) as made:
        write_all(made.fd, data)
        made.rename(path.name)


def create(path: Path, data: bytes) -> None:
    """Like `replace`, but raises `FileExistsError` when something is there already, whatever it is."""
    with draft(path.parent, path.name) as made:
        write_all(made.fd, data)
        made.link(path.name)


class Draft:
    """A new file (0600) that is open for writing at `fd` and gets its name in one step, once it is whole."""

    def __init__(self, where: int) -> None:
        self._where = where
        self._name = f".{os.urandom(8).hex()}~"  # not the final name: that may already be as long as names can be
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self.fd = os.open(self._name, flags, 0o600, dir_fd=where)

    def rename(self, name: str, *, lasting: bool = True) -> None:
        """Sync it and put it at `name` in its directory, in the place of what is there.

        What need not survive the machine's crash is not synced: `lasting` False.
        """
        if lasting:
            os.fsync(self.fd)
        os.rename(self._name, name, src_dir_fd=self._where, dst_dir_fd=self._where)
        if lasting:
            os.fsync(self._where)

    def link(self, name: str) -> None:
        """The same where nothing is there yet; else raises `FileExistsError`."""
        os.fsync(self.fd)
        os.link(self._name, name, src_dir_fd=self._where, dst_dir_fd=self._where, follow_symlinks=False)
        os.unlink(self._name, dir_fd=self._where)
        os.fsync(self._where)

    def drop(self) -> None:
        """Close it, and remove it if it was given no name."""
        os.close(self.fd)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._name, dir_fd=self._where)


@contextlib.contextmanager
def draft(directory: Path, name: str = "") -> Iterator[Draft]:
    """Make a file in `directory` bit by bit; nothing is left of it when the block ends without having named it.

    An `OSError` inside (disk full, permission) becomes `CannotCreate`, which tells the `name` that was meant;
    `FileExistsError` comes through.
    """
    try:
        where = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            made = Draft(where)
            try:
                os.fchmod(made.fd, 0o600)
                yield made
            finally:
                made.drop()
        finally:
            os.close(where)
    except FileExistsError:
        raise
    except OSError as error:
        raise CannotCreate(
            f"cannot write {visible(str(directory / name))}",
            why=why(error),
            remedy="free space or mend the directory's mode, then try again",
        ) from error


@contextlib.contextmanager
def appendable(path: Path, *, wait: bool = True) -> Iterator[int]:
    """Open a file of ours for reading and appending, alone: under an exclusive flock on the file itself.

    Makes it (0600, empty) when it is absent. Yields the descriptor, checked as `opened` does; the caller must know
    what it means if the file is replaced meanwhile. The lock is waited for; with `wait` False, `BlockingIOError` says
    that another process has it. Raises `Unsafe` when a check fails or it may not be written, `CannotCreate` when it
    cannot be made.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENOTDIR):
            raise _not_a_file(path, error) from error
        if is_denied(error):
            raise Unsafe(
                f"{visible(str(path))} may not be written",
                why=why(error),
                remedy="run this outside the sandbox that forbids it, or mend its mode",
            ) from error
        remedy = "mend the mode of its directory"
        if isinstance(error, FileNotFoundError):
            remedy = f"its directory is not there: mkdir -p {shlex.quote(visible(str(path.parent)))}"
        raise CannotCreate(f"cannot open {visible(str(path))} for writing", why=why(error), remedy=remedy) from error
    try:
        checked(fd, path)
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield fd
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write every byte of `data` to a blocking descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def checked(fd: int, path: Path) -> Stamp:
    """The stamp of an open file; raises `Unsafe` unless it is regular, ours and exactly 0600."""
    found = os.fstat(fd)
    if (unsafe := fault(found, path)) is not None:
        raise unsafe
    return Stamp.of(found)


def _not_a_file(path: Path, error: OSError) -> Unsafe:
    """What is wrong with a thing that could not be opened as a file."""
    with contextlib.suppress(OSError):
        if (found := fault(os.lstat(path), path)) is not None:
            return found
    return Unsafe(f"{visible(str(path))} cannot be opened", why=why(error), remedy="mend the path")


def sync_directory(path: Path) -> None:
    """Make the names in a directory last; raises `OSError`."""
    where = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(where)
    finally:
        os.close(where)


def why(error: OSError) -> str:
    """What the system said, in words and by name: for the cause in an error."""
    return f"{error.strerror} ({errno.errorcode.get(error.errno or 0, error.errno)})"
