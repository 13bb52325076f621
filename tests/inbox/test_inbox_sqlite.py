"""The record in SQLite: the conformance of `Inbox`, and what only this implementation promises."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from inbox_conformance import START, InboxConformance, at, listen

from wakehub.inbox.admission import Guard
from wakehub.inbox.rows import NewRow
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.inbox.store import Inbox


class SqliteStore:
    def __init__(self, path: Path, opened: ExitStack) -> None:
        self._path = path
        self._opened = opened

    def open(self, guard: Guard | None = None) -> Inbox:
        return self._opened.enter_context(SqliteInbox.open(self._path, guard=guard))


class TestConformance(InboxConformance):
    @pytest.fixture
    def store(self, record: Path) -> Iterator[SqliteStore]:
        with ExitStack() as opened:
            yield SqliteStore(record, opened)


# --- no operation pays for history ---

_HISTORY = 5000
_LONG_HISTORY = 200_000
_FILL = """
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :rows)
INSERT INTO message (id, sender, recipient, rseq, generation, class, hops, signed_hops, created_ms, expires_ms,
                     stored_ms, media_type, size, digest, attachments, origin, state, done_ms, hinted_ms, body)
SELECT printf('old_%026d', i), 'bob', 'acme/alice', i, 1, 'normal', 0, 0, :now, :now + 86400000, :now, 'text/plain', 2,
       zeroblob(32), 0, 'local', 'handed_off', :now, :now, x'6869' FROM n
"""


def fill(inbox: SqliteInbox, rows: int = _LONG_HISTORY) -> None:
    """Give `acme/alice` a history of handed-off rows with their events, an hour before the tests begin."""
    began = START.ms - 3_600_000
    with inbox._db.transaction():
        inbox._db.execute(_FILL, {"rows": rows, "now": began})
        for kind in ("stored", "handed_off"):
            inbox._db.execute(
                """INSERT INTO event (message, kind, at_ms, by, proof, detail)
                   SELECT seq, ?, ?, 'bob', '', '' FROM message""",
                (kind, began),
            )
        inbox._db.execute("INSERT INTO activity VALUES ('acme/alice', 'handed_off', '', ?, ?)", (rows, began))
        inbox._db.execute("INSERT INTO box VALUES ('acme/alice', 1, ?)", (rows,))


def operate(inbox: SqliteInbox) -> Iterator[str]:
    """One of every operation that a sender, a listener or the publisher does; yields its name before each."""
    yield "append"
    row, late, *_ = inbox.append([NewRow("bob", "acme/alice", b"hi", ttl_s=60) for _ in range(5)], START)
    yield "acquire"
    lease = listen(inbox, "acme/")
    yield "unread"
    inbox.unread("acme/alice", now=START)
    yield "count_unread"
    inbox.count_unread("acme/alice", senders=["bob"], now=START)
    yield "boxes_with_unread"
    inbox.boxes_with_unread(now=START)
    yield "unhinted"
    inbox.unhinted()
    yield "record_hint"
    inbox.record_hint([row.id], None, START)
    yield "next_for"
    assert inbox.next_for(["acme/"], lease.token, START)
    yield "next_due"
    inbox.next_due(["acme/"], lease.token, START)
    yield "claim"
    assert inbox.claim(row.id, lease.token, START)
    yield "hand_off"
    assert inbox.hand_off(row.id, lease.token, "flushed", START)
    yield "claim again"
    assert inbox.claim(late.id, lease.token, START)
    yield "attempt_failed"
    assert inbox.attempt_failed(late.id, lease.token, "no", at(1).ms, START)
    yield "answer"
    inbox.append(NewRow("acme/alice", "bob", b"yes", re=row.id), START)
    yield "ack"
    inbox.ack([late.id], "alice", None, START)
    yield "row and events"
    inbox.row(row.id), inbox.events(row.id)
    yield "near_ids"
    assert inbox.near_ids(row.id[:20])
    yield "activity"
    assert inbox.activity()
    yield "expire"
    assert inbox.expire(at(60))
    yield "prune"
    assert inbox.prune(at(60), keep_s=0, limit=1) == 1
    yield "open_box"
    inbox.open_box("acme/alice", 2, START)


def steps(inbox: SqliteInbox) -> dict[str, int]:
    """How many instructions of SQLite's virtual machine each operation costs; the same on every machine."""
    cost: dict[str, int] = {}
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    inbox._db._connection.set_progress_handler(step, 1)
    name = ""
    for following in operate(inbox):
        cost[name] = count
        name, count = following, 0
    return {**cost, name: count}


def test_no_operation_costs_more_after_200_000_hand_offs(tmp_path: Path) -> None:
    with (
        SqliteInbox.open(tmp_path / "new" / "record.db") as new,
        SqliteInbox.open(tmp_path / "old" / "record.db") as old,
    ):
        fill(old)
        cost_new, cost_old = steps(new), steps(old)
    assert len(cost_new) == 22
    assert {name: cost for name, cost in cost_old.items() if cost > cost_new[name] * 1.1} == {}


def take(inbox: SqliteInbox, token: bytes) -> None:
    """What a listener does when it is woken for one message, from looking to waiting again."""
    assert inbox.leases.find(token)
    head = inbox.next_for(["acme/"], token, START)
    assert head is not None
    assert inbox.claim(head.id, token, START)
    assert inbox.leases.find(token)
    assert inbox.hand_off(head.id, token, "flushed", START, woken_by="wake")
    assert inbox.next_for(["acme/"], token, START) is None
    assert inbox.next_due(["acme/"], token, START) is None


def cost_of_listening(inbox: SqliteInbox) -> tuple[int, int, list[str]]:
    """Instructions of SQLite's virtual machine, statements, and the steps of their plans, of one `take`."""
    inbox.append(NewRow("bob", "acme/alice", b"hi"), START)
    lease = listen(inbox, "acme/")
    connection, seen, instructions = inbox._db._connection, [], 0

    def step() -> int:
        nonlocal instructions
        instructions += 1
        return 0

    connection.set_trace_callback(seen.append)
    connection.set_progress_handler(step, 1)
    take(inbox, lease.token)
    connection.set_progress_handler(None, 0)
    connection.set_trace_callback(None)
    plans = [
        detail
        for statement in seen
        if statement.split()[0] in ("SELECT", "UPDATE", "INSERT", "DELETE")
        for *_, detail in connection.execute(f"EXPLAIN QUERY PLAN {statement}")
    ]
    return instructions, len(seen), plans


def test_listening_costs_the_same_after_200_000_hand_offs(tmp_path: Path) -> None:
    """As many statements, as much work in them, and each finds its rows by a key or an index of open rows.

    What is looked through or sorted is at most the leases that are held, which history does not add to.
    """
    with (
        SqliteInbox.open(tmp_path / "new" / "record.db") as new,
        SqliteInbox.open(tmp_path / "old" / "record.db") as old,
    ):
        fill(old)
        fresh, after = cost_of_listening(new), cost_of_listening(old)
    assert after[0] <= fresh[0] * 1.1
    assert after[1:] == fresh[1:]
    plans = set(after[2])
    assert any(step.startswith("SEARCH message USING INDEX message_open ") for step in plans)
    assert {step for step in plans if step.startswith("SCAN") and not step.startswith("SCAN lease")} == set()
    reached = {step for step in plans if step.startswith(("SEARCH message", "SEARCH earlier", "SEARCH event"))}
    assert all(" USING INDEX " in step or "INTEGER PRIMARY KEY" in step for step in reached), reached


def test_no_statement_scans_the_messages(inbox: SqliteInbox) -> None:
    """Every plan reaches `message` and `event` by a key or through an index of open rows."""
    seen: set[str] = set()
    connection = inbox._db._connection
    connection.set_trace_callback(seen.add)
    for _ in operate(inbox):
        pass
    connection.set_trace_callback(None)
    plans = {
        statement: [detail for *_, detail in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
        for statement in seen
        if statement.split()[0] in ("SELECT", "UPDATE", "INSERT", "DELETE")
    }
    assert len(plans) > 20
    scans = {step for plan in plans.values() for step in plan if step.startswith("SCAN")}
    small = tuple(f"SCAN {table}" for table in ("lease", "past_lease", "taken", "activity"))
    assert {scan for scan in scans if not scan.startswith(small)} == {
        "SCAN message USING INDEX message_open",  # boxes_with_unread: every open row is counted
        "SCAN (subquery-1)",
    }
    used = {
        step.split(" INDEX ")[1].split()[0] for plan in plans.values() for step in plan if " INDEX message_" in step
    }
    assert used == {
        "message_open",
        "message_open_by_sender",
        "message_open_by_expiry",
        "message_unhinted",
        "message_pair",
        "message_done",
    }


def test_one_send_is_one_transaction(inbox: SqliteInbox) -> None:
    seen: list[str] = []
    inbox._db._connection.set_trace_callback(seen.append)
    inbox.append([NewRow("bob", f"acme/{number}", b"hi") for number in range(3)], START)
    inbox._db._connection.set_trace_callback(None)
    verbs = [statement.split()[0] for statement in seen if not statement.startswith("PRAGMA busy_timeout")]
    assert verbs.count("BEGIN") == verbs.count("COMMIT") == 1
    assert (verbs[0], verbs[-1]) == ("BEGIN", "COMMIT")


def test_a_claim_is_one_statement(inbox: SqliteInbox) -> None:
    (row,) = inbox.append(NewRow("bob", "alice", b"hi"), START)
    lease = listen(inbox, "alice")
    seen: list[str] = []
    inbox._db._connection.set_trace_callback(seen.append)
    inbox.claim(row.id, lease.token, START)
    inbox.hand_off(row.id, lease.token, "flushed", START)
    inbox._db._connection.set_trace_callback(None)
    changes = [statement for statement in seen if statement.startswith("UPDATE message")]
    assert len(changes) == 2
    assert all(lease.token.hex().upper() in statement.upper() for statement in changes)


def test_five_thousand_unread_rows_are_taken_one_by_one_at_a_constant_price(inbox: SqliteInbox) -> None:
    """F11: what one hand-off costs does not grow with what waits behind it."""
    with inbox._db.transaction():
        inbox._db.execute(_FILL, {"rows": _HISTORY, "now": START.ms})
        inbox._db.execute("UPDATE message SET state = 'unread', done_ms = NULL")
        inbox._db.execute("INSERT INTO box VALUES ('acme/alice', 1, ?)", (_HISTORY,))
    lease = listen(inbox, "acme/")
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    inbox._db._connection.set_progress_handler(step, 1)
    for rseq in range(1, 6):
        head = inbox.next_for(["acme/"], lease.token, START)
        assert head is not None
        assert head.rseq == rseq
        assert inbox.claim(head.id, lease.token, START)
        assert inbox.hand_off(head.id, lease.token, "flushed", START)
    assert count < 5 * 1200
