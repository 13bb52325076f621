"""Envelopes as rows and rows as envelopes: nothing left out, nothing believed, the same one however often."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from wakehub.errors import BadData
from wakehub.inbox.admission import check
from wakehub.inbox.clock import Now
from wakehub.inbox.rows import Attachment, NewRow, Row
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.intercom.crossing import (
    ROW_KEY,
    Seat,
    answered_row,
    arriving,
    envelope_id,
    is_too_large,
    leaving,
    namespace,
    session_of,
)
from wakehub.intercom.ndjson import Envelope, parse
from wakehub.relay.message import Message

NOW = Now(1_800_000_000_000, 0, "boot")  # 2027-01-15T08:00:00Z
SEAT = Seat("dev", "rowan", "alice")
CHAT = {
    "id": "msg_0123456789ab",
    "type": "chat",
    "from_session": "nova",
    "to_session": "rowan",
    "channel": "dev",
    "reply_to": None,
    "payload": {"text": "grüße"},
    "timestamp": "2027-01-15T07:59:00.500000+00:00",
}


def chat(**changes: object) -> Envelope:
    return parse(json.dumps(CHAT | changes).encode())


def row_of(re: str | None = None, seat: Seat = SEAT, **changes: object) -> NewRow:
    made = arriving(seat, chat(**changes), NOW.ms, re=re, generation=1)
    check(made, NOW)
    return made


@pytest.fixture
def stored(tmp_path: Path):
    with SqliteInbox.open(tmp_path / "state" / "record.db") as inbox:
        yield lambda new: inbox.append(new, NOW)[0]


def message(row: Row) -> Message:
    return Message(row, "yes", NOW.ms)


# --- in ---


def test_a_chat_becomes_its_text_from_an_address_that_can_be_answered():
    row = row_of()
    assert (row.sender, row.recipient, row.body) == ("intercom:dev/nova", "alice", "grüße".encode())
    assert (row.media_type, row.origin, row.signed) == ("text/plain; charset=utf-8", "intercom", None)
    assert row.group == CHAT["id"]


@pytest.mark.parametrize(
    "changes",
    [
        {"payload": {"text": "x", "sha": "1f0c"}},
        {"payload": {"text": ["x"]}},
        {"payload": {}},
        {"payload": {"text": "half a pair: \ud83d"}},
        {"type": "task"},
        {"priority": 3},
    ],
)
def test_more_than_a_text_becomes_json_with_all_of_it(changes):
    row = row_of(**changes)
    assert row.media_type == "text/json; charset=utf-8"
    assert row.body.isascii()
    known = {"type": "chat", "payload": CHAT["payload"]}
    assert json.loads(row.body) == known | changes


def test_what_only_says_where_it_goes_does_not_make_it_more_than_a_text():
    assert row_of(receipt=True, **{ROW_KEY: "m_1"}).media_type == "text/plain; charset=utf-8"


@pytest.mark.parametrize("sender", ["../x", "", "a b", "x" * 300, "nova\nfrom: bob", "\ud800", "hub"])
def test_who_has_no_id_gets_an_address_that_nobody_has(sender):
    """F41, F43: the name of a sender is never more than a name."""
    row = row_of(from_session=sender)
    assert row.sender == "intercom:dev/?"
    assert session_of("dev", row.sender) is None


def test_it_is_as_old_as_it_says():
    """F20."""
    made = NOW.ms - 59_500
    assert row_of().arrival.created_ms == made
    assert row_of(timestamp="2027-01-15T07:59:00+00:00").arrival.created_ms == made - 500
    assert row_of(timestamp="2027-01-15T07:59:00Z").arrival.created_ms == made - 500
    assert row_of(timestamp="2027-01-15T08:59:00.500+01:00").arrival.created_ms == made


@pytest.mark.parametrize(
    "timestamp",
    ["2027-01-15T08:00:01+00:00", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"],
)
def test_a_time_that_cannot_be_is_now(timestamp):
    assert row_of(timestamp=timestamp).arrival.created_ms == NOW.ms


def test_one_envelope_has_one_key_for_each_seat():
    """F21."""
    key = row_of().arrival.key
    assert row_of(payload={"text": "another text under the same id"}).arrival.key == key
    others = {
        row_of(id="msg_0123456789ac").arrival.key,
        row_of(seat=replace(SEAT, session="wren")).arrival.key,
        row_of(seat=replace(SEAT, channel="ops")).arrival.key,
    }
    assert len(others | {key}) == 4
    assert row_of(seat=replace(SEAT, name="bob")).arrival.key == key


@pytest.mark.parametrize("id", ["é" * 100, "a\nb", "\x1b]52"])
def test_an_id_that_is_no_plain_word_is_not_shown(id):
    """F88."""
    assert row_of(id=id).group is None


def test_a_text_over_the_limit_is_found_before_it_is_refused():
    made = arriving(SEAT, chat(payload={"text": "x" * 262_145}), NOW.ms, re=None, generation=1)
    assert is_too_large(made)
    assert not is_too_large(row_of())


def test_an_answer_finds_the_row_it_answers():
    row_id = "m_" + "0" * 26
    assert answered_row(chat(**{ROW_KEY: row_id})) == row_id
    others = (None, chat(), chat(**{ROW_KEY: "m_1"}), chat(**{ROW_KEY: 7}))
    assert [answered_row(sent) for sent in others] == [None] * 4
    assert row_of(re=row_id).re == row_id


# --- out ---


def test_a_row_goes_out_as_a_chat_in_the_order_of_keys(stored):
    row = stored(NewRow("alice", "intercom:dev/nova", "grüße".encode()))
    sent = leaving(SEAT, "nova", message(row), None)
    assert list(json.loads(sent.line()))[:8] == list(CHAT)
    assert parse(sent.line()) == sent
    assert (sent.from_session, sent.to_session, sent.channel) == ("rowan", "nova", "dev")
    assert (sent.payload, sent.reply_to, sent.type) == ({"text": "grüße"}, None, "chat")
    assert sent.timestamp == "2027-01-15T08:00:00+00:00"
    assert re.fullmatch(r"msg_[0-9a-f]{12}", sent.id)
    assert answered_row(sent) == row.id


def test_it_has_one_id_however_often_it_is_tried(stored):
    first, second = (stored(NewRow("alice", "intercom:dev/nova", b"x")) for _ in range(2))
    assert envelope_id(first.id) == leaving(SEAT, "nova", message(first), None).id
    assert envelope_id(first.id) != envelope_id(second.id)


def test_an_answer_is_one_there_too(stored):
    asked = stored(arriving(SEAT, chat(), NOW.ms, re=None, generation=1))
    answer = stored(NewRow("alice", asked.sender, b"yes", re=asked.id))
    assert leaving(SEAT, "nova", message(answer), asked).reply_to == CHAT["id"]
    local = stored(NewRow("bob", "alice", b"?", group="g_1"))
    assert leaving(SEAT, "nova", message(answer), local).reply_to is None


def test_what_the_mesh_cannot_carry_is_refused(stored):
    for new in (
        NewRow("alice", "intercom:dev/nova", b"\xff", media_type="application/octet-stream"),
        NewRow("alice", "intercom:dev/nova", b"see", attachments=(Attachment("a.txt", 1, b"d" * 32),)),
    ):
        with pytest.raises(BadData, match="the mesh carries text"):
            leaving(SEAT, "nova", message(stored(new)), None)


# --- addresses ---


@pytest.mark.parametrize("session", ["nova", "a", "Nova.2_x-y", "x" * 64])
def test_every_id_has_an_address_and_back(session):
    assert session_of("dev", f"intercom:dev/{session}") == session


@pytest.mark.parametrize(
    "address",
    ["intercom:dev/", "intercom:dev/a/b", "intercom:ops/nova", "nova", "intercom:dev/all", "intercom:dev/a:b",
     f"intercom:dev/{'x' * 65}", "xintercom:dev/nova"],
)  # fmt: skip
def test_what_is_no_session_of_this_channel_has_no_id(address):
    assert session_of("dev", address) is None


@pytest.mark.parametrize("channel", ["x" * 55, "dév"])
def test_a_channel_that_gives_no_addresses_is_refused(channel):
    with pytest.raises(BadData, match="cannot be bridged"):
        namespace(channel)


def test_the_longest_channel_gives_addresses():
    assert len(namespace("x" * 54)) + 64 == 128
