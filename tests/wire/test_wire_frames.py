"""One frame: layout, ceilings, refusals with code and words, and which fault of several answers (awh1.md §1)."""

import struct
from collections.abc import Callable
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_cases import (
    BUDGET,
    CHALLENGE,
    SUBSCRIBE,
    U32,
    U64,
    UNAUTHORIZED,
    Parts,
    frames,
    mutated,
    parsed,
    refused,
)

from wakehub.wire.frames import PAYLOAD_CEILING, Frame, Kind, decode, encode, kind_of, wake_timestamp_ms

GOOD = Parts()
HUB = b"ai-memory-wake-hub"

CEILINGS = {
    "hello": 1024,
    "welcome": 256,
    "join": 1024,
    "depart": 1024,
    "subscribe": 1024,
    "unsubscribe": 1024,
    "wake": 256,
    "ping": 32,
    "pong": 32,
    "error": 256,
}


def test_the_kinds_and_their_numbers() -> None:
    assert [(kind.name.lower(), kind.value) for kind in Kind] == list(zip(CEILINGS, range(1, 11), strict=True))


def test_the_ceilings() -> None:
    assert {kind.name.lower(): ceiling for kind, ceiling in PAYLOAD_CEILING.items()} == CEILINGS


@pytest.mark.parametrize(
    ("raw", "frame"),
    [
        (CHALLENGE, Frame(Kind.HELLO, HUB, payload=bytes([7]) * 32)),
        (UNAUTHORIZED, Frame(Kind.ERROR, HUB, payload=b"\x01\x91unauthorized")),
        (SUBSCRIBE, Frame(Kind.SUBSCRIBE, b"agent-sub", payload=b"\x02\x05#hive\x06#swarm")),
    ],
)
def test_the_reference_values(raw: bytes, frame: Frame) -> None:
    assert decode(raw) == frame
    assert encode(frame) == raw


def test_every_field_lies_at_its_offset() -> None:
    frame = Frame(Kind.WAKE, b"from", b"to", b"payload", 0x0102030405060708, 0x0A0B0C0D)
    body = bytes.fromhex("41574831 01 07 00 04 02 00 0007 0102030405060708 0a0b0c0d") + b"fromtopayload"
    assert encode(frame) == struct.pack(">I", len(body)) + body
    assert decode(encode(frame)) == frame


@pytest.mark.parametrize("kind", Kind)
def test_a_payload_may_fill_its_ceiling_and_no_more(kind: Kind) -> None:
    ceiling = CEILINGS[kind.name.lower()]
    full = Frame(kind, b"f" * 128, b"t" * 128, bytes(ceiling), U64, U32)
    assert decode(encode(full)) == full
    reason = f"{kind.name.lower()} payload {ceiling + 1} B exceeds {ceiling} B"
    with refused(reason, 413):
        decode(GOOD.but(kind=kind.value, payload=bytes(ceiling + 1)).raw)
    with refused(reason, 413):
        encode(Frame(kind, b"alice", payload=bytes(ceiling + 1)))


def test_the_longest_frame() -> None:
    raw = encode(Frame(Kind.HELLO, b"f" * 128, b"t" * 128, bytes(1024)))
    assert len(raw) == 4 + 1304


@pytest.mark.parametrize("size", [1025, 65_536, 1 << 20])
def test_what_the_other_side_would_refuse_by_its_prefix_is_not_sent(size: int) -> None:
    with refused(f"frame of {24 + 256 + size} B exceeds 1304 B", 413):
        encode(Frame(Kind.HELLO, b"f" * 128, b"t" * 128, bytes(size)))


@pytest.mark.parametrize("keep", range(24))
def test_a_body_shorter_than_a_header(keep: int) -> None:
    with refused(f"frame of {keep} B is shorter than its header"):
        decode(GOOD.but(keep=keep).raw)


@pytest.mark.parametrize("magic", [b"AWH0", b"awh1", b"\0\0\0\0", b"1HWA"])
def test_magic(magic: bytes) -> None:
    with refused("bad magic"):
        decode(GOOD.but(magic=magic).raw)


@pytest.mark.parametrize("version", [0, 2, 255])
def test_version(version: int) -> None:
    with refused(f"version {version} is not 1"):
        decode(GOOD.but(version=version).raw)


@pytest.mark.parametrize("kind", [0, *range(14, 256)])
def test_unknown_kinds(kind: int) -> None:
    with refused(f"unknown kind {kind}"):
        decode(GOOD.but(kind=kind).raw)


@pytest.mark.parametrize(("kind", "name"), [(11, "request"), (12, "reply"), (13, "notify")])
def test_reserved_kinds_are_named(kind: int, name: str) -> None:
    with refused(f"reserved kind {kind} ({name}) carries a body and was removed in v1"):
        decode(GOOD.but(kind=kind).raw)


@pytest.mark.parametrize("value", [1, 128, 255])
def test_flags_and_the_reserved_byte(value: int) -> None:
    with refused("flags are not zero"):
        decode(GOOD.but(flags=value).raw)
    with refused("reserved byte is not zero"):
        decode(GOOD.but(reserved=value).raw)


@pytest.mark.parametrize(
    "parts", [GOOD.but(behind=b"x"), GOOD.but(keep=24), GOOD.but(keep=len(GOOD.raw) - 5), GOOD.but(behind=bytes(900))]
)
def test_lengths_that_do_not_add_up(parts: Parts) -> None:
    with refused("field lengths do not add up to the frame's length"):
        decode(parts.raw)


@pytest.mark.parametrize("value", [b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"ab\xe2\x82"])
def test_ids_are_utf8(value: bytes) -> None:
    with refused("from is not UTF-8"):
        decode(GOOD.but(from_id=value).raw)
    with refused("to is not UTF-8"):
        decode(GOOD.but(to_id=value).raw)
    with refused("from is not UTF-8"):
        encode(Frame(Kind.WAKE, value, b"bob"))
    with refused("to is not UTF-8"):
        encode(Frame(Kind.WAKE, b"alice", value))


@pytest.mark.parametrize("value", [b"a" * 128, "é".encode() * 64, "😀".encode() * 32])
def test_an_id_of_128_bytes(value: bytes) -> None:
    assert decode(GOOD.but(from_id=value, to_id=value).raw).from_id == value
    assert encode(decode(GOOD.but(from_id=value, to_id=value).raw)) == GOOD.but(from_id=value, to_id=value).raw


@pytest.mark.parametrize("value", [b"a" * 129, "é".encode() * 65, b"a" * 255])
def test_a_longer_id_is_refused_not_cut(value: bytes) -> None:
    with refused(f"from of {len(value)} B exceeds 128 B"):
        decode(GOOD.but(from_id=value).raw)
    with refused(f"to of {len(value)} B exceeds 128 B"):
        decode(GOOD.but(to_id=value).raw)


@pytest.mark.parametrize("size", [129, 256, 2000])
def test_an_id_that_fits_no_length_byte_is_not_sent(size: int) -> None:
    with refused(f"from of {size} B exceeds 128 B"):
        encode(Frame(Kind.WAKE, b"a" * size, b"bob"))
    with refused(f"to of {size} B exceeds 128 B"):
        encode(Frame(Kind.WAKE, b"alice", b"a" * size))


@pytest.mark.parametrize("kind", Kind)
def test_only_a_hello_may_have_an_empty_from(kind: Kind) -> None:
    parts = GOOD.but(kind=kind.value, from_id=b"")
    if kind is Kind.HELLO:
        assert encode(decode(parts.raw)) == parts.raw
        return
    with refused("from is empty"):
        decode(parts.raw)
    with refused("from is empty"):
        encode(Frame(kind, b""))


@pytest.mark.parametrize("kind", Kind)
def test_any_kind_may_have_an_empty_to(kind: Kind) -> None:
    assert decode(GOOD.but(kind=kind.value, to_id=b"").raw).to_id == b""


@pytest.mark.parametrize("number", [*range(0x20), *range(0x7F, 0xA0)])
def test_control_characters_in_ids(number: int) -> None:
    value = b"a" + chr(number).encode() + b"b"
    with refused("from holds a control character"):
        decode(GOOD.but(from_id=value).raw)
    with refused("to holds a control character"):
        decode(GOOD.but(to_id=value).raw)
    with refused("from holds a control character"):
        encode(Frame(Kind.WAKE, value))
    with refused("to holds a control character"):
        encode(Frame(Kind.WAKE, b"alice", value))


def test_look_alikes_of_control_characters_are_none() -> None:
    """Category Cf and separators: the wire takes them; names are the enrolment's business."""
    value = " \u00a0\u00ad\u200b\u200e\u202e\u2028\ufeff".encode()
    assert decode(GOOD.but(from_id=value, to_id=value).raw).to_id == value


def test_ids_are_not_normalised() -> None:
    composed, decomposed = "é".encode(), "e\u0301".encode()
    assert decode(GOOD.but(from_id=composed, to_id=decomposed).raw) == decode(
        GOOD.but(from_id=composed, to_id=decomposed).raw
    )
    assert decode(GOOD.but(from_id=composed).raw).from_id != decode(GOOD.but(from_id=decomposed).raw).from_id


def test_a_long_topic_as_destination_is_only_an_id() -> None:
    assert decode(GOOD.but(to_id=b"#" + b"x" * 127).raw).to_id == b"#" + b"x" * 127


# --- frames with several faults: the first in the specification's order answers -----------------------------------

FAULTS: list[tuple[str, int, Callable[[Parts], Parts]]] = [
    ("frame of 23 B is shorter than its header", 400, lambda parts: parts.but(keep=23)),
    ("bad magic", 400, lambda parts: parts.but(magic=b"HTTP")),
    ("version 9 is not 1", 400, lambda parts: parts.but(version=9)),
    ("unknown kind 99", 400, lambda parts: parts.but(kind=99)),
    ("flags are not zero", 400, lambda parts: parts.but(flags=1)),
    ("field lengths do not add up to the frame's length", 400, lambda parts: parts.but(behind=b"x")),
    ("wake payload 257 B exceeds 256 B", 413, lambda parts: parts.but(payload=bytes(257))),
    ("from is not UTF-8", 400, lambda parts: parts.but(from_id=parts.from_id + b"\xff")),
    ("to is not UTF-8", 400, lambda parts: parts.but(to_id=parts.to_id + b"\xff")),
    ("from of 140 B exceeds 128 B", 400, lambda parts: parts.but(from_id=b"f" * 135 + parts.from_id)),
    ("from holds a control character", 400, lambda parts: parts.but(from_id=b"\n" + parts.from_id[1:])),
    ("to of 140 B exceeds 128 B", 400, lambda parts: parts.but(to_id=b"t" * 137 + parts.to_id)),
    ("to holds a control character", 400, lambda parts: parts.but(to_id=b"\n" + parts.to_id[1:])),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault[0])
def test_each_fault_alone(fault: tuple[str, int, Callable[[Parts], Parts]]) -> None:
    reason, code, spoil = fault
    with refused(reason, code):
        decode(spoil(GOOD).raw)


@pytest.mark.parametrize("pair", list(combinations(FAULTS, 2)), ids=lambda pair: f"{pair[0][0]} / {pair[1][0]}")
def test_of_two_faults_the_first_answers(pair: tuple[tuple[str, int, Callable[[Parts], Parts]], ...]) -> None:
    (reason, code, spoil), (_, _, spoil_more) = pair
    with refused(reason, code):
        decode(spoil_more(spoil(GOOD)).raw)


def test_of_all_faults_the_first_answers() -> None:
    parts, expected = GOOD, []
    for reason, code, spoil in reversed(FAULTS):
        parts = spoil(parts)
        expected.append((reason, code, parts))
    for reason, code, parts in expected:
        with refused(reason, code):
            decode(parts.raw)


@pytest.mark.parametrize(
    ("changes", "reason", "code"),
    [
        ({"payload": bytes(257)}, "wake payload 257 B exceeds 256 B", 413),
        ({"to_id": b"\xff"}, "to is not UTF-8", 400),
        ({"to_id": b"t" * 129}, "from is empty", 400),
        ({"to_id": b"\n"}, "from is empty", 400),
    ],
)
def test_an_empty_from_among_other_faults(changes: dict[str, bytes], reason: str, code: int) -> None:
    with refused(reason, code):
        decode(GOOD.but(from_id=b"", **changes).raw)


# --- what the encoder would not send ------------------------------------------------------------------------------


@pytest.mark.parametrize("ts_ms", [-1, U64 + 1, 1 << 70])
def test_a_time_that_its_field_cannot_hold(ts_ms: int) -> None:
    with refused(f"ts_ms {ts_ms} is not within 0..{U64}"):
        encode(Frame(Kind.WAKE, b"alice", b"bob", ts_ms=ts_ms))


@pytest.mark.parametrize("ttl_ms", [-1, U32 + 1, 1 << 70])
def test_a_lifetime_that_its_field_cannot_hold(ttl_ms: int) -> None:
    with refused(f"ttl_ms {ttl_ms} is not within 0..{U32}"):
        encode(Frame(Kind.WAKE, b"alice", b"bob", ttl_ms=ttl_ms))


def test_the_largest_time_and_lifetime() -> None:
    frame = Frame(Kind.WAKE, b"alice", b"bob", ts_ms=U64, ttl_ms=U32)
    assert decode(encode(frame)) == frame


# --- peeking at frames that are known to be good ------------------------------------------------------------------


@BUDGET
@given(frames())
def test_peeking_agrees_with_decoding(frame: Frame) -> None:
    raw = encode(frame)
    assert kind_of(raw) == frame.kind
    assert wake_timestamp_ms(raw) == (frame.ts_ms if frame.kind is Kind.WAKE else None)


# --- one value, one encoding --------------------------------------------------------------------------------------


@BUDGET
@given(frames())
def test_a_frame_survives_the_wire(frame: Frame) -> None:
    assert decode(encode(frame)) == frame


def delimited(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


bodies = frames().map(lambda frame: encode(frame)[4:])


@BUDGET
@given(mutated(bodies) | st.binary(max_size=1304) | st.binary(max_size=40).map(lambda rest: b"AWH1\x01" + rest))
def test_a_frame_that_parses_has_no_other_spelling(body: bytes) -> None:
    frame = parsed(decode, delimited(body))
    assert frame is None or encode(frame) == delimited(body)


@BUDGET
@given(
    st.builds(
        Frame,
        st.sampled_from(Kind),
        st.binary(max_size=140),
        st.binary(max_size=140),
        st.binary(max_size=1100),
        st.integers(-2, U64 + 2),
        st.integers(-2, U32 + 2),
    )
)
def test_what_may_be_sent_is_what_may_be_received(frame: Frame) -> None:
    raw = parsed(encode, frame)
    assert raw is None or decode(raw) == frame
