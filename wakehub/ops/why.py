"""`wakehub why ID`: the life of one message as the record tells it, and what happens or is to be done next.

Every line is an event with its time, who caused it and what proves it (receive.md §1, Receipts). How far the message
came is the event of the highest rank, whatever the times say; nothing less than `handed_off` is told as an arrival.
A message that was spooled is looked for where it was left.

What will happen next is told from the row's state, who is there for its recipient, and what stands in its way.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from wakehub import files
from wakehub.client.presence import Presence, left_since, presence
from wakehub.config import Config
from wakehub.errors import BadData, ErrorCode, Unsafe
from wakehub.identity.registry import Registry
from wakehub.inbox.clock import Now
from wakehub.inbox.ids import is_row_id, made_ms
from wakehub.inbox.refusals import NoRecord, RecordUnwritable
from wakehub.inbox.rows import Event, Row, furthest
from wakehub.inbox.signing import Verified
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.inbox.store import Inbox
from wakehub.limits import FAILURES_BEFORE_PASSED, MAX_BACKSTOP_SECONDS, OVERDUE_SECONDS
from wakehub.ops.status import ago, registry_of
from wakehub.relay.keyring import Keyring
from wakehub.visible import visible

JSON_KEYS: Final = (
    "id", "from", "to", "re", "group", "class", "origin", "state", "furthest", "created_ms", "expires_ms", "bytes",
    "digest", "verified", "attachments", "hops", "attempts", "redelivery", "events", "presence", "next", "note",
)  # fmt: skip
_ENOUGH_TO_GUESS: Final = len("m_") + 8
"""How much of its beginning a mistyped id must share with one that is meant: its time, to the quarter of a minute."""
_LOOKED_AT: Final = 10
_MAX_REASON_BYTES: Final = 4_096
_DIGEST_SHOWN: Final = 12


@dataclass(frozen=True, slots=True)
class Life:
    """One message at `now`: the row, its events, what its signature proves, who is there, and what comes next.

    `note` says what could not be looked at, and why.
    """

    now: Now
    row: Row
    events: tuple[Event, ...]
    verified: Verified
    presence: Presence
    next_step: str
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """The report for programs: exactly `JSON_KEYS`. Times are milliseconds since the epoch."""
        row = self.row
        return {
            "id": row.id,
            "from": row.sender,
            "to": row.recipient,
            "re": row.re,
            "group": row.group,
            "class": row.class_,
            "origin": row.origin,
            "state": row.state,
            "furthest": furthest(self.events),
            "created_ms": row.created_ms,
            "expires_ms": row.expires_ms,
            "bytes": row.size,
            "digest": row.digest.hex(),
            "verified": self.verified,
            "attachments": [{"name": each.name, "bytes": each.size} for each in row.attachments],
            "hops": row.hops,
            "attempts": row.attempts,
            "redelivery": row.redelivery,
            "events": [_event(event) for event in self.events],
            "presence": self.presence.state,
            "next": self.next_step,
            "note": self.note,
        }

    def to_text(self) -> str:
        """The report for people: what it is, a table of its events, and the next step."""
        note = [f"! {self.note}"] if self.note else []
        lines = [_title(self), *_table(self.events), *note, f"next: {self.next_step}"]
        return "\n".join(visible(line) for line in lines)


@dataclass(frozen=True, slots=True)
class Spooled:
    """A message that is not in the record, but in a spool: since `at_ms` at `path`, or put aside for a `reason`."""

    id: str
    path: Path
    at_ms: int
    reason: str

    @property
    def next_step(self) -> str:
        if self.reason:
            return "nothing: it is never taken in; mend what is wrong and send it again"
        return "the publisher takes it in, within seconds when it runs (wakehub status)"

    def to_json(self) -> dict[str, Any]:
        """The report for programs: `id`, `state` (`spooled`, `refused`), `path`, `at_ms`, `reason`, `next`."""
        return {
            "id": self.id,
            "state": "refused" if self.reason else "spooled",
            "path": str(self.path),
            "at_ms": self.at_ms,
            "reason": self.reason,
            "next": self.next_step,
        }

    def to_text(self) -> str:
        """The report for people."""
        became = f"refused: {self.reason}" if self.reason else "spooled"
        lines = [f"{self.id} · {became} · at {_clock(self.at_ms)} · {self.path}", f"next: {self.next_step}"]
        return "\n".join(visible(line) for line in lines)


def trace(config: Config, id: str) -> Life | Spooled:
    """What became of the message `id` in the instance that `config` describes.

    Raises `BadData` (65) when there is no such message, with those whose ids are near, and what opening the record
    raises.
    """
    spooled = _in_spools(config, id)  # first: an envelope goes only when its row is there
    near: Sequence[str] = []
    try:
        with SqliteInbox.open(config.paths.record, create=False) as inbox:
            row = inbox.row(id)
            if row is not None:
                return _life(inbox, row, Keyring(config.paths), registry_of(config)[0], Now.read())
            near = inbox.near_ids(id)
    except NoRecord:
        pass
    except RecordUnwritable:  # as in the sandboxes for which there are spools
        if spooled is None:
            raise
    if spooled is None:
        raise _unknown(config, id, near)
    return spooled


def _in_spools(config: Config, id: str) -> Spooled | None:
    """The envelope of `id`, where one was left or was put aside (formats.md, Spool)."""
    if not is_row_id(id):
        return None
    for directory in config.spool_dirs:
        for path in (directory / f"{id}.json", directory / "bad" / f"{id}.json"):
            try:
                at_ms = path.lstat().st_mtime_ns // 1_000_000
            except OSError:
                continue
            return Spooled(id, path, at_ms, _reason(path))
    return None


def _reason(path: Path) -> str:
    """Why an envelope was put aside; empty while it waits."""
    if path.parent.name != "bad":
        return ""
    try:
        return files.read_owned(path.with_name(f"{path.name}.why"), _MAX_REASON_BYTES).decode(errors="replace").strip()
    except (OSError, Unsafe):
        return "the reason cannot be read"


def _life(inbox: Inbox, row: Row, keyring: Keyring, registry: Registry, now: Now) -> Life:
    events = tuple(inbox.events(row.id))
    there = presence(inbox.leases, row.recipient, now)
    next_step = _Next(inbox, row, events, there, registry, now).in_words()
    return Life(now, row, events, keyring.verdict(row), there, next_step, keyring.trouble)


def _unknown(config: Config, id: str, near: Sequence[str]) -> BadData:
    what = f"there is no message {visible(id)}"
    meant = [each for each in near if each.startswith(id) or each[:_ENOUGH_TO_GUESS] == id[:_ENOUGH_TO_GUESS]]
    if meant:
        return BadData(what, why="an id is given in full", remedy=f"did you mean {' or '.join(meant)}?")
    if not is_row_id(id):
        return BadData(
            what, why="an id is m_ and 26 characters", remedy="take it from the line that `wakehub send` printed"
        )
    now = Now.read()
    if now.ms - made_ms(id) > config.keep_s * 1000:
        return BadData(
            what,
            why=f"its id was made {ago(now, made_ms(id))} ago, and what ended {config.keep_s // 86_400} d "
            "ago is removed",
            remedy="nothing is known of it any more",
        )
    return BadData(
        what,
        why="it was never stored in this record",
        remedy="see whether WAKEHUB_HOME or --state-dir is the one of its sender",
    )


# --- what comes next ---


class _Next:
    """What happens to a row next, and what a person can do about it."""

    def __init__(
        self, inbox: Inbox, row: Row, events: Sequence[Event], there: Presence, registry: Registry, now: Now
    ) -> None:
        self._inbox = inbox
        self._row = row
        self._events = events
        self._there = there
        self._registry = registry
        self._now = now

    def in_words(self) -> str:
        match self._row.state:
            case "handed_off":
                return self._handed_off()
            case "expired":
                return "nothing: its time was over, and its text is gone; send it again if it still matters"
            case "failed":
                return f"nothing: it can never be handed off ({self._last('failed')}); send another one"
            case "claimed" if not self._is_void():
                return f"{self._listener()} has it in hand; if that process dies, the message comes again"
            case _:
                return self._waiting()

    def _handed_off(self) -> str:
        answer = next((event.detail for event in self._events if event.kind == "answered"), None)
        if answer is not None:
            return f"nothing: it was answered by {answer}"
        if self._there.state == "listening" or self._row.class_ == "fyi":
            return f"nothing: {self._row.recipient} has it, and has not answered"
        return f"nothing: {self._row.recipient} has it, and has not answered; nobody listens there now"

    def _waiting(self) -> str:
        row, now = self._row, self._now
        if row.expires_ms <= now.ms:
            return "its time is over; the publisher ends it, and tells its sender"
        if closed := self._closed():
            return closed
        if self._there.listener is None:
            return self._nobody()
        if row.retry_ms > now.ms:
            wait_s = -(-(row.retry_ms - now.ms) // 1000)
            return f"{self._listener()} tries again in {wait_s} s ({self._last('attempt_failed')})"
        if blocker := self._blocker():
            return f"it waits behind {blocker.id}, an earlier message of {row.sender}; wakehub why {blocker.id}"
        return self._for_listener()

    def _for_listener(self) -> str:
        """The row is due and somebody is there."""
        listener = self._there.listener
        assert listener is not None
        waited_ms = self._now.ms - max(self._row.stored_ms, listener.since_ms)
        if waited_ms > OVERDUE_SECONDS * 1000:
            if left_since(self._inbox, self._row, self._there, self._now) is None:
                return f"{self._listener()} hands it over once the agent of {self._row.recipient} is there; start that"
            return (
                f"{self._listener()} should have taken it long ago; see whether it or its reader hangs, and restart it"
            )
        if self._row.class_ == "fyi":
            return f"fyi wakes nobody; {self._listener()} looks at least every {MAX_BACKSTOP_SECONDS} s"
        if self._row.hinted_ms is not None:
            return (
                f"{self._listener()} was woken; it takes it now, or when it looks next, within {MAX_BACKSTOP_SECONDS} s"
            )
        return f"{self._listener()} {self._unwoken()}; it looks at least every {MAX_BACKSTOP_SECONDS} s"

    def _unwoken(self) -> str:
        match self._row.hint_code:
            case None:
                return "was not woken yet (is the publisher up? wakehub status)"
            case ErrorCode.UNKNOWN:
                return "is not connected to the hub"
            case code:
                return f"could not be woken ({code})"

    def _nobody(self) -> str:
        name, last = self._row.recipient, self._there.last
        kept = f"it is kept until {_clock(self._row.expires_ms)}; wakehub listen --as {name}"
        if last is None:
            return f"nobody has listened for {name} yet; {kept}"
        died = f" (pid {last.pid} died)" if self._there.state == "died" else ""
        hinted = "; that the hub took the wake brings no reader" if self._row.hinted_ms is not None else ""
        return f"nobody is listening for {name} since {_clock(last.ended_ms)}{died}{hinted}; {kept}"

    def _closed(self) -> str:
        agent = self._registry.agents.get(self._row.recipient)
        if agent is None or agent.closed_at is None:
            return ""
        ends = _clock(self._row.expires_ms)
        return f"{agent.agent_id} was closed on {_clock(agent.closed_at * 1000)}; it waits there in vain until {ends}"

    def _blocker(self) -> Row | None:
        """The earlier row of the same sender that this one must not pass (store.py, rule 5)."""
        for earlier in self._inbox.unread(self._row.recipient, senders=[self._row.sender], limit=_LOOKED_AT):
            if earlier.rseq >= self._row.rseq:
                return None
            if earlier.failures < FAILURES_BEFORE_PASSED and earlier.expires_ms > self._now.ms:
                return earlier
        return None

    def _is_void(self) -> bool:
        """Whether the process that claimed the row no longer is the one that listens: then the claim counts no more."""
        listener = self._there.listener
        claim = next((event.detail for event in reversed(self._events) if event.kind == "claimed"), "")
        return listener is None or claim != f"pid {listener.process.pid}"

    def _listener(self) -> str:
        listener = self._there.listener
        return (
            f"pid {listener.process.pid}, which listens for {' and '.join(listener.names)}," if listener else "nobody"
        )

    def _last(self, kind: str) -> str:
        """The reason that the last event of that kind gave."""
        event = next(event for event in reversed(self._events) if event.kind == kind)
        return ": ".join(part for part in (str(event.code) if event.code else "", event.detail) if part)


# --- in words ---


def _title(life: Life) -> str:
    row = life.row
    parts = [f"{row.id} from {row.sender} to {row.recipient}"]
    parts += [f"re {row.re}"] if row.re else []
    parts += ["fyi"] if row.class_ == "fyi" else []
    parts += [f"{row.size} B · sha256 {row.digest.hex()[:_DIGEST_SHOWN]}"]
    parts += [f"{len(row.attachments)} attached"] if row.attachments else []
    parts += [_VERDICT[life.verified], row.state.replace("_", " ")]
    parts += [f"redelivery {row.redelivery}"] if row.redelivery else []
    return " · ".join(parts)


_VERDICT: Final[dict[Verified, str]] = {
    "yes": "verified",
    "at_the_time": "verified at the time",
    "no": "NOT verified",
    "unsigned": "unsigned",
}


def _table(events: Sequence[Event]) -> list[str]:
    """One line for each event, in columns: when (UTC), how long after the first, what, by whom, and what proves it.

    By their times: that the hub took the wake is often entered after the hand-off that it led to.
    """
    rows = [("time (UTC)", "after", "event", "by", "proof")]
    rows += [
        (
            _clock(event.at_ms, "milliseconds"),
            _after(event.at_ms - events[0].at_ms),
            event.kind.replace("_", " "),
            event.by,
            " · ".join(_says(event)),
        )
        for event in sorted(events, key=lambda event: event.at_ms)
    ]
    widths = [max(len(visible(row[column])) for row in rows) for column in range(4)]
    return [
        "  "
        + "  ".join([*(f"{visible(cell):<{width}}" for cell, width in zip(row, widths, strict=False)), row[4]]).rstrip()
        for row in rows
    ]


def _says(event: Event) -> Iterator[str]:
    """What an event says beside its kind, in parts."""
    if event.proof:
        yield event.proof
    if event.code is not None:
        yield str(event.code)
    if event.detail:
        yield event.detail
    if event.retry_ms is not None:
        yield f"next try at {_clock(event.retry_ms, 'milliseconds')[-12:]}"
    if event.woken_by:
        yield f"woken by {event.woken_by}"


def _event(event: Event) -> dict[str, Any]:
    return {
        "event": event.kind,
        "at_ms": event.at_ms,
        "by": event.by,
        "proof": event.proof,
        "code": event.code,
        "detail": event.detail,
        "retry_ms": event.retry_ms,
        "woken_by": event.woken_by,
    }


def _after(ms: int) -> str:
    """A span that people can read: milliseconds up to ten seconds, then seconds, then hours and minutes."""
    if abs(ms) < 10_000:
        return f"{ms:+d} ms"
    seconds = round(ms / 1000)
    if abs(seconds) < 3_600:
        return f"{seconds:+d} s"
    return f"{seconds // 3_600:+d} h {seconds % 3_600 // 60} min"


def _clock(ms: int, precision: str = "seconds") -> str:
    """A time of the record (milliseconds since the epoch) for a person, in UTC."""
    moment = datetime.fromtimestamp(ms / 1000, UTC).replace(tzinfo=None)
    return moment.isoformat(" ", precision) + (" UTC" if precision == "seconds" else "")
