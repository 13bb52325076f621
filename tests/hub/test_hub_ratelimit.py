"""The token bucket (awh1.md §5.5): whole milli-tokens, nothing gained or lost by rounding."""

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from wakehub.hub.ratelimit import TokenBucket

SECOND = 1_000_000


def taken(bucket: TokenBucket, now_us: int) -> int:
    """How many single tokens the bucket gives at once."""
    count = 0
    while bucket.take(1, now_us):
        count += 1
    return count


def test_it_starts_full() -> None:
    assert taken(TokenBucket(500, 2000, 7), 7) == 2000


def test_it_fills_at_its_rate() -> None:
    bucket = TokenBucket(500, 2000, 0)
    bucket.take(2000, 0)
    assert taken(bucket, SECOND) == 500
    assert taken(bucket, SECOND + 1999) == 0
    assert taken(bucket, SECOND + 2000) == 1


def test_it_never_holds_more_than_its_burst() -> None:
    bucket = TokenBucket(500, 2000, 0)
    assert taken(bucket, 3600 * SECOND) == 2000


def test_a_charge_is_taken_whole_or_not_at_all() -> None:
    bucket = TokenBucket(1, 10, 0)
    assert bucket.take(7, 0)
    assert not bucket.take(4, 0)
    assert bucket.take(3, 0)
    assert not bucket.take(1, 0)


def test_a_charge_above_the_burst_costs_nothing() -> None:
    bucket = TokenBucket(1, 10, 0)
    assert not bucket.take(11, 0)
    assert not bucket.take(1 << 40, 100 * SECOND)
    assert bucket.take(10, 100 * SECOND)


def test_no_charge_is_always_covered() -> None:
    bucket = TokenBucket(1, 1, 0)
    assert bucket.take(1, 0)
    assert bucket.take(0, 0)


def test_fractions_of_a_millitoken_add_up() -> None:
    """At 500/s a step of 1 µs is half a milli-token: 2,000 steps are one token, exactly."""
    bucket = TokenBucket(500, 2000, 0)
    bucket.take(2000, 0)
    for now_us in range(1, 2000):
        assert not bucket.take(1, now_us)
    assert bucket.take(1, 2000)
    assert not bucket.take(1, 2000)


def test_a_slow_rate_in_steps_that_do_not_divide_it() -> None:
    bucket = TokenBucket(3, 8, 0)
    bucket.take(8, 0)
    times = [step * 7 for step in range(1, 200_000)]
    came = [now_us for now_us in times if bucket.take(1, now_us)]
    # A third of a second is not a multiple of 7 µs: each token comes at the first step behind it.
    assert came == [-(-number * SECOND // (3 * 7)) * 7 for number in range(1, len(came) + 1)]
    assert len(came) == 4


def test_a_full_bucket_keeps_no_fraction() -> None:
    bucket = TokenBucket(1, 1, 0)
    bucket.take(1, 0)
    assert bucket.take(1, 1_999_999)
    assert not bucket.take(1, 2_999_998)
    assert bucket.take(1, 2_999_999)


def test_a_clock_that_steps_back_gains_nothing_and_loses_nothing() -> None:
    bucket = TokenBucket(1, 1, 10 * SECOND)
    bucket.take(1, 10 * SECOND)
    assert not bucket.take(1, 5 * SECOND)
    assert not bucket.take(1, 10 * SECOND)
    assert bucket.take(1, 11 * SECOND)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(
    st.integers(1, 1000),
    st.integers(1, 50),
    st.lists(st.tuples(st.integers(0, 3 * SECOND), st.integers(0, 60)), max_size=60),
)
def test_it_is_the_exact_bucket(rate: int, burst: int, story: list[tuple[int, int]]) -> None:
    bucket = TokenBucket(rate, burst, 0)
    level, now_us = Fraction(burst), 0
    for elapsed, tokens in story:
        now_us += elapsed
        level = min(Fraction(burst), level + Fraction(elapsed * rate, SECOND))
        covered = tokens <= level
        assert bucket.take(tokens, now_us) == covered
        level -= tokens if covered else 0
