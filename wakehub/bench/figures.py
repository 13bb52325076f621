"""The arithmetic of the report: medians over rounds, percentiles, and ratios that are taken round by round."""

import math
from collections.abc import Sequence
from statistics import median

__all__ = ["median", "percentile", "ratio", "spread"]


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: the least value that `percent` % of all values do not exceed."""
    if not values:
        raise ValueError("there is no percentile of nothing")
    rank = math.ceil(len(values) * percent / 100)
    return sorted(values)[max(rank, 1) - 1]


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """The median of the rounds' ratios; None when there is no such thing.

    Both are measured in each round, so that what slows the whole machine for a while divides out.
    """
    found = [our / their for our, their in zip(ours, theirs, strict=True) if their > 0]
    return median(found) if found else None


def spread(values: Sequence[float]) -> float:
    """The largest divided by the smallest: how far the rounds lie apart (1: not at all)."""
    return max(values) / min(values) if values and min(values) > 0 else math.inf
