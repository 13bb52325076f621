"""What is an address, a namespace, a default name, and which names are kept (receive.md §2)."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wakehub.errors import BadData, Exit
from wakehub.identity.addresses import check_address, check_namespace, file_stem, is_reserved, name_from_directory


@pytest.mark.parametrize(
    "text",
    [
        "alice",
        "ai:alice",
        "acme/deploy",
        "a/b/c/d/e/f/g/h",
        "A",
        "9",
        "a.b_c-d:e",
        "0/1",
        "a" * 128,
        "a.",
        "a-",
        "Builder",
    ],
)
def test_what_is_an_address(text: str) -> None:
    assert check_address(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "a/",
        "/a",
        "a//b",
        ".",
        "..",
        "../../x",
        "a/../b",
        "a/./b",
        ".hidden",
        "a/.b",
        "_inbox/a",
        "a/_b",
        "-a",
        ":a",
        "a b",
        " a",
        "a ",
        "a\n",
        "a\0",
        "a]b",
        "a\\b",
        "a#b",
        "#a",
        "a~",
        "a%41",
        "a*",
        "a" * 129,
        "a/" * 64 + "b",
        "a" * 300,
        "buiІder",  # F42: Cyrillic
        "é",
        "e\u0301",
        "a\u202eb",
        "é" * 64,
        "ａ",
        "٣",
        "\ud800",
        "[wakehub m_01 from x]",
    ],
)
def test_what_is_none(text: str) -> None:
    """F41, F42, F43: refused before any file is touched, and never mended."""
    with pytest.raises(BadData) as refusal:
        check_address(text)
    assert refusal.value.exit is Exit.DATA
    assert str(refusal.value).isprintable()


@given(st.text(max_size=140))
def test_an_address_is_as_it_is_or_refused(text: str) -> None:
    try:
        assert check_address(text) == text
    except BadData:
        return
    assert text.isascii()
    assert 1 <= len(text) <= 128
    assert all(part[0].isalnum() for part in text.split("/"))


def test_a_namespace_ends_in_a_slash() -> None:
    assert check_namespace("acme/") == "acme/"
    assert check_namespace("acme/eng/") == "acme/eng/"
    for text in ("", "/", "acme", "acme//", "/acme/", "a b/"):
        with pytest.raises(BadData) as refused:
            check_namespace(text)
        assert refused.value.what == f"'{text}' is not a namespace", "as it was typed"
    with pytest.raises(BadData):
        check_namespace("é/")


@pytest.mark.parametrize(
    ("directory", "name"),
    [
        ("wakehub", "wakehub"),
        ("My Project", "My-Project"),
        ("-x-", "x"),
        ("(draft)", "draft"),
        (".config", "config"),
        ("_private", "private"),
        ("a.b", "a.b"),
        ("é", None),
        ("éa", "a"),
        ("aéb", "a--b"),
        ("a\udcffb", "a-b"),
        ("", None),
        ("...", None),
        ("...a", "a"),
        ("x" * 128, "x" * 128),
        ("x" * 129, None),
    ],
)
def test_the_default_name_of_a_directory(directory: str, name: str | None) -> None:
    assert name_from_directory(directory) == name


@given(st.text(max_size=200))
def test_a_default_name_is_an_address(directory: str) -> None:
    name = name_from_directory(directory.encode("utf-8", "ignore").decode())
    assert name is None or check_address(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "owner",
        "Owner",
        "wakehub-publisher",
        "wakehub-x",
        "WAKEHUB-",
        "wakehub-x/y",
        "wake-hub-producer",
        "Wake-Hub-Producer",
    ],
)
def test_reserved_names(name: str) -> None:
    assert is_reserved(name)


@pytest.mark.parametrize("name", ["owners", "owner/x", "wakehub", "my-wakehub-x", "wake-hub-producer2"])
def test_names_that_are_not(name: str) -> None:
    assert not is_reserved(name)


@pytest.mark.parametrize(
    ("agent_id", "stem"),
    [
        ("alice", "alice"),
        ("ai:alice", "ai%3Aalice"),
        ("acme/deploy", "acme%2Fdeploy"),
        ("Builder", "%42uilder"),
        ("a.b_c-9", "a.b_c-9"),
        ("../../x", "..%2F..%2Fx"),
        ("a\0b", "a%00b"),
        ("é", "%C3%A9"),
        ("~", "%7E"),
        ("%41", "%2541"),
        ("a" * 120, "a" * 120),
    ],
)
def test_file_names(agent_id: str, stem: str) -> None:
    assert file_stem(agent_id) == stem


def test_a_long_name_ends_in_a_digest() -> None:
    stem = file_stem("a" * 121)
    assert stem == "a" * 80 + "~" + hashlib.sha256(b"a" * 121).hexdigest()[:32]
    assert stem != file_stem("a" * 122)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300))
def test_a_file_name_is_one_plain_component(agent_id: str) -> None:
    """F43: an id cannot lead anywhere else, and case cannot make two ids meet."""
    stem = file_stem(agent_id)
    assert len(stem) <= 120
    assert set(stem) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-%ABCDEF~")
    assert f"{stem}.key" not in {".", ".."}


@given(st.text(st.sampled_from("aAbB%/é"), max_size=8), st.text(st.sampled_from("aAbB%/é"), max_size=8))
def test_different_ids_have_different_files_even_without_case(one: str, other: str) -> None:
    assert (file_stem(one).lower() == file_stem(other).lower()) == (one == other)
