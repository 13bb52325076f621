"""Who a project is on a channel, kept in ``.intercom/session.json`` there (intercom.md §6).

The first command in a project chooses a name from a roster of our own and writes it down, with a secret *owner token*;
every later one goes by that name. Beside the mailbox, in ``offset_<id>.json``, stands a digest of the token. So three
things are told apart: an id that nobody is connected under, one that is *active*, and one that is *active by me*.

    no entry here, or --force-new                        a name that has no trace on the channel, claimed at once
    an entry, and the mailbox is ours or nobody's        that id, whoever asks how often
    an entry, but the mailbox has another owner          a new name; the old mail is not ours to read
    an entry of another directory that is still there    a copied project: a new name, or two would share one mailbox

Rules. The file is opened relative to its directory, without following links, and judged by fstat; it is replaced in
one step, under a lock on the directory, so that of many first commands one chooses. What we do not know in it stays.
What cannot be understood is left as it is, and said.
"""

import contextlib
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from wakehub import files
from wakehub.errors import CannotCreate, Misconfigured, Unsafe
from wakehub.intercom.channels import Channel, locked
from wakehub.intercom.ndjson import is_session
from wakehub.intercom.spool import Inbox, sessions
from wakehub.limits import MAX_ID_BYTES, MAX_MESH_PROJECT_BYTES, MESH_PROJECT_LOCK_MS
from wakehub.ownership import quoted
from wakehub.visible import visible

ROSTER: Final = (
    "alder", "amber", "aspen", "basalt", "beacon", "birch", "bramble", "brook", "cedar", "chalk", "cinder", "clover",
    "cobalt", "copper", "coral", "delta", "dune", "ember", "fern", "fjord", "flint", "garnet", "glade", "granite",
    "harbor", "hazel", "heron", "indigo", "iris", "ivory", "jasper", "juniper", "kestrel", "lagoon", "larch", "lichen",
    "linden", "maple", "marble", "meadow", "moss", "nectar", "nettle", "ochre", "onyx", "opal", "orchid", "osprey",
    "pebble", "pine", "plover", "quartz", "raven", "reed", "rowan", "saffron", "sage", "slate", "sorrel", "spruce",
    "tamarack", "thistle", "umber", "walnut", "willow", "wren", "yarrow", "zephyr",
)  # fmt: skip
"""The names to choose from; when each is in use, they get numbers."""

_DIRECTORY: Final = ".intercom"
_FILE: Final = "session.json"
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHANNELS: Final = "channels"
_OWNER: Final = "owner"
_TOKEN_BYTES: Final = 16
_ENTRY: Final = {"session": str, "token": str, "since": str, "project": str, "device": int, "inode": int}


@dataclass(frozen=True, slots=True)
class Identity:
    """The id under which this project acts on a channel.

    `is_new`: chosen just now, for the reason `why`. `is_active`: somebody is connected under it, as far as
    ``peers.json`` says; since the mailbox bears our mark, that is by us. `replaced` is the id that was given up for it.
    """

    session: str
    token: str = field(repr=False)
    is_new: bool = False
    is_active: bool = False
    replaced: str | None = None
    why: str = ""


def settle(project: Path, channel: Channel, *, force_new: bool = False) -> Identity:
    """The identity of `project` (a directory) on `channel`, chosen and written down if there is none.

    Raises `Misconfigured` (78) when the project or its file cannot be used as it is, `Unsafe` (77) for a file or
    directory that others could change, `CannotCreate` (73) when it cannot be written, `Held` (75) when another process
    keeps the directory locked, and what the channel raises.
    """
    with _opened(project) as where:
        shown = project / _DIRECTORY / _FILE
        found = _read(where, shown)
        entry = None
        if channel.name in found[_CHANNELS]:
            entry = _checked(found[_CHANNELS][channel.name], channel.name, shown)
        if entry is None:
            reason = f"{visible(str(shown))} named no id for that channel, and names this one now"
        elif force_new:
            reason = "asked for with --force-new"
        elif not (reason := _misfit(entry, where, channel)):
            return _known(entry, channel)
        chosen = _choose(channel, where, project)
        found[_CHANNELS][channel.name] = chosen
        _write(where, found, shown)
        old = entry["session"] if entry is not None else None
        return Identity(chosen["session"], chosen["token"], is_new=True, replaced=old, why=reason)


def mark(token: str) -> str:
    """What stands beside a mailbox for the owner token `token`: it proves who owns it, and gives nothing away."""
    return hashlib.sha256(token.encode()).hexdigest()


# --- whose id it is ---


def _misfit(entry: dict[str, Any], where: int, channel: Channel) -> str:
    """Why the identity that is written down is not this project's, or not any more; empty when it is."""
    if (entry["device"], entry["inode"]) != _identity_of(where) and _is_elsewhere(entry):
        return f"it belongs to {visible(entry['project'])}, of which this is a copy"
    inbox, ours = Inbox(channel, entry["session"]), mark(entry["token"])
    if _owner(inbox) is None:
        inbox.annotate({_OWNER: ours})
    return "" if _owner(inbox) == ours else f"{visible(entry['session'])} has another owner now"


def _known(entry: dict[str, Any], channel: Channel) -> Identity:
    session = entry["session"]
    return Identity(session, entry["token"], is_active=session in channel.peers().active_sessions)


def _owner(inbox: Inbox) -> str | None:
    found = inbox.document().get(_OWNER)
    return found if isinstance(found, str) else None


def _is_elsewhere(entry: dict[str, Any]) -> bool:
    """Whether the directory that an entry was made in is still there: then this one is its copy, and not moved."""
    try:
        found = os.stat(Path(entry["project"]) / _DIRECTORY)
    except (OSError, ValueError):
        return False
    return (found.st_dev, found.st_ino) == (entry["device"], entry["inode"])


def _choose(channel: Channel, where: int, project: Path) -> dict[str, Any]:
    """A new entry under a name that has no trace on the channel, and is ours from here on."""
    token = secrets.token_hex(_TOKEN_BYTES)
    taken = {*channel.peers().active_sessions, *sessions(channel)}
    name = next(name for name in _names() if name not in taken and Inbox(channel, name).claim({_OWNER: mark(token)}))
    device, inode = _identity_of(where)
    since = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    values = (name, token, since, str(project.absolute()), device, inode)
    return dict(zip(_ENTRY, values, strict=True))


def _names() -> Iterator[str]:
    """The roster in an order of chance, then the same with numbers: two projects rarely ask for the same one."""
    names = list(ROSTER)
    secrets.SystemRandom().shuffle(names)
    yield from names
    number = 2
    while True:
        yield from (f"{name}-{number}" for name in names)
        number += 1


def _identity_of(where: int) -> tuple[int, int]:
    found = os.fstat(where)
    return found.st_dev, found.st_ino


# --- the file ---


@contextlib.contextmanager
def _opened(project: Path) -> Iterator[int]:
    """A descriptor of the project's directory for us, made if it is absent, and locked."""
    path = project / _DIRECTORY
    if not project.is_dir():
        raise Misconfigured(
            f"{visible(str(project))} is not a directory", remedy="name the project's with --project-dir"
        )
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        where = os.open(path, _OPEN_DIRECTORY)
    except NotADirectoryError as error:
        raise Unsafe(
            f"{visible(str(path))} is not a directory, or a symbolic link",
            why="links are not followed",
            remedy="move it away",
        ) from error
    except OSError as error:
        raise CannotCreate(
            f"cannot use {visible(str(path))}",
            why=files.why(error),
            remedy="name a --project-dir of yours, or an id with --session",
        ) from error
    try:
        _check(os.fstat(where), path, "it must be a directory of ours that no one else may write to")
        with locked(where, visible(str(path)), MESH_PROJECT_LOCK_MS):
            yield where
    finally:
        os.close(where)


def _check(found: os.stat_result, path: Path, rule: str) -> None:
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid() or mode & 0o022:
        shown = visible(str(path))
        remedy = f"chmod go-w {quoted(path)}" if found.st_uid == os.geteuid() else "name a --project-dir of yours"
        raise Unsafe(f"{shown} belongs to uid {found.st_uid} and has mode {mode:04o}", why=rule, remedy=remedy)


def _read(where: int, shown: Path) -> dict[str, Any]:
    """What the file says, with a table of channels in any case; raises as `settle` does."""
    try:
        fd = os.open(_FILE, _READ, dir_fd=where)
    except FileNotFoundError:
        return {_CHANNELS: {}}
    except OSError as error:
        remedy = "mend its mode, or name an id with --session" if files.is_denied(error) else "move it away"
        raise Unsafe(f"{visible(str(shown))} cannot be opened", why=files.why(error), remedy=remedy) from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise Unsafe(f"{visible(str(shown))} is not a regular file", remedy="move it away")
        _check(found, shown, "it must be a file of ours that no one else may write to")
        data = files.read_all(fd, files.Stamp.of(found), shown, MAX_MESH_PROJECT_BYTES)
    finally:
        os.close(fd)
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _damaged(shown, "it is not JSON") from error
    if not isinstance(parsed, dict) or not isinstance(parsed.setdefault(_CHANNELS, {}), dict):
        raise _damaged(shown, f"it is no object with a table of {_CHANNELS}")
    return parsed


def _checked(entry: object, channel: str, shown: Path) -> dict[str, Any]:
    if not isinstance(entry, dict) or any(type(entry.get(key)) is not kind for key, kind in _ENTRY.items()):
        raise _damaged(shown, f"its entry of channel {visible(channel)} lacks a part")
    if not is_session(entry["session"]) or not entry["token"].isascii():
        raise _damaged(shown, f"{visible(entry['session'])[:MAX_ID_BYTES]} is no id, or its token none")
    return entry


def _write(where: int, found: dict[str, Any], shown: Path) -> None:
    try:
        made = files.Draft(where)
        try:
            os.fchmod(made.fd, 0o600)
            files.write_all(made.fd, json.dumps(found, indent=2).encode() + b"\n")
            made.rename(_FILE)
        finally:
            made.drop()
    except OSError as error:
        raise CannotCreate(
            f"cannot write {visible(str(shown))}", why=files.why(error), remedy="free space or mend its mode, try again"
        ) from error


def _damaged(shown: Path, why: str) -> Misconfigured:
    move = f"mv {quoted(shown)} {quoted(shown.with_name(f'{_FILE}.bad'))}"
    return Misconfigured(
        f"{visible(str(shown))} cannot be understood",
        why=f"{why}; nothing was changed",
        remedy=f"mend it, or put it aside for a new identity: {move}; for one command: --session ID",
    )
