"""`wakehub status`: who listens, what waits, how it was taken, and who is overdue (receive.md §1; faults F9, F28, F85).

Everything about names is read from the record at one moment, and who is there is `client.presence`'s answer, as it is
for `send` and `agents`. Two things are errors, and the exit status says so: rows that wait 20 min although a listener
is there, and rows that wait for a listener that died. Whoever just left, or never came, is none.

A daemon that answers is *up*, one that nobody serves is *down*; of one that keeps silent, or that a sandbox hides,
nothing is known, and it is called *unknown* (fault F47).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from wakehub.client.presence import Presence, left_since, presence, stuck
from wakehub.config import Config
from wakehub.errors import Exit, Unsafe
from wakehub.identity.addresses import is_reserved
from wakehub.identity.owner import read_registry
from wakehub.identity.registry import Agent, Registry
from wakehub.inbox.clock import Now
from wakehub.inbox.leases import Lease
from wakehub.inbox.refusals import NoRecord
from wakehub.inbox.rows import Event
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.inbox.store import Activity, BoxCount, Inbox
from wakehub.inbox.tenure import is_namespace
from wakehub.limits import CHECK_DEADLINE_MS, NAME_COLUMN, OVERDUE_SECONDS
from wakehub.locks import live_holder
from wakehub.ops import health
from wakehub.ops.health import Health
from wakehub.relay.render import age
from wakehub.visible import visible

JSON_KEYS: Final = ("healthy", "hub", "publisher", "names", "note")

DaemonState = Literal["up", "down", "unknown"]
Trouble = Literal["overdue", "dead_listener"]


@dataclass(frozen=True, slots=True)
class Daemon:
    """What is known of the hub or the publisher; `pid` is who holds its lock, `ms` how long its answer took."""

    what: str
    state: DaemonState
    pid: int | None
    ms: float
    why: str = ""
    remedy: str = ""

    def in_words(self) -> str:
        pid = f" · pid {self.pid}" if self.pid else ""
        if self.state == "up":
            return f"up{pid} · answers in {self.ms:.1f} ms"
        return f"{self.state}{pid} · {self.why}" + (f" · next: {self.remedy}" if self.remedy else "")

    def to_json(self) -> dict[str, Any]:
        return {"state": self.state, "pid": self.pid, "ms": round(self.ms, 3), "why": self.why}


@dataclass(frozen=True, slots=True)
class Box:
    """One name: how it is enrolled, who is there for it, what waits, since when, and how its rows were taken.

    `name` may be a namespace that somebody holds. `waiting_ms` is since when the listener that is there leaves the
    oldest row (`left_since`; milliseconds since the epoch), `stuck` why it does (`presence.stuck`).
    """

    name: str
    standing: str
    presence: Presence
    waiting: BoxCount | None
    waiting_ms: int | None
    activity: Activity
    stuck: Event | None = None

    @property
    def unread(self) -> int:
        return self.waiting.unread if self.waiting else 0

    def trouble(self, now: Now) -> Trouble | None:
        """What is wrong: `overdue` (fault F9), `dead_listener` (fault F28), or nothing."""
        if not self.unread:
            return None
        if self.presence.state == "died":
            return "dead_listener"
        is_late = self.waiting_ms is not None and now.ms - self.waiting_ms > OVERDUE_SECONDS * 1000
        return "overdue" if is_late and self.presence.state == "listening" else None

    def to_json(self, now: Now) -> dict[str, Any]:
        last = self.presence.last
        return {
            "name": self.name,
            "state": self.standing,
            "presence": self.presence.state,
            "listener": _listener(self.presence.listener),
            "last_listened_ms": last.ended_ms if last else None,
            "unread": self.unread,
            "oldest_ms": self.waiting.oldest_ms if self.waiting else None,
            "last_hinted_ms": self.activity.hinted_ms,
            "last_handed_off_ms": self.activity.handed_off_ms,
            "woken_by": dict(self.activity.woken_by),
            "trouble": self.trouble(now),
            "stuck": {"id": self.stuck.id, "reason": self.stuck.detail} if self.stuck else None,
        }


@dataclass(frozen=True, slots=True)
class Status:
    """The whole of it at `now`; `note` says what could not be looked at, and why."""

    now: Now
    hub: Daemon
    publisher: Daemon
    boxes: tuple[Box, ...]
    note: str = ""

    @property
    def troubled(self) -> list[Box]:
        return [box for box in self.boxes if box.trouble(self.now)]

    @property
    def exit(self) -> Exit:
        return Exit.FAILED if self.troubled else Exit.DONE

    def to_json(self) -> dict[str, Any]:
        """The report for programs: exactly `JSON_KEYS`."""
        return {
            "healthy": self.exit is Exit.DONE,
            "hub": self.hub.to_json(),
            "publisher": self.publisher.to_json(),
            "names": [box.to_json(self.now) for box in self.boxes],
            "note": self.note,
        }

    def to_text(self) -> str:
        """The report for people: a line for each daemon and each name, what is wrong first of each line."""
        width = column(["publisher", *(box.name for box in self.boxes)])
        lines = [f"{_MARK[daemon.state]} {daemon.what:<{width}}  {visible(daemon.in_words())}" for daemon in self._both]
        for box in self.boxes:
            mark = "✗" if box.trouble(self.now) else " "
            lines.append(f"{mark} {visible(box.name):<{width}}  {visible(' · '.join(words(box, self.now)))}")
        if not self.boxes:
            lines.append("  no name is enrolled and no message was sent; next: wakehub guide receive")
        return "\n".join([*lines, *([f"! {visible(self.note)}"] if self.note else [])])

    @property
    def _both(self) -> tuple[Daemon, Daemon]:
        return self.hub, self.publisher


_MARK: Final[dict[DaemonState, str]] = {"up": "✓", "down": "!", "unknown": "?"}


def survey(config: Config) -> Status:
    """Look at the instance that `config` describes; at most some 4 s, when both daemons keep silent.

    Raises what opening the record raises, but not when there is none yet: then nothing was ever sent.
    """
    both = daemons(config)
    registry, note = registry_of(config)
    if (revoked := health.revoked_publisher(config, registry)) is not None:
        note = "; next: ".join(revoked)
    now = Now.read()
    try:
        with SqliteInbox.open(config.paths.record, create=False) as inbox:
            found = boxes(inbox, registry, now)
    except NoRecord:
        found = [_unheard(name, registry) for name in known_names(None, registry)]
    return Status(now, *both, tuple(found), note)


def daemons(config: Config) -> tuple[Daemon, Daemon]:
    """The hub and the publisher, each asked for an answer."""
    return hub(config), publisher(config)


def hub(config: Config, deadline_ms: int = CHECK_DEADLINE_MS) -> Daemon:
    """The hub, asked for an answer."""
    return _daemon("hub", health.check_hub(config, deadline_ms), _pid(config, "hub"))


def publisher(config: Config, deadline_ms: int = CHECK_DEADLINE_MS) -> Daemon:
    """The publisher, asked for an answer."""
    return _daemon("publisher", health.check_publisher(config, deadline_ms), _pid(config, "publish"))


def registry_of(config: Config) -> tuple[Registry, str]:
    """The registry; an empty one, and why, where it cannot be read or there is none."""
    try:
        return read_registry(config.paths), ""
    except Unsafe as error:
        return Registry(), f"who is enrolled is not known: {error.what}" + (f": {error.why}" if error.why else "")


def boxes(inbox: Inbox, registry: Registry, now: Now) -> list[Box]:
    """Every name that is enrolled or ever got a row, and every namespace that somebody holds, sorted."""
    waiting = {box.name: box for box in inbox.boxes_with_unread()}
    activity = {each.name: each for each in inbox.activity()}
    held = [name for lease in inbox.leases.live(now) for name in lease.names]
    names = sorted({*known_names(inbox, registry), *(name for name in held if not is_reserved(name))})
    return [_box(inbox, name, standing(name, registry), waiting.get(name), activity.get(name), now) for name in names]


def known_names(inbox: Inbox | None, registry: Registry) -> list[str]:
    """Every name that was ever enrolled or got a row, but for the system's own, sorted."""
    return sorted(name for name in {*registry.agents, *(inbox.boxes() if inbox else ())} if not is_reserved(name))


def standing(name: str, registry: Registry) -> str:
    """How `name` is enrolled: `enrolled`, `revoked`, `closed`, `never_enrolled`; or it is a `namespace`."""
    if is_namespace(name):
        return "namespace"
    agent: Agent | None = registry.agents.get(name)
    if agent is None:
        return "never_enrolled"
    if agent.key:
        return "enrolled"
    return "revoked" if agent.closed_at is None else "closed"


def words(box: Box, now: Now) -> Sequence[str]:
    """What a person should know of a name, in parts: the error and its remedy first, if there is one."""
    return [part for part in (_error(box, now), *_standing_words(box), *_presence_words(box.presence, now),
                              *_waiting_words(box, now), *_activity_words(box, now)) if part]  # fmt: skip


def column(names: Iterable[str]) -> int:
    """How wide the column of these names is: as the longest that a column is made for."""
    return max((width for name in names if (width := len(visible(name))) <= NAME_COLUMN), default=0)


def ago(now: Now, ms: int) -> str:
    """How long before `now` a moment of the record was, in words."""
    return age(max(0, now.ms - ms) // 1000).removesuffix(" old")


def _box(inbox: Inbox, name: str, how: str, waiting: BoxCount | None, activity: Activity | None, now: Now) -> Box:
    there = presence(inbox.leases, name, now)
    waiting_ms, why = None, None
    if waiting is not None and (oldest := inbox.unread(name, limit=1)):
        waiting_ms, why = left_since(inbox, oldest[0], there, now), stuck(inbox, oldest[0], there)
    return Box(name, how, there, waiting, waiting_ms, activity or Activity(name, None, None, {}), why)


def _unheard(name: str, registry: Registry) -> Box:
    """A name while there is no record: nobody listened and nothing was sent."""
    return Box(name, standing(name, registry), Presence(name, None, None), None, None, Activity(name, None, None, {}))


def _daemon(what: str, found: Health, pid: int | None) -> Daemon:
    if found.state in ("answers", "full"):
        return Daemon(what, "up", pid, found.ms, found.why)
    is_down = found.state in ("missing", "refused") and pid is None
    return Daemon(what, "down" if is_down else "unknown", pid, found.ms, found.why, found.remedy)


def _pid(config: Config, lock: str) -> int | None:
    holder = live_holder(config.paths.lock(lock))
    return holder.pid if holder else None


def _listener(lease: Lease | None) -> dict[str, Any] | None:
    if lease is None:
        return None
    return {
        "names": list(lease.names),
        "pid": lease.process.pid,
        "host": lease.host,
        "since_ms": lease.since_ms,
        "status": lease.status,
    }


# --- in words ---


def _error(box: Box, now: Now) -> str:
    match box.trouble(now):
        case "overdue":
            pid = box.presence.listener.process.pid if box.presence.listener else 0
            if box.stuck is not None:
                return f"OVERDUE: pid {pid} tries in vain; next: wakehub why {box.stuck.id}"
            return f"OVERDUE: pid {pid} takes nothing; see whether it or its reader hangs, and restart it"
        case "dead_listener":
            return f"LISTENER DIED; next: wakehub listen --as {box.name}"
        case None:
            return ""


def _standing_words(box: Box) -> Iterable[str]:
    return [] if box.standing in ("enrolled", "namespace") else [box.standing.replace("_", " ")]


def _presence_words(found: Presence, now: Now) -> Iterable[str]:
    since_ms = found.since_ms
    if since_ms is None:
        return ["nobody listened yet"]
    if found.listener is not None:
        status = [found.listener.status] if found.listener.status else []
        return [f"pid {found.listener.process.pid} listens for {ago(now, since_ms)}", *status]
    return [f"nobody listens since {ago(now, since_ms)}"]


def _waiting_words(box: Box, now: Now) -> Iterable[str]:
    if box.waiting is None:
        return ["nothing unread"]
    why = f": {box.stuck.detail}" if box.stuck else ""
    return [f"{box.unread} unread, the oldest {ago(now, box.waiting.oldest_ms)} old{why}"]


def _activity_words(box: Box, now: Now) -> Iterable[str]:
    found = box.activity
    if found.hinted_ms is not None:
        unheard = box.unread and box.presence.listener is None  # then the hub alone is known to have it
        yield f"last wake {ago(now, found.hinted_ms)} ago{', taken by the hub alone' if unheard else ''}"
    if found.handed_off_ms is not None:
        yield f"last hand-off {ago(now, found.handed_off_ms)} ago"
    if found.woken_by:
        yield f"taken by {counts(found.woken_by)}"


def counts(woken_by: Mapping[str, int]) -> str:
    """How often each reason made a listener find something, the most frequent first."""
    return ", ".join(f"{reason} {times}" for reason, times in sorted(woken_by.items(), key=lambda item: -item[1]))
