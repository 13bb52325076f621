"""A place to live, and a name to go by: implied `init` and enrolment on first use (receive.md §6; formats.md).

Implied init makes an instance only where there is none at all: keys, record and configuration must all be absent, and
what cannot be looked at is not absent (a sandbox may hide it; a second set of keys would be a second world). It works
under `init.lock`, so that of many first commands one makes it and the others find it. Its first act is a mark in the
state directory, its last to remove that; whoever finds the mark finishes the work, every step of which may be repeated.
`config.toml` is written last: an instance that has one is whole.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from wakehub import config as configuration
from wakehub import files, sockets
from wakehub.config import Config
from wakehub.errors import BadData, Unsafe
from wakehub.identity import enrolment, keys
from wakehub.identity.addresses import check_address, is_reserved
from wakehub.identity.initialisation import init_owner
from wakehub.identity.keys import KeyPair
from wakehub.identity.nearness import near
from wakehub.identity.owner import check_registry, read_registry, unfinished_mark
from wakehub.identity.registry import Agent
from wakehub.locks import Lock
from wakehub.paths import choose
from wakehub.visible import visible


@dataclass(frozen=True, slots=True)
class AgentKey:
    """An enrolled name with its key; `generation` counts its enrolments after a close, from 1."""

    agent_id: str
    pair: KeyPair
    generation: int
    newly_enrolled: bool


def ensure_home(config: Config, *, explicit: bool = False) -> list[str]:
    """Make the instance if there is none; lines that say what was made (none: it was there).

    `explicit` is `wakehub init` itself: it also completes an instance of which a part is missing. Raises `Unsafe` (77)
    when something cannot be looked at or must not be used, or the registry was lost; `Misconfigured` (78) for a
    directory too long for sockets; `CannotCreate` (73).
    """
    for directory in (config.paths.state, config.paths.keys, config.paths.agents, config.paths.run):
        if not files.is_absent(directory):
            files.check_directory(directory)
    unfinished = _mark(config)
    if not explicit and not files.is_absent(config.paths.config_file) and files.is_absent(unfinished):
        return []
    sockets.check_directory(config.paths.run)
    sockets.check_directory(config.hub_socket.parent)
    if not explicit and files.is_absent(unfinished) and not _is_nowhere(config):
        return []
    files.private_directory(config.paths.state)
    with Lock.acquire(config.paths.lock("init"), what="wakehub init", wait=True):
        if files.is_absent(unfinished):
            if not explicit and not _is_nowhere(config):
                return []  # another made it while this one waited
            check_registry(config.paths)  # before the mark, which would explain a loss away
            files.create(unfinished, b"")
        made = _make(config)
        unfinished.unlink()
        return made


def elsewhere(config: Config, environ: Mapping[str, str] = os.environ) -> str:
    """What to say when WAKEHUB_HOME is given and its ``config.toml`` names directories elsewhere; else nothing.

    That is allowed, but a home that was moved or copied works on the old one this way.
    """
    if not environ.get("WAKEHUB_HOME"):
        return ""
    home, there = choose(environ), config.paths
    if home.config_file != there.config_file:
        return ""
    pairs = ((home.run, there.run), (home.state, there.state), (home.keys, there.keys))
    other = [str(named) for own, named in pairs if os.path.realpath(own) != os.path.realpath(named)]
    return f"config.toml there names other directories: {', '.join(other)}" if other else ""


def _mark(config: Config) -> Path:
    return unfinished_mark(config.paths)


def _is_nowhere(config: Config) -> bool:
    """Whether keys, record and configuration are all absent; raises `Unsafe` when that cannot be told."""
    paths = config.paths
    parts = (paths.owner_key, paths.owner_pub, paths.agents, paths.audit, paths.record, paths.config_file)
    return all(files.is_absent(part) for part in parts)


def _make(config: Config) -> list[str]:
    paths = config.paths
    made = [directory for directory in (paths.run, paths.keys, paths.agents) if files.is_absent(directory)]
    for directory in (paths.run, paths.keys, paths.agents):
        files.private_directory(directory)
    made += init_owner(paths, time.time()).made
    if files.is_absent(paths.config_file.parent):
        files.private_directory(paths.config_file.parent)
    if configuration.write(config):
        made.append(paths.config_file)
    return [f"made {visible(str(path))}" for path in made]


def ensure_agent(config: Config, name: str) -> AgentKey:
    """The key of `name`, which is enrolled now if it never was.

    Raises `BadData` (65) for a name that is no address, reserved, or differs from another only in case; `Unsafe` (77)
    when the name was closed or revoked, when it is new and the owner key cannot be used, or when its own key file is
    missing, cannot be used or is another's: the file is named.
    """
    check_address(name)
    if is_reserved(name):
        raise BadData(f"nobody acts as {name}", why="the name is kept for wakehub itself", remedy="choose another name")
    paths = config.paths
    agent = read_registry(paths).agents.get(name)
    newly_enrolled = False
    if agent is None:
        change = enrolment.enroll(paths, name, config.hub_id, time.time())
        agent, newly_enrolled = change.agent, change.event is not None
    return AgentKey(name, own_key(paths.agent_key(name), agent), agent.generation, newly_enrolled)


def enrolled(config: Config, name: str) -> str:
    """What to say of `name`, which was enrolled just now: a new name may be a slip for one that was there."""
    meant = near(name, read_registry(config.paths).names())
    return f"enrolled {name}" + (f"; did you mean {' or '.join(meant)}?" if meant else "")


def own_key(path: Path, agent: Agent) -> KeyPair:
    """The key of `agent` in its file at `path`, which must be the one that is enrolled; raises `Unsafe` (77)."""
    key = agent.key
    if key is None:
        raise ended(agent)
    shown = visible(str(path))
    remedy = keys.to_make_anew(path, agent.agent_id)
    try:
        pair = keys.load_key(path, agent.agent_id)
    except PermissionError as error:
        raise Unsafe(
            f"the key of {agent.agent_id} cannot be read",
            why=f"{shown}: {error.strerror}",
            remedy=f"give this program a bundle, made where the key can be read: wakehub delegate {agent.agent_id}",
        ) from error
    except OSError as error:
        raise Unsafe(
            f"the key of {agent.agent_id} cannot be read", why=f"{shown}: {error.strerror}", remedy=remedy
        ) from error
    if pair.public != key.public:
        raise Unsafe(
            f"{shown} is not the enrolled key of {agent.agent_id}", why="the registry knows another", remedy=remedy
        )
    return pair


def ended(agent: Agent) -> Unsafe:
    """What is to be said of a name that was revoked or closed: when, and what to do (77)."""
    if agent.closed_at is not None:
        what, since = "closed", agent.closed_at
    else:
        what, since = "revoked", agent.keys[-1].until or 0
    return Unsafe(
        f"{agent.agent_id} was {what} on {datetime.fromtimestamp(since, UTC):%Y-%m-%d %H:%M} UTC",
        why="a name that ended is not enrolled anew just by using it",
        remedy=f"choose another name, or: wakehub enroll {agent.agent_id}",
    )
