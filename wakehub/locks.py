"""Locks that the kernel releases; their files say who holds them and are never deleted (formats.md, Directories)."""

import contextlib
import errno
import fcntl
import json
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from wakehub import __version__, files, ownership
from wakehub.errors import CannotCreate, Held, Unsafe
from wakehub.processes import ProcessId, start_time
from wakehub.visible import visible


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock, as its file says: pid and the time it took it (RFC 3339 UTC).

    `started` is its start time as `processes.start_time` tells it, `version` the wakehub that it runs; empty: not told.
    `namespace` is the inode of its pid namespace; 0: not told, or the platform has none.
    """

    pid: int
    since: str
    started: str = field(default="", compare=False)
    version: str = field(default="", compare=False)
    namespace: int = field(default=0, compare=False)


class Lock:
    """An exclusive flock on a file that is never deleted; its content names the holder (formats.md, Directories).

    The kernel releases it when the process ends, however it ends. Use as a context manager or call `release`.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    @classmethod
    def acquire(cls, path: Path, *, what: str, wait: bool = False) -> "Lock":
        """Take the lock at `path`; `what` names it in the refusal ("a hub").

        Raises `Held` (exit 75) with the holder's pid when another process has it and `wait` is false, `Unsafe` when
        something that is not a lock file of ours lies there.
        """
        while True:
            lock = cls(path, cls._open(path))
            try:
                lock._take(what, wait)
                if lock.is_in_place():  # else the file was taken away between opening and locking it
                    lock._sign()
                    return lock
            except BaseException:
                lock.release()
                raise
            lock.release()

    @staticmethod
    def _open(path: Path) -> int:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                why = files.why(error)
                remedy = ownership.to_move_away(path)
                raise Unsafe(f"{visible(str(path))} is not a lock file", why=why, remedy=remedy) from error
            raise CannotCreate(
                f"cannot create {visible(str(path))}", why=files.why(error), remedy="mend the directory"
            ) from error
        try:
            files.checked(fd, path)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _take(self, what: str, wait: bool) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            holder = read_holder(self.path)
            by = f"pid {holder.pid} since {holder.since}" if holder else "another process"
            raise Held(
                f"{what} is already running",
                why=f"{by} holds {visible(str(self.path))}",
                remedy="use that one, or stop it first",
            ) from None
        except OSError as error:
            raise CannotCreate(
                f"cannot lock {visible(str(self.path))}", why=files.why(error), remedy="choose a local file system"
            ) from error

    def _sign(self) -> None:
        """Write down who holds it. That is for people: a full disk does not stand in the way of the lock."""
        process = ProcessId.own()
        own = {
            "pid": process.pid,
            "start": process.started,
            "namespace": process.namespace,
            "since": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            "version": __version__,
        }
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, json.dumps(own).encode() + b"\n", 0)

    def is_in_place(self) -> bool:
        """Whether the lock's path still is the inode that this process holds."""
        try:
            there = os.stat(self.path, follow_symlinks=False)
            held = os.fstat(self._fd)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino)

    def release(self) -> None:
        """Give the lock up; the file stays."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def read_holder(path: Path) -> Holder | None:
    """The holder that a lock file names, or None when it cannot be told. The name may be of a process long gone."""
    try:
        found = json.loads(files.read_owned(path, 4096))
        started, version = (visible(str(found.get(key, ""))) for key in ("start", "version"))
        return Holder(int(found["pid"]), visible(str(found["since"])), started, version, int(found.get("namespace", 0)))
    except (OSError, Unsafe, ValueError, KeyError, TypeError, AttributeError):
        return None


def live_holder(path: Path) -> Holder | None:
    """The holder that a lock file names, if that process still is the one that took it; the lock is not tried."""
    holder = read_holder(path)
    return holder if holder and holder.started and start_time(holder.pid) == holder.started else None
