"""A row: ranks say how far it came, and nothing shows a secret or a body."""

from dataclasses import replace
from itertools import permutations

import pytest

from wakehub.inbox.clock import Now
from wakehub.inbox.rows import Event, NewRow, Seal, Signer, furthest
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.processes import ProcessId


def test_ranks_and_not_times_say_how_far_a_row_came() -> None:
    events = [Event("m", "stored", 9), Event("m", "hinted", 8), Event("m", "claimed", 7), Event("m", "handed_off", 1)]
    for order in permutations(events):
        assert furthest(order) == "handed_off"
    assert furthest(events[:2]) == "hinted"
    assert furthest([]) is None


@pytest.mark.parametrize(
    "lower", ["stored", "hint_refused", "hinted", "claimed", "attempt_failed", "failed", "expired"]
)
def test_nothing_less_than_a_hand_off_outranks_it(lower: str) -> None:
    assert furthest([Event("m", "handed_off", 1), Event("m", lower, 2)]) == "handed_off"  # type: ignore[arg-type]


def test_no_repr_shows_a_body_a_signature_or_a_token(inbox: SqliteInbox) -> None:
    now = Now.read()
    secret = b"s3cr3t" * 11
    signed = NewRow("bob", "alice", secret, signed=Signer("k", lambda _: secret[:64]))
    (row,) = inbox.append(signed, now)
    lease = inbox.leases.acquire(["alice"], ProcessId.own(), "alice", now)
    shown = [signed, row, inbox.headers([row.id]), Seal("m", 1, 2, 0, "k", secret), replace(row, body=secret)]
    assert not [each for each in shown if "s3cr3t" in repr(each)]
    assert "token" not in repr(lease)
