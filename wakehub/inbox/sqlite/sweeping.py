"""The publisher's side of the record: what was not woken for yet, what is over, and what is old."""

from collections.abc import Sequence
from typing import Final

from wakehub.identity.addresses import PUBLISHER, is_reserved
from wakehub.inbox.clock import Now
from wakehub.inbox.rows import EventKind, Header, NewRow, Signer
from wakehub.inbox.sqlite.leases import moment
from wakehub.inbox.sqlite.rows import HEADER, OPEN, UNCLAIMED
from wakehub.inbox.sqlite.storing import Storing
from wakehub.limits import KEEP_HANDED_OFF_SECONDS, MAX_TTL_SECONDS, SWEEP_ROWS
from wakehub.visible import visible

_UNHINTED: Final = f"""SELECT {HEADER} FROM message INDEXED BY message_unhinted
    WHERE {OPEN} AND class = 'normal' AND hinted_ms IS NULL {{}} ORDER BY seq LIMIT ?"""


class Sweeping(Storing):
    """The publisher's half of `Inbox`; its notices of what expired are stored as any row is."""

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
        query = f"""SELECT {HEADER} FROM message INDEXED BY message_open_by_expiry
                    WHERE {UNCLAIMED} AND expires_ms <= :now_ms ORDER BY expires_ms LIMIT :limit"""
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
