"""A state machine over rows and leases: never lost, never acknowledged without the live token, never out of order.

The model is written from the specification in plain dictionaries. It says of every operation beforehand whether it may
succeed; the record must agree, and after each step hold exactly the rows that the model holds.
"""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule
from inbox_conformance import START

from wakehub.identity.addresses import PUBLISHER
from wakehub.inbox.admission import Guard
from wakehub.inbox.clock import Now
from wakehub.inbox.leases import HeldBy, Lease
from wakehub.inbox.rows import NewRow, furthest
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.processes import ProcessId

_RECIPIENTS = ("alice", "acme/x", "acme/eng/y")
_NAMES = (*_RECIPIENTS, "acme/", "acme/eng/")
_DEAD = ProcessId.own()._replace(started="1")
_TTL_S = 200


@dataclass
class Held:
    """What the model knows of one token: its names, when it was renewed, and whether its process lives."""

    names: set[str]
    renewed_ms: int
    session: str | None
    alive: bool = True


@dataclass
class Expected:
    """What the model knows of one row."""

    id: str
    sender: str
    recipient: str
    body: bytes
    rseq: int
    expires_ms: int
    state: str = "unread"
    token: bytes | None = None
    void_ms: int = 0
    retry_ms: int = 0
    failures: int = 0
    redelivery: int = 0


class InboxMachine(RuleBasedStateMachine):
    tokens = Bundle("tokens")
    ids = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.place = tempfile.TemporaryDirectory()
        path = Path(self.place.name) / "state" / "record.db"
        self.inbox = SqliteInbox.open(path, guard=Guard(pair_per_minute=10_000))
        self.elsewhere = SqliteInbox.open(path)
        self.now: Now = START
        self.held: dict[bytes, Held] = {}
        self.rows: dict[str, Expected] = {}

    def teardown(self) -> None:
        self.inbox.close()
        self.elsewhere.close()
        self.place.cleanup()

    # --- the model's own rules ---

    def is_live(self, token: bytes | None) -> bool:
        held = self.held.get(token or b"")
        return held is not None and held.alive and self.now.ms - held.renewed_ms < 300_000

    def covers(self, token: bytes | None, recipient: str) -> bool:
        names = self.held[token].names if token in self.held else set()
        return any(name == recipient or (name[-1] == "/" and recipient.startswith(name)) for name in names)

    def holder(self, recipient: str) -> bytes | None:
        parts = recipient.split("/")
        for name in [recipient, *("/".join(parts[:depth]) + "/" for depth in range(len(parts) - 1, 0, -1))]:
            for token, held in self.held.items():
                if name in held.names and self.is_live(token):
                    return token
        return None

    def is_void(self, row: Expected) -> bool:
        alive = self.is_live(row.token) and self.covers(row.token, row.recipient)
        return not alive or row.void_ms <= self.now.ms

    def is_free(self, row: Expected) -> bool:
        return row.state == "unread" or (row.state == "claimed" and self.is_void(row))

    def is_open(self, row: Expected) -> bool:
        return row.state in ("unread", "claimed")

    def blocked(self, row: Expected) -> bool:
        return any(
            (earlier.sender, earlier.recipient) == (row.sender, row.recipient)
            and earlier.rseq < row.rseq
            and self.is_open(earlier)
            and earlier.expires_ms > self.now.ms
            and earlier.failures < 3
            for earlier in self.rows.values()
        )

    def candidates(self, token: bytes) -> list[str]:
        """The ids that `next_for` may give for every name of the model, in the order of storing."""
        return [
            row.id
            for row in self.rows.values()
            if self.holder(row.recipient) == token
            and self.is_free(row)
            and row.expires_ms > self.now.ms
            and row.retry_ms <= self.now.ms
            and not self.blocked(row)
        ]

    def may_settle(self, row: Expected, token: bytes) -> bool:
        return (
            row.state == "claimed" and row.token == token and self.is_live(token) and self.covers(token, row.recipient)
        )

    def settled(self, id: str, token: bytes, did: bool, state: str, **changes: object) -> None:
        row = self.rows[id]
        assert did == self.may_settle(row, token)
        if did:
            self.rows[id] = replace(row, state=state, token=None, **changes)  # type: ignore[arg-type]

    # --- what can happen ---

    @rule(target=ids, sender=st.sampled_from("bc"), recipients=st.lists(st.sampled_from(_RECIPIENTS), max_size=3))
    def send(self, sender: str, recipients: list[str]) -> object:
        new = [NewRow(sender, to, f"{len(self.rows)}".encode(), ttl_s=_TTL_S) for to in recipients]
        stored = self.inbox.append(new, self.now)
        for row in stored:
            rseq = 1 + sum(other.recipient == row.recipient for other in self.rows.values())
            self.rows[row.id] = Expected(row.id, sender, row.recipient, row.body or b"", rseq, row.expires_ms)
        return multiple(*(row.id for row in stored))

    @rule(
        target=tokens,
        names=st.lists(st.sampled_from(_NAMES), min_size=1, max_size=2, unique=True),
        session=st.sampled_from([None, "S"]),
        take_over=st.booleans(),
    )
    def acquire(self, names: list[str], session: str | None, take_over: bool) -> object:
        blocking = [
            token
            for token, held in self.held.items()
            if held.names & set(names)
            and self.is_live(token)
            and not take_over
            and (session is None or held.session != session)
        ]
        got = self.elsewhere.leases.acquire(
            names, ProcessId.own(), names[0], self.now, session=session, take_over=take_over
        )
        assert isinstance(got, HeldBy) == bool(blocking)
        if not isinstance(got, Lease):
            return multiple()
        for held in self.held.values():
            held.names -= set(names)
        self.held[got.token] = Held(set(names), self.now.ms, session)
        return got.token

    @rule(token=tokens)
    def renew(self, token: bytes) -> None:
        held = self.held[token]
        renewed = self.inbox.leases.renew(token, self.now)
        assert set(renewed.names if renewed else ()) == held.names
        held.renewed_ms = self.now.ms

    @rule(token=tokens)
    def give_up(self, token: bytes) -> None:
        self.inbox.leases.release(token, self.now)
        self.held[token].names.clear()

    @rule(token=tokens)
    def die(self, token: bytes) -> None:
        """The process is gone: from now on the record sees a start time that is not that of its pid."""
        with self.inbox._db.transaction():
            self.inbox._db.execute("UPDATE lease SET started = ? WHERE token = ?", (_DEAD.started, token))
        self.held[token].alive = False

    @rule()
    def sweep(self) -> None:
        self.inbox.leases.sweep(self.now)
        for token, held in self.held.items():
            if not self.is_live(token):
                held.names.clear()

    @rule(seconds=st.sampled_from([1, 10, 61, 301]))
    def wait(self, seconds: int) -> None:
        self.now = self.now.later(seconds * 1000)

    @rule(token=tokens)
    def look(self, token: bytes) -> None:
        head = self.inbox.next_for(_NAMES, token, self.now)
        assert ([head.id] if head else []) == self.candidates(token)[:1]

    @rule(token=tokens)
    def take_the_next(self, token: bytes) -> None:
        head = self.inbox.next_for(_NAMES, token, self.now)
        if head is not None:
            self.claim(head.id, token)
            assert self.rows[head.id].token == token

    @rule(id=ids, token=tokens)
    def claim(self, id: str, token: bytes) -> None:
        row = self.rows[id]
        may = self.is_free(row) and row.expires_ms > self.now.ms and self.holder(row.recipient) == token
        claimed = self.inbox.claim(id, token, self.now)
        assert (claimed is not None) == may
        if claimed is not None:
            redelivery = row.redelivery + (row.state == "claimed")
            assert (claimed.body, claimed.redelivery) == (row.body, redelivery)
            self.rows[id] = replace(
                row, state="claimed", token=token, void_ms=self.now.ms + 60_000, redelivery=redelivery
            )

    @rule(id=ids, token=tokens)
    def hand_off(self, id: str, token: bytes) -> None:
        self.settled(id, token, self.inbox.hand_off(id, token, "flushed", self.now), "handed_off")

    @rule(id=ids)
    def hand_off_as_claimed(self, id: str) -> None:
        self.hand_off(id, self.rows[id].token or b"?" * 16)

    @rule(id=ids, token=tokens)
    def fail(self, id: str, token: bytes) -> None:
        self.settled(id, token, self.inbox.fail(id, token, 65, "never", self.now), "failed")

    @rule(id=ids, in_doubt=st.booleans())
    def put_back(self, id: str, in_doubt: bool) -> None:
        row, token = self.rows[id], self.rows[id].token or b"?" * 16
        did = self.inbox.release(id, token, self.now, in_doubt=in_doubt)
        self.settled(id, token, did, "unread", redelivery=row.redelivery + in_doubt)

    @rule(id=ids, busy=st.booleans(), seconds=st.sampled_from([0, 5, 60]))
    def attempt_failed(self, id: str, busy: bool, seconds: int) -> None:
        row, token = self.rows[id], self.rows[id].token or b"?" * 16
        retry_ms = self.now.ms + seconds * 1000
        did = self.inbox.attempt_failed(id, token, "no", retry_ms, self.now, busy=busy)
        self.settled(id, token, did, "unread", retry_ms=retry_ms, failures=row.failures + (not busy))

    @rule(id=ids, session=st.sampled_from([None, "S"]))
    def acknowledge_by_hand(self, id: str, session: str | None) -> None:
        row, holder = self.rows[id], self.holder(self.rows[id].recipient)
        (ack,) = self.inbox.ack([id], "hand", session, self.now)
        allowed = holder is None or (session is not None and self.held[holder].session == session)
        expected = "already" if not self.is_open(row) else "acknowledged" if allowed else "held"
        assert ack.outcome == expected
        if expected == "acknowledged":
            self.rows[id] = replace(row, state="handed_off", token=None)

    @rule()
    def expire(self) -> None:
        due = {row.id for row in self.rows.values() if self.is_free(row) and row.expires_ms <= self.now.ms}
        expired = {row.id for row in self.inbox.expire(self.now) if row.sender != PUBLISHER}
        assert expired == due
        for id in due:
            self.rows[id] = replace(self.rows[id], state="expired", token=None)

    # --- what must always hold ---

    @invariant()
    def no_row_is_lost_or_changed_by_itself(self) -> None:
        for expected in self.rows.values():
            row = self.elsewhere.row(expected.id)
            assert row is not None
            assert (row.state, row.rseq, row.redelivery) == (expected.state, expected.rseq, expected.redelivery)
            assert row.body == (None if expected.state == "expired" else expected.body)

    @invariant()
    def what_is_open_and_in_time_is_unread(self) -> None:
        for recipient in _RECIPIENTS:
            expected = [
                row.id
                for row in self.rows.values()
                if row.recipient == recipient and self.is_open(row) and row.expires_ms > self.now.ms
            ]
            assert [row.id for row in self.elsewhere.unread(recipient, now=self.now)] == expected
            assert self.elsewhere.count_unread(recipient, now=self.now) == len(expected)

    @invariant()
    def receipts_say_what_happened(self) -> None:
        for row in self.rows.values():
            if not self.is_open(row):
                assert furthest(self.elsewhere.events(row.id)) == row.state


TestInboxMachine = InboxMachine.TestCase
TestInboxMachine.settings = settings(
    max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
