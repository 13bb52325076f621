"""Is what lies at a path ours alone, and what to do where it is not (awh1.md §6; faults F53, F54).

Nothing is changed here. A command that changes modes is advised only for what wakehub made, or what is part of an
instance: a path that was given may lead anywhere.
"""

import os
import shlex
import stat
from pathlib import Path

from wakehub.errors import Unsafe
from wakehub.limits import MAX_SOCKET_DIRECTORY_BYTES
from wakehub.visible import visible

_OVERFLOW_UID = 65534
_HOMES = (frozenset({"run", "state", "keys"}), frozenset({"config.toml", "keys"}))
_OURS = frozenset(
    {"owner.pub", "owner.key", "wakehub-publisher.key", "record.db", "audit.jsonl", "allowlist.jws", "hub.sock",
     "hub.lock", "init.lock", "up.lock", "publish.lock", "publish.sock"}
)  # fmt: skip


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


def _instead_of_link(path: Path) -> str:
    """The command that puts the file that a link names in its place, if it is such that it could be ours."""
    try:
        target = path.resolve(strict=True)
        if fault(os.lstat(target), target) is None:
            return f"mv {quoted(target)} {quoted(path)}"
    except (OSError, RuntimeError):
        pass
    return f"put the file itself in its place; first: {to_move_away(path)}"


def _to_close(path: Path) -> str:
    """chmod is advised only for what an instance has, or a bundle: of a path that was given, anything may be there."""
    is_bundle = path.name.endswith(".a2a-hub.json")
    if _is_private(path.parent) and (is_bundle or may_be_ours(path.parent)):
        return f"chmod 600 {quoted(path)}"
    return "name a file that wakehub made, in a directory that is yours alone (0700)"


def _is_private(directory: Path) -> bool:
    try:
        found = os.lstat(directory)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077


def to_move_away(path: Path) -> str:
    """The command that moves what is in the way at `path`, and is not ours to remove."""
    return f"mv {quoted(path)} {quoted(Path(f'{path}.away'))}"


def quoted(path: Path) -> str:
    return shlex.quote(visible(str(path)))


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
    shown = f"belongs to {owner_in_words(found.st_uid)} and has mode {mode:04o}"
    if mode & 0o022 and not mode & stat.S_ISVTX:
        return f"{shown}: others can move away what is in it"
    if found.st_uid in (0, os.geteuid()) or (found.st_uid == _OVERFLOW_UID and _in_user_namespace()):
        return ""
    return f"{shown}, who can move away what is in it"


def to_guard(above: Path) -> str:
    """What to do about a directory above ours with a `risk_above`: close it when it is a home of ours, else move."""
    return f"chmod 700 {quoted(above)}" if may_be_ours(above) else elsewhere()


def may_be_ours(directory: Path) -> bool:
    """Whether wakehub made this directory, or may take it: it belongs to us, and is empty or part of an instance."""
    try:
        is_own = os.lstat(directory).st_uid == os.geteuid()
        return is_own and (not os.listdir(directory) or _is_part(directory) or _is_part(directory.parent))
    except OSError:
        return False


def _is_part(directory: Path) -> bool:
    """Whether what is in `directory` says that it belongs to an instance."""
    names = set(os.listdir(directory))
    return any(names >= home for home in _HOMES) or bool(names & _OURS)


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
    return _is_private(home) if os.path.lexists(home) else os.access(home.parent, os.W_OK | os.X_OK)


def owner_in_words(uid: int) -> str:
    outside = uid == _OVERFLOW_UID and _in_user_namespace()
    return f"uid {uid} (anybody outside this user namespace)" if outside else f"uid {uid}"


def _in_user_namespace() -> bool:
    try:
        return Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]
    except OSError:
        return False
