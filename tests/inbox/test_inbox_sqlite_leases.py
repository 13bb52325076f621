"""Leases in SQLite: statements and Python judge by the same rules, and a lease that is written comes back the same."""

import pytest
from inbox_conformance import START, at, listen

from wakehub.inbox import tenure
from wakehub.inbox.clock import Now
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.inbox.sqlite.leases import LIVE, moment
from wakehub.processes import ProcessId

_OWN = ProcessId.own()
_PROCESSES = [_OWN, _OWN._replace(started="1"), _OWN._replace(boot="another"), _OWN._replace(namespace=1)]
_MOMENTS = [
    START,
    at(299.999),
    at(300),
    Now(START.ms - 10**9, START.mono_ms + 1, START.boot),
    at(1)._replace(boot="new"),
]


@pytest.mark.parametrize("now", _MOMENTS, ids=str)
@pytest.mark.parametrize("process", _PROCESSES, ids=str)
def test_statements_judge_a_lease_as_python_does(inbox: SqliteInbox, process: ProcessId, now: Now) -> None:
    lease = listen(inbox, "alice", process=process)
    with inbox._db.reading():
        found = inbox._db.execute(f"SELECT {LIVE} FROM lease", moment(now))
    expected = tenure.is_live(process, lease.renewed_ms, lease.renewed_mono_ms, now)
    assert found == [(int(expected),)]
    assert (inbox.leases.holder("alice", now) is not None) == expected
    assert (inbox.leases.live(now) == [lease]) == expected
    assert [past.name for past in inbox.leases.sweep(now)] == ([] if expected else ["alice"])


def test_no_two_leases_share_a_token(inbox: SqliteInbox) -> None:
    assert len({listen(inbox, f"name-{number}").token for number in range(50)}) == 50


def test_a_lease_of_many_names_keeps_their_order(inbox: SqliteInbox) -> None:
    lease = listen(inbox, "z", "a/", "m")
    assert inbox.leases.find(lease.token) == lease
    assert lease.names == ("z", "a/", "m")


def test_resolving_asks_by_key_whatever_else_is_held(inbox: SqliteInbox) -> None:
    for number in range(100):
        listen(inbox, f"other/{number}")
    lease = listen(inbox, "acme/")
    seen: list[str] = []
    inbox._db._connection.set_trace_callback(seen.append)
    assert inbox.leases.resolve("acme/eng/x", START) == lease
    inbox._db._connection.set_trace_callback(None)
    plans = [
        detail
        for statement in seen
        if statement.startswith("SELECT")
        for *_, detail in inbox._db._connection.execute(f"EXPLAIN QUERY PLAN {statement}")
    ]
    assert plans
    assert not [plan for plan in plans if plan.startswith("SCAN")]
