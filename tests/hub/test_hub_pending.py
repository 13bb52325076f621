"""Which agents are known, what waits for them, and who is forgotten (awh1.md §5.8)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wakehub.hub.pending import KnownAgents, PendingSet


def pending(*row_ids: bytes) -> PendingSet:
    retained = PendingSet()
    for row_id in row_ids:
        retained.record(row_id)
    return retained


def seen(retained: PendingSet) -> tuple[int, list[bytes], bool]:
    return retained.count, list(retained.ids), retained.lagged


# --- what waits for one agent -------------------------------------------------------------------------------------


def test_nothing_waits_at_first() -> None:
    assert seen(PendingSet()) == (0, [], False)
    assert PendingSet().waiting() == []


def test_ids_are_kept_in_order_and_once() -> None:
    assert seen(pending(b"b", b"a", b"b")) == (3, [b"b", b"a"], False)


def test_ids_of_up_to_128_bytes_are_kept() -> None:
    assert seen(pending(b"x" * 128)) == (1, [b"x" * 128], False)


@pytest.mark.parametrize("row_id", [b"", b"x" * 129, b"x" * 244])
def test_an_id_that_cannot_be_kept_lags(row_id: bytes) -> None:
    assert seen(pending(b"a", row_id)) == (2, [b"a"], True)


def test_the_65th_distinct_id_lags_and_a_repeated_one_only_counts() -> None:
    retained = pending(*(b"m_%d" % number for number in range(64)))
    assert (retained.count, len(retained.ids), retained.lagged) == (64, 64, False)
    retained.record(b"m_0")
    assert (retained.count, len(retained.ids), retained.lagged) == (65, 64, False)
    retained.record(b"m_64")
    assert (retained.count, len(retained.ids), retained.lagged) == (66, 64, True)
    assert b"m_64" not in retained.ids


def test_what_is_waiting_ends_in_one_without_id_when_some_are_lost() -> None:
    assert pending(b"a", b"b").waiting() == [b"a", b"b"]
    assert pending(b"a", b"", b"b").waiting() == [b"a", b"b", b""]
    assert pending(b"").waiting() == [b""]


def test_what_was_replayed_waits_no_more() -> None:
    retained = pending(b"a", b"b", b"b", b"")
    retained.replayed(b"a")
    assert seen(retained) == (3, [b"b"], True)
    retained.replayed(b"b")
    assert seen(retained) == (2, [], True)
    retained.replayed(b"")
    assert seen(retained) == (0, [], False)


def test_a_welcome_tells_of_everything_but_the_ids() -> None:
    retained = pending(b"a", b"a", b"", b"b")
    retained.welcomed()
    assert seen(retained) == (2, [b"a", b"b"], False)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.binary(max_size=1) | st.just(b"x" * 129), max_size=200))
def test_nothing_is_lost_without_a_trace(row_ids: list[bytes]) -> None:
    retained = pending(*row_ids)
    assert retained.count == len(row_ids)
    assert len(retained.ids) <= 64
    for row_id in row_ids:
        assert row_id in retained.ids or retained.lagged
    for row_id in retained.waiting():
        assert retained.count > 0
        retained.replayed(row_id)
    assert seen(retained) == (0, [], False)


# --- who is known -------------------------------------------------------------------------------------------------


def known_agents(limit: int, *agents: bytes) -> KnownAgents:
    known = KnownAgents(limit)
    for agent in agents:
        known.enter(agent)
    return known


def test_nobody_is_known_before_a_hello() -> None:
    known = KnownAgents(4)
    assert len(known) == 0
    assert b"alice" not in known
    assert known.pending(b"alice") is None


def test_who_entered_is_known_also_when_it_left() -> None:
    known = known_agents(4, b"alice")
    assert known.pending(b"alice") == PendingSet()
    known.leave(b"alice")
    assert b"alice" in known
    assert len(known) == 1


def test_what_waits_survives_leaving_and_entering() -> None:
    known = known_agents(4, b"alice")
    waiting = known.pending(b"alice")
    assert waiting is not None
    waiting.record(b"m_1")
    known.leave(b"alice")
    known.enter(b"alice")
    assert known.pending(b"alice") is waiting


def test_who_departed_is_unknown_and_owed_nothing() -> None:
    known = known_agents(4, b"alice")
    known.forget(b"alice")
    known.leave(b"alice")
    assert b"alice" not in known
    known.forget(b"alice")
    known.enter(b"alice")
    assert known.pending(b"alice") == PendingSet()


def test_nobody_is_evicted_while_there_is_room() -> None:
    known = known_agents(2, b"a", b"b")
    known.leave(b"a")
    assert known.evict() is None


def test_the_connected_are_never_evicted() -> None:
    known = known_agents(1, b"a", b"b", b"c")
    assert known.evict() is None
    assert len(known) == 3


def test_of_equals_the_longest_absent_is_evicted() -> None:
    known = known_agents(2, b"c", b"a", b"b")
    for agent in (b"b", b"c", b"a"):
        known.leave(agent)
    assert known.evict() == b"b"
    assert known.evict() is None
    assert b"b" not in known
    assert b"c" in known


def test_who_has_the_least_waiting_is_evicted_first() -> None:
    known = known_agents(2, b"a", b"b", b"c")
    for agent, waiting in ((b"a", 2), (b"b", 1), (b"c", 2)):
        for _ in range(waiting):
            retained = known.pending(agent)
            assert retained is not None
            retained.record(b"m")
        known.leave(agent)
    assert known.evict() == b"b"


def test_who_came_back_is_not_absent_and_starts_anew_when_it_leaves() -> None:
    known = known_agents(2, b"a", b"b")
    known.leave(b"a")
    known.leave(b"b")
    known.enter(b"a")
    known.enter(b"c")
    assert known.evict() == b"b"
    known.leave(b"a")
    known.enter(b"d")
    assert known.evict() == b"a"


def test_who_is_one_too_many_goes_when_it_leaves() -> None:
    known = known_agents(1, b"a", b"b")
    known.leave(b"b")
    assert known.evict() == b"b"
    assert b"a" in known


def test_leaving_without_having_entered_is_nothing() -> None:
    known = KnownAgents(1)
    known.leave(b"a")
    assert len(known) == 0
