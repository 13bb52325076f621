"""Nothing falls between "empty" and "asleep" (fault F23)."""

import random

import trio
import trio.testing

from wakehub.client.doorbell import Doorbell, Reason

FOREVER = float("inf")


class Run:
    """One reader and one writer, step by step.

    The writer commits a row and rings. The reader arms, reads, and sleeps when it found nothing; asleep it goes on only
    when the bell is rung.
    """

    def __init__(self) -> None:
        self.bell = Doorbell()
        self.rows = 0
        self.taken = 0
        self.reader = "arm"

    def commit(self) -> None:
        self.rows += 1

    def ring(self) -> None:
        self.bell.ring(Reason.WAKE)

    def read_on(self) -> None:
        if self.reader == "arm":
            self.bell.arm()
            self.reader = "read"
        elif self.reader == "read":
            found = self.rows > self.taken
            self.taken = self.rows
            self.reader = "arm" if found else "sleep"
        elif self.bell.is_rung:
            self.reader = "arm"


def test_100_000_interleavings_lose_no_row() -> None:
    draw = random.Random(23)
    for _ in range(100_000):
        run = Run()
        writer = [run.commit, run.ring] * draw.randint(1, 3)
        while writer:
            writer.pop(0)() if draw.random() < 0.5 else run.read_on()
        for _ in range(6):  # more than the reader needs to come to rest
            run.read_on()
        assert run.taken == run.rows


async def test_the_first_reason_counts_until_it_is_answered() -> None:
    bell = Doorbell()
    bell.ring(Reason.WELCOME)
    bell.ring(Reason.WAKE)
    assert await bell.wait(FOREVER, Reason.BACKSTOP) is Reason.WELCOME
    bell.arm()
    assert not bell.is_rung
    bell.ring(Reason.WAKE)
    assert await bell.wait(FOREVER, Reason.BACKSTOP) is Reason.WAKE


async def test_without_a_ring_the_wait_ends_at_its_time(autojump_clock: trio.testing.MockClock) -> None:
    bell = Doorbell()
    assert await bell.wait(trio.current_time() + 60, Reason.BACKSTOP) is Reason.BACKSTOP
    assert trio.current_time() == 60


async def test_a_ring_ends_a_wait_that_has_begun(autojump_clock: trio.testing.MockClock) -> None:
    bell = Doorbell()
    bell.arm()
    async with trio.open_nursery() as nursery:

        async def ring_later() -> None:
            await trio.sleep(5)
            bell.ring(Reason.GAP)

        nursery.start_soon(ring_later)
        assert await bell.wait(FOREVER, Reason.BACKSTOP) is Reason.GAP
    assert trio.current_time() == 5
