"""Text of others is shown without moving the cursor, reordering a line or posing as another one (F42, F88)."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wakehub.visible import visible


@pytest.mark.parametrize(
    "text",
    ["", "plain text, with 'quotes' and \\backslash", "żółć", "日本語", "🙂", "Ä\u0308", "a\u00a0b", "[x] # | ---"],
)
def test_what_can_be_seen_stays(text: str) -> None:
    assert visible(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb", "a\\nb"),
        ("a\rb\t", "a\\rb\\t"),
        ("\x1b]52;c;x\x07", "\\x1b]52;c;x\\x07"),
        ("\x1b[2K\r", "\\x1b[2K\\r"),
        ("\0", "\\x00"),
        ("\x7f", "\\x7f"),
        ("\x85\x9b", "\\x85\\x9b"),
        ("\u00ad", "\\xad"),
        ("\u202eevil", "\\u202eevil"),
        ("\u2066\u200b\u200d\ufeff", "\\u2066\\u200b\\u200d\\ufeff"),
        ("\u2028\u2029", "\\u2028\\u2029"),
        ("\ud800", "\\ud800"),
        ("\ue000", "\\ue000"),
        ("\uffff", "\\uffff"),
        ("\U000e0041", "\\U000e0041"),
        ("\U0010ffff", "\\U0010ffff"),
    ],
)
def test_what_cannot_is_escaped(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_bytes_are_escaped_by_code_point_and_never_by_byte() -> None:
    assert visible("ě".encode()) == "ě"  # its second byte is 0x9b, which alone would be CSI
    assert visible(b"\x9b31m") == "\\x9b31m"
    assert visible(b"a\xffb") == "a\\xffb"
    assert visible("\x9b".encode()) == "\\x9b"


def test_some_characters_may_be_kept() -> None:
    assert visible("a\nb\tc\r", keep="\n\t") == "a\nb\tc\\r"


@given(st.text(st.characters(), max_size=50) | st.binary(max_size=50))
def test_nothing_invisible_gets_through(text: str | bytes) -> None:
    shown = visible(text)
    assert not {unicodedata.category(character) for character in shown} & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert visible(shown) == shown
    assert len(shown.splitlines()) <= 1
    shown.encode()
