"""What may be stored, at each limit and one beyond."""

import pytest

from wakehub.errors import BadData
from wakehub.inbox.admission import (
    Guard,
    check,
    check_chain,
    check_file_names,
    check_generation,
    check_name,
    check_rate,
    is_text,
)
from wakehub.inbox.clock import Now
from wakehub.inbox.ids import new_id
from wakehub.inbox.refusals import LoopGuard
from wakehub.inbox.rows import Arrival, Attachment, NewRow, Seal

_NOW = Now(1_800_000_000_000, 0, "boot")
_FILES = tuple(Attachment(f"notes-{number}.md", 3, b"d" * 32) for number in range(17))
_WEEK = 7 * 86_400


@pytest.mark.parametrize(
    "new",
    [
        NewRow("b", "a", b""),
        NewRow("b" * 128, "é" * 64, b"x", ttl_s=1),
        NewRow("b", "a", b"x" * 262_144, ttl_s=_WEEK),
        NewRow("b", "a", b"\xff\0", media_type="application/octet-stream"),
        NewRow("b", "a", b"x", media_type="x/" + "y" * 126, re=new_id(1), group="g_1"),
        NewRow("b", "a", b"x", attachments=_FILES[:16]),
        NewRow("b", "a", b"x", arrival=Arrival("k" * 128, 0)),
        NewRow("b", "a", b"x", signed=Seal(new_id(1), _NOW.ms + 30_000, _NOW.ms + 40_000, 255, "k", b"s" * 64)),
    ],
)
def test_what_keeps_the_limits_is_taken(new: NewRow) -> None:
    check(new, _NOW)


@pytest.mark.parametrize(
    ("new", "limit"),
    [
        (NewRow("b", "a", b"x" * 262_145), "262144"),
        (NewRow("b", "a", b"x", ttl_s=_WEEK + 1), "604800"),
        (NewRow("b", "a", b"x", ttl_s=-1), "1 s"),
        (NewRow("b", "é" * 65, b"x"), "128"),
        (NewRow("b", "a", b"x", group="g" * 129), "128"),
        (NewRow("b", "a", b"x", attachments=_FILES), "16"),
        (NewRow("b", "a", b"x", arrival=Arrival("k" * 129, 0)), "128"),
    ],
)
def test_a_refusal_names_the_limit(new: NewRow, limit: str) -> None:
    with pytest.raises(BadData, match=limit):
        check(new, _NOW)


@pytest.mark.parametrize("arrival", [Arrival("", 0), Arrival(new_id(1), 0), Arrival("k", -1), Arrival("k", 1 << 63)])
def test_an_arrival_has_a_name_of_its_own_and_a_time(arrival: Arrival) -> None:
    with pytest.raises(BadData, match="arrival"):
        check(NewRow("b", "a", b"x", arrival=arrival), _NOW)


@pytest.mark.parametrize("media_type", ["", "x" * 129, "text/plain\n", "text/plaïn", "text/\x7f"])
def test_a_media_type_is_plain_and_short(media_type: str) -> None:
    with pytest.raises(BadData, match="media type"):
        check(NewRow("b", "a", b"x", media_type=media_type), _NOW)


@pytest.mark.parametrize("body", [b"\xff", b"\xed\xa0\x80", b"\xc0\x80"])
def test_text_is_utf8_and_the_refusal_says_what_else_to_do(body: bytes) -> None:
    with pytest.raises(BadData, match="octet-stream"):
        check(NewRow("b", "a", body), _NOW)
    assert is_text("text/markdown; charset=utf-8")
    assert not is_text("application/json")


@pytest.mark.parametrize(
    "name", ["", "a/b", "../x", ".", "..", "x\0", "n" * 129, "\udcff", "a\nb", "\u202e.txt", "\x1b"]
)
def test_a_file_is_named_by_a_base_name(name: str) -> None:
    with pytest.raises(BadData):
        check(NewRow("b", "a", b"x", attachments=(Attachment(name, 1, b"d" * 32),)), _NOW)


@pytest.mark.parametrize("names", [["a", "a"], ["Notes.md", "notes.MD"], ["e\u0301", "\u00e9"], ["ß", "SS"]])
def test_two_files_that_a_file_system_may_take_for_one_are_refused(names: list[str]) -> None:
    with pytest.raises(BadData, match="rename"):
        check_file_names(names)
    check_file_names([names[0], "another", " b.txt", ".hidden", "-rf"])


@pytest.mark.parametrize("bad", [Attachment("f", -1, b"d" * 32), Attachment("f", 1, b"d" * 31)])
def test_a_file_has_size_and_digest(bad: Attachment) -> None:
    with pytest.raises(BadData):
        check(NewRow("b", "a", b"x", attachments=(bad,)), _NOW)


def test_what_a_refusal_shows_is_made_visible() -> None:
    with pytest.raises(BadData) as refused:
        check_name("\u202e" + "x" * 128 + "\x1b", "the name")
    assert "\x1b" not in str(refused.value)
    with pytest.raises(BadData) as refused:
        check(NewRow("b", "a", b"x", re="\x1b[2K"), _NOW)
    assert "\\x1b" in str(refused.value)


def test_the_guard_refuses_one_beyond_its_limits() -> None:
    guard, new = Guard(max_hops=2, pair_per_minute=3), NewRow("b", "a", b"x")
    check_chain(2, guard)
    check_rate(2, new, guard)
    with pytest.raises(LoopGuard, match="429"):
        check_chain(3, guard)
    with pytest.raises(LoopGuard, match="429"):
        check_rate(3, new, guard)


def test_no_enrolment_and_the_first_are_the_same() -> None:
    check_generation(NewRow("b", "a", b"x", generation=0), 1)
    check_generation(NewRow("b", "a", b"x", generation=2), 1)
