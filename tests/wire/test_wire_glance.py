"""The short way for a plain wake says nothing that the long one would not (awh1.md §1, §2)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_cases import BUDGET

from wakehub.errors import Violation
from wakehub.limits import HEADER_BYTES, MAX_ID_BYTES, PREFIX_BYTES
from wakehub.wire.frames import Frame, Kind, decode, encode
from wakehub.wire.glance import plain_wake, wake_head
from wakehub.wire.payloads import Wake

ids = st.text(st.characters(blacklist_categories=("Cc", "Cs")), min_size=1, max_size=20).map(str.encode)
ascii_ids = st.text("abcdefghij-_.0123456789", min_size=1, max_size=30).map(str.encode)
digests = st.sampled_from([b"", bytes(32), b"\xff" * 32])
hints = st.builds(Wake, ascii_ids | ids | st.just(b""), ascii_ids | ids, ids | st.just(b""), digests, st.integers(0, 9))
wakes = st.builds(
    lambda sender, to, hint, ts_ms, ttl_ms: encode(Frame(Kind.WAKE, sender, to, hint.encode(), ts_ms, ttl_ms)),
    ascii_ids | ids,
    ascii_ids | ids | st.just(b""),
    hints,
    st.integers(0, (1 << 64) - 1),
    st.integers(0, (1 << 32) - 1),
)


def glance(raw: bytes, sender: bytes) -> tuple[bytes, bytes, int, int] | None:
    return plain_wake(raw, wake_head(sender), sender)


def check(raw: bytes, sender: bytes) -> bool:
    """Whether it was recognised; then the long way agrees in every field."""
    found = glance(raw, sender)
    if found is None:
        return False
    to, row_id, ts_ms, ttl_ms = found
    if len(to) > MAX_ID_BYTES:  # not its to judge: nobody who is connected has such an id
        return True
    to_at = PREFIX_BYTES + HEADER_BYTES + len(sender)
    raw, to = raw[:to_at] + b"x" * len(to) + raw[to_at + len(to) :], b"x" * len(to)  # nor are its letters
    frame = decode(raw)
    assert frame == Frame(Kind.WAKE, sender, to, frame.payload, ts_ms, ttl_ms)
    assert Wake.decode(frame.payload).row_id == row_id
    return True


@BUDGET
@given(wakes)
def test_a_wake_is_recognised_if_its_texts_are_ascii(raw: bytes) -> None:
    frame = decode(raw)
    wake = Wake.decode(frame.payload)
    assert check(raw, frame.from_id) == (wake.row_id + wake.namespace + wake.sender).isascii()


@BUDGET
@given(wakes, st.data())
def test_whatever_one_byte_becomes_the_long_way_agrees(raw: bytes, data: st.DataObject) -> None:
    sender = decode(raw).from_id
    at = data.draw(st.integers(PREFIX_BYTES, len(raw) - 1))
    changed = bytearray(raw)
    changed[at] = data.draw(st.integers(0, 255))
    check(bytes(changed), sender)


@BUDGET
@given(wakes, st.data())
def test_a_piece_put_in_or_taken_out_is_no_plain_wake_or_the_long_way_agrees(raw: bytes, data: st.DataObject) -> None:
    sender = decode(raw).from_id
    at = data.draw(st.integers(PREFIX_BYTES, len(raw)))
    body = raw[PREFIX_BYTES:at] + data.draw(st.binary(max_size=4)) + raw[at + data.draw(st.integers(0, 4)) :]
    check(len(body).to_bytes(4, "big") + body, sender)


@BUDGET
@given(wakes)
def test_of_a_wake_from_somebody_else_it_says_nothing(raw: bytes) -> None:
    sender = decode(raw).from_id
    other = bytes([sender[0] ^ 1]) + sender[1:]
    assert glance(raw, other) is None
    assert glance(raw, sender + b"x") is None
    assert plain_wake(raw, b"", b"") is None, "nobody has come in yet"


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.WAKE])
def test_another_kind_is_no_wake(kind: Kind) -> None:
    payload = Wake(b"m_1").encode()
    raw = encode(Frame(Kind.WAKE, b"alice", b"bob", payload))
    at = PREFIX_BYTES + 5
    assert glance(raw, b"alice") is not None
    assert glance(raw[:at] + bytes([kind]) + raw[at + 1 :], b"alice") is None


@pytest.mark.parametrize("size", range(HEADER_BYTES + 1))
def test_a_frame_that_is_cut_short_is_left_to_the_long_way(size: int) -> None:
    raw = encode(Frame(Kind.WAKE, b"alice", b"bob", Wake(b"m_1").encode()))
    assert glance(raw[: PREFIX_BYTES + size], b"alice") is None


def test_a_payload_over_its_ceiling_is_left_to_the_long_way() -> None:
    body = Wake(b"a" * 100, b"b" * 100, b"c" * 24).encode()
    raw = encode(Frame(Kind.WAKE, b"alice", b"bob", body))
    assert glance(raw, b"alice") is not None
    longer = body.replace(bytes([24]) + b"c" * 24, bytes([50]) + b"c" * 50)
    header = bytearray(raw[: -len(body)])
    header[:4] = (len(header) + len(longer) - PREFIX_BYTES).to_bytes(4, "big")
    header[PREFIX_BYTES + 10 : PREFIX_BYTES + 12] = len(longer).to_bytes(2, "big")
    assert glance(bytes(header) + longer, b"alice") is None
    with pytest.raises(Violation):
        decode(bytes(header) + longer)
