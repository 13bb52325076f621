"""formats.md: files of ours are one UTF-8 object, with unknown and duplicate keys refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wakehub.identity import strict_json

KEYS = frozenset({"a", "b"})


def test_reads_one_object_with_its_keys() -> None:
    assert strict_json.parse(b'{"a":1,"b":"x"}', KEYS) == {"a": 1, "b": "x"}
    assert strict_json.parse('{"a":1,"b":"x","c":null}', KEYS, {"c"}) == {"a": 1, "b": "x", "c": None}


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "it is empty"),
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'{"a":1}', "key b is missing"),
        (b'{"a":1,"b":2,"c":3}', "unknown key c"),
        (b'{"a":1,"b":2,"a":1}', "key a appears twice"),
        (b'{"a":1,"b":{"x":1,"x":1}}', "key x appears twice"),
        (b'{"a":1.0,"b":2}', "not whole"),
        (b'{"a":1e3,"b":2}', "not whole"),
        (b'{"a":NaN,"b":2}', "not whole"),
        (b'{"a":-Infinity,"b":2}', "not whole"),
        (b'{"a":1,"b":2} x', "Extra data"),
        (b'{"a":1,"b":2}{}', "Extra data"),
        (b'\xef\xbb\xbf{"a":1,"b":2}', "BOM"),
        ('{"a":1,"b":2}'.encode("utf-16"), "utf-8"),
        (b'{"a":"\xff","b":2}', "utf-8"),
        (b'{"a":1,"b":' + b"[" * 100_000, "nested"),
        (b'{"a":1,"b":' + b"9" * 10_000 + b"}", "limit"),
        (b'{"a\\u202e":1,"b":2,"a":1}', "unknown key a\\\\u202e"),
    ],
)
def test_refuses_everything_else(data: bytes, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        strict_json.parse(data, KEYS)


def test_types_are_exact() -> None:
    found = {"text": "x", "number": 7, "true": True, "list": [1], "object": {}, "lone": "\ud800"}
    assert strict_json.text(found, "text") == "x"
    assert strict_json.integer(found, "number", 7, 7) == 7
    assert strict_json.array(found, "list") == [1]
    assert strict_json.mapping(found, "object") == {}
    for read, key, fault in (
        (strict_json.text, "number", "number is not text"),
        (strict_json.text, "lone", "surrogates"),
        (strict_json.array, "text", "text is not a list"),
        (strict_json.mapping, "list", "list is not an object"),
    ):
        with pytest.raises(ValueError, match=fault):
            read(found, key)
    for key, least, most in (("true", 0, 1), ("text", 0, 1), ("number", 0, 6), ("number", 8, 9)):
        with pytest.raises(ValueError, match=key):
            strict_json.integer(found, key, least, most)


def test_no_refusal_quotes_a_value() -> None:
    with pytest.raises(ValueError, match="seed is not within") as refusal:
        strict_json.integer({"seed": 123_456}, "seed", 0, 1)
    assert "123456" not in str(refusal.value)


@given(
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.integers() | st.text(max_size=5) | st.none())
)
def test_what_is_dumped_is_read_back(found: dict[str, object]) -> None:
    try:
        data = strict_json.dump(found)
    except UnicodeEncodeError:
        return
    if all(not isinstance(value, int) or abs(value) < 10**4000 for value in found.values()):
        assert strict_json.parse(data, frozenset(found)) == found
        assert json.loads(data) == found
