"""Leases in the record's SQLite file: the facts that `leases.py` judges (formats.md, Leases).

A lease is stored as one row per name, all of one `acquire` with the same token, so that the name is the key and a
take-over of one name leaves the others. The rules are not written a second time in SQL: statements call them as the
functions `covers` and `is_live`.
"""

import secrets
from collections.abc import Sequence
from typing import Any, Final

from wakehub.errors import BadData
from wakehub.inbox import tenure
from wakehub.inbox.admission import check_name
from wakehub.inbox.clock import Now
from wakehub.inbox.database import Database
from wakehub.inbox.leases import HeldBy, Lease, LeaseEnd, PastLease
from wakehub.processes import ProcessId

_TOKEN_BYTES: Final = 16
_COLUMNS: Final = (
    "name, token, agent_id, pid, started, boot, pid_namespace, session, host, since_ms, renewed_ms, renewed_mono_ms, "
    "status"
)
_PAST: Final = "name, agent_id, pid, host, since_ms, ended_ms, reason, by_pid"

LIVE: Final = (
    "is_live(lease.pid, lease.started, lease.boot, lease.pid_namespace, lease.renewed_ms, lease.renewed_mono_ms,"
    " :now_ms, :now_mono_ms, :now_boot)"
)
"""The condition that a row of `lease` is live; wants the parameters of `moment`."""

COVERS: Final = "covers(lease.name, message.recipient)"
"""The condition that a row of `lease` covers the recipient of a row of `message`."""


def moment(now: Now) -> dict[str, object]:
    """The parameters that `LIVE` wants."""
    return {"now_ms": now.ms, "now_mono_ms": now.mono_ms, "now_boot": now.boot}


class SqliteLeases:
    """The `Leases` of one `Database`; the Protocol says what each method does."""

    def __init__(self, database: Database) -> None:
        self._db = database
        database.add_function("covers", 2, tenure.covers)
        database.add_function("is_live", 9, _is_live)

    def acquire(
        self,
        names: Sequence[str],
        process: ProcessId,
        agent_id: str,
        now: Now,
        *,
        session: str | None = None,
        host: str = "",
        take_over: bool = False,
        status: str = "",
    ) -> Lease | HeldBy:
        wanted = tuple(dict.fromkeys(names))
        if not wanted:
            raise BadData("no name to listen under", remedy="give one with --as")
        for name in wanted:
            check_name(name, "the name")
        lease = Lease(
            wanted,
            secrets.token_bytes(_TOKEN_BYTES),
            agent_id,
            process,
            session or None,
            host,
            now.ms,
            now.ms,
            now.mono_ms,
            status,
        )
        with self._db.transaction():
            self._clamp(now)
            there = {name: found for name in wanted if (found := self._by_name(name)) is not None}
            for name, found in there.items():
                if not (take_over or self._may_replace(found, lease, now)):
                    return HeldBy(name, found, tenure.alternative(name, self._names()))
            for name, found in there.items():
                self._end(name, found, _end_of(found, now) or "displaced", now, by_pid=process.pid)
            self._insert(lease)
        return lease

    def renew(self, token: bytes, now: Now) -> Lease | None:
        with self._db.transaction():
            self._db.execute(
                "UPDATE lease SET renewed_ms = ?, renewed_mono_ms = ? WHERE token = ?", (now.ms, now.mono_ms, token)
            )
            return self._by_token(token)

    def release(self, token: bytes, now: Now) -> None:
        with self._db.transaction():
            if (lease := self._by_token(token)) is not None:
                for name in lease.names:
                    self._end(name, lease, "released", now)

    def find(self, token: bytes) -> Lease | None:
        with self._db.reading():
            return self._by_token(token)

    def holder(self, name: str, now: Now) -> Lease | None:
        with self._db.reading():
            found = self._by_name(name)
            return found if found is not None and _end_of(found, now) is None else None

    def resolve(self, address: str, now: Now) -> Lease | None:
        with self._db.reading():
            holders = (self.holder(name, now) for name in tenure.covering(address))
            return next((lease for lease in holders if lease is not None), None)

    def live(self, now: Now) -> list[Lease]:
        with self._db.reading():
            return [lease for lease in self._all() if _end_of(lease, now) is None]

    def stale(self, now: Now) -> list[Lease]:
        with self._db.reading():
            return [lease for lease in self._all() if _end_of(lease, now) is not None]

    def last_holder(self, address: str, now: Now) -> PastLease | None:
        with self._db.reading():
            ended = [past for name in tenure.covering(address) for past in self._ended(name, now)]
            return max(ended, key=lambda past: past.ended_ms, default=None)

    def lost(self, token: bytes) -> list[PastLease]:
        with self._db.reading():
            found = self._db.execute(f"SELECT {_PAST} FROM past_lease WHERE token = ? ORDER BY seq", (token,))
            return [PastLease(*values) for values in found]

    def sweep(self, now: Now) -> list[PastLease]:
        ended = []
        with self._db.transaction():
            self._clamp(now)
            for lease in self._all():
                if (reason := _end_of(lease, now)) is not None:
                    ended += [self._end(name, lease, reason, now) for name in lease.names]
        return ended

    def _may_replace(self, found: Lease, lease: Lease, now: Now) -> bool:
        is_same_session = lease.session is not None and found.session == lease.session
        return is_same_session or _end_of(found, now) is not None

    def _clamp(self, now: Now) -> None:
        """A renewal in the future was made before the clock was set back; it counts from now."""
        self._db.execute("UPDATE lease SET renewed_ms = :ms WHERE renewed_ms > :ms", {"ms": now.ms})

    def _end(self, name: str, lease: Lease, reason: LeaseEnd, now: Now, *, by_pid: int | None = None) -> PastLease:
        past = _past(name, lease, reason, now, by_pid)
        self._db.execute("DELETE FROM lease WHERE name = ?", (name,))
        self._db.execute(
            f"INSERT INTO past_lease (token, {_PAST}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (lease.token, *(getattr(past, column) for column in _PAST.split(", "))),
        )
        return past

    def _insert(self, lease: Lease) -> None:
        process = lease.process
        for position, name in enumerate(lease.names):
            self._db.execute(
                f"INSERT INTO lease ({_COLUMNS}, position) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    name, lease.token, lease.agent_id,
                    process.pid, process.started, process.boot, process.namespace,
                    lease.session, lease.host, lease.since_ms, lease.renewed_ms, lease.renewed_mono_ms,
                    lease.status, position,
                ),
            )  # fmt: skip

    def _by_name(self, name: str) -> Lease | None:
        found = self._db.execute("SELECT token FROM lease WHERE name = ?", (name,))
        return self._by_token(found[0][0]) if found else None

    def _by_token(self, token: bytes) -> Lease | None:
        rows = self._db.execute(f"SELECT {_COLUMNS} FROM lease WHERE token = ? ORDER BY position", (token,))
        return _lease(rows) if rows else None

    def _all(self) -> list[Lease]:
        by_token: dict[bytes, list[tuple[Any, ...]]] = {}
        for row in self._db.execute(f"SELECT {_COLUMNS} FROM lease ORDER BY token, position"):
            by_token.setdefault(row[1], []).append(row)
        return sorted((_lease(rows) for rows in by_token.values()), key=lambda lease: lease.names)

    def _names(self) -> set[str]:
        return {name for (name,) in self._db.execute("SELECT name FROM lease")}

    def _ended(self, name: str, now: Now) -> list[PastLease]:
        """The last ended lease on exactly `name`, and the one that is still there but no longer live."""
        query = f"SELECT {_PAST} FROM past_lease WHERE name = ? ORDER BY ended_ms DESC, seq DESC LIMIT 1"
        ended = [PastLease(*values) for values in self._db.execute(query, (name,))]
        lease = self._by_name(name)
        if lease is not None and (reason := _end_of(lease, now)) is not None:
            ended.append(_past(name, lease, reason, now, None))
        return ended


def _lease(rows: Sequence[tuple[Any, ...]]) -> Lease:
    _, token, agent_id, pid, started, boot, namespace, *rest = rows[0]
    return Lease(tuple(row[0] for row in rows), token, agent_id, ProcessId(pid, started, boot, namespace), *rest)


def _end_of(lease: Lease, now: Now) -> LeaseEnd | None:
    """Why the lease counts no more, or None when it is live."""
    if tenure.is_live(lease.process, lease.renewed_ms, lease.renewed_mono_ms, now):
        return None
    return "died" if lease.process.is_provably_dead() else "expired"


def _past(name: str, lease: Lease, reason: LeaseEnd, now: Now, by_pid: int | None) -> PastLease:
    """A lease that ran out by itself ended when it was last renewed: later than that, nobody knows of its holder."""
    by_itself = reason in ("died", "expired")
    return PastLease(
        name,
        lease.agent_id,
        lease.process.pid,
        lease.host,
        lease.since_ms,
        lease.renewed_ms if by_itself else now.ms,
        reason,
        None if by_itself else by_pid,
    )


def _is_live(
    pid: int,
    started: str,
    boot: str,
    namespace: int,
    renewed_ms: int,
    renewed_mono_ms: int,
    now_ms: int,
    now_mono_ms: int,
    now_boot: str,
) -> bool:
    process = ProcessId(pid, started, boot, namespace)
    return tenure.is_live(process, renewed_ms, renewed_mono_ms, Now(now_ms, now_mono_ms, now_boot))
