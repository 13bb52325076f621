"""A fresh record from what is still legible of a damaged one (fault F68).

Every entry that can be read goes into a new file, which is then held against itself: a body must have its digest, a
signature must be by a key that its sender has or had. What does not hold is left out, and counted with what is known to
have been there and cannot be read: every row has traces in other pages, in the index of ids and in its events. Nothing
is guessed except towards delivering: a row that was in hand, or that may have ended for all we can tell, is handed off
once more, with the mark of a redelivery.

Not kept: leases and claims, since nobody is there; what the hub was told, so that it is told again.
"""

import hashlib
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wakehub.inbox.admission import Guard
from wakehub.inbox.database import Database
from wakehub.inbox.ids import is_row_id
from wakehub.inbox.pages import Found, PageFile, Value
from wakehub.inbox.rows import Row
from wakehub.inbox.signing import Verified
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.limits import DIGEST_BYTES

Verdict = Callable[[Row], Verified]

_TABLES: Final = ("message", "event", "attachment", "box", "taken", "past_lease", "activity")
_ID_INDEX: Final = "sqlite_autoindex_message_1"
_ENDS: Final = ("handed_off", "failed", "expired")
_TRACES: Final = """SELECT seq FROM known UNION SELECT message FROM event UNION SELECT message FROM attachment"""
# Behind every count that a recipient can have, and told apart by the row; put in order at the end.
_SPARE_RSEQ: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What became of the rows of a damaged record.

    `kept` are in the fresh one, `unread` of them not handed off yet. `lost` are the ids of rows that are not in it and
    were not handed off as far as can be told (empty for one whose id is illegible, too); `lost_ended` counts those
    that had ended before. `unverified`: kept, although signed files of theirs are no longer listed. `signatures` says
    whether they could be checked at all; `illegible` counts pages and entries.
    """

    kept: int
    unread: int
    lost: tuple[str, ...]
    lost_ended: int
    unverified: int
    signatures: bool
    illegible: int


def rebuild(source: PageFile, target: Path, verdict: Verdict | None) -> Rebuilt:
    """Make the record at `target`, where there is none yet, from what is legible in `source`.

    `verdict` judges signatures; None when nobody's keys are known. Raises as `Inbox.append` does.
    """
    database = Database.open(target, create=True)
    with SqliteInbox(database, Guard()) as inbox, database.transaction():
        return _Rebuilding(source, database, inbox, verdict).run()


class _Rebuilding:
    def __init__(self, source: PageFile, database: Database, inbox: SqliteInbox, verdict: Verdict | None) -> None:
        self._source = source
        self._db = database
        self._inbox = inbox
        self._verdict = verdict
        self._columns = {table: self._columns_of(table) for table in _TABLES}
        self._refused = 0
        self._unverified = 0

    def run(self) -> Rebuilt:
        """Read, sort, judge and count; inside one transaction."""
        self._db.execute("PRAGMA defer_foreign_keys = ON")  # a row may stand behind its events
        self._db.execute("CREATE TEMP TABLE known (seq INTEGER PRIMARY KEY, id TEXT)")
        for found in self._source.entries():
            self._take(found)
        self._mend()
        for id, files in self._db.execute("SELECT id, attachments FROM message"):
            self._judge(id, files)
        lost, lost_ended = self._lost()
        self._db.execute("DELETE FROM event WHERE message NOT IN (SELECT seq FROM message)")
        self._db.execute("DELETE FROM attachment WHERE message NOT IN (SELECT seq FROM message)")
        self._fill_boxes()
        return Rebuilt(
            self._count("1"),
            self._count("state = 'unread'"),
            lost,
            lost_ended,
            self._unverified,
            self._verdict is not None,
            self._source.illegible + self._refused,
        )

    # --- what was found ---

    def _take(self, found: Found) -> None:
        """Put an entry where its shape says that it belongs; where that does not tell, its page's owner does."""
        match found.rowid, found.values:
            case int(seq), (None, str(id), *_) if is_row_id(id) and self._fits("message", found):
                self._know(seq, id)
                self._refused += not self._take_row(found)
            case int(), (None, int(), str(), *_) if self._fits("event", found):
                self._refused += not self._insert("event", (found.rowid, *found.values[1:]))
            case int(), _ if found.owner == "past_lease":
                self._refused += not self._insert("past_lease", (found.rowid, *found.values[1:]))
            case None, (int(), int(), str(), int(), bytes(digest)) if len(digest) == DIGEST_BYTES:
                self._refused += not self._insert("attachment", found.values)
            case None, (str(id), int(seq)) if is_row_id(id) and found.owner in (None, _ID_INDEX):
                self._know(seq, id)
            case None, values if found.owner in ("box", "taken", "activity"):
                self._refused += not self._insert(found.owner, values)

    def _fits(self, table: str, found: Found) -> bool:
        return len(found.values) == len(self._columns[table])

    def _know(self, seq: int, id: str) -> None:
        self._db.execute("INSERT INTO known VALUES (?, ?) ON CONFLICT DO NOTHING", (seq, id))

    def _take_row(self, found: Found) -> bool:
        """Whether the row was taken, or is there: of two images of one, the one that came further stays."""
        row = dict(zip(self._columns["message"], (found.rowid, *found.values[1:]), strict=True))
        row |= {"claim_token": None, "claimed_ms": None, "claim_void_ms": None}
        if row["state"] == "claimed":
            row |= {"state": "unread", "redelivery": _whole(row["redelivery"]) + 1}
        if self._insert("message", tuple(row.values())):
            return True
        there = self._db.execute("SELECT state, attempts, redelivery FROM message WHERE id = ?", (row["id"],))
        if not there:
            return self._insert("message", tuple((row | {"rseq": _SPARE_RSEQ + _whole(row["seq"])}).values()))
        if _progress(row["state"], row["attempts"], row["redelivery"]) > _progress(*there[0]):
            self._db.execute("DELETE FROM message WHERE id = ?", (row["id"],))
            return self._insert("message", tuple(row.values()))
        return True

    def _insert(self, table: str, values: Sequence[object]) -> bool:
        """Whether the table took it: its own conditions sort out what cannot be."""
        columns = self._columns[table]
        if len(columns) != len(values):
            return False
        try:
            self._db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", tuple(values))
        except sqlite3.IntegrityError:
            return False
        return True

    # --- what becomes of it ---

    def _mend(self) -> None:
        """Let rows and events agree, forget what was true for processes that are gone, renumber what collided."""
        for end in _ENDS:
            gone = ", body = NULL" if end == "expired" else ""
            self._db.execute(
                f"""UPDATE message SET state = '{end}', done_ms = event.at_ms{gone} FROM event
                    WHERE event.message = message.seq AND event.kind = '{end}' AND message.state = 'unread'"""
            )
        self._db.execute(
            """UPDATE message SET retry_ms = 0, hinted_ms = NULL, hint_code = NULL, redelivery = redelivery + ?
               WHERE state = 'unread'""",
            (int(not self._source.is_free_known),),
        )
        for seq, recipient in self._db.execute(
            "SELECT seq, recipient FROM message WHERE rseq >= ? ORDER BY seq", (_SPARE_RSEQ,)
        ):
            self._db.execute(
                """UPDATE message SET rseq = 1 + coalesce((SELECT max(rseq) FROM message AS other
                   WHERE other.recipient = ? AND other.rseq < ?), 0) WHERE seq = ?""",
                (recipient, _SPARE_RSEQ, seq),
            )

    def _judge(self, id: str, files: int) -> None:
        """Leave a row out that is not what its sender sent; `files` is how many it had."""
        row = self._inbox.row(id)
        assert row is not None
        is_whole = row.body is None or (hashlib.sha256(row.body).digest() == row.digest and len(row.body) == row.size)
        is_listed = len(row.attachments) == files
        is_signed = self._verdict is None or not is_listed or self._verdict(row) != "no"
        if not (is_whole and is_signed):
            self._db.execute("DELETE FROM message WHERE id = ?", (id,))
        elif not is_listed:
            self._unverified += 1
            self._db.execute("UPDATE message SET attachments = ? WHERE id = ?", (len(row.attachments), id))

    def _lost(self) -> tuple[tuple[str, ...], int]:
        """The ids of what is missing and may not have been handed off, and how many are missing that had ended."""
        missing = self._db.execute(
            f"""SELECT known.id, EXISTS (SELECT 1 FROM event WHERE event.message = trace.seq AND kind IN {_ENDS})
                FROM ({_TRACES}) AS trace LEFT JOIN known ON known.seq = trace.seq
                WHERE trace.seq NOT IN (SELECT seq FROM message) ORDER BY trace.seq"""
        )
        lost = tuple(id or "" for id, ended in missing if not ended)
        return lost, len(missing) - len(lost)

    def _fill_boxes(self) -> None:
        """Every recipient's count goes on behind the highest number that is known."""
        self._db.execute(
            """INSERT INTO box SELECT recipient, max(generation), max(rseq) FROM message WHERE true GROUP BY recipient
               ON CONFLICT (name) DO UPDATE SET
               generation = max(generation, excluded.generation), rseq = max(rseq, excluded.rseq)"""
        )

    def _columns_of(self, table: str) -> list[str]:
        return [name for _, name, *_ in self._db.execute(f"PRAGMA table_info({table})")]

    def _count(self, condition: str) -> int:
        return int(self._db.execute(f"SELECT count(*) FROM message WHERE {condition}")[0][0])


def _progress(state: Value, attempts: Value, redelivery: Value) -> tuple[bool, int, int]:
    return state in _ENDS, _whole(attempts), _whole(redelivery)


def _whole(value: Value) -> int:
    return value if isinstance(value, int) else 0
