"""A row as the tables have it: read, and what happened to it written; and conditions that statements share."""

from collections.abc import Collection
from typing import Any, Final

from wakehub.inbox.admission import Guard
from wakehub.inbox.clock import Now
from wakehub.inbox.database import Database, Params
from wakehub.inbox.rows import Attachment, EventKind, Header, Row
from wakehub.inbox.sqlite.leases import COVERS, LIVE, SqliteLeases
from wakehub.limits import CLOCK_DRIFT_SECONDS, FAILURES_BEFORE_PASSED, MAX_NOTE_BYTES

COLUMN_OF: Final = {"group": "group_id", "class_": "class"}
_LOOKED_UP: Final = ("attachments", "is_out_of_order")
_FIELDS: Final = tuple(name for name in Header.__dataclass_fields__ if name not in _LOOKED_UP)
HEADER: Final = ", ".join(f"message.{COLUMN_OF.get(name, name)}" for name in (*_FIELDS, "attachments"))
ROW: Final = f"{HEADER}, message.body"

# Written out exactly as in the indexes' own conditions: SQLite takes a partial index only for the very same term.
OPEN: Final = "message.state IN ('unread', 'claimed')"
# A claim from the future was made before the clock was set back; its end is no longer known, so it has ended.
_VOID: Final = f"""(message.claim_void_ms <= :now_ms
    OR message.claimed_ms > :now_ms + {CLOCK_DRIFT_SECONDS * 1000} OR NOT EXISTS (
    SELECT 1 FROM lease WHERE lease.token = message.claim_token AND {COVERS} AND {LIVE}))"""
# A row whose time is over is nobody's any more, whether or not the publisher has run since to end it.
IN_TIME: Final = "message.expires_ms > :now_ms"
UNREAD: Final = f"{OPEN} AND {IN_TIME}"
UNCLAIMED: Final = f"{OPEN} AND (message.state = 'unread' OR {_VOID})"


class SqliteRows:
    """What every part of the record does with rows; `open` of `SqliteInbox` makes the whole."""

    def __init__(self, database: Database, guard: Guard) -> None:
        self._db = database
        self._guard = guard
        self.leases = SqliteLeases(database)

    def _event(
        self,
        seq: int,
        kind: EventKind,
        now: Now,
        *,
        by: str = "",
        proof: str = "",
        code: int | None = None,
        detail: str = "",
        retry_ms: int | None = None,
        woken_by: str | None = None,
    ) -> None:
        self._db.execute(
            """INSERT INTO event (message, kind, at_ms, by, proof, code, detail, retry_ms, woken_by)
               VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)""",
            (seq, kind, now.ms, by, proof, code, note(detail), retry_ms, woken_by),
        )

    def _count_activity(self, recipient: str, kind: EventKind, now: Now, woken_by: str = "") -> None:
        self._db.execute(
            """INSERT INTO activity VALUES (?, ?, ?, 1, ?) ON CONFLICT (recipient, kind, woken_by)
               DO UPDATE SET times = times + 1, last_ms = excluded.last_ms""",
            (recipient, kind, woken_by, now.ms),
        )

    def _count(self, query: str, parameters: Params) -> int:
        return int(self._db.execute(query, parameters)[0][0])

    def _header(self, id: str) -> Header | None:
        return next(iter(self._headers(f"SELECT {HEADER} FROM message WHERE id = ?", (id,))), None)

    def _headers(self, query: str, parameters: Params) -> list[Header]:
        return [Header(**self._fields(values)) for values in self._db.execute(query, parameters)]

    def _rows(self, tail: str, parameters: Params) -> list[Row]:
        return [self._row_of(values) for values in self._db.execute(f"SELECT {ROW} FROM message {tail}", parameters)]

    def _row_of(self, values: tuple[Any, ...]) -> Row:
        return Row(**self._fields(values[:-1]), body=values[-1])

    def _fields(self, values: tuple[Any, ...]) -> dict[str, Any]:
        """The fields of a `Header`; the last value is the number of attachments, fetched only when there are any."""
        fields = dict(zip(_FIELDS, values[:-1], strict=True))
        query = "SELECT name, size, digest FROM attachment WHERE message = ? ORDER BY position"
        found = self._db.execute(query, (fields["seq"],)) if values[-1] else []
        return fields | {
            "attachments": tuple(Attachment(*attachment) for attachment in found),
            "is_out_of_order": fields["failures"] >= FAILURES_BEFORE_PASSED and self._was_passed(fields),
        }

    def _was_passed(self, fields: dict[str, Any]) -> bool:
        return bool(
            self._db.execute(
                """SELECT 1 FROM message INDEXED BY message_pair WHERE sender = :sender AND recipient = :recipient
                   AND stored_ms >= :stored_ms AND rseq > :rseq AND state = 'handed_off'
                   AND done_ms <= coalesce(:done_ms, done_ms) LIMIT 1""",
                fields,
            )
        )


def picked_senders(senders: Collection[str] | None) -> tuple[str, dict[str, object]]:
    """The condition that a row is from one of `senders` (None: from anyone), and its parameters."""
    if senders is None:
        return "1", {}
    names = {f"sender_{number}": sender for number, sender in enumerate(sorted(set(senders)))}
    return f"message.sender IN ({', '.join(f':{name}' for name in names) or 'NULL'})", dict(names)


def note(text: str) -> str:
    """A reason as it is kept in an event: at most 512 bytes, since it may come from a program's output."""
    return text.encode(errors="backslashreplace")[:MAX_NOTE_BYTES].decode(errors="ignore")
