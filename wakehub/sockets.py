"""Private Unix sockets: whoever finds the path finds an answer, and a live one is never replaced (awh1.md §6)."""

import os
import socket
import stat
from pathlib import Path

from wakehub import files, ownership
from wakehub.errors import CannotCreate, Held, Misconfigured, Unsafe
from wakehub.limits import MAX_SOCKET_DIRECTORY_BYTES
from wakehub.visible import visible


def check_directory(path: Path) -> None:
    """Raise `Misconfigured` (78) when a directory for sockets is longer than 87 bytes, with one that fits (awh1.md §6).

    Bytes count, not characters: a socket's whole name must fit the kernel's address structure.
    """
    size = len(os.fsencode(path))
    if size <= MAX_SOCKET_DIRECTORY_BYTES:
        return
    uid = os.geteuid()
    home = Path(os.path.expanduser("~"))  # stays "~" for a user without a home
    candidates = (Path(f"/run/user/{uid}/wakehub"), home / ".wakehub" / "run", Path(f"/tmp/wakehub-{uid}"))
    shorter = next(
        place
        for place in candidates
        if len(os.fsencode(place)) <= MAX_SOCKET_DIRECTORY_BYTES
        and place.is_absolute()
        and (not place.is_relative_to("/run") or place.parent.is_dir())
    )
    raise Misconfigured(
        f"the directory for sockets {visible(str(path))} is {size} bytes long",
        why=f"a socket's name holds at most {MAX_SOCKET_DIRECTORY_BYTES} bytes of directory",
        remedy=f'set [paths] run = "{visible(str(shorter))}" in config.toml, or choose a shorter WAKEHUB_HOME',
    )


def bind(path: Path, backlog: int) -> socket.socket:
    """Listen on a Unix socket at `path`, 0600 (awh1.md §6). Only the holder of the lock that guards it may call this.

    It is bound as `path` + `~`, given its mode, made to listen, and then renamed into place, so that whoever finds the
    path finds a socket that answers; what a dead process left there is replaced. The socket is non-blocking. Raises
    `Unsafe` (77) for a directory that is not safe or anything there that is not a socket, `Misconfigured` (78) for a
    directory that is too long, `CannotCreate` (73) when it cannot be bound.
    """
    check_directory(path.parent)
    files.private_directory(path.parent)
    temporary = path.with_name(path.name + "~")
    _refuse_other_than_socket(path)
    if _refuse_other_than_socket(temporary):
        os.unlink(temporary)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.bind(os.fspath(temporary))
        os.chmod(temporary, 0o600)
        made = os.lstat(temporary)
        if not stat.S_ISSOCK(made.st_mode) or made.st_uid != os.geteuid() or stat.S_IMODE(made.st_mode) != 0o600:
            raise Unsafe(
                f"{visible(str(temporary))} is not the socket that was bound there", remedy="look who writes there"
            )
        listener.listen(backlog)
        os.rename(temporary, path)
    except OSError as error:
        listener.close()
        raise CannotCreate(
            f"cannot bind {visible(str(path))}", why=files.why(error), remedy="mend the directory, or choose another"
        ) from error
    except BaseException:
        listener.close()
        raise
    return listener


def refuse_live(path: Path, *, what: str) -> None:
    """Raise `Held` (75) when a process listens at `path`; what lies there is stale only if it refuses (fault F47).

    For the start of `what` ("a hub"): its lock keeps others away from its state directory, not from a socket directory
    that two of them share. Raises `Unsafe` (77) for anything there that is not a socket.
    """
    if not _refuse_other_than_socket(path):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except BlockingIOError:
            pass  # its backlog is full: it lives
        except OSError:
            return
    raise Held(
        f"{what} of another instance is already running",
        why=f"a process answers at {visible(str(path))}",
        remedy="use that one, or give this one a directory of its own with WAKEHUB_HOME or --socket",
    )


def _refuse_other_than_socket(path: Path) -> bool:
    """Whether a socket lies at `path`; raises `Unsafe` for anything else that does."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):  # a file in the place of its directory is judged as one
        return False
    if not stat.S_ISSOCK(found.st_mode):
        raise Unsafe(
            f"{visible(str(path))} is not a socket", why="it is never replaced", remedy=ownership.to_move_away(path)
        )
    return True
