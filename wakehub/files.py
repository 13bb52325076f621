"""Every file and directory we own is opened, checked and written here (formats.md; awh1.md §6).

Rules: a file is opened with O_NOFOLLOW and judged by fstat of what was opened, never by its name; it is written as a
temporary beside its place, relative to the directory's descriptor, synced, renamed; a directory is made 0700 and
never chmod-ed when it is not as it must be.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from wakehub.errors import CannotCreate, Unsafe
from wakehub.limits import MAX_SOCKET_DIRECTORY_BYTES
from wakehub.visible import visible

_OVERFLOW_UID = 65534
_HOME = frozenset({"run", "state", "keys"})
_OURS = frozenset(
    {"owner.pub", "owner.key", "wakehub-publisher.key", "record.db", "audit.jsonl", "allowlist.jws", "hub.sock",
     "hub.lock", "init.lock", "up.lock", "publish.lock", "publish.sock"}
)  # fmt: skip
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
        raise Unsafe(f"{shown} is {kind}", why="it must be a real directory", remedy=f"remove it, or {elsewhere()}")
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid():
        raise Unsafe(
            f"directory {shown} belongs to {_owner(found.st_uid)} and has mode {mode:04o}",
            why=f"it must belong to uid {os.geteuid()}, and is not ours to change",
            remedy=elsewhere(),
        )
    if mode & 0o077:
        raise Unsafe(
            f"directory {shown} has mode {mode:04o}",
            why="group or others may enter it; it must be 0700",
            remedy=f"chmod 700 {_quoted(path)}, or {elsewhere()}" if _is_ours(path) else elsewhere(),
        )


def risk_above(directory: Path) -> str:
    """Why others could move away what lies below `directory`, with its mode and owner; empty when they cannot.

    Inside a user namespace (a container, a sandbox) all owners outside of it appear as one uid: not known is not
    unsafe, its mode decides (fault F54).
    """
    try:
        found = os.stat(directory)  # a link's own mode says nothing
    except OSError:
        return ""
    mode = stat.S_IMODE(found.st_mode)
    shown = f"belongs to {_owner(found.st_uid)} and has mode {mode:04o}"
    if mode & 0o022 and not mode & stat.S_ISVTX:
        return f"{shown}: others can move away what is in it"
    if found.st_uid in (0, os.geteuid()) or (found.st_uid == _OVERFLOW_UID and _in_user_namespace()):
        return ""
    return f"{shown}, who can move away what is in it"


def to_guard(above: Path) -> str:
    """What to do about a directory above ours with a `risk_above`: close it when it is a home of ours, else move."""
    return f"chmod 700 {_quoted(above)}" if _is_ours(above) else elsewhere()


def _is_ours(directory: Path) -> bool:
    """Whether wakehub made this directory, or may take it: it belongs to us, and is empty or part of an instance."""
    try:
        is_own = os.lstat(directory).st_uid == os.geteuid()
        return is_own and (not os.listdir(directory) or _is_part(directory) or _is_part(directory.parent))
    except OSError:
        return False


def _is_part(directory: Path) -> bool:
    """Whether what is in `directory` says that it belongs to an instance."""
    names = set(os.listdir(directory))
    return names >= _HOME or bool(names & _OURS)


def _quoted(path: Path) -> str:
    return shlex.quote(visible(str(path)))


def elsewhere() -> str:
    """Advice behind a refusal: the setting of a home that would pass every check here and now, if one is found."""
    for home in (Path(os.path.expanduser("~")) / ".wakehub", Path(f"/tmp/wakehub-{os.geteuid()}")):
        if _is_usable_home(home):
            return f"set WAKEHUB_HOME={visible(str(home))}"
    return "set WAKEHUB_HOME to a directory of yours, below such that only you and root can write to"


def _is_usable_home(home: Path) -> bool:
    if not home.is_absolute() or len(os.fsencode(home / "run")) > MAX_SOCKET_DIRECTORY_BYTES:
        return False
    if any(map(risk_above, home.parents)):
        return False
    try:
        found = os.lstat(home)
    except FileNotFoundError:
        return os.access(home.parent, os.W_OK | os.X_OK)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077


def _owner(uid: int) -> str:
    outside = uid == _OVERFLOW_UID and _in_user_namespace()
    return f"uid {uid} (anybody outside this user namespace)" if outside else f"uid {uid}"


def _in_user_namespace() -> bool:
    try:
        return Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]
    except OSError:
        return False


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


@dataclass(frozen=True, slots=True)
class Stamp:
    """What tells one state of a file from the next: device, inode, mtime in ns, size in bytes."""

    device: int
    inode: int
    mtime_ns: int
    size: int

    @classmethod
    def of(cls, found: os.stat_result) -> "Stamp":
        return cls(found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)


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
        self._name = f".{secrets.token_hex(8)}~"  # not the final name: that may already be as long as names can be
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
        raise CannotCreate(
            f"cannot open {visible(str(path))} for writing", why=why(error), remedy="mend the mode of its directory"
        ) from error
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


def fault(found: os.stat_result, path: Path, kind: int = stat.S_IFREG) -> Unsafe | None:
    """What is wrong with a thing at `path` that should be a file (or, by `kind`, a socket) of ours with mode 0600."""
    shown = visible(str(path))
    if stat.S_IFMT(found.st_mode) != kind:
        if stat.S_ISLNK(found.st_mode) and kind == stat.S_IFREG:
            why = "links are not followed"
            return Unsafe(f"{shown} is a symbolic link", why=why, remedy=_instead_of_link(path))
        what = "not a socket" if kind == stat.S_IFSOCK else "not a regular file"
        link = "a symbolic link, " if stat.S_ISLNK(found.st_mode) else ""
        return Unsafe(f"{shown} is {link}{what}", why="it is never replaced", remedy=to_move_away(path))
    if found.st_uid != os.geteuid():
        why = f"it must belong to uid {os.geteuid()}"
        return Unsafe(f"{shown} belongs to uid {found.st_uid}", why=why, remedy="run as its owner, or name another")
    mode = stat.S_IMODE(found.st_mode)
    if mode != 0o600:
        return Unsafe(f"{shown} has mode {mode:04o}", why="it must be exactly 0600", remedy=_to_close(path))
    return None


def to_move_away(path: Path) -> str:
    """The command that moves what is in the way at `path`, and is not ours to remove."""
    return f"mv {_quoted(path)} {_quoted(Path(f'{path}.away'))}"


def _instead_of_link(path: Path) -> str:
    """The command that puts the file that a link names in its place, if it is such that it could be ours."""
    try:
        target = path.resolve(strict=True)
        if fault(os.lstat(target), target) is None:
            return f"mv {_quoted(target)} {_quoted(path)}"
    except (OSError, RuntimeError):
        pass
    return f"put the file itself in its place; first: {to_move_away(path)}"


def _to_close(path: Path) -> str:
    """chmod is advised only where nothing but ours lies: of a path that was given, anything may be there."""
    try:
        check_directory(path.parent)
    except Unsafe:
        return "name a file that wakehub made, in a directory that is yours alone (0700)"
    return f"chmod 600 {_quoted(path)}"


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
