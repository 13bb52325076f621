"""Envelopes and lines of the mesh (intercom.md §1, §2): one meaning or a refusal with its code."""

import json
import re
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wakehub.intercom import ndjson
from wakehub.intercom.ndjson import Code, Envelope, LineReader, Refusal
from wakehub.limits import MAX_MESH_DEPTH, MAX_MESH_LINE_BYTES

KEYS = ["id", "type", "from_session", "to_session", "channel", "reply_to", "payload", "timestamp"]


def line(**changes: object) -> bytes:
    found: dict[str, object] = {
        "id": "msg_0123456789ab",
        "type": "chat",
        "from_session": "ann",
        "to_session": "bob",
        "channel": "room",
        "reply_to": None,
        "payload": {"text": "hi"},
        "timestamp": "2026-01-02T03:04:05+00:00",
    } | changes
    return json.dumps({key: value for key, value in found.items() if value is not ...}).encode() + b"\n"


def code_of(data: bytes) -> Code:
    with pytest.raises(Refusal) as caught:
        ndjson.parse(data)
    return caught.value.code


def test_what_is_sent_has_the_eight_keys_in_order_in_ascii():
    sent = ndjson.chat("ann", "bob", "Grüße 🙂", "room").line()
    assert sent.isascii()
    assert sent.endswith(b"}\n")
    assert sent.count(b"\n") == 1
    found = json.loads(sent)
    assert list(found) == KEYS
    assert re.fullmatch(r"msg_[0-9a-f]{12}", found["id"])
    assert found["timestamp"].endswith("+00:00")
    assert datetime.fromisoformat(found["timestamp"]).tzinfo == UTC
    assert found["payload"] == {"text": "Grüße 🙂"}


def test_unknown_keys_are_carried_through():
    extra = {"receipt": True, "x": [1, {"y": None}], "z": 0.5}
    read = ndjson.parse(line(**extra))
    assert read.extra == extra
    assert read.wants_receipt
    written = json.loads(read.line())
    assert list(written) == [*KEYS, *extra]
    assert ndjson.parse(read.line()) == read


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=20,
    ),
    st.text(),
)
def test_any_payload_comes_back_as_it_was(value, text):
    sent = Envelope("chat", "ann", "bob", "room", {"text": text, "more": value}, extra={"beside": value})
    assert ndjson.parse(sent.line()) == sent


@settings(deadline=None, max_examples=400)
@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 12), st.binary(max_size=6)), min_size=1, max_size=4),
    st.booleans(),
)
def test_whatever_bytes_are_a_refusal_or_come_back_as_they_were(changes, nested):
    data = line(payload={"a": [1, {"b": None}], "text": "\u00fc"} if nested else {}, extra=1.5).rstrip()
    for place, length, new in changes:
        data = data[:place] + new + data[place + length :]
    try:
        read = ndjson.parse(data)
    except Refusal as refusal:
        message = refusal.message
    else:
        message = ""
        assert ndjson.parse(read.line()) == read
    assert not message or message.isprintable()


def test_a_lone_surrogate_comes_through():
    assert ndjson.parse(line(payload={"text": "\ud800"})).text == "\ud800"
    assert b"\\ud800" in ndjson.parse(line(payload={"text": "\ud800"})).line()


@pytest.mark.parametrize("missing", ["id", "to_session", "channel", "reply_to", "payload", "timestamp"])
def test_what_is_missing_is_filled_in(missing):
    read = ndjson.parse(line(**{missing: ...}))
    assert list(json.loads(read.line())) == KEYS
    assert read.to_session == ("*" if missing == "to_session" else "bob")


@pytest.mark.parametrize("stamp", ["2026-01-02T03:04:05+00:00", "2026-01-02T03:04:05.123456+00:00"])
def test_a_timestamp_is_read_with_and_without_a_fraction(stamp):
    assert ndjson.parse(line(timestamp=stamp)).timestamp == stamp


@pytest.mark.parametrize(
    "change",
    [
        {"to_session": None}, {"to_session": 7}, {"to_session": ["bob"]}, {"type": 1}, {"type": ...}, {"id": ""},
        {"id": 5}, {"id": "x" * 129}, {"from_session": None}, {"from_session": ...}, {"payload": []},
        {"payload": None}, {"payload": "hi"}, {"timestamp": "yesterday"}, {"timestamp": 0}, {"reply_to": 3},
        {"channel": None},
    ],
)  # fmt: skip
def test_a_key_of_the_wrong_kind_is_a_bad_envelope(change):
    assert code_of(line(**change)) is Code.BAD_ENVELOPE


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"7", b"null", b'"chat"', b"{", b"{}{}", b'{"a":NaN}', b'{"a":Infinity}', b'{"a":-Infinity}',
        b'{"a":1e999}', b'{"a":1,"a":2}', b'{"payload":{"a":1,"a":1}}', b"\xff\xfe", b'{"a":"\x00"}', b"\x00",
        b'{"a":' + b"9" * 5000 + b"}", b"\xef\xbb\xbf{}", b"{'a':1}",
        b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}", b'{"a":' * 10_000 + b"1" + b"}" * 10_000, b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_object_of_one_meaning_is_bad_json(data):
    assert code_of(data) is Code.BAD_JSON


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_the_depth_counts_from_the_envelope(opening, closing):
    def nested(depth: int) -> bytes:
        inner = opening * (depth - 2) + "1" + closing * (depth - 2)
        return line(payload=...).replace(b"}\n", f', "payload": {{"a": {inner}}}}}\n'.encode())

    assert ndjson.parse(nested(MAX_MESH_DEPTH)).payload
    assert code_of(nested(MAX_MESH_DEPTH + 1)) is Code.BAD_JSON


def test_many_brackets_side_by_side_are_not_deep():
    assert ndjson.parse(line(payload={"a": [[]] * 1000, "b": "[" * 1000})).payload


def test_a_refusal_names_the_envelope_where_it_can():
    with pytest.raises(Refusal) as caught:
        ndjson.parse(line(to_session=None))
    assert caught.value.about == "msg_0123456789ab"


def test_a_line_of_more_than_a_mebibyte_is_neither_read_nor_written():
    room = MAX_MESH_LINE_BYTES - len(ndjson.chat("ann", "bob", "", "room").line())
    whole = ndjson.chat("ann", "bob", "x" * room, "room")
    assert len(whole.line()) == MAX_MESH_LINE_BYTES
    assert ndjson.parse(whole.line()) == whole
    with pytest.raises(Refusal) as caught:
        ndjson.chat("ann", "bob", "x" * (room + 1), "room").line()
    assert caught.value.code is Code.LINE_TOO_LONG
    assert code_of(b"x" * (MAX_MESH_LINE_BYTES + 1)) is Code.LINE_TOO_LONG


@pytest.mark.parametrize("name", ["a", "A9", "a.b-c_d", "x" * 64, "all.", "none", "Hub"])
def test_ids_of_the_grammar(name):
    assert ndjson.check_session(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "", ".a", "-a", "_a", "../x", "a/b", "x" * 65, "x" * 300, "a\n", "a\0", "ä", "hub", "*", "all", "None", "a b",
        "\ud800",
    ],
)  # fmt: skip
def test_f43_other_ids_are_refused_in_one_visible_line(name):
    with pytest.raises(Refusal) as caught:
        ndjson.check_session(name)
    assert caught.value.code is Code.INVALID_SESSION
    assert caught.value.message.encode().isascii() or "…" in caught.value.message or "ä" in name
    assert caught.value.message.isprintable()
    for maker in (ndjson.register, ndjson.announce):
        with pytest.raises(Refusal):
            maker(name, "room")
    with pytest.raises(Refusal):
        ndjson.chat(name, "bob", "", "room")


@pytest.mark.parametrize(("name", "other"), [("Room", "room"), ("my room!", "myroom"), ("a.b", "ab"), ("../x", "x")])
def test_a_channel_that_others_would_rename_is_refused_with_that_name(name, other):
    with pytest.raises(ValueError, match=f"would use '{other}'"):
        ndjson.check_channel(name)


@pytest.mark.parametrize("name", ["", "..", "...", "x" * 65, "a\0b", "é"])
def test_f43_other_channel_names_are_refused(name):
    with pytest.raises(ValueError, match="is no channel"):
        ndjson.check_channel(name)


def test_what_the_hub_says():
    greeted = json.loads(ndjson.welcome("ann", ["ann", "bob"], "room").line())
    assert greeted["payload"] == {"peers": ["ann", "bob"], "status": "connected"}
    assert (greeted["type"], greeted["from_session"], greeted["to_session"]) == ("welcome", "hub", "ann")
    refused = json.loads(ndjson.error("ann", Code.BAD_JSON, "why", "room", "msg_1").line())
    assert (refused["payload"], refused["reply_to"]) == ({"code": "BAD_JSON", "message": "why"}, "msg_1")
    assert json.loads(ndjson.heartbeat("ann", "room").line())["payload"] == {}
    told = json.loads(ndjson.receipt("ann", "msg_1", "live", "room").line())
    assert (told["type"], told["reply_to"], told["payload"]) == ("receipt", "msg_1", {"state": "live"})


@given(st.lists(st.binary(max_size=12).filter(lambda data: b"\n" not in data)), st.integers(1, 7))
def test_lines_come_whole_however_the_bytes_fall(lines, step):
    reader, data, found = LineReader(13), b"".join(each + b"\n" for each in lines) + b"tail", []
    for start in range(0, len(data), step):
        reader.feed(data[start : start + step])
        while (read := reader.next_line()) is not None:
            found.append(read)
    assert found == lines


def test_a_line_without_end_is_refused_once_it_is_too_long_and_holds_no_memory():
    reader, fed = LineReader(), 0
    while fed < MAX_MESH_LINE_BYTES - 65_536:
        reader.feed(b"x" * 65_536)
        fed += 65_536
        assert reader.next_line() is None
    reader.feed(b"x" * 65_536)
    with pytest.raises(Refusal) as caught:
        reader.next_line()
    assert caught.value.code is Code.LINE_TOO_LONG
    for _ in range(200):
        reader.feed(b"y\n" * 65_536)
    assert len(reader._data) == 0
    with pytest.raises(Refusal):
        reader.next_line()
