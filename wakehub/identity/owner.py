"""What the owner of an instance has: the key, its public half, and the registry that was signed with it.

Each is read here, must fit the others, and is refused with what to do when it is missing, hidden or another's.
"""

from pathlib import Path
from typing import Protocol

from wakehub import files
from wakehub.errors import Unsafe
from wakehub.identity.addresses import OWNER
from wakehub.identity.audit import AuditLog
from wakehub.identity.keys import KeyPair, load_key, load_public
from wakehub.identity.registry import Registry
from wakehub.visible import visible


class Places(Protocol):
    """Where the files of one instance lie; `wakehub.paths.Paths` is one."""

    @property
    def owner_key(self) -> Path: ...

    @property
    def owner_pub(self) -> Path: ...

    @property
    def audit(self) -> Path: ...

    def agent_key(self, agent_id: str) -> Path: ...


def load_owner(places: Places) -> KeyPair:
    """The owner's key, which must be that of ``owner.pub``; raises `Unsafe` (exit 77), naming the file."""
    try:
        owner = key_at(places.owner_key, OWNER)
    except FileNotFoundError:
        if files.is_absent(places.owner_pub):
            raise _not_initialised(places.owner_key) from None
        raise Unsafe(
            f"the owner key {visible(str(places.owner_key))} is missing",
            why="names can only be enrolled, revoked or closed with it; names that are enrolled go on working",
            remedy="run this where the owner key is, or restore it",
        ) from None
    check_pair(places, owner, load_owner_public(places))
    return owner


def load_owner_public(places: Places) -> bytes:
    """The owner's public key (32 bytes); raises `Unsafe` when it is missing or cannot be used."""
    try:
        return load_public(places.owner_pub)
    except FileNotFoundError:
        raise _not_initialised(places.owner_pub) from None
    except PermissionError as error:
        raise masked(places.owner_pub, error) from error


def read_registry(places: Places) -> Registry:
    """The registry as the verified log tells it now; raises `Unsafe` when there is none or it does not verify."""
    try:
        events = AuditLog(places.audit, load_owner_public(places)).verify()
    except FileNotFoundError:
        raise no_registry(places) from None
    except PermissionError as error:
        raise masked(places.audit, error) from error
    if not events:
        raise no_registry(places)
    return Registry.derive(events)


def unfinished_mark(places: Places) -> Path:
    """The file that is there while `wakehub init` is at work, or was interrupted."""
    return places.audit.parent / "init.unfinished"


def check_registry(places: Places) -> None:
    """Raise `Unsafe` when the log is missing or empty beside ``owner.pub``, and no interrupted init explains it."""
    is_blank = files.is_absent(places.audit) or places.audit.lstat().st_size == 0
    if is_blank and files.is_absent(unfinished_mark(places)) and not files.is_absent(places.owner_pub):
        raise gone(places)


def key_at(path: Path, agent_id: str) -> KeyPair:
    try:
        return load_key(path, agent_id)
    except PermissionError as error:
        raise masked(path, error) from error


def check_pair(places: Places, owner: KeyPair, public: bytes) -> None:
    if public != owner.public:
        raise Unsafe(
            f"{visible(str(places.owner_key))} and {visible(str(places.owner_pub))} do not belong together",
            why="what the one signs the other does not verify",
            remedy="put back the file that was changed",
        )


def masked(path: Path, error: OSError) -> Unsafe:
    return Unsafe(
        f"{visible(str(path))} cannot be read",
        why=f"{error.strerror}; it is there, so this may be a sandbox that hides it",
        remedy="run this outside the sandbox, or give the program a bundle: wakehub delegate NAME",
    )


def _not_initialised(path: Path) -> Unsafe:
    return Unsafe(f"{visible(str(path))} is missing", why="this instance is not set up", remedy="wakehub init")


def no_registry(places: Places) -> Unsafe:
    """Why there is no log beside ``owner.pub``: an init that is unfinished, or a loss."""
    return gone(places) if files.is_absent(unfinished_mark(places)) else _not_initialised(places.audit)


def gone(places: Places) -> Unsafe:
    state = "missing" if files.is_absent(places.audit) else "empty"
    return Unsafe(
        f"the registry is gone: {visible(str(places.audit))} is {state}",
        why="who is enrolled stands there alone, and a new one would admit none of them",
        remedy="put audit.jsonl back from a backup; or move keys/ and state/ away and begin anew: wakehub init",
    )
