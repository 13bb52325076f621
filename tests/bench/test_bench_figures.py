"""The report's arithmetic on known data."""

import math

import pytest

from wakehub.bench.figures import median, percentile, ratio, spread


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([5], 50, 5),
        ([5], 99, 5),
        ([4, 1, 3, 2], 50, 2),
        ([4, 1, 3, 2], 75, 3),
        ([4, 1, 3, 2], 76, 4),
        (range(1, 101), 99, 99),
        (range(1, 101), 100, 100),
        (range(1, 101), 0, 1),
        (range(1, 1001), 99.9, 999),
    ],
)
def test_a_percentile_is_a_value_that_was_measured(values, percent, expected):
    assert percentile(list(values), percent) == expected


def test_there_is_no_percentile_of_nothing():
    with pytest.raises(ValueError, match="nothing"):
        percentile([], 50)


def test_the_median_of_an_even_number_lies_between():
    assert median([1, 10, 2, 4]) == 3


def test_ratios_are_taken_round_by_round():
    """A machine that is twice as slow in one round changes none."""
    assert ratio([10, 20, 10], [5, 10, 5]) == 2
    assert ratio([10, 40, 30], [10, 10, 10]) == 3
    assert ratio([10, 20], [0, 0]) is None
    with pytest.raises(ValueError, match="shorter"):
        ratio([1, 2], [1])


def test_the_spread_is_the_largest_by_the_smallest():
    assert spread([2, 8, 4]) == 4
    assert spread([0, 8]) == math.inf
    assert spread([]) == math.inf
