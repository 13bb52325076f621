"""What the hub counts (awh1.md §7): names, bounds, buckets."""

from dataclasses import fields

import pytest

from wakehub.hub.counters import Counters, Gauges, Histogram

BOUNDS = [50, 100, 250, 500, 1000, 2500, 5000, 10000, 25000, 50000, 100000, 250000, 500000, 1000000, 5000000]


def test_the_stable_names() -> None:
    """Names are only ever added."""
    assert {field.name for field in fields(Counters)} >= {
        "accepted",
        "refused",
        "frames_in",
        "frames_out",
        "wakes_routed",
        "fanout_deliveries",
        "wakes_written",
        "wakes_expired",
        "pending_coalesced",
        "pending_evicted",
        "overflow",
        "sessions_replaced",
        "fanout_us",
        "wake_latency_us",
    }
    assert {field.name for field in fields(Gauges)} >= {
        "connections",
        "recipients",
        "queued_bytes",
        "queued_frames",
        "egress_bytes",
        "slow_consumers",
    }


def test_everything_starts_at_zero() -> None:
    counters = Counters()
    for field in fields(counters):
        value = getattr(counters, field.name)
        assert not value if not isinstance(value, Histogram) else not any(value.buckets)


@pytest.mark.parametrize(("place", "bound"), list(enumerate(BOUNDS)))
def test_a_bound_belongs_to_its_bucket(place: int, bound: int) -> None:
    histogram = Histogram()
    histogram.observe(bound)
    histogram.observe(bound + 1)
    expected = [0] * 16
    expected[place] += 1
    expected[place + 1] += 1
    assert histogram.buckets == expected
    assert histogram.total_us == 2 * bound + 1


def test_the_last_bucket_has_no_bound() -> None:
    histogram = Histogram()
    histogram.observe(1 << 70)
    assert histogram.buckets == [0] * 15 + [1]


@pytest.mark.parametrize("us", [0, -1, -(1 << 70)])
def test_below_zero_is_zero(us: int) -> None:
    histogram = Histogram()
    histogram.observe(us)
    assert histogram.buckets == [1] + [0] * 15
    assert histogram.total_us == 0
