"""How an instance begins: the owner key, ``owner.pub``, the audit log and the publisher's key (formats.md, Registry).

Each file is made when it is absent, in an order that a kill anywhere leaves for the next run to complete; nothing is
ever made anew in the place of what was lost.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from wakehub import files
from wakehub.errors import Unsafe
from wakehub.identity.addresses import OWNER, PUBLISHER
from wakehub.identity.audit import AuditLog
from wakehub.identity.enrolment import Turn
from wakehub.identity.keys import KeyPair, load_public, write_key, write_public
from wakehub.identity.owner import Places, check_pair, gone, key_at, masked
from wakehub.visible import visible


@dataclass(frozen=True, slots=True)
class Initialised:
    """What `init_owner` found or made: the owner's public key (32 bytes) and the files that were not there before."""

    owner_public: bytes
    made: tuple[Path, ...]
    cut: int = 0


def init_owner(places: Places, now_s: float) -> Initialised:
    """Make the owner key, ``owner.pub``, the log with its first line, and the publisher's key; or complete that.

    It may be killed anywhere and run again. Raises `Unsafe` when a file is there but cannot be used, or when the owner
    key alone is missing: nothing can be signed in its place. Nor is a log begun anew beside keys of agents: they are
    made after its first line, so it was lost, and with it every name.
    """
    made: list[Path] = []
    owner = _owner_key(places, made)
    _owner_pub(places, owner, made)
    if files.is_absent(places.audit):
        _check_no_agents(places)
    files.private_directory(places.audit.parent)
    with AuditLog(places.audit, owner.public).writing() as writer:
        if not writer.events:
            _check_no_agents(places)
            writer.append(owner, "init", OWNER, owner.public, {}, now_s)
            made.append(places.audit)
        _bind_daemon(Turn.of(owner, writer), places, PUBLISHER, now_s, made)
        return Initialised(owner.public, tuple(made), writer.cut)


def _owner_key(places: Places, made: list[Path]) -> KeyPair:
    try:
        return key_at(places.owner_key, OWNER)
    except FileNotFoundError:
        pass
    for path in (places.owner_pub, places.audit):
        if not files.is_absent(path):
            raise Unsafe(
                f"the owner key {visible(str(places.owner_key))} is missing",
                why=f"{visible(str(path))} was made with it and cannot be signed by another",
                remedy="restore the key from a backup; or move that file away and begin anew, enrolling every name",
            )
    _check_no_agents(places)
    owner = KeyPair.generate()
    write_key(places.owner_key, OWNER, owner)
    made.append(places.owner_key)
    return owner


def _owner_pub(places: Places, owner: KeyPair, made: list[Path]) -> None:
    try:
        check_pair(places, owner, load_public(places.owner_pub))
    except FileNotFoundError:
        write_public(places.owner_pub, owner.public)
        made.append(places.owner_pub)
    except PermissionError as error:
        raise masked(places.owner_pub, error) from error


def _check_no_agents(places: Places) -> None:
    directory = places.agent_key(PUBLISHER).parent
    if not files.is_absent(directory) and any(name.endswith(".key") for name in os.listdir(directory)):
        raise gone(places)


def _bind_daemon(turn: "Turn", places: Places, name: str, now_s: float, made: list[Path]) -> None:
    path = places.agent_key(name)
    was_absent = files.is_absent(path)
    turn.bind(path, "publisher", name, now_s)
    if was_absent:
        made.append(path)
