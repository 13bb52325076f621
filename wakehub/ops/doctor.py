"""`wakehub doctor`: what is wrong with this instance, and what to do about it (F9, F28, F65, F66, F68, F77, F84).

A line for each check: a mark, what was found, whether that was *measured* (seen to be so just now) or is only what is
*configured*, and one remedy. ✗ keeps messages from arriving or is unsafe, ! is worth a look. What could not be looked
at is never ✓. The first line is a message that really went around (`round_trip`).

Apart from that message nothing is changed: no lock is tried, nothing is repaired or removed.
"""

import os
import re
import shlex
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from wakehub import __version__, files, locks, sockets
from wakehub.client import diagnosis
from wakehub.config import Config
from wakehub.errors import Exit, Unavailable, Unsafe, WakehubError
from wakehub.identity import keys
from wakehub.identity.addresses import is_reserved
from wakehub.identity.allowlist import Allowlist, AllowlistFile, Unusable
from wakehub.identity.audit import AuditLog, BrokenChain
from wakehub.identity.delegation import Bundle
from wakehub.identity.owner import load_owner_public
from wakehub.identity.registry import Registry
from wakehub.identity.stamps import NS
from wakehub.inbox import filesystem
from wakehub.inbox.clock import Now
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.inbox.store import BoxCount, Inbox, NoRecord, PastLease
from wakehub.limits import (
    CHECK_DEADLINE_MS,
    LEFTOVER_AFTER_SECONDS,
    MAX_SOCKET_DIRECTORY_BYTES,
    NEARLY_FULL_PERCENT,
    OVERDUE_SECONDS,
    RENEW_BEFORE_END_SECONDS,
)
from wakehub.ops import health, posture, round_trip, salvage
from wakehub.ops.round_trip import Trip
from wakehub.ops.supervisor import supervisor_of
from wakehub.processes import open_files
from wakehub.relay.backends.claude import directory, inbound
from wakehub.relay.render import age
from wakehub.server.listener import connection_ceiling
from wakehub.visible import visible

Mark = Literal["ok", "warning", "critical"]
Basis = Literal["measured", "configured"]
JSON_KEYS: Final = ("healthy", "version", "round_trip", "checks")
_MARKS: Final[dict[Mark, str]] = {"ok": "✓", "warning": "!", "critical": "✗"}
_LEFT: Final = re.compile(r".+~(-wal|-shm)?")
_SAMPLE: Final = re.compile(r"wakehub_(\w+) ([0-9]+)")
_VERSION: Final = re.compile(r'wakehub_build_info\{version="([^"]*)"\}')
_UP: Final = "wakehub up"
_REPAIR: Final = "stop everything that uses it, then: wakehub doctor --repair (the damaged file is kept)"


@dataclass(frozen=True, slots=True)
class Line:
    """What one check found, on what that rests, and what to do."""

    check: str
    mark: Mark
    detail: str
    remedy: str = ""
    basis: Basis = "measured"

    def to_text(self) -> str:
        next_step = f" · next: {visible(self.remedy)}" if self.remedy else ""
        return f"{_MARKS[self.mark]} {self.check}: {visible(self.detail)} ({self.basis}){next_step}"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Every line, and the message that went around (None: there was no instance to send it in)."""

    lines: tuple[Line, ...]
    trip: Trip | None

    def exit(self, *, fail_on_warn: bool = False) -> Exit:
        bad = {"critical", "warning"} if fail_on_warn else {"critical"}
        return Exit.FAILED if any(line.mark in bad for line in self.lines) else Exit.DONE

    def to_json(self) -> dict[str, Any]:
        """The report for programs: exactly `JSON_KEYS`; milliseconds of legs are rounded to microseconds."""
        trip = asdict(self.trip) | {"arrived": self.trip.arrived} if self.trip else None
        if trip is not None:
            trip["legs"] = {leg: round(ms, 3) for leg, ms in trip["legs"].items()}
        return {
            "healthy": self.exit() is Exit.DONE,
            "version": __version__,
            "round_trip": trip,
            "checks": [asdict(line) for line in self.lines],
        }

    def to_text(self) -> str:
        """The report for people: a line for each check and one that sums up."""
        critical, warnings = (sum(line.mark == mark for line in self.lines) for mark in ("critical", "warning"))
        if critical or warnings:
            verdict = f"{_MARKS['critical' if critical else 'warning']} {critical} critical, {warnings} to look at"
        else:
            verdict = "✓ nothing found"
        return "\n".join([*(line.to_text() for line in self.lines), verdict])


def examine(config: Config) -> Diagnosis:
    """Look at the instance that `config` describes, and send a message around; at most some 30 s."""
    case = _Case(config)
    lines = [_looked(name, look, case) for name, look in _CHECKS.items()]
    return Diagnosis(tuple(lines), case.trip)


def unreadable(error: WakehubError) -> Diagnosis:
    """The diagnosis of an instance whose configuration cannot even be read."""
    return Diagnosis((_critical("configuration", error),), None)


def _looked(name: str, look: "Callable[[_Case], Line]", case: "_Case") -> Line:
    """What `look` finds; what keeps it from looking is the finding."""
    try:
        return look(case)
    except NoRecord as error:
        if look is _record:
            return Line(name, "critical", error.what, "start the publisher, which makes it: wakehub up")
        return Line(name, "ok", "there is no record yet, so nothing to be found in it")
    except WakehubError as error:
        return _critical(name, error)
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return Line(name, "critical", f"cannot be looked at: {what}", "allow it in the sandbox, or run as its owner")


def _critical(check: str, error: WakehubError) -> Line:
    return Line(check, "critical", error.what + (f": {error.why}" if error.why else ""), error.remedy)


class _Case:
    """What several checks ask for, looked at once."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.paths = config.paths
        self.now = Now.read()
        self.now_s = time.time()

    @cached_property
    def trip(self) -> Trip:
        """The message that went around; where no hub answers none is sent."""
        hub = self.health
        if hub.state != "answers":
            return Trip({}, "session", f"the hub at {hub.socket}: {hub.state}: {hub.why}", hub.remedy)
        return round_trip.travel(self.config)

    @cached_property
    def health(self) -> health.Health:
        return health.check(self.config.hub_socket, self.config.hub_id)

    @cached_property
    def metrics(self) -> str | Unavailable:
        """The running hub's counters, or why there are none."""
        try:
            return health.read_metrics(self.config.stats_socket)
        except Unavailable as error:
            return error

    @cached_property
    def posture(self) -> posture.Posture:
        return posture.examine(self.config)

    @cached_property
    def admitted(self) -> Allowlist | Unusable:
        """What the allowlist says now; raises `OSError`, `WakehubError` when there is no key to judge it by."""
        return AllowlistFile(self.config.allowlist, keys.load_public(self.config.owner_pub)).current(time.time(), 0.0)

    @contextmanager
    def record(self) -> Iterator[Inbox]:
        with SqliteInbox.open(self.paths.record, create=False) as inbox:
            yield inbox

    def daemons(self) -> dict[str, locks.Holder]:
        """The processes that hold the locks now, by what they are."""
        names = {"hub": "hub", "publisher": "publish", "up": "up"}
        held = {what: locks.live_holder(self.paths.lock(lock)) for what, lock in names.items()}
        return {what: holder for what, holder in held.items() if holder is not None}

    def ago(self, ms: int) -> str:
        """How long before now a moment of the record was, in words."""
        return age(max(0, self.now.ms - ms) // 1000).removesuffix(" old")


# --- the way of a message ---


def _round_trip(case: _Case) -> Line:
    trip = case.trip
    legs = " · ".join(f"{leg} {ms:.1f} ms" for leg, ms in trip.legs.items())
    if trip.arrived:
        return Line("round trip", "ok", f"a message arrived: {legs}")
    passed = f", after {legs}" if legs else ""
    if trip.stopped_at:
        return Line(
            "round trip",
            "critical",
            f"no message arrives: stopped at {trip.stopped_at}{passed}: {trip.why}",
            trip.remedy,
        )
    return Line("round trip", "warning", f"not measured: {trip.why}", trip.remedy, "configured")


def _hub(case: _Case) -> Line:
    found = case.health
    if found.state != "answers":
        return Line("hub", "critical", f"{found.state}: {found.socket}: {found.why}", found.remedy)
    return Line("hub", "ok", f"{found.hub_id} answers at {found.socket} in {found.ms:.1f} ms")


def _publisher(case: _Case) -> Line:
    """An empty poke is a question too: the publisher answers it by closing (formats.md, Poke)."""
    path = case.paths.publish_socket
    began = time.monotonic()
    deadline = began + CHECK_DEADLINE_MS / 1000
    try:
        with health.connected(path, deadline) as sock:
            sock.sendall(b'{"v":1,"ids":[]}\n')
            sock.shutdown(socket.SHUT_WR)
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            answer = sock.recv(1)
    except health.Obstacle as found:
        return Line("publisher", "critical", f"{found.state}: {path}: {found.why}", _for_publisher(found))
    except OSError as error:
        why = "no answer in time; it is stopped or overloaded" if isinstance(error, TimeoutError) else error.strerror
        return Line("publisher", "critical", f"{path}: {why}", "look at it with ps; SIGCONT it, or restart it")
    if answer:
        return Line("publisher", "critical", f"{path} answers as no publisher does", "look who serves that socket")
    return Line("publisher", "ok", f"answers at {path} in {(time.monotonic() - began) * 1000:.1f} ms")


def _for_publisher(found: health.Obstacle) -> str:
    return "start it: wakehub up, or wakehub publish" if found.state in ("missing", "refused") else found.remedy


# --- the processes ---


def _versions(case: _Case) -> Line:
    running = {what: holder.version or "unknown" for what, holder in case.daemons().items()}
    if isinstance(case.metrics, str) and (told := _VERSION.search(case.metrics)):
        running["hub"] = told[1]
    if not running:
        return Line("version", "ok", f"{__version__} is installed, nothing runs", basis="configured")
    other = [f"{what} runs {version}" for what, version in running.items() if version != __version__]
    if other:
        detail = f"{', '.join(other)}, but {__version__} is installed: restart needed"
        return Line("version", "warning", detail, "restart them: stop wakehub up and start it again, or its units")
    return Line("version", "ok", f"{__version__} is installed and runs ({', '.join(running)})")


def _supervision(case: _Case) -> Line:
    """`up` itself is not asked who looks after it: it may be a person at a terminal."""
    running = {what: holder.pid for what, holder in case.daemons().items() if what != "up"}
    by = {what: supervisor_of(pid, case.paths) for what, pid in running.items()}
    if not by:
        return Line("supervisor", "critical", "neither hub nor publisher runs", _UP)
    detail = ", ".join(f"{what} (pid {running[what]}): {name or 'nobody'}" for what, name in by.items())
    if None in by.values():
        return Line("supervisor", "warning", f"{detail}; nobody starts it again when it dies", "wakehub guide operate")
    return Line("supervisor", "ok", detail)


def _limits(case: _Case) -> Line:
    if isinstance(case.metrics, Unavailable):
        ceiling = connection_ceiling(case.config.limits.max_connections)
        detail = f"up to {ceiling} connections; {case.metrics.what}: {case.metrics.why}"
        return Line("limits", "warning", detail, case.metrics.remedy, "configured")
    samples = {name: int(value) for name, value in _SAMPLE.findall(case.metrics)}
    if not {"connections", "connection_ceiling"} <= samples.keys():
        return Line("limits", "warning", "the hub does not tell how many connections it has", "restart it: wakehub up")
    connections, ceiling = samples["connections"], samples["connection_ceiling"]
    uses = [(connections, ceiling, "connections")]
    hub = case.daemons().get("hub")
    if hub is not None and (budget := open_files(hub.pid)) is not None:
        uses.append((*budget, "descriptors"))
    detail = ", ".join(f"{used} of {most} {what}" for used, most, what in uses)
    if any(used * 100 >= most * NEARLY_FULL_PERCENT for used, most, _ in uses):
        mark: Mark = "critical" if connections >= ceiling else "warning"
        return Line("limits", mark, f"nearly full: {detail}", "raise [hub] max_connections and LimitNOFILE=")
    if ceiling < case.config.limits.max_connections:
        detail += f", although {case.config.limits.max_connections} connections are configured"
        return Line("limits", "warning", detail, "raise the hub's limit of open files (LimitNOFILE=, ulimit -n)")
    return Line("limits", "ok", detail)


# --- places and files ---


def _safety(case: _Case) -> Line:
    found = case.posture.findings
    faults = [finding for finding in found if finding.level == "fault"]
    notes = [finding for finding in found if finding.level == "note" and finding.check == "directory"]
    worst = (faults or notes)[:1]
    if not worst:
        return Line("safety", "ok", f"{len(found)} owners, modes and limits are as they must be")
    more = len(faults or notes) - 1
    detail = worst[0].detail + (f"; {more} more: wakehub --posture" if more else "")
    return Line("safety", "critical" if faults else "warning", detail, worst[0].remedy)


def _sockets(case: _Case) -> Line:
    directory = case.config.hub_socket.parent
    sockets.check_directory(directory)
    size = f"{len(os.fsencode(directory))} of {MAX_SOCKET_DIRECTORY_BYTES} bytes"
    mount = filesystem.mount_at(directory)
    if mount is None:
        return Line("sockets", "warning", f"{directory}: {size}; its file system cannot be told", "see: mount")
    if filesystem.is_shared(mount.kind):
        detail = f"{directory} lies on {mount.kind} ({mount.point}), where sockets of other kernels cannot be reached"
        return Line("sockets", "critical", detail, files.elsewhere())
    return Line("sockets", "ok", f"{directory} on {mount.kind}, {size}")


def _record(case: _Case) -> Line:
    damage = salvage.damage(case.paths.record)
    if damage:
        return Line("record", "critical", f"{case.paths.record} is damaged: {damage}", _REPAIR)
    mount = filesystem.mount_at(case.paths.state)
    size = os.stat(case.paths.record).st_size
    return Line("record", "ok", f"whole, {size // 1024} KiB on {mount.kind if mount else 'an unknown file system'}")


def _admission(case: _Case) -> Line:
    """The registry must be proven line by line, and the allowlist be signed from it and fresh."""
    chain = AuditLog(case.paths.audit, load_owner_public(case.paths)).read()
    if not chain.events:  # nothing is signed from it, as from one that is broken
        raise BrokenChain(case.paths.audit, 1, "the line that begins it is missing")
    Registry.derive(chain.events)
    admitted = case.admitted
    if isinstance(admitted, Unusable):
        detail = f"nobody is admitted: the allowlist is {admitted.label}: {admitted.detail}"
        return Line("admission", "critical", detail, _for_signer(case))
    names = [name for name in admitted.agents if not is_reserved(name)]
    age_s = max(0, int(time.time()) - admitted.refreshed_at // NS)
    signed = f"the allowlist, {age_s} s old, admits {len(names)} agents"
    detail = f"{len(chain.events)} lines of the registry proven; {signed}"
    if chain.torn:
        return Line("admission", "warning", f"{detail}; the last line was never finished", "enroll or revoke a name")
    return Line("admission", "ok", detail)


def _for_signer(case: _Case) -> str:
    """What to do about an allowlist that the publisher should have signed; one that runs need not be started."""
    publisher = locks.live_holder(case.paths.lock("publish"))
    if publisher is None:
        return "the publisher signs it: wakehub up, or wakehub publish"
    log = shlex.quote(str(case.paths.log))
    return f"the publisher runs (pid {publisher.pid}); its log says why it does not sign ({log}, or journalctl)"


def _bundles(case: _Case) -> Line:
    found = sorted(case.paths.agents.glob("*.a2a-hub.json")) if case.paths.agents.is_dir() else []
    troubles = [trouble for path in found if (trouble := _bundle_trouble(case, path))]
    if not troubles:
        return Line("delegations", "ok", f"{len(found)} given out as bundles, none about to end")
    detail, remedy = troubles[0]
    more = f"; {len(troubles) - 1} more" if len(troubles) > 1 else ""
    return Line("delegations", "warning", detail + more, remedy)


def _bundle_trouble(case: _Case, path: Path) -> tuple[str, str] | None:
    """Why a bundle admits nobody, or soon will not, and what to do; None when it is good for a while."""
    try:
        bundle = Bundle.load(path)
    except WakehubError as error:
        return str(error), error.remedy
    unused = f"; or remove it: rm {shlex.quote(str(path))}"
    anew = f"wakehub delegate {bundle.agent_id} --ttl 12h{unused}"
    if bundle.hub_id != case.config.hub_id:
        return f"{path} is for hub {bundle.hub_id}, not {case.config.hub_id}", anew
    left_s = bundle.window()[1] // NS - int(case.now_s)
    if left_s > 0 and isinstance(case.admitted, Unusable):
        return None  # that nobody is admitted is said once
    why = diagnosis.reason(bundle, case.config.allowlist, case.config.owner_pub, case.now_s)
    if why is not None:
        return f"the bundle of {bundle.agent_id}: {why[0]}", why[1] + unused
    if left_s < RENEW_BEFORE_END_SECONDS:
        return f"the bundle of {bundle.agent_id} ends in {left_s} s", anew
    return None


def _leftovers(case: _Case) -> Line:
    """What processes that are dead left behind. What is young may still be in use."""
    directories = dict.fromkeys((case.paths.run, case.config.hub_socket.parent, case.paths.state, case.paths.keys))
    old = [path for place in (*directories, case.paths.agents) for path in _temporary(place, case.now_s)]
    unfinished = case.paths.state / "init.unfinished"
    if unfinished.exists() and locks.live_holder(case.paths.lock("init")) is None:
        return Line("leftovers", "warning", f"{unfinished}: a set-up was interrupted", "wakehub init")
    if old:
        detail = f"{len(old)} temporary file(s), such as {old[0]}"
        return Line("leftovers", "warning", detail, f"rm {' '.join(shlex.quote(str(path)) for path in old[:3])}")
    with case.record() as inbox:
        stale = inbox.leases.stale(case.now)
    if stale:
        names = ", ".join(name for lease in stale for name in lease.names)
        return Line(
            "leftovers", "warning", f"names that dead listeners hold: {names}", "the publisher frees them: wakehub up"
        )
    return Line("leftovers", "ok", "none of dead processes")


def _temporary(directory: Path, now_s: float) -> list[Path]:
    """Temporary files and sockets of ours in `directory` that nothing was done with for a minute."""
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        if _LEFT.fullmatch(name) is None:
            continue
        try:
            there = os.lstat(directory / name)
        except FileNotFoundError:
            continue
        if not stat.S_ISDIR(there.st_mode) and now_s - there.st_mtime > LEFTOVER_AFTER_SECONDS:
            found.append(directory / name)
    return found


# --- what waits ---


def _overdue(case: _Case) -> Line:
    """Rows that a live listener should have taken long ago (fault F9), and sessions that are set to let them wait."""
    late: list[tuple[BoxCount, int, int]] = []
    with case.record() as inbox:
        for box in inbox.boxes_with_unread():
            lease = inbox.leases.resolve(box.name, case.now)
            oldest = inbox.unread(box.name, limit=1)
            if is_reserved(box.name) or lease is None or not oldest:
                continue
            since_ms = max(lease.since_ms, oldest[0].stored_ms)
            if case.now.ms - since_ms > OVERDUE_SECONDS * 1000:
                late.append((box, lease.process.pid, since_ms))
    if not late:
        return _held_back() or Line(
            "overdue", "ok", f"no message waits {OVERDUE_SECONDS // 60} min for a listener that is there"
        )
    box, pid, since_ms = late[0]
    detail = f"{box.unread} unread for {box.name} for {case.ago(since_ms)}, although pid {pid} listens"
    remedy = f"see whether pid {pid} and its reader hang, and restart it"
    return Line("overdue", "critical", _and_more(detail, late), remedy)


def _held_back() -> Line | None:
    """A Claude Code session whose settings keep messages from it; None when there is none (receive.md §4, 8)."""
    try:
        _, found = inbound.look(directory(os.environ))
    except Unsafe as error:
        return Line("overdue", "warning", f"{error.what}: {error.why}", error.remedy)
    if not found:
        return None
    more = f"; {len(found) - 1} more such sessions" if len(found) > 1 else ""
    return Line("overdue", "warning", f"{found[0].detail}{more}", found[0].remedy, "configured")


def _unheard(case: _Case) -> Line:
    """Rows for names that nobody holds: a listener that died is an error, one that left is not (fault F28)."""
    dead: list[tuple[BoxCount, PastLease]] = []
    waiting: list[BoxCount] = []
    with case.record() as inbox:
        for box in inbox.boxes_with_unread():
            if is_reserved(box.name) or inbox.leases.resolve(box.name, case.now) is not None:
                continue
            last = inbox.leases.last_holder(box.name, case.now)
            if last is not None and last.reason in ("died", "expired"):
                dead.append((box, last))
            else:
                waiting.append(box)
    if dead:
        box, last = dead[0]
        detail = f"{box.unread} unread for {box.name}; its listener, pid {last.pid}, died {case.ago(last.ended_ms)} ago"
        return Line("unheard", "critical", _and_more(detail, dead), f"wakehub listen --as {shlex.quote(box.name)}")
    late = [box for box in waiting if case.now.ms - box.oldest_ms > OVERDUE_SECONDS * 1000]
    if late:
        detail = f"{late[0].unread} unread for {late[0].name} for {case.ago(late[0].oldest_ms)}, and nobody listens"
        remedy = f"wakehub listen --as {shlex.quote(late[0].name)}"
        return Line("unheard", "warning", _and_more(detail, late), remedy)
    count = sum(box.unread for box in waiting)
    detail = f"{count} message(s) wait, none of them long" if count else "no message waits"
    return Line("unheard", "ok", f"{detail} for a name that nobody holds")


def _and_more(detail: str, found: list[Any]) -> str:
    return f"{detail}; {len(found) - 1} more such names" if len(found) > 1 else detail


_CHECKS: Final[dict[str, Callable[[_Case], Line]]] = {
    "round trip": _round_trip,
    "hub": _hub,
    "publisher": _publisher,
    "version": _versions,
    "supervisor": _supervision,
    "limits": _limits,
    "safety": _safety,
    "sockets": _sockets,
    "record": _record,
    "admission": _admission,
    "delegations": _bundles,
    "overdue": _overdue,
    "unheard": _unheard,
    "leftovers": _leftovers,
}
