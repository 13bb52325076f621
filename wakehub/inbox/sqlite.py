"""The record in SQLite: `Inbox` over one file that any number of processes share (receive.md §1).

Each state change is one UPDATE whose WHERE holds all of its conditions, the live lease included, and whose RETURNING
says whether it happened; the event is written in the same transaction. Every reading goes through an index that holds
open rows only and is named in the statement, so that a plan which would walk through history fails at once.
"""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from wakehub.identity.addresses import is_reserved
from wakehub.inbox import admission, leases
from wakehub.inbox.clock import Now
from wakehub.inbox.database import Database, Params
from wakehub.inbox.ids import new_id
from wakehub.inbox.signing import row_signing_bytes
from wakehub.inbox.sqlite_leases import COVERS, LIVE, SqliteLeases, moment
from wakehub.inbox.store import (
    PUBLISHER,
    Ack,
    Activity,
    AlreadyStored,
    Attachment,
    BoxCount,
    Event,
    EventKind,
    Guard,
    Header,
    NewRow,
    Row,
    Seal,
    Signer,
)
from wakehub.limits import (
    BACKEND_DEADLINE_SECONDS,
    CLAIM_GRACE_SECONDS,
    CLOCK_DRIFT_SECONDS,
    FAILURES_BEFORE_PASSED,
    KEEP_HANDED_OFF_SECONDS,
    KEEP_TAKEN_IDS_SECONDS,
    MAX_NOTE_BYTES,
    MAX_TTL_SECONDS,
    ROW_RETRY_CAP_SECONDS,
    SWEEP_ROWS,
)
from wakehub.visible import visible

_NO_SUCH_RECIPIENT: Final = 67
_MINUTE_MS: Final = 60_000
_COLUMN_OF: Final = {"group": "group_id", "class_": "class"}
_FIELDS: Final = tuple(name for name in Header.__dataclass_fields__ if name != "attachments")
_HEADER: Final = ", ".join(f"message.{_COLUMN_OF.get(name, name)}" for name in (*_FIELDS, "attachments"))
_ROW: Final = f"{_HEADER}, message.body"

# Written out exactly as in the indexes' own conditions: SQLite takes a partial index only for the very same term.
_OPEN: Final = "message.state IN ('unread', 'claimed')"
# A claim from the future was made before the clock was set back; its end is no longer known, so it has ended.
_VOID: Final = f"""(message.claim_void_ms <= :now_ms
    OR message.claimed_ms > :now_ms + {CLOCK_DRIFT_SECONDS * 1000} OR NOT EXISTS (
    SELECT 1 FROM lease WHERE lease.token = message.claim_token AND {COVERS} AND {LIVE}))"""
# A row whose time is over is nobody's any more, whether or not the publisher has run since to end it.
_IN_TIME: Final = "message.expires_ms > :now_ms"
_UNREAD: Final = f"{_OPEN} AND {_IN_TIME}"
_UNCLAIMED: Final = f"{_OPEN} AND (message.state = 'unread' OR {_VOID})"
_HOLDER: Final = f"(SELECT lease.token FROM lease WHERE {COVERS} AND {LIVE} ORDER BY length(lease.name) DESC LIMIT 1)"
_HELD_BY_TOKEN: Final = f"EXISTS (SELECT 1 FROM lease WHERE lease.token = :token AND {COVERS} AND {LIVE})"
_HOLDER_IS_SESSION: Final = f"""coalesce((SELECT lease.session IS NOT NULL AND lease.session IS :session
    FROM lease WHERE {COVERS} AND {LIVE} ORDER BY length(lease.name) DESC LIMIT 1), 1)"""

_CLAIM: Final = f"""UPDATE message SET state = 'claimed', claim_token = :token, claimed_ms = :now_ms,
    claim_void_ms = :void_ms, redelivery = redelivery + (state = 'claimed')
    WHERE id = :id AND {_UNCLAIMED} AND {_IN_TIME} AND :token = {_HOLDER} RETURNING {_ROW}"""
_ACK: Final = f"""UPDATE message SET state = 'handed_off', done_ms = :now_ms, claim_token = NULL
    WHERE id = :id AND {_OPEN} AND {_HOLDER_IS_SESSION} RETURNING seq, recipient"""
# A next try further ahead than any back-off was set before the clock was set back; it is due.
_HEAD: Final = f"""SELECT {_HEADER} FROM message INDEXED BY message_open
    WHERE recipient = :recipient AND {_UNCLAIMED} AND {_IN_TIME}
      AND (retry_ms <= :now_ms OR retry_ms > :latest_retry_ms) AND {{picked}}
      AND NOT EXISTS (SELECT 1 FROM message AS earlier INDEXED BY message_open_by_sender
        WHERE earlier.recipient = message.recipient AND earlier.sender = message.sender AND earlier.rseq < message.rseq
          AND earlier.state IN ('unread', 'claimed') AND earlier.expires_ms > :now_ms AND earlier.failures < :passed)
    ORDER BY message.rseq LIMIT 1"""
_DUE: Final = f"""SELECT min(CASE state WHEN 'claimed' THEN claim_void_ms ELSE retry_ms END)
    FROM message INDEXED BY message_open WHERE recipient = :recipient AND {_OPEN}
    AND CASE state WHEN 'claimed' THEN claim_void_ms ELSE retry_ms END > :now_ms"""
_NEXT_BOX: Final = f"""SELECT recipient FROM message INDEXED BY message_open
    WHERE recipient > :after AND recipient < :end AND {_OPEN} ORDER BY recipient LIMIT 1"""
_UNHINTED: Final = f"""SELECT {_HEADER} FROM message INDEXED BY message_unhinted
    WHERE {_OPEN} AND class = 'normal' AND hinted_ms IS NULL {{}} ORDER BY seq LIMIT ?"""


class SqliteInbox:
    """The record at one path; the Protocol `Inbox` says what each method does. `SqliteInbox.open` makes one."""

    def __init__(self, database: Database, guard: Guard) -> None:
        self._db = database
        self._guard = guard
        self.leases = SqliteLeases(database)

    @classmethod
    def open(cls, path: Path, *, create: bool = True, guard: Guard | None = None) -> "SqliteInbox":
        """Open the record at `path`; `create` makes it when there is none, and its directory.

        Raises `NoRecord` (not `create`), `Unsafe` (owner, mode), `Misconfigured` (network file system, newer schema),
        `CannotCreate`, `NotStored`, `RecordBusy`, `RecordUnwritable`, `RecordDamaged`.
        """
        return cls(Database.open(path, create=create), guard or Guard())

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- storing ---

    def append(self, new: NewRow | Sequence[NewRow], now: Now) -> list[Row]:
        rows = [new] if isinstance(new, NewRow) else list(new)
        for row in rows:
            admission.check(row, now)
        with self._db.transaction():
            return [self._store(row, now) for row in rows]

    def _store(self, new: NewRow, now: Now) -> Row:
        answered = self._header(new.re) if new.re is not None else None
        hops = answered.hops + 1 if answered is not None else 0
        admission.check_chain(hops, self._guard)
        admission.check_rate(self._stored_within_a_minute(new, now), new, self._guard)
        row = self._insert(new, hops, now)
        if answered is not None and (row.sender, row.recipient) == (answered.recipient, answered.sender):
            self._event(answered.seq, "answered", now, by=row.sender, detail=row.id)
        return row

    def _stored_within_a_minute(self, new: NewRow, now: Now) -> int:
        return self._count(
            """SELECT count(*) FROM (SELECT 1 FROM message INDEXED BY message_pair
               WHERE sender = ? AND recipient = ? AND stored_ms > ? AND stored_ms <= ? LIMIT ?)""",
            (new.sender, new.recipient, now.ms - _MINUTE_MS, now.ms, self._guard.pair_per_minute),
        )

    def _insert(self, new: NewRow, hops: int, now: Now) -> Row:
        self._begin_generation(new.recipient, new.generation, now)
        ((generation, rseq),) = self._db.execute(
            "UPDATE box SET rseq = rseq + 1 WHERE name = ? RETURNING generation, rseq", (new.recipient,)
        )
        admission.check_generation(new, generation)
        values = _fixed_by_sender(new, hops, now) | {
            "rseq": rseq,
            "generation": generation,
            "hops": hops,
            "stored_ms": now.ms,
            "size": len(new.body),
            "origin": new.origin,
            "attachments": len(new.attachments),
            "body": new.body,
        }
        if isinstance(new.signed, Seal):
            self._take(new.signed.id, now)
        if new.arrival is not None:
            self._take(new.arrival.key, now)
        ((seq,),) = self._db.execute(
            f"INSERT INTO message ({', '.join(_COLUMN_OF.get(name, name) for name in values)})"
            f" VALUES ({', '.join('?' * len(values))}) RETURNING seq",
            tuple(values.values()),
        )
        for position, attachment in enumerate(new.attachments):
            self._db.execute(
                "INSERT INTO attachment (message, position, name, size, digest) VALUES (?, ?, ?, ?, ?)",
                (seq, position, attachment.name, attachment.size, attachment.digest),
            )
        self._event(seq, "stored", now, by=new.sender, proof="commit")
        return self._rows("WHERE message.seq = ?", (seq,))[0]

    def _take(self, id: str, now: Now) -> None:
        """Remember an id that came from elsewhere; refuse one that is known, be it of a row or remembered."""
        until = now.ms + KEEP_TAKEN_IDS_SECONDS * 1000
        is_new = self._db.execute("INSERT INTO taken VALUES (?, ?) ON CONFLICT DO NOTHING RETURNING id", (id, until))
        if not is_new or self._header(id) is not None:
            raise AlreadyStored(f"{id} is stored already", why="an id is taken in once", remedy="nothing needs doing")

    def open_box(self, name: str, generation: int, now: Now) -> int:
        admission.check_name(name, "the name")
        with self._db.transaction():
            return self._begin_generation(name, generation, now)

    def _begin_generation(self, name: str, generation: int, now: Now) -> int:
        """Raise the box to `generation`; end what is open of an earlier one. Returns how many rows ended."""
        generation = max(1, generation)
        there = self._db.execute("SELECT generation FROM box WHERE name = ?", (name,))
        if there and there[0][0] >= generation:
            return 0
        self._db.execute(
            "INSERT INTO box VALUES (?, ?, 0) ON CONFLICT (name) DO UPDATE SET generation = excluded.generation",
            (name, generation),
        )
        ended = self._db.execute(
            f"""UPDATE message INDEXED BY message_open SET state = 'failed', done_ms = ?, claim_token = NULL
                WHERE recipient = ? AND {_OPEN} RETURNING seq""",
            (now.ms, name),
        )
        for (seq,) in ended:
            self._event(
                seq, "failed", now, code=_NO_SUCH_RECIPIENT, detail=f"{name} was removed; the name was enrolled anew"
            )
        return len(ended)

    # --- reading ---

    def unread(
        self,
        recipient: str,
        *,
        after: int = 0,
        limit: int = 100,
        senders: Collection[str] | None = None,
        now: Now | None = None,
    ) -> list[Row]:
        picked, parameters = _picked(senders)
        parameters |= {"recipient": recipient, "after": after, "limit": limit, "now_ms": (now or Now.read()).ms}
        with self._db.reading():
            return self._rows(
                f"""INDEXED BY message_open WHERE recipient = :recipient AND rseq > :after AND {_UNREAD} AND {picked}
                    ORDER BY rseq LIMIT :limit""",
                parameters,
            )

    def count_unread(self, recipient: str, *, senders: Collection[str] | None = None, now: Now | None = None) -> int:
        picked, parameters = _picked(senders)
        parameters |= {"recipient": recipient, "now_ms": (now or Now.read()).ms}
        with self._db.reading():
            return self._count(
                f"""SELECT count(*) FROM message INDEXED BY message_open_by_sender
                    WHERE recipient = :recipient AND {_UNREAD} AND {picked}""",
                parameters,
            )

    def boxes_with_unread(self, *, now: Now | None = None) -> list[BoxCount]:
        query = f"""SELECT recipient, count(*), min(created_ms) FROM message INDEXED BY message_open
                    WHERE {_UNREAD} GROUP BY recipient ORDER BY recipient"""
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

    # --- handing off ---

    def next_for(
        self, names: Sequence[str], token: bytes, now: Now, *, senders: Collection[str] | None = None
    ) -> Header | None:
        with self._db.reading():
            heads = [self._head(recipient, now, senders) for recipient in self._recipients(names, token, now)]
            return min((head for head in heads if head is not None), key=lambda head: head.seq, default=None)

    def next_due(self, names: Sequence[str], token: bytes, now: Now) -> int | None:
        with self._db.reading():
            dues = [
                self._db.execute(_DUE, {"recipient": recipient, "now_ms": now.ms})[0][0]
                for recipient in self._recipients(names, token, now)
            ]
            return min((due for due in dues if due is not None), default=None)

    def _head(self, recipient: str, now: Now, senders: Collection[str] | None) -> Header | None:
        picked, parameters = _picked(senders)
        parameters |= moment(now) | {
            "recipient": recipient,
            "latest_retry_ms": now.ms + ROW_RETRY_CAP_SECONDS * 1000,
            "passed": FAILURES_BEFORE_PASSED,
        }
        return next(iter(self._headers(_HEAD.format(picked=picked), parameters)), None)

    def _recipients(self, names: Sequence[str], token: bytes, now: Now) -> list[str]:
        """The recipients among `names` whose rows go to the holder of `token`; of a namespace, those with open rows."""
        found: dict[str, None] = {}
        for name in names:
            found |= dict.fromkeys(self._boxes_under(name) if leases.is_namespace(name) else [name])
        return [recipient for recipient in found if self._goes_to(recipient, token, now)]

    def _goes_to(self, recipient: str, token: bytes, now: Now) -> bool:
        holder = self.leases.resolve(recipient, now)
        return holder is not None and holder.token == token

    def _boxes_under(self, namespace: str) -> list[str]:
        """Recipients under `namespace` with open rows, by one step in the index for each, however many rows it has."""
        found: list[str] = []
        end = namespace[:-1] + chr(ord("/") + 1)
        while step := self._db.execute(_NEXT_BOX, {"after": found[-1] if found else namespace, "end": end}):
            found.append(step[0][0])
        return found

    def claim(self, id: str, token: bytes, now: Now, *, deadline_s: float = BACKEND_DEADLINE_SECONDS) -> Row | None:
        void_ms = now.ms + round((deadline_s + CLAIM_GRACE_SECONDS) * 1000)
        with self._db.transaction():
            claimed = self._db.execute(_CLAIM, {"id": id, "token": token, "void_ms": void_ms, **moment(now)})
            if not claimed:
                return None
            row = self._row_of(claimed[0])
            by, pid = self._listener(row.recipient, token)
            self._event(row.seq, "claimed", now, by=by, detail=f"pid {pid}")
            return row

    def hand_off(self, id: str, token: bytes, proof: str, now: Now, *, woken_by: str | None = None) -> bool:
        with self._db.transaction():
            done = self._settle(id, token, now, "state = 'handed_off', done_ms = :now_ms")
            for seq, recipient in done:
                by, _ = self._listener(recipient, token)
                self._event(seq, "handed_off", now, by=by, proof=proof, woken_by=woken_by)
                self._count_activity(recipient, "handed_off", now, woken_by or "")
            return bool(done)

    def attempt_failed(
        self,
        id: str,
        token: bytes,
        reason: str,
        retry_ms: int,
        now: Now,
        *,
        busy: bool = False,
        in_doubt: bool = False,
    ) -> bool:
        changes = """state = 'unread', attempts = attempts + 1, failures = failures + :failure,
                     redelivery = redelivery + :in_doubt, retry_ms = :retry_ms"""
        with self._db.transaction():
            done = self._settle(
                id, token, now, changes, failure=int(not busy), in_doubt=int(in_doubt), retry_ms=retry_ms
            )
            for seq, recipient in done:
                by, _ = self._listener(recipient, token)
                self._event(seq, "attempt_failed", now, by=by, detail=reason, retry_ms=retry_ms)
            return bool(done)

    def fail(self, id: str, token: bytes, code: int, reason: str, now: Now) -> bool:
        with self._db.transaction():
            done = self._settle(id, token, now, "state = 'failed', done_ms = :now_ms")
            for seq, recipient in done:
                by, _ = self._listener(recipient, token)
                self._event(seq, "failed", now, by=by, code=code, detail=reason)
            return bool(done)

    def release(self, id: str, token: bytes, now: Now, *, in_doubt: bool = False) -> bool:
        with self._db.transaction():
            changes = "state = 'unread', redelivery = redelivery + :in_doubt"
            return bool(self._settle(id, token, now, changes, in_doubt=int(in_doubt)))

    def _settle(self, id: str, token: bytes, now: Now, changes: str, **parameters: object) -> list[tuple[int, str]]:
        """End the claim that `token` has on a row with `changes`; its seq and recipient, or nothing."""
        return [
            (seq, recipient)
            for seq, recipient in self._db.execute(
                f"""UPDATE message SET {changes}, claim_token = NULL
                    WHERE id = :id AND state = 'claimed' AND claim_token = :token AND {_HELD_BY_TOKEN}
                    RETURNING seq, recipient""",
                {"id": id, "token": token, **moment(now), **parameters},
            )
        ]

    def _listener(self, recipient: str, token: bytes) -> tuple[str, int]:
        """The name under which the holder of `token` listens for `recipient`, and its pid."""
        query = """SELECT name, pid FROM lease WHERE token = ? AND covers(name, ?) ORDER BY length(name) DESC LIMIT 1"""
        ((name, pid),) = self._db.execute(query, (token, recipient))
        return name, pid

    def ack(self, ids: Sequence[str], by: str, session: str | None, now: Now) -> list[Ack]:
        with self._db.transaction():
            return [self._ack(id, by, session, now) for id in ids]

    def _ack(self, id: str, by: str, session: str | None, now: Now) -> Ack:
        done = self._db.execute(_ACK, {"id": id, "session": session, **moment(now)})
        for seq, recipient in done:
            self._event(seq, "handed_off", now, by=by, proof="manual")
            self._count_activity(recipient, "handed_off", now)
            return Ack(id, "acknowledged", "handed_off")
        header = self._header(id)
        if header is None:
            return Ack(id, "unknown")
        if not header.is_open:
            return Ack(id, "already", header.state)
        return Ack(id, "held", header.state, self.leases.resolve(header.recipient, now))

    # --- the publisher's side ---

    def unhinted(self, limit: int = SWEEP_ROWS, *, refused: bool = False) -> list[Header]:
        with self._db.reading():
            return self._headers(_UNHINTED.format("" if refused else "AND hint_code IS NULL"), (limit,))

    def record_hint(self, ids: Sequence[str], code: int | None, now: Now, *, detail: str = "") -> None:
        kind: EventKind = "hinted" if code is None else "hint_refused"
        change = "hinted_ms = coalesce(hinted_ms, :ms), hint_code = NULL" if code is None else "hint_code = :code"
        with self._db.transaction():
            for id in ids:
                found = self._db.execute(
                    f"UPDATE message SET {change} WHERE id = :id RETURNING seq, recipient",
                    {"id": id, "ms": now.ms, "code": code},
                )
                for seq, recipient in found:
                    proof = "pong" if code is None else ""
                    self._event(seq, kind, now, by="hub", proof=proof, code=code, detail=detail)
                    if code is None:
                        self._count_activity(recipient, "hinted", now)

    def expire(self, now: Now, *, signed: Signer | None = None, limit: int = SWEEP_ROWS) -> list[Header]:
        query = f"""SELECT {_HEADER} FROM message INDEXED BY message_open_by_expiry
                    WHERE {_UNCLAIMED} AND expires_ms <= :now_ms ORDER BY expires_ms LIMIT :limit"""
        with self._db.transaction():
            over = self._headers(query, {**moment(now), "limit": limit})
            for header in over:
                self._expire(header, signed, now)
            return [expired for header in over if (expired := self._header(header.id)) is not None]

    def _expire(self, header: Header, signed: Signer | None, now: Now) -> None:
        self._db.execute(
            "UPDATE message SET state = 'expired', done_ms = ?, body = NULL, claim_token = NULL WHERE seq = ?",
            (now.ms, header.seq),
        )
        self._event(header.seq, "expired", now, by=PUBLISHER)
        if is_reserved(header.sender):
            return
        text = f"expired: {header.id} to {visible(header.recipient)} was not taken within its time; it is gone"
        notice = NewRow(
            PUBLISHER,
            header.sender,
            text.encode(),
            re=header.id,
            class_="fyi",
            ttl_s=MAX_TTL_SECONDS,
            signed=signed,
            generation=self._generation(header.sender),
        )
        self._insert(notice, header.hops + 1, now)

    def _generation(self, name: str) -> int:
        found = self._db.execute("SELECT generation FROM box WHERE name = ?", (name,))
        return int(found[0][0]) if found else 1

    def prune(self, now: Now, *, keep_s: int = KEEP_HANDED_OFF_SECONDS, limit: int = SWEEP_ROWS) -> int:
        before = now.ms - keep_s * 1000
        with self._db.transaction():
            self._db.execute("DELETE FROM taken WHERE until_ms <= ?", (now.ms,))
            self._db.execute(
                """DELETE FROM past_lease WHERE ended_ms <= ? AND EXISTS (SELECT 1 FROM past_lease AS later
                   WHERE later.name = past_lease.name AND later.seq > past_lease.seq)""",
                (before,),
            )
            gone = self._db.execute(
                """DELETE FROM message WHERE seq IN (SELECT seq FROM message INDEXED BY message_done
                   WHERE done_ms IS NOT NULL AND done_ms <= ? ORDER BY done_ms LIMIT ?) RETURNING id, expires_ms""",
                (before, limit),
            )
            for id, expires_ms in gone:  # whose time is not over can still be in a spool, and must not be stored anew
                if expires_ms > now.ms:
                    self._db.execute("INSERT INTO taken VALUES (?, ?) ON CONFLICT DO NOTHING", (id, expires_ms))
            return len(gone)

    # --- rows and events ---

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
            (seq, kind, now.ms, by, proof, code, _note(detail), retry_ms, woken_by),
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
        return next(iter(self._headers(f"SELECT {_HEADER} FROM message WHERE id = ?", (id,))), None)

    def _headers(self, query: str, parameters: Params) -> list[Header]:
        return [Header(**self._fields(values)) for values in self._db.execute(query, parameters)]

    def _rows(self, tail: str, parameters: Params) -> list[Row]:
        return [self._row_of(values) for values in self._db.execute(f"SELECT {_ROW} FROM message {tail}", parameters)]

    def _row_of(self, values: tuple[Any, ...]) -> Row:
        return Row(**self._fields(values[:-1]), body=values[-1])

    def _fields(self, values: tuple[Any, ...]) -> dict[str, Any]:
        """The fields of a `Header`; the last value is the number of attachments, fetched only when there are any."""
        fields = dict(zip(_FIELDS, values[:-1], strict=True))
        query = "SELECT name, size, digest FROM attachment WHERE message = ? ORDER BY position"
        found = self._db.execute(query, (fields["seq"],)) if values[-1] else []
        return fields | {"attachments": tuple(Attachment(*attachment) for attachment in found)}


def _fixed_by_sender(new: NewRow, hops: int, now: Now) -> dict[str, object]:
    """What the sender's signature covers, and the signature: made here, or brought along in a `Seal`."""
    seal = new.signed if isinstance(new.signed, Seal) else None
    signer = new.signed if isinstance(new.signed, Signer) else None
    signed_hops = seal.hops if seal else min(hops, 255)
    made_ms = min(new.arrival.created_ms, now.ms) if new.arrival else now.ms
    covered: dict[str, Any] = {
        "id": seal.id if seal else new_id(now.ms),
        "sender": new.sender,
        "recipient": new.recipient,
        "re": new.re,
        "group": new.group,
        "class_": new.class_,
        "created_ms": seal.created_ms if seal else made_ms,
        "expires_ms": seal.expires_ms if seal else now.ms + new.ttl_s * 1000,
        "media_type": new.media_type,
        "digest": hashlib.sha256(new.body).digest(),
    }
    signature = seal.signature if seal else None
    if signer is not None:
        signature = signer.sign(row_signing_bytes(**covered, hops=signed_hops, attachments=new.attachments))
    key_id = new.signed.key_id if new.signed else None
    return covered | {"signed_hops": signed_hops, "key_id": key_id, "signature": signature}


def _shared_length(a: str, b: str) -> int:
    """How many characters `a` and `b` begin with in common."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _activity(name: str, rows: Sequence[tuple[Any, ...]]) -> Activity:
    """What the rows of `activity` for one recipient say together."""

    def last(of: EventKind) -> int | None:
        return max((last_ms for _, kind, _, _, last_ms in rows if kind == of), default=None)

    woken_by = {woken_by: times for _, _, woken_by, times, _ in rows if woken_by}
    return Activity(name, last("hinted"), last("handed_off"), woken_by)


def _picked(senders: Collection[str] | None) -> tuple[str, dict[str, object]]:
    """The condition that a row is from one of `senders` (None: from anyone), and its parameters."""
    if senders is None:
        return "1", {}
    names = {f"sender_{number}": sender for number, sender in enumerate(sorted(set(senders)))}
    return f"message.sender IN ({', '.join(f':{name}' for name in names) or 'NULL'})", dict(names)


def _note(text: str) -> str:
    """A reason as it is kept in an event: at most 512 bytes, since it may come from a program's output."""
    return text.encode(errors="backslashreplace")[:MAX_NOTE_BYTES].decode(errors="ignore")
