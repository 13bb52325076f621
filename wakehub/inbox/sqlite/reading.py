"""Looking into the record, which changes nothing."""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from typing import Any

from wakehub.inbox.clock import Now
from wakehub.inbox.rows import Event, EventKind, Header, Row
from wakehub.inbox.sqlite.rows import UNREAD, SqliteRows, picked_senders
from wakehub.inbox.store import Activity, BoxCount


class Reading(SqliteRows):
    """What `Inbox` tells."""

    def unread(
        self,
        recipient: str,
        *,
        after: int = 0,
        limit: int = 100,
        senders: Collection[str] | None = None,
        now: Now | None = None,
    ) -> list[Row]:
        picked, parameters = picked_senders(senders)
        parameters |= {"recipient": recipient, "after": after, "limit": limit, "now_ms": (now or Now.read()).ms}
        with self._db.reading():
            return self._rows(
                f"""INDEXED BY message_open WHERE recipient = :recipient AND rseq > :after AND {UNREAD} AND {picked}
                    ORDER BY rseq LIMIT :limit""",
                parameters,
            )

    def count_unread(self, recipient: str, *, senders: Collection[str] | None = None, now: Now | None = None) -> int:
        picked, parameters = picked_senders(senders)
        parameters |= {"recipient": recipient, "now_ms": (now or Now.read()).ms}
        with self._db.reading():
            return self._count(
                f"""SELECT count(*) FROM message INDEXED BY message_open_by_sender
                    WHERE recipient = :recipient AND {UNREAD} AND {picked}""",
                parameters,
            )

    def boxes_with_unread(self, *, now: Now | None = None) -> list[BoxCount]:
        query = f"""SELECT recipient, count(*), min(created_ms) FROM message INDEXED BY message_open
                    WHERE {UNREAD} GROUP BY recipient ORDER BY recipient"""
        with self._db.reading():
            found = self._db.execute(query, {"now_ms": (now or Now.read()).ms})
            return [BoxCount(*values) for values in found]

    def boxes(self) -> list[str]:
        with self._db.reading():
            return [name for (name,) in self._db.execute("SELECT name FROM box ORDER BY name")]

    def watermark(self, recipient: str) -> int:
        with self._db.reading():
            found = self._db.execute("SELECT rseq FROM box WHERE name = ?", (recipient,))
            return int(found[0][0]) if found else 0

    def row(self, id: str) -> Row | None:
        with self._db.reading():
            return next(iter(self._rows("WHERE id = ?", (id,))), None)

    def headers(self, ids: Sequence[str]) -> list[Header]:
        with self._db.reading():
            found = (self._header(id) for id in dict.fromkeys(ids))
            return sorted((header for header in found if header is not None), key=lambda header: header.seq)

    def events(self, id: str) -> list[Event]:
        query = """SELECT message.id, kind, at_ms, by, proof, code, detail, event.retry_ms, woken_by
                   FROM event JOIN message ON message.seq = event.message WHERE message.id = ? ORDER BY event.seq"""
        with self._db.reading():
            return [Event(*values) for values in self._db.execute(query, (id,))]

    def near_ids(self, text: str, limit: int = 3) -> list[str]:
        """Ids that share the longest beginning with `text` are its neighbours in their order."""
        with self._db.reading():
            found = [
                id
                for side in ("id < ? ORDER BY id DESC", "id > ? ORDER BY id")
                for (id,) in self._db.execute(f"SELECT id FROM message WHERE {side} LIMIT ?", (text, limit))
            ]
        shared = {id: _shared_length(id, text) for id in sorted(found)}
        longest = max(shared.values(), default=0)
        return [id for id, length in shared.items() if length == longest > 0][:limit]

    def activity(self) -> list[Activity]:
        query = "SELECT recipient, kind, woken_by, times, last_ms FROM activity ORDER BY recipient"
        with self._db.reading():
            found = self._db.execute(query)
        return [_activity(name, list(rows)) for name, rows in groupby(found, key=lambda values: str(values[0]))]

    def attached(self, digests: Iterable[bytes]) -> set[bytes]:
        query = """SELECT 1 FROM attachment JOIN message ON message.seq = attachment.message
                   WHERE attachment.digest = ? AND message.state <> 'expired' LIMIT 1"""
        with self._db.reading():
            return {digest for digest in digests if self._db.execute(query, (digest,))}

    def changed(self) -> int:
        return self._db.data_version()

    def damage(self) -> list[str]:
        with self._db.reading():
            found = [text for (text,) in self._db.execute("PRAGMA integrity_check(3)") if text != "ok"]
            return found or [f"{id} is not what was sent: its digest is another" for id in self._changed_bodies()]

    def _changed_bodies(self) -> list[str]:
        """Rows whose body has not its digest: damage inside a value is none to SQLite."""
        bodies = self._db.stream("SELECT id, size, digest, body FROM message WHERE body IS NOT NULL")
        return [id for id, size, digest, body in bodies if len(body) != size or hashlib.sha256(body).digest() != digest]


def _shared_length(a: str, b: str) -> int:
    """How many characters `a` and `b` begin with in common."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _activity(name: str, rows: Sequence[tuple[Any, ...]]) -> Activity:
    """What the rows of `activity` for one recipient say together."""

    def last(of: EventKind) -> int | None:
        return max((last_ms for _, kind, _, _, last_ms in rows if kind == of), default=None)

    woken_by = {woken_by: times for _, _, woken_by, times, _ in rows if woken_by}
    return Activity(name, last("hinted"), last("handed_off"), woken_by)
