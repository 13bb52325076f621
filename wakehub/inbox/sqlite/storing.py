"""Rows into the record: what a sender does, and how a name's enrolments follow one another."""

import hashlib
from collections.abc import Sequence
from typing import Any, Final

from wakehub.inbox import admission
from wakehub.inbox.clock import Now
from wakehub.inbox.ids import new_id
from wakehub.inbox.refusals import AlreadyStored
from wakehub.inbox.rows import NewRow, Row, Seal, Signer
from wakehub.inbox.signing import row_signing_bytes
from wakehub.inbox.sqlite.rows import COLUMN_OF, OPEN, SqliteRows
from wakehub.limits import KEEP_TAKEN_IDS_SECONDS

_NO_SUCH_RECIPIENT: Final = 67
_MINUTE_MS: Final = 60_000


class Storing(SqliteRows):
    """The storing half of `Inbox`."""

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
            f"INSERT INTO message ({', '.join(COLUMN_OF.get(name, name) for name in values)})"
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
                WHERE recipient = ? AND {OPEN} RETURNING seq""",
            (now.ms, name),
        )
        for (seq,) in ended:
            self._event(
                seq, "failed", now, code=_NO_SUCH_RECIPIENT, detail=f"{name} was removed; the name was enrolled anew"
            )
        return len(ended)


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
