"""Small changes to somebody else's JSON: what is put in, that it goes out without a trace, and what is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wakehub.errors import BadData
from wakehub.ops.json_text import append, parse, remove

PATH = ("hooks", "Stop")
ENTRY = {"hooks": [{"type": "command", "command": "wakehub hook stop"}]}
TEXTS = (
    "{}",
    " {\n}\n",
    '{"a": 1}',
    '{"hooks": {}}',
    '{\n  "a": [1, 2],\n  "hooks": {\n    "Stop": [\n      {"x": "}]\\""}\n    ]\n  },\n  "z": null\n}\n',
    '{\r\n\t"hooks": {\r\n\t\t"Start": []\r\n\t}\r\n}',
    '{"hooks": {"Stop": [1]}, "ü": "\\u00fc"}',
)


def appended(found: dict) -> dict:
    found = json.loads(json.dumps(found))
    found.setdefault("hooks", {}).setdefault("Stop", []).append(ENTRY)
    return found


@pytest.mark.parametrize("text", TEXTS)
def test_an_entry_is_put_in_and_nothing_else_changes(text):
    made = append(text, PATH, ENTRY)
    assert json.loads(made) == appended(json.loads(text))
    left = iter(made)
    assert all(letter in left for letter in text.replace(" ", "").replace("\n", "").replace("\r", "")), "in its order"


@pytest.mark.parametrize("text", [text for text in TEXTS if json.loads(text).get("hooks")])
def test_out_of_a_list_that_is_not_empty_it_goes_without_a_trace(text):
    if json.loads(text)["hooks"].get("Stop"):
        assert remove(append(text, PATH, ENTRY), PATH, ENTRY) == text


@pytest.mark.parametrize("text", TEXTS)
def test_what_it_leaves_empty_goes_as_well(text):
    found = json.loads(remove(append(text, PATH, ENTRY), PATH, ENTRY))
    kept = json.loads(text)
    if not kept.get("hooks"):
        kept.pop("hooks", None)
    assert found == kept


def test_it_is_indented_as_its_neighbours_are():
    assert append('{\n    "hooks": {\n        "Stop": [\n            1\n        ]\n    }\n}', PATH, 2) == (
        '{\n    "hooks": {\n        "Stop": [\n            1,\n            2\n        ]\n    }\n}'
    )
    assert append('{\n\t"a": 1\n}', ("b",), [2]) == '{\n\t"a": 1,\n\t"b": [\n\t\t[\n\t\t\t2\n\t\t]\n\t]\n}'


@pytest.mark.parametrize("text", ["{}", '{"hooks": {}}', '{"hooks": {"Stop": []}}', '{"hooks": {"Stop": [1, 2]}}'])
def test_what_is_not_there_is_not_taken_out(text):
    assert remove(text, PATH, ENTRY) == text


def test_the_first_and_the_last_of_several():
    text = '{"hooks": {"Stop": [1, 2, 3]}}'
    assert remove(text, PATH, 1) == '{"hooks": {"Stop": [2, 3]}}'
    assert remove(text, PATH, 2) == '{"hooks": {"Stop": [1, 3]}}'
    assert remove(text, PATH, 3) == '{"hooks": {"Stop": [1, 2]}}'


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"// no\n{}", b'{"a": 1, "a": 2}', b'{"a": 1,}', b"\xef\xbb\xbf{}", b'{"a": "\xff"}', b"[" * 99],
)
def test_what_cannot_be_read_with_certainty_is_refused(data):
    with pytest.raises(BadData, match=r"settings\.json cannot be changed"):
        parse(data, "settings.json")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), values, max_size=4), st.lists(values, min_size=1, max_size=3), st.none() | st.just(2))
def test_whatever_else_is_there(others, entries, indent):
    found = {**others, "hooks": {"Stop": entries, "x": 1}}
    text = json.dumps(found, indent=indent)
    made = append(text, PATH, ENTRY)
    assert json.loads(made) == appended(found)
    assert remove(made, PATH, ENTRY) == text
