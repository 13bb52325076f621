"""Where a channel's files are, and how each of them is opened (intercom.md §4).

    BASE/<channel>/     hub.sock hub.lock hub.log peers.json inbox_<id>.ndjson inbox_<id>.bad offset_<id>.json

The base directory is one that others use too, so it is judged before anything in it is: real, ours, writable by nobody
else. What passed is held as a descriptor, and every file is opened relative to it, without following links, without
waiting (a FIFO must not stop anybody), and judged by what was opened. Locks are waited for until a deadline, by asking
again: whoever holds one may never let go. All of this blocks for as long as a disk does, so none of it belongs on an
event loop.
"""

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from wakehub import files, ownership
from wakehub.errors import BadData, CannotCreate, Exit, Held, Misconfigured, Unsafe, WakehubError
from wakehub.intercom import ndjson
from wakehub.limits import (
    MAX_MESH_PEERS_BYTES,
    MAX_SOCKET_DIRECTORY_BYTES,
    MESH_LOCK_MS,
    MESH_LOCK_POLL_MS,
)
from wakehub.visible import visible

VARIABLE: Final = "AGY_IPC_DIR"
DEFAULT_BASE: Final = Path("/tmp/agy-ipc")
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_PEERS: Final = "peers.json"


def base_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """The directory of all channels, absolute: $AGY_IPC_DIR, or /tmp/agy-ipc where that is unset or empty (§2)."""
    return Path(os.path.abspath(environ.get(VARIABLE) or DEFAULT_BASE))


@dataclass(frozen=True, slots=True)
class Peers:
    """What peers.json says: who was connected when it was written, and to which process (0: not told)."""

    hub_pid: int
    active_sessions: tuple[str, ...]
    updated_at: str


class Channel:
    """One channel's directory, checked and open as `fd`; use it as a context manager, or `close` it."""

    def __init__(self, base: Path, name: str, fd: int) -> None:
        self.base = base
        self.name = name
        self.path = base / name
        self.fd = fd

    @classmethod
    def open(cls, base: Path, name: str) -> Self:
        """Open the channel `name` below `base`; both are made (0700) where they are missing, as is what is above them.

        Raises `BadData` (65) for a name that is none, `Misconfigured` (78) for a path too long for a socket, `Unsafe`
        (77) for a directory that is a link, of another owner, or open to others (F53), `CannotCreate` (73).
        """
        try:
            ndjson.check_channel(name)
        except ValueError as error:
            raise BadData(f"the channel is refused: {error}", remedy="choose a name of a-z 0-9 _ -") from None
        path = base / name
        if (size := len(os.fsencode(path))) > MAX_SOCKET_DIRECTORY_BYTES:
            raise Misconfigured(
                f"the channel's directory {_shown(path)} is {size} bytes long",
                why=f"a socket's name holds at most {MAX_SOCKET_DIRECTORY_BYTES} bytes of directory",
                remedy=f"set {VARIABLE} to a shorter directory of yours, or choose a shorter name",
            )
        if files.is_absent(base.parent):
            files.private_directory(base.parent)
        with _opened(base, 0o022, "writable by group or others") as outer:
            _check_above(base)
            return cls(base, name, _open_directory(path, 0o077, "open to group or others", outer))

    @property
    def socket(self) -> Path:
        """Where the hub listens."""
        return self.path / "hub.sock"

    @property
    def log(self) -> Path:
        """Where a hub that was started in the background writes its log."""
        return self.path / "hub.log"

    def is_in_place(self) -> bool:
        """Whether the channel's path still is the directory that is open."""
        try:
            return os.path.samestat(os.lstat(self.path), os.fstat(self.fd))
        except OSError:
            return False

    def reopen(self) -> None:
        """Open (and make) the directory again, where the path no longer is the one that is open; raises as `open`."""
        if not self.is_in_place():
            with type(self).open(self.base, self.name) as anew:
                os.dup2(anew.fd, self.fd, inheritable=False)  # in one step: a thread may be using it

    def close(self) -> None:
        """Close the descriptor; files opened before stay open."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- files ---

    @contextlib.contextmanager
    def opened(self, name: str, flags: int = os.O_RDONLY) -> Iterator[int]:
        """Open the file `name` with `flags` (made 0600 with O_CREAT); yields a descriptor that was judged.

        Raises `Unsafe` (77) for anything but a regular file of ours, `FileNotFoundError` where it is absent and not
        to be made, `CannotCreate` (73) when it cannot be opened otherwise, the directory itself having been taken away
        included. One of ours that group or others could read is made
        0600: other tools make them so.
        """
        try:
            fd = os.open(name, flags | _OPEN, 0o600, dir_fd=self.fd)
        except FileNotFoundError as error:
            if not flags & os.O_CREAT:
                raise
            raise self._refused(name, error) from error
        except OSError as error:
            raise self._refused(name, error) from error
        try:
            self._check(fd, name)
            yield fd
        finally:
            os.close(fd)

    def _refused(self, name: str, error: OSError) -> WakehubError:
        shown = _shown(self.path / name)
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENOTDIR):
            return Unsafe(f"{shown} is not a file of ours", why=files.why(error), remedy="remove what is there")
        if files.is_denied(error):
            return Unsafe(
                f"{shown} may not be used",
                why=files.why(error),
                remedy="mend its mode or its directory's, or leave the sandbox",
            )
        return CannotCreate(
            f"cannot use {shown}", why=files.why(error), remedy="see that its directory is there, and space"
        )

    def _check(self, fd: int, name: str) -> None:
        found = os.fstat(fd)
        shown = _shown(self.path / name)
        if not stat.S_ISREG(found.st_mode):
            raise Unsafe(f"{shown} is not a regular file", remedy="remove what is there")
        if found.st_uid != os.geteuid():
            raise Unsafe(f"{shown} belongs to uid {found.st_uid}", why="it is not ours", remedy="remove it")
        if stat.S_IMODE(found.st_mode) & 0o077:
            os.fchmod(fd, 0o600)

    def read(self, name: str, limit: int) -> bytes | None:
        """The content of the file `name`, None when it is absent; raises `Unsafe` also above `limit` bytes."""
        try:
            with self.opened(name) as fd:
                return files.read_all(fd, files.Stamp.of(os.fstat(fd)), self.path / name, limit)
        except FileNotFoundError:
            return None

    def remove(self, name: str) -> None:
        """Take the file `name` away, if it is there; raises as `opened` does."""
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self._refused(name, error) from error

    def replace(self, name: str, document: Mapping[str, Any]) -> None:
        """Put a JSON document at `name` in one step, by a temporary and rename; raises `CannotCreate`."""
        self._write(name, document, lambda made: made.rename(name, lasting=False))

    def create(self, name: str, document: Mapping[str, Any]) -> None:
        """The same where nothing is yet; raises `FileExistsError` when something is."""
        self._write(name, document, lambda made: made.link(name))

    def _write(self, name: str, document: Mapping[str, Any], place: Any) -> None:
        try:
            made = files.Draft(self.fd)
            try:
                os.fchmod(made.fd, 0o600)
                files.write_all(made.fd, json.dumps(document).encode() + b"\n")
                place(made)
            finally:
                made.drop()
        except FileExistsError:
            raise
        except OSError as error:
            raise CannotCreate(
                f"cannot write {_shown(self.path / name)}", why=files.why(error), remedy="free space, then try again"
            ) from error

    # --- who is connected ---

    def write_peers(self, hub_pid: int, sessions: Sequence[str]) -> None:
        """Say in peers.json who is connected; raises `CannotCreate`."""
        document = {
            "channel": self.name,
            "hub_pid": hub_pid,
            "active_sessions": list(sessions),
            "updated_at": ndjson.timestamp(),
        }
        self.replace(_PEERS, document)

    def peers(self) -> Peers:
        """What peers.json says; nobody where it is absent or cannot be understood. It may be out of date."""
        found = self.document(_PEERS, MAX_MESH_PEERS_BYTES)
        pid, sessions, updated = (found.get(key) for key in ("hub_pid", "active_sessions", "updated_at"))
        listed = sessions if isinstance(sessions, list) else []
        return Peers(
            pid if type(pid) is int and pid > 0 else 0,
            tuple(each for each in listed if isinstance(each, str)),
            updated if isinstance(updated, str) else "",
        )

    def document(self, name: str, limit: int) -> dict[str, Any]:
        """The JSON object in the file `name` of at most `limit` bytes; empty where it is absent or no object."""
        try:
            return ndjson.decode(self.read(name, limit) or b"{}")
        except ndjson.Refusal:
            return {}


@contextlib.contextmanager
def locked(fd: int, what: str, patience_ms: int = MESH_LOCK_MS, *, kind: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold a flock on `fd`; `what` names it. Raises `Held` (75) when it is not ours within `patience_ms`."""
    deadline = time.monotonic() + patience_ms / 1000
    while True:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise Held(
                    f"{what} is locked by another process",
                    why=f"it was not released within {patience_ms} ms",
                    remedy="try again; if it stays so, see who has it open (lsof)",
                ) from None
        except OSError as error:
            raise WakehubError(
                f"cannot lock {what}", why=files.why(error), remedy="use a local file system", exit=Exit.CANNOT_CREATE
            ) from error
        time.sleep(MESH_LOCK_POLL_MS / 1000)
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


# --- directories ---


@contextlib.contextmanager
def _opened(path: Path, forbidden: int, fault: str) -> Iterator[int]:
    fd = _open_directory(path, forbidden, fault)
    try:
        yield fd
    finally:
        os.close(fd)


def _open_directory(path: Path, forbidden: int, fault: str, within: int | None = None) -> int:
    """Open (and make, 0700) a directory, by its name in the directory `within` if given; judged by its descriptor."""
    name = path if within is None else Path(path.name)
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=within)
        fd = os.open(name, _DIRECTORY, dir_fd=within)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise _unsafe(path, "is a symbolic link or no directory") from error
        if files.is_denied(error):
            raise _unsafe(path, f"cannot be entered: {files.why(error)}") from error
        raise CannotCreate(
            f"cannot make the directory {_shown(path)}", why=files.why(error), remedy=_way_out()
        ) from error
    try:
        found = os.fstat(fd)
        mode = stat.S_IMODE(found.st_mode)
        if found.st_uid != os.geteuid():
            raise _unsafe(path, f"belongs to uid {found.st_uid} and has mode {mode:04o}: it must belong to you")
        if mode & forbidden:
            raise _unsafe(path, f"has mode {mode:04o}: it is {fault}")
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_above(base: Path) -> None:
    for above in base.parents:
        if risk := ownership.risk_above(above):
            raise _unsafe(base, f"lies in {_shown(above)}, which {risk}")


def _unsafe(path: Path, why: str) -> Unsafe:
    return Unsafe(f"the directory {_shown(path)} is not safe", why=f"it {why}", remedy=_way_out())


def _way_out() -> str:
    """A base directory that every user can have, since what is wrong here may not be ours to change."""
    home = os.path.expanduser("~")
    own = ownership.quoted(Path(home, ".agy-ipc")) if home.startswith("/") else "a directory of yours, 0700"
    return f"mend its owner or mode if it is yours, or set {VARIABLE}={own} for every agent of the mesh"


def _shown(path: Path) -> str:
    return visible(str(path))
