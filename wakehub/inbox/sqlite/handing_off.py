"""From a claim to its end: what a listener does with the rows of its names, and who acknowledges by hand."""

from collections.abc import Collection, Sequence
from typing import Final

from wakehub.inbox.clock import Now
from wakehub.inbox.rows import Header, Row
from wakehub.inbox.sqlite.leases import COVERS, LIVE, moment
from wakehub.inbox.sqlite.rows import HEADER, IN_TIME, OPEN, ROW, UNCLAIMED, SqliteRows, note, picked_senders
from wakehub.inbox.store import Ack
from wakehub.inbox.tenure import is_namespace
from wakehub.limits import (
    BACKEND_DEADLINE_SECONDS,
    CLAIM_GRACE_SECONDS,
    FAILURES_BEFORE_PASSED,
    ROW_RETRY_CAP_SECONDS,
    SWEEP_ROWS,
)

_HOLDER: Final = f"(SELECT lease.token FROM lease WHERE {COVERS} AND {LIVE} ORDER BY length(lease.name) DESC LIMIT 1)"
_HELD_BY_TOKEN: Final = f"EXISTS (SELECT 1 FROM lease WHERE lease.token = :token AND {COVERS} AND {LIVE})"
_HOLDER_IS_SESSION: Final = f"""coalesce((SELECT lease.session IS NOT NULL AND lease.session IS :session
    FROM lease WHERE {COVERS} AND {LIVE} ORDER BY length(lease.name) DESC LIMIT 1), 1)"""

_CLAIM: Final = f"""UPDATE message SET state = 'claimed', claim_token = :token, claimed_ms = :now_ms,
    claim_void_ms = :void_ms, redelivery = redelivery + (state = 'claimed')
    WHERE id = :id AND {UNCLAIMED} AND {IN_TIME} AND :token = {_HOLDER} RETURNING {ROW}"""
_ACK: Final = f"""UPDATE message SET state = 'handed_off', done_ms = :now_ms, claim_token = NULL
    WHERE id = :id AND {OPEN} AND {_HOLDER_IS_SESSION} RETURNING seq, recipient"""
# A next try further ahead than any back-off was set before the clock was set back; it is due.
_HEAD: Final = f"""SELECT {HEADER} FROM message INDEXED BY message_open
    WHERE recipient = :recipient AND {UNCLAIMED} AND {IN_TIME}
      AND (retry_ms <= :now_ms OR retry_ms > :latest_retry_ms) AND {{picked}}
      AND NOT EXISTS (SELECT 1 FROM message AS earlier INDEXED BY message_open_by_sender
        WHERE earlier.recipient = message.recipient AND earlier.sender = message.sender AND earlier.rseq < message.rseq
          AND earlier.state IN ('unread', 'claimed') AND earlier.expires_ms > :now_ms AND earlier.failures < :passed)
    ORDER BY message.rseq LIMIT 1"""
_DUE: Final = f"""SELECT min(CASE state WHEN 'claimed' THEN claim_void_ms ELSE retry_ms END)
    FROM message INDEXED BY message_open WHERE recipient = :recipient AND {OPEN}
    AND CASE state WHEN 'claimed' THEN claim_void_ms ELSE retry_ms END > :now_ms"""
_LEFT: Final = f"""SELECT id, seq FROM message INDEXED BY message_open
    WHERE recipient = :recipient AND {UNCLAIMED} AND {IN_TIME} AND {{picked}} AND :reason IS NOT (
        SELECT detail FROM event WHERE event.message = message.seq AND kind = 'attempt_failed'
        AND at_ms >= (SELECT since_ms FROM lease WHERE token = :token LIMIT 1) ORDER BY event.seq DESC LIMIT 1)
    ORDER BY rseq LIMIT :limit"""
_NEXT_BOX: Final = f"""SELECT recipient FROM message INDEXED BY message_open
    WHERE recipient > :after AND recipient < :end AND {OPEN} ORDER BY recipient LIMIT 1"""


class HandingOff(SqliteRows):
    """The listener's half of `Inbox`."""

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
        picked, parameters = picked_senders(senders)
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
            found |= dict.fromkeys(self._boxes_under(name) if is_namespace(name) else [name])
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

    def leave(
        self, recipient: str, token: bytes, reason: str, now: Now, *, senders: Collection[str] | None = None
    ) -> list[str]:
        picked, parameters = picked_senders(senders)
        parameters |= moment(now) | {
            "recipient": recipient,
            "token": token,
            "reason": note(reason),
            "limit": SWEEP_ROWS,
        }
        left = _LEFT.format(picked=picked)
        with self._db.reading():  # most often there is nothing to enter, and no need for a lock
            if not self._goes_to(recipient, token, now) or not self._db.execute(left, parameters):
                return []
        with self._db.transaction():
            if not self._goes_to(recipient, token, now):
                return []
            rows = self._db.execute(left, parameters)
            by, _ = self._listener(recipient, token)
            for _, seq in rows:
                self._event(seq, "attempt_failed", now, by=by, detail=reason)
            return [id for id, _ in rows]

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
