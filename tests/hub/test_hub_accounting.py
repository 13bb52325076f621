"""The hub-wide budget (awh1.md §5.7)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wakehub.hub.accounting import Budget


def test_a_charge_up_to_the_limit() -> None:
    budget = Budget(100)
    assert budget.charge(60)
    assert budget.charge(40)
    assert budget.used == 100


def test_a_charge_over_the_limit_changes_nothing() -> None:
    budget = Budget(100)
    assert budget.charge(60)
    assert not budget.charge(41)
    assert budget.used == 60
    assert budget.charge(40)


def test_a_charge_may_have_to_leave_room() -> None:
    budget = Budget(100)
    assert not budget.charge(91, 10)
    assert budget.charge(90, 10)
    assert not budget.charge(1, 10)
    assert budget.charge(10)
    assert budget.used == 100


def test_a_release_makes_room() -> None:
    budget = Budget(100)
    budget.charge(100)
    budget.release(30)
    assert budget.used == 70
    assert budget.charge(30)


def test_nothing_is_released_that_was_not_charged() -> None:
    budget = Budget(100)
    budget.charge(10)
    with pytest.raises(AssertionError):
        budget.release(11)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20))))
def test_the_budget_is_what_is_charged_and_never_more_than_its_limit(charges: list[tuple[int, int]]) -> None:
    budget = Budget(100)
    charged = [size for size, spare in charges if budget.charge(size, spare)]
    assert budget.used == sum(charged) <= 100
    for size in charged:
        budget.release(size)
    assert budget.used == 0
