"""What waits for one connection (awh1.md §5.7), with small numbers."""

import struct
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wakehub.hub.accounting import Budget
from wakehub.hub.send_queue import Overflow, SendQueue


def frame(size: int, mark: int = 0) -> bytes:
    """A frame with a body of `size` bytes."""
    return struct.pack(">I", size) + bytes([mark]) * size


def queue(frames: int = 10, size: int = 1000, egress: int = 10_000) -> tuple[SendQueue, Budget]:
    budget = Budget(egress)
    return SendQueue(frames, size, budget), budget


def drained(waiting: SendQueue) -> list[bytes]:
    frames = []
    while waiting:
        raw = waiting.sent(len(waiting.head()))
        assert raw is not None
        frames.append(raw)
    return frames


def test_first_in_first_out() -> None:
    waiting, budget = queue()
    frames = [frame(30, mark) for mark in range(3)]
    for raw in frames:
        assert waiting.push(raw) is None
    assert (len(waiting), waiting.size, budget.used) == (3, 90, 90)
    assert drained(waiting) == frames
    assert (len(waiting), waiting.size, budget.used) == (0, 0, 0)


def test_the_same_object_comes_out() -> None:
    waiting, _ = queue()
    raw = frame(30)
    waiting.push(raw)
    assert waiting.head() is raw
    assert waiting.sent(len(raw)) is raw


def test_the_body_is_counted_and_not_the_prefix() -> None:
    waiting, budget = queue(size=30)
    assert waiting.push(frame(30)) is None
    assert (waiting.size, budget.used) == (30, 30)


def test_the_limit_of_frames() -> None:
    waiting, budget = queue(frames=2)
    assert [waiting.push(frame(1)) for _ in range(3)] == [None, None, Overflow.FRAMES]
    assert (len(waiting), waiting.size, budget.used) == (2, 2, 2)


def test_the_limit_of_bytes() -> None:
    waiting, budget = queue(size=100)
    assert waiting.push(frame(60)) is None
    assert waiting.push(frame(41)) is Overflow.BYTES
    assert (len(waiting), waiting.size, budget.used) == (1, 60, 60)
    assert waiting.push(frame(40)) is None


def test_the_hub_wide_limit() -> None:
    budget = Budget(100)
    one, other = SendQueue(10, 1000, budget), SendQueue(10, 1000, budget)
    assert one.push(frame(60)) is None
    assert other.push(frame(41)) is Overflow.EGRESS
    assert (len(other), other.size, budget.used) == (0, 0, 60)
    one.sent(64)
    assert other.push(frame(41)) is None


def test_room_that_is_left_hub_wide() -> None:
    waiting, budget = queue(egress=100)
    assert waiting.push(frame(91), spare=10) is Overflow.EGRESS
    assert waiting.push(frame(90), spare=10) is None
    assert waiting.push(frame(10)) is None
    assert budget.used == 100


def test_the_own_limits_are_looked_at_first() -> None:
    waiting, _ = queue(frames=1, size=10, egress=10)
    assert waiting.push(frame(11)) is Overflow.BYTES
    assert waiting.push(frame(10)) is None
    assert waiting.push(frame(11)) is Overflow.FRAMES


def test_a_half_sent_frame_stays_charged_whole() -> None:
    waiting, budget = queue()
    raw = frame(30)
    waiting.push(raw)
    waiting.push(frame(5))
    assert waiting.sent(10) is None
    assert bytes(waiting.head()) == raw[10:]
    assert waiting.sent(23) is None
    assert bytes(waiting.head()) == raw[33:]
    assert (len(waiting), waiting.size, budget.used) == (2, 35, 35)
    assert waiting.sent(1) is raw
    assert (len(waiting), waiting.size, budget.used) == (1, 5, 5)


@pytest.mark.parametrize(("size", "slow"), [(49, False), (50, True), (51, True), (100, True)])
def test_a_slow_consumer_has_half_of_its_bytes_waiting(size: int, slow: bool) -> None:
    waiting, _ = queue(size=100)
    assert not waiting.is_slow
    waiting.push(frame(size))
    assert waiting.is_slow is slow


def test_a_frame_is_dropped_at_its_deadline_and_not_before() -> None:
    waiting, budget = queue()
    waiting.push(frame(30), 1000)
    assert waiting.drop_expired(999) == 0
    assert waiting.drop_expired(1000) == 1
    assert (len(waiting), waiting.size, budget.used) == (0, 0, 0)


def test_a_frame_without_deadline_is_never_dropped() -> None:
    waiting, _ = queue()
    waiting.push(frame(30))
    assert waiting.drop_expired(1 << 62) == 0


def test_all_expired_frames_at_the_head_go_and_those_behind_wait_for_their_turn() -> None:
    waiting, _ = queue()
    frames = [frame(1, mark) for mark in range(4)]
    for raw, deadline in zip(frames, (10, 20, 0, 10), strict=True):
        waiting.push(raw, deadline)
    assert waiting.drop_expired(20) == 2
    assert waiting.sent(5) is frames[2]
    assert waiting.drop_expired(20) == 1


def test_a_frame_that_has_begun_is_finished_whatever_its_deadline() -> None:
    waiting, _ = queue()
    raw = frame(30)
    waiting.push(raw, 10)
    waiting.sent(1)
    assert waiting.drop_expired(10) == 0
    assert waiting.sent(33) is raw


def test_clearing_gives_back_what_had_not_left() -> None:
    waiting, budget = queue()
    frames = [frame(9, mark) for mark in range(3)]
    for raw in frames:
        waiting.push(raw, 77)
    waiting.sent(13)
    waiting.sent(5)
    assert waiting.clear() == [(frames[1], 77), (frames[2], 77)]
    assert (len(waiting), waiting.size, budget.used) == (0, 0, 0)
    waiting.push(frames[0])
    assert bytes(waiting.head()) == frames[0]
    assert waiting.clear() == [(frames[0], 0)]
    assert waiting.clear() == []


steps = st.one_of(
    st.tuples(st.just("push"), st.integers(0, 40)),
    st.tuples(st.just("sent"), st.integers(1, 50)),
    st.tuples(st.just("late"), st.integers(1, 5)),
    st.tuples(st.just("clear"), st.just(0)),
)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.lists(steps, max_size=60))
def test_a_queue_is_a_bounded_fifo_that_pays_what_it_owes(story: list[tuple[str, int]]) -> None:
    budget = Budget(120)
    budget.charge(20)  # somebody else's
    waiting = SendQueue(5, 90, budget)
    model: deque[tuple[bytes, int]] = deque()
    begun = 0
    for number, (step, value) in enumerate(story):
        match step:
            case "push":
                raw, deadline = frame(value, number), value % 6
                size = sum(len(other) - 4 for other, _ in model)
                overflow = waiting.push(raw, deadline)
                if len(model) == 5:
                    assert overflow is Overflow.FRAMES
                elif size + value > 90:
                    assert overflow is Overflow.BYTES
                elif size + value > 100:
                    assert overflow is Overflow.EGRESS
                else:
                    assert overflow is None
                    model.append((raw, deadline))
            case "sent" if model:
                count = min(value, len(waiting.head()))
                assert bytes(waiting.head()) == model[0][0][begun:]
                begun += count
                if begun == len(model[0][0]):
                    assert waiting.sent(count) is model.popleft()[0]
                    begun = 0
                else:
                    assert waiting.sent(count) is None
            case "late":
                dropped = 0
                while model and not begun and 0 < model[0][1] <= value:
                    model.popleft()
                    dropped += 1
                assert waiting.drop_expired(value) == dropped
            case "clear":
                assert waiting.clear() == list(model)
                model.clear()
                begun = 0
        assert len(waiting) == len(model)
        assert waiting.size == sum(len(raw) - 4 for raw, _ in model) == budget.used - 20
