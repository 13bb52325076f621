"""Delimiting frames in a stream (awh1.md §1): whole, byte by byte, in any pieces, with a tail, over the ceiling."""

import gc
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_cases import BUDGET, CHALLENGE, SUBSCRIBE, Parts, chunked, frames, refused

from wakehub.errors import Violation
from wakehub.wire.frames import encode
from wakehub.wire.reader import FrameReader

TOO_LONG = struct.pack(">I", 1305)
LONGEST = struct.pack(">I", 1304) + bytes(1304)
REFUSAL = "frame exceeds 1304 B"


def taken(reader: FrameReader) -> list[bytes]:
    """Every frame that is whole by now."""
    return list(iter(reader.next_frame, None))


def fed(reader: FrameReader, *pieces: bytes) -> list[bytes]:
    frames = []
    for piece in pieces:
        reader.feed(piece)
        frames += taken(reader)
    return frames


def held(reader: FrameReader) -> int:
    """How many bytes the reader keeps alive."""
    return sum(len(kept) for kept in gc.get_referents(reader) if isinstance(kept, bytes))


def byte_wise(stream: bytes) -> list[bytes]:
    return [stream[at : at + 1] for at in range(len(stream))]


def test_nothing_comes_from_nothing() -> None:
    assert fed(FrameReader(), b"") == []


def test_a_frame_comes_with_its_prefix() -> None:
    assert fed(FrameReader(), CHALLENGE + SUBSCRIBE) == [CHALLENGE, SUBSCRIBE]


def test_a_frame_comes_with_its_last_byte_and_not_before() -> None:
    reader = FrameReader()
    assert fed(reader, *byte_wise(CHALLENGE[:-1])) == []
    assert fed(reader, CHALLENGE[-1:]) == [CHALLENGE]


def test_the_bytes_behind_a_frame_wait_for_theirs() -> None:
    reader = FrameReader()
    assert fed(reader, CHALLENGE + SUBSCRIBE[:9]) == [CHALLENGE]
    assert fed(reader, SUBSCRIBE[9:]) == [SUBSCRIBE]


def test_frames_that_were_not_taken_are_not_lost() -> None:
    reader = FrameReader()
    reader.feed(CHALLENGE + SUBSCRIBE)
    assert reader.next_frame() == CHALLENGE
    reader.feed(CHALLENGE)
    assert taken(reader) == [SUBSCRIBE, CHALLENGE]


def test_the_reader_only_delimits() -> None:
    assert fed(FrameReader(), bytes(4) + b"\0\0\0\x01x") == [bytes(4), b"\0\0\0\x01x"]


def test_the_longest_frame_passes() -> None:
    assert fed(FrameReader(), LONGEST) == [LONGEST]


@pytest.mark.parametrize("length", [1305, 1306, 65536, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
@pytest.mark.parametrize("behind", [b"", b"x" * 5000])
def test_a_prefix_over_the_ceiling_is_refused_by_its_four_bytes(length: int, behind: bytes) -> None:
    reader = FrameReader()
    reader.feed(struct.pack(">I", length) + behind)
    with refused(REFUSAL, 413):
        reader.next_frame()


def test_three_bytes_of_a_prefix_decide_nothing() -> None:
    reader = FrameReader()
    assert fed(reader, *byte_wise(TOO_LONG[:3])) == []
    reader.feed(TOO_LONG[3:])
    with refused(REFUSAL, 413):
        reader.next_frame()


def test_frames_before_a_refused_prefix_still_come() -> None:
    reader = FrameReader()
    reader.feed(CHALLENGE + SUBSCRIBE + TOO_LONG)
    assert [reader.next_frame(), reader.next_frame()] == [CHALLENGE, SUBSCRIBE]
    with refused(REFUSAL, 413):
        reader.next_frame()


def test_a_refusal_is_for_good() -> None:
    reader = FrameReader()
    reader.feed(TOO_LONG)
    for _ in range(3):
        with refused(REFUSAL, 413):
            reader.next_frame()
        reader.feed(CHALLENGE)


def test_a_refusal_keeps_no_bytes_and_no_history() -> None:
    """Each time it is raised anew: one exception object would collect a traceback, and with it frames and bytes."""
    reader = FrameReader()
    reader.feed(TOO_LONG + b"x" * 5000)
    raised = set()
    for _ in range(3):
        with pytest.raises(Violation) as caught:
            reader.next_frame()
        raised.add(caught.value)
        reader.feed(b"x" * 5000)
    assert held(reader) == 0
    assert len(raised) == 3
    assert not any(isinstance(kept, Violation) for kept in gc.get_referents(reader))


def test_what_was_taken_is_not_kept() -> None:
    """An idle connection must not hold on to the last bytes it received."""
    reader = FrameReader()
    assert len(fed(reader, LONGEST * 12)) == 12
    assert held(reader) == 0


def test_at_most_one_unfinished_frame_is_kept() -> None:
    reader = FrameReader()
    stream = (LONGEST * 13)[:-1]
    for start in range(0, len(stream), 16_384):
        fed(reader, stream[start : start + 16_384])
        assert held(reader) < len(LONGEST)
    assert held(reader) == len(LONGEST) - 1


@pytest.mark.parametrize("cut", range(len(SUBSCRIBE)))
def test_only_the_end_of_a_frame_is_a_boundary(cut: int) -> None:
    reader = FrameReader()
    assert reader.at_boundary
    fed(reader, CHALLENGE + SUBSCRIBE[:cut])
    assert reader.at_boundary == (cut == 0)
    fed(reader, SUBSCRIBE[cut:])
    assert reader.at_boundary


def test_a_whole_frame_that_was_not_taken_is_no_boundary() -> None:
    reader = FrameReader()
    reader.feed(CHALLENGE)
    assert not reader.at_boundary


def test_behind_a_refused_prefix_is_no_boundary() -> None:
    reader = FrameReader()
    reader.feed(TOO_LONG)
    with refused(REFUSAL, 413):
        reader.next_frame()
    assert not reader.at_boundary


streams = st.lists(frames().map(encode) | st.integers(0, 40).map(lambda size: Parts(keep=size).raw), max_size=6)
tails = st.binary(max_size=3) | st.integers(1, 36).map(lambda size: CHALLENGE[:size])


@BUDGET
@given(st.data(), streams, tails)
def test_all_ways_to_feed_agree(data: st.DataObject, whole: list[bytes], tail: bytes) -> None:
    stream = b"".join(whole) + tail
    for pieces in ([stream], byte_wise(stream), data.draw(chunked(stream))):
        reader = FrameReader()
        assert fed(reader, *pieces) == whole
        assert reader.at_boundary == (not tail)
        assert held(reader) == len(tail)


@BUDGET
@given(st.data(), streams, st.integers(1305, (1 << 32) - 1), st.binary(max_size=2000))
def test_all_ways_to_feed_refuse_at_the_same_frame(
    data: st.DataObject, whole: list[bytes], length: int, behind: bytes
) -> None:
    stream = b"".join(whole) + struct.pack(">I", length) + behind
    for pieces in ([stream], byte_wise(stream), data.draw(chunked(stream))):
        reader = FrameReader()
        came: list[bytes] = []
        with refused(REFUSAL, 413):
            for piece in pieces:
                reader.feed(piece)
                while (raw := reader.next_frame()) is not None:
                    came.append(raw)
        assert came == whole
        assert held(reader) == 0
