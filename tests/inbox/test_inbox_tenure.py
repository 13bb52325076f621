"""The rules of leases, as functions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wakehub.inbox.clock import Now
from wakehub.inbox.tenure import age_ms, alternative, covering, covers, is_live, is_namespace
from wakehub.processes import ProcessId, boot_id

_SEGMENT = st.text("ab1.:-", min_size=1, max_size=3)
_ADDRESS = st.lists(_SEGMENT, min_size=1, max_size=4).map("/".join)
_NOW = Now(1_000_000_000, 500_000, boot_id())


@pytest.mark.parametrize(
    ("name", "address", "expected"),
    [
        ("acme", "acme", True),
        ("acme", "acme/x", False),
        ("acme/", "acme/x", True),
        ("acme/", "acme/x/y", True),
        ("acme/", "acme", False),
        ("acme/", "acmes/x", False),
        ("acme/eng/", "acme/x", False),
        ("ACME/", "acme/x", False),
    ],
)
def test_a_name_covers_itself_or_what_lies_under_its_namespace(name: str, address: str, expected: bool) -> None:
    assert covers(name, address) is expected


def test_covering_names_come_most_specific_first() -> None:
    assert covering("a/b/c") == ["a/b/c", "a/b/", "a/"]
    assert covering("a") == ["a"]


@given(_ADDRESS, _ADDRESS, st.booleans())
def test_covering_lists_exactly_the_names_that_cover(address: str, other: str, as_namespace: bool) -> None:
    name = other + "/" if as_namespace else other
    assert covers(name, address) == (name in covering(address))


@given(_ADDRESS)
def test_the_most_specific_name_is_the_longest(address: str) -> None:
    lengths = [len(name) for name in covering(address)]
    assert lengths == sorted(set(lengths), reverse=True)
    assert [is_namespace(name) for name in covering(address)] == [False] + [True] * address.count("/")


def test_within_one_boot_only_the_monotonic_clock_tells_the_age() -> None:
    assert age_ms(_NOW.boot, 0, _NOW.mono_ms - 7, _NOW) == 7
    assert age_ms(_NOW.boot, _NOW.ms + 10**9, _NOW.mono_ms - 7, _NOW) == 7
    assert age_ms(_NOW.boot, 0, _NOW.mono_ms + 7, _NOW) == 0


def test_across_boots_the_wall_clock_tells_and_the_future_is_now() -> None:
    assert age_ms("another", _NOW.ms - 7, 0, _NOW) == 7
    assert age_ms("another", _NOW.ms + 7, 0, _NOW) == 0


def test_a_lease_lives_300_seconds_or_as_long_as_its_process() -> None:
    own = ProcessId.own()
    assert is_live(own, _NOW.ms, _NOW.mono_ms - 299_999, _NOW)
    assert not is_live(own, _NOW.ms, _NOW.mono_ms - 300_000, _NOW)
    assert not is_live(own._replace(started="1"), _NOW.ms, _NOW.mono_ms, _NOW)


def test_the_alternative_is_the_first_free_number() -> None:
    assert alternative("alice", {"alice"}) == "alice-2"
    assert alternative("alice", {"alice", "alice-2", "alice-3"}) == "alice-4"
    assert alternative("acme/", {"acme/"}) is None
    assert alternative("a" * 126, set()) == "a" * 126 + "-2"
    assert alternative("a" * 127, set()) is None
