"""Is this instance set up safely, and does it admit anyone? (issue: posture; awh1.md §4.3, §6; formats.md.)

Everything is looked at and nothing is touched: no socket is bound or connected to, no file made, no daemon's lock
tried. The judgements are those that hub and clients make themselves, with the same code where it has no effect. What
does not exist yet is no fault: it will be made as it must be.

A finding is `ok`, a `note` (works, but a person should know), or a `fault` (unsafe, or the hub would not start). The
exit status is 1 with a fault, 3 when it admits nobody and that was required, else 0.
"""

import itertools
import os
import resource
import socket
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from wakehub import files, locks, ownership, sockets
from wakehub.client import advice
from wakehub.client.home import elsewhere, own_key
from wakehub.client.supervisor import supervisor_of
from wakehub.config import Config
from wakehub.errors import Exit, WakehubError
from wakehub.identity import keys, peercred
from wakehub.identity.addresses import is_reserved
from wakehub.identity.allowlist import Allowlist, AllowlistFile, Unusable
from wakehub.identity.owner import load_owner, read_registry, unfinished_mark
from wakehub.identity.registry import Registry
from wakehub.identity.stamps import NS
from wakehub.limits import MAX_SOCKET_DIRECTORY_BYTES, RESERVED_DESCRIPTORS, WANTED_DESCRIPTORS
from wakehub.ops.health import revoked_publisher
from wakehub.processes import open_files
from wakehub.server.listener import connection_ceiling
from wakehub.visible import visible

Level = Literal["ok", "note", "fault"]
JSON_KEYS: Final = (
    "safe", "admits", "agents", "verifier", "allowlist", "limits", "descriptors", "peer_credentials", "hub",
    "supervisor", "paths", "findings",
)  # fmt: skip
_MARKS: Final[dict[Level, str]] = {"ok": "✓", "note": "!", "fault": "✗"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: what, how it stands, in words, and what to do when it is not ok."""

    check: str
    level: Level
    detail: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Posture:
    """All findings, and what programs ask for (`facts`, see `JSON_KEYS`)."""

    findings: tuple[Finding, ...]
    facts: dict[str, Any]

    @property
    def safe(self) -> bool:
        return not any(finding.level == "fault" for finding in self.findings)

    def exit(self, *, require_admits: bool) -> Exit:
        if not self.safe:
            return Exit.FAILED
        return Exit.NOTHING if require_admits and not self.facts["admits"] else Exit.DONE

    def to_json(self) -> dict[str, Any]:
        """The report for programs: exactly `JSON_KEYS`."""
        found = {"safe": self.safe, **self.facts, "findings": [asdict(finding) for finding in self.findings]}
        return {key: found[key] for key in JSON_KEYS}

    def to_text(self) -> str:
        """The report for people. Several things of one kind that are well are one line."""
        lines = []
        for check, group in itertools.groupby(self.findings, lambda finding: finding.check):
            found = list(group)
            troubled = [finding for finding in found if finding.level != "ok"]
            well = len(found) - len(troubled)
            if well > 1:
                lines.append(f"{_MARKS['ok']} {check}: {well} as they must be")
            for finding in found if well == 1 else troubled:
                lines.append(f"{_MARKS[finding.level]} {check}: {visible(finding.detail)}")
                if finding in troubled and finding.remedy:
                    lines.append(f"    next: {visible(finding.remedy)}")
        admits = f"admits {self.facts['agents']} agent(s)" if self.facts["admits"] else "admits nobody"
        lines.append(f"{'safe' if self.safe else 'NOT SAFE'} · {admits}")
        return "\n".join(lines)


def examine(config: Config) -> Posture:
    """Look at the instance that `config` describes."""
    findings = [*_elsewhere(config), *_places(config)]
    facts: dict[str, Any] = {
        "limits": config.limits._asdict(),
        "paths": {
            "run": str(config.paths.run),
            "state": str(config.paths.state),
            "keys": str(config.paths.keys),
            "socket": str(config.hub_socket),
            "allowlist": str(config.allowlist),
        },
    }
    for look in (_admission, _registry, _descriptors, _peer_credentials, _running):
        more, known = look(config)
        findings += more
        facts |= known
    return Posture(tuple(findings), facts)


def unreadable(error: WakehubError) -> Posture:
    """The posture of an instance whose configuration cannot even be read."""
    facts: dict[str, Any] = dict.fromkeys(JSON_KEYS)
    return Posture(
        (Finding("configuration", "fault", f"{error.what}{f': {error.why}' if error.why else ''}", error.remedy),),
        facts | {"admits": False, "agents": 0},
    )


# --- paths ---


def _places(config: Config) -> Iterator[Finding]:
    paths = config.paths
    directories = dict.fromkeys((paths.run, config.hub_socket.parent, paths.state, paths.keys, paths.agents))
    for directory in directories:
        yield from _directory(directory)
    for directory in dict.fromkeys((config.hub_socket.parent, config.stats_socket.parent, paths.run)):
        yield from _length(directory)
    for sock in (config.hub_socket, config.stats_socket, paths.publish_socket):
        yield from _file(sock, "socket", stat.S_IFSOCK)
    locks = [paths.lock(name) for name in ("hub", "publish", "up", "init")]
    record = [paths.record, *(paths.record.with_name(paths.record.name + tail) for tail in ("-wal", "-shm"))]
    for path in (config.owner_pub, paths.owner_key, *record, *locks):  # allowlist and registry are judged by their own
        yield from _file(path, "file")
    yield from _agent_files(paths.agents)


def _elsewhere(config: Config) -> Iterator[Finding]:
    """A moved or copied home goes on working where it was: nothing unsafe, but seldom what is meant."""
    if said := elsewhere(config):
        file = config.paths.config_file
        yield Finding("home", "note", f"{file.parent}: {said}", f"if it was moved or copied, correct [paths] in {file}")


def _directory(path: Path) -> Iterator[Finding]:
    try:
        if files.is_absent(path):
            state = "is not there yet; it will be made 0700"
        else:
            files.check_directory(path)
            state = "is 0700 and ours"
    except WakehubError as error:
        yield _fault("directory", error)
    else:
        yield Finding("directory", "ok", f"{path} {state}")
        yield from _ancestors(path)


def _ancestors(path: Path) -> Iterator[Finding]:
    """Above our directory: who could move it away. They could not read it, so this is a note."""
    for above in path.parents:
        if risk := ownership.risk_above(above):
            yield Finding("directory", "note", f"{above}, above {path}, {risk}", ownership.to_guard(above))


def _length(directory: Path) -> Iterator[Finding]:
    try:
        sockets.check_directory(directory)
    except WakehubError as error:
        yield _fault("path length", error)
    else:
        size = len(os.fsencode(directory))
        yield Finding("path length", "ok", f"{directory} has {size} of {MAX_SOCKET_DIRECTORY_BYTES} bytes")


def _file(path: Path, check: str, kind: int = stat.S_IFREG) -> Iterator[Finding]:
    """Nothing when it is absent; a file or socket of ours is exactly 0600."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        yield Finding(check, "fault", f"{path}: {error.strerror}", "allow it in the sandbox, or run as its owner")
        return
    unsafe = ownership.fault(found, path, kind)
    yield Finding(check, "ok", f"{path} is 0600 and ours") if unsafe is None else _fault(check, unsafe)


def _agent_files(directory: Path) -> Iterator[Finding]:
    """One finding for all of them when they are well, one for each that is not."""
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return  # said by `_directory`
    looked = [finding for name in names for finding in _file(directory / name, "key")]
    bad = [finding for finding in looked if finding.level != "ok"]
    if looked and not bad:
        yield Finding("key", "ok", f"{len(looked)} file(s) in {directory}, each 0600 and ours")
    yield from bad


# --- who is admitted ---


def _admission(config: Config) -> tuple[list[Finding], dict[str, Any]]:
    nobody: dict[str, Any] = {"admits": False, "agents": 0, "verifier": "deny_all", "allowlist": {"state": "absent"}}
    try:
        owner = keys.load_public(config.owner_pub)
    except FileNotFoundError:
        detail = f"no owner key at {config.owner_pub}: every hello is refused"
        return [Finding("verifier", "note", detail, advice.to_set_up(config.paths))], nobody
    except WakehubError as error:
        return [_fault("verifier", error)], nobody
    except OSError as error:
        detail = f"{config.owner_pub}: {error.strerror}"
        return [Finding("verifier", "fault", detail, "allow it in the sandbox, or run as its owner")], nobody
    verifier = Finding("verifier", "ok", f"delegations, under the owner key in {config.owner_pub}")
    now = time.time()
    found = AllowlistFile(config.allowlist, owner).current(now, 0.0)
    if isinstance(found, Unusable):
        level: Level = "fault" if found.label == "unsafe" else "note"
        about = Finding(
            "allowlist", level, f"{found.label}: {found.detail}; nobody is admitted", advice.to_sign(config, found)
        )
        return [verifier, about], nobody | {
            "verifier": "delegation", "allowlist": {"state": found.label, "detail": found.detail}
        }  # fmt: skip
    about, facts = _allowlist(found, now)
    return [verifier, about], facts


def _allowlist(found: Allowlist, now_s: float) -> tuple[Finding, dict[str, Any]]:
    names = sorted(name for name, entry in found.agents.items() if entry.may_delegate() and not is_reserved(name))
    age_s = (int(now_s * NS) - found.refreshed_at) // NS
    signed = f"signed {age_s} s ago, good for {found.valid_for_secs} s"
    about = (
        Finding("allowlist", "ok", f"{signed}, admits {len(names)} agent(s)")
        if names
        else Finding("allowlist", "note", f"{signed}, but no agent is enrolled", "wakehub enroll NAME")
    )
    return about, {
        "admits": bool(names),
        "agents": len(names),
        "verifier": "delegation",
        "allowlist": {"state": "usable", "age_s": age_s, "valid_for_s": found.valid_for_secs, "agents": names},
    }


def _registry(config: Config) -> tuple[list[Finding], dict[str, Any]]:
    """The log that the publisher signs from: once there is an owner, it must be there and proven to its end."""
    try:
        if files.is_absent(config.paths.owner_pub):
            return [], {}
        if not files.is_absent(mark := unfinished_mark(config.paths)):
            return [Finding("registry", "note", f"{mark}: a set-up is unfinished", "wakehub init")], {}
        registry = read_registry(config.paths)
    except WakehubError as error:
        return [_fault("registry", error)], {}
    except OSError as error:
        detail = f"{config.paths.audit}: {error.strerror}"
        return [Finding("registry", "fault", detail, "allow it in the sandbox, or run as its owner")], {}
    found = Finding("registry", "ok", f"every line is signed; {len(registry.names())} name(s) in it")
    return [found, *_owner_key(config), *_agent_keys(config, registry)], {}


def _owner_key(config: Config) -> Iterator[Finding]:
    """Without it a publisher that runs goes on, and none is started again. That it is not here may be meant."""
    path = config.paths.owner_key
    if not files.is_absent(path) and ownership.fault(os.lstat(path), path) is not None:
        return  # said by `_places`
    try:
        load_owner(config.paths)
    except WakehubError as error:
        yield Finding("owner key", "note", f"{error.what}; no publisher can be started", error.remedy)
    except OSError as error:
        yield Finding("owner key", "note", f"{path}: {error.strerror}", advice.SANDBOX)


def _agent_keys(config: Config, registry: Registry) -> Iterator[Finding]:
    """Those of enrolled names whose file holds something else. That there is none may be meant: there are bundles."""
    if (found := revoked_publisher(config, registry)) is not None:
        yield Finding("agent key", "note", *found)
    for agent in registry.agents.values():
        path = config.paths.agent_key(agent.agent_id)
        if agent.key is None or files.is_absent(path) or ownership.fault(os.lstat(path), path) is not None:
            continue  # the last is said by `_places`
        try:
            own_key(path, agent)
        except WakehubError as error:
            yield Finding("agent key", "note", f"{error.what}{f': {error.why}' if error.why else ''}", error.remedy)


# --- the process ---


def _descriptors(config: Config) -> tuple[list[Finding], dict[str, Any]]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    hub = _hub_descriptors(config)
    try:
        ceiling = _hub_ceiling(config, hub["hub_soft"]) if hub else connection_ceiling(config.limits.max_connections)
    except WakehubError as error:
        finding, ceiling = _fault("descriptors", error), 0
    else:
        level: Level = "ok" if ceiling == config.limits.max_connections else "note"
        whose = " in the running hub" if hub else ""
        detail = f"ceiling of {ceiling} connections{whose}, {config.limits.max_connections} configured"
        remedy = "raise the limit of open files (LimitNOFILE=, ulimit -n)" + (" and start the hub anew" if hub else "")
        finding = Finding("descriptors", level, detail, remedy)
    return [finding], {"descriptors": {"soft": soft, "hard": hard, "ceiling": ceiling, **hub}}


def _hub_descriptors(config: Config) -> dict[str, int]:
    """What the running hub has open and may have, which its own start decided, not ours."""
    holder = locks.live_holder(config.paths.lock("hub"))
    found = open_files(holder.pid) if holder else None
    return {"hub_open": found[0], "hub_soft": found[1]} if found else {}


def _hub_ceiling(config: Config, soft: int) -> int:
    """What a hub with the soft limit `soft`, which it raised as far as it could, took for its ceiling."""
    usable = WANTED_DESCRIPTORS if soft == sys.maxsize else max(0, soft - RESERVED_DESCRIPTORS)
    return min(config.limits.max_connections, usable)


def _peer_credentials(config: Config) -> tuple[list[Finding], dict[str, Any]]:
    """Asked of a pair of sockets of our own, so that it is known and not assumed."""
    try:
        one, other = socket.socketpair(socket.AF_UNIX)
        with one, other:
            told = peercred.read(one).uid == os.geteuid()
        why = "the kernel names another uid than ours"
    except OSError as error:
        told, why = False, error.strerror or str(error)
    if told:
        finding = Finding("peer credentials", "ok", f"the kernel names the peer: uid {os.geteuid()} alone is accepted")
    else:
        finding = Finding("peer credentials", "fault", f"{why}: every peer would be refused", "allow Unix sockets")
    return [finding], {"peer_credentials": told}


def _running(config: Config) -> tuple[list[Finding], dict[str, Any]]:
    holder = locks.live_holder(config.paths.lock("hub"))
    if holder is None:
        return [Finding("process", "ok", "no hub runs")], {"hub": None, "supervisor": None}
    by = supervisor_of(holder.pid, config.paths)
    detail = f"the hub runs as pid {holder.pid}, supervised by {by or 'nothing known'}"
    return [Finding("process", "ok", detail)], {"hub": holder.pid, "supervisor": by and str(by)}


def _fault(check: str, error: WakehubError) -> Finding:
    return Finding(check, "fault", f"{error.what}{f': {error.why}' if error.why else ''}", error.remedy)
