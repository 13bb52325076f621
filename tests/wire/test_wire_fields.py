"""Length prefixes, text, topics and topic lists (awh1.md §1)."""

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_cases import BUDGET, mutated, parsed, refused, topic_lists

from wakehub.wire.fields import (
    check_number,
    check_topic,
    decode_topics,
    encode_topics,
    has_control,
    lp,
    malformed,
    take_lp,
    text,
)


def test_malformed_is_a_400_with_its_reason() -> None:
    violation = malformed("bad magic")
    assert (violation.code, violation.reason) == (400, "bad magic")


@pytest.mark.parametrize("size", [0, 1, 255])
def test_a_length_prefix_is_one_byte(size: int) -> None:
    value = b"x" * size
    assert lp(value) == bytes((size,)) + value
    assert take_lp(b"--" + lp(value) + b"!", 2, "it") == (value, 3 + size)


def test_what_does_not_fit_a_length_prefix_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="256 B do not fit"):
        lp(bytes(256))


@pytest.mark.parametrize(
    ("buffer", "at", "reason"),
    [
        (b"", 0, "id is missing"),
        (b"\x01a", 2, "id is missing"),
        (b"\x01", 0, "id is cut short"),
        (b"\xffabc", 0, "id is cut short"),
    ],
)
def test_a_length_prefixed_field_that_is_not_all_there(buffer: bytes, at: int, reason: str) -> None:
    with refused(reason):
        take_lp(buffer, at, "id")


@pytest.mark.parametrize(
    "value",
    [
        b"\xff",
        b"\x80",
        b"\xc3",  # cut short
        b"\xc0\xaf",  # overlong
        b"\xe0\x80\xaf",
        b"\xed\xa0\x80",  # a surrogate
        b"\xf4\x90\x80\x80",  # above U+10FFFF
    ],
)
def test_utf8_is_strict(value: bytes) -> None:
    with refused("from is not UTF-8"):
        text(value, "from")


def test_text_keeps_every_character() -> None:
    assert text("aé\u0304\ufeff😀".encode(), "from") == "aé\u0304\ufeff😀"


def test_a_control_character_is_one_of_category_cc_and_nothing_else() -> None:
    for number in range(sys.maxunicode + 1):
        assert has_control(chr(number)) == (unicodedata.category(chr(number)) == "Cc"), hex(number)


def test_a_control_character_is_found_anywhere() -> None:
    assert has_control("ab\x85")
    assert has_control("\x00ab")
    assert not has_control("a\u200eb")
    assert not has_control("")


@pytest.mark.parametrize("topic", [b"#a", b"#" + b"x" * 63, b"#" + "é".encode() * 31, b"##", "#\u200e".encode()])
def test_a_topic(topic: bytes) -> None:
    check_topic(topic)


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        (b"", "topic does not start with #"),
        (b"a#", "topic does not start with #"),
        (b"#", "topic of 1 B is not within 2..64 B"),
        (b"#" + b"x" * 64, "topic of 65 B is not within 2..64 B"),
        (b"#" + "é".encode() * 32, "topic of 65 B is not within 2..64 B"),
        (b"#\xff", "topic is not UTF-8"),
        (b"#a\nb", "topic holds a control character"),
        ("#\u0085".encode(), "topic holds a control character"),
    ],
)
def test_what_is_no_topic(topic: bytes, reason: str) -> None:
    with refused(reason):
        check_topic(topic)
    with refused(reason):
        encode_topics([topic])
    with refused(reason):
        decode_topics(b"\x01" + lp(topic))


def test_an_empty_topic_list_is_one_zero_byte() -> None:
    assert encode_topics([]) == b"\x00"
    assert decode_topics(b"\x00") == ()


def test_a_topic_list_keeps_order_and_repeats() -> None:
    listed = (b"#b", b"#a", b"#b")
    assert encode_topics(listed) == b"\x03\x02#b\x02#a\x02#b"
    assert decode_topics(encode_topics(listed)) == listed


def test_a_topic_list_of_eight_and_of_nine() -> None:
    eight = [b"#%d" % number for number in range(8)]
    assert decode_topics(encode_topics(eight)) == tuple(eight)
    with refused("topic list of 9 exceeds 8"):
        encode_topics([*eight, b"#9"])
    with refused("topic list of 9 exceeds 8"):
        decode_topics(b"\x09" + b"".join(map(lp, [*eight, b"#9"])))


@pytest.mark.parametrize(
    ("buffer", "reason"),
    [
        (b"", "topic list is empty"),
        (b"\x01", "topic is missing"),
        (b"\x02\x02#a", "topic is missing"),
        (b"\x01\x03#a", "topic is cut short"),
        (b"\x00\x00", "topic list has 1 trailing B"),
        (b"\x01\x02#a\x02#b", "topic list has 3 trailing B"),
    ],
)
def test_what_is_no_topic_list(buffer: bytes, reason: str) -> None:
    with refused(reason):
        decode_topics(buffer)


@BUDGET
@given(topic_lists)
def test_topics_survive_the_wire(listed: tuple[bytes, ...]) -> None:
    assert decode_topics(encode_topics(listed)) == listed


@BUDGET
@given(mutated(topic_lists.map(encode_topics)) | st.binary(max_size=40))
def test_a_topic_list_that_parses_has_no_other_spelling(buffer: bytes) -> None:
    listed = parsed(decode_topics, buffer)
    assert listed is None or encode_topics(listed) == buffer


@pytest.mark.parametrize(("value", "bits", "least"), [(0, 8, 0), (255, 8, 0), (1, 8, 1), ((1 << 64) - 1, 64, 0)])
def test_a_number_that_its_field_can_hold(value: int, bits: int, least: int) -> None:
    check_number(value, bits, "count", least)


@pytest.mark.parametrize(("value", "bits", "least"), [(-1, 8, 0), (256, 8, 0), (0, 8, 1), (1 << 64, 64, 0)])
def test_a_number_that_its_field_cannot_hold(value: int, bits: int, least: int) -> None:
    with refused(f"count {value} is not within {least}..{(1 << bits) - 1}"):
        check_number(value, bits, "count", least)
