"""The ladder, number by number."""

import random

import pytest

from wakehub.client.backoff import Ladder
from wakehub.client.failures import Failure


def steps(ladder: Ladder, failure: Failure, count: int) -> list[float]:
    return [ladder.delay_ms(failure) for _ in range(count)]


def test_the_step_doubles_from_250_ms_to_60_s() -> None:
    ladder = Ladder(lambda: 0.0)
    assert steps(ladder, Failure.LOST, 10) == [250, 500, 1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000]


def test_each_delay_gets_its_own_random_part() -> None:
    seeded, same = random.Random(7), random.Random(7)
    ladder = Ladder(seeded.random)
    delays = steps(ladder, Failure.TIMEOUT, 4)
    assert delays == [step + same.random() * 750 for step in (250, 500, 1000, 2000)]
    assert len({delay - step for delay, step in zip(delays, (250, 500, 1000, 2000), strict=True)}) == 4


@pytest.mark.parametrize("failure", [Failure.ABSENT, Failure.REFUSED])
def test_a_hub_that_restarts_is_tried_every_2_s_and_its_absence_does_not_count_on(failure: Failure) -> None:
    ladder = Ladder(lambda: 0.0)
    assert steps(ladder, failure, 6) == [250, 500, 1000, 2000, 2000, 2000]
    assert steps(ladder, Failure.CEILING, 2) == [2000, 4000]
    assert steps(ladder, failure, 1) == [2000]
    assert steps(ladder, Failure.CEILING, 1) == [8000]


def test_the_cap_of_a_restarting_hub_leaves_the_jitter_on_top() -> None:
    ladder = Ladder(lambda: 1.0)
    assert steps(ladder, Failure.ABSENT, 5)[-1] == 2750


@pytest.mark.parametrize(("lasted_s", "after"), [(0.0, 2000), (29.999, 2000), (30.0, 250), (float("-inf"), 2000)])
def test_only_a_session_of_30_s_starts_the_ladder_anew(lasted_s: float, after: float) -> None:
    ladder = Ladder(lambda: 0.0)
    steps(ladder, Failure.LOST, 3)
    ladder.session_ended(lasted_s)
    assert ladder.delay_ms(Failure.LOST) == after


def test_a_401_waits_60_s_and_does_not_drive_the_ladder() -> None:
    ladder = Ladder(lambda: 0.5)
    assert steps(ladder, Failure.UNAUTHORIZED, 3) == [60_375] * 3
    assert ladder.delay_ms(Failure.LOST) == 250 + 375


def test_a_409_for_a_name_that_is_still_ours_waits_from_5_s_up() -> None:
    ladder = Ladder(lambda: 0.0)
    assert steps(ladder, Failure.REPLACED, 3) == [5000, 10000, 20000]


def test_the_welcome_advises_base_and_random_part() -> None:
    ladder = Ladder(lambda: 0.5)
    ladder.advise(1000, 100)
    assert steps(ladder, Failure.LOST, 3) == [1050, 2050, 4050]
    ladder.session_ended(30)
    assert ladder.delay_ms(Failure.LOST) == 1050


@pytest.mark.parametrize(("base", "jitter"), [(0, 0), (2**32 - 1, 2**32 - 1)])
def test_no_advice_can_stop_the_client_or_make_it_spin(base: int, jitter: int) -> None:
    ladder = Ladder(lambda: 1.0)
    ladder.advise(base, jitter)
    ladder.session_ended(30)
    assert 0 < ladder.delay_ms(Failure.LOST) <= 120_000
