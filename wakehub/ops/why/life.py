"""The life of one message: a title, a table of its events, and what comes next, for people and for programs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from wakehub.client.presence import Presence
from wakehub.inbox.clock import Now
from wakehub.inbox.rows import Event, Row, furthest
from wakehub.inbox.signing import Verified
from wakehub.visible import visible

JSON_KEYS: Final = (
    "id", "from", "to", "re", "group", "class", "origin", "state", "furthest", "created_ms", "expires_ms", "bytes",
    "digest", "verified", "attachments", "hops", "attempts", "redelivery", "events", "presence", "next", "note",
)  # fmt: skip
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
            clock(event.at_ms, "milliseconds"),
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
        yield f"next try at {clock(event.retry_ms, 'milliseconds')[-12:]}"
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


def clock(ms: int, precision: str = "seconds") -> str:
    """A time of the record (milliseconds since the epoch) for a person, in UTC."""
    moment = datetime.fromtimestamp(ms / 1000, UTC).replace(tzinfo=None)
    return moment.isoformat(" ", precision) + (" UTC" if precision == "seconds" else "")
