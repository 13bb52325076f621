"""What a program sees of a message, and when its acknowledgement counts."""

import pytest

from wakehub.api.message import Hand, Message, Received, Taken
from wakehub.errors import Held
from wakehub.relay.backends import HandedOff, NotNow

FIELDS = {
    "id": "m_1", "sender": "bob", "to": "alice", "re": None, "group": None, "row_class": "normal",
    "media_type": "text/plain; charset=utf-8", "body": b"hush", "text": "hush", "verified": "yes", "redelivery": 0,
    "age_s": 4, "created_ms": 1, "is_stale": False, "is_from_outside": False, "files": (),
}  # fmt: skip


def hand(*states: str | None) -> Hand:
    """One whose row is in each of `states` in turn, as it is looked at."""
    left = list(states)
    return Hand("m_1", 2, lambda _: left.pop(0))


def test_no_representation_shows_what_is_in_it():
    message = Received(**FIELDS, hand=hand())
    assert "hush" not in repr(message)
    assert "hush" not in repr(Taken.from_received(message, lambda: None))


def test_a_taken_one_is_the_same_message_with_another_way_to_acknowledge():
    calls = []
    taken = Taken.from_received(Received(**FIELDS, hand=hand()), lambda: calls.append("ack"))
    assert all(getattr(taken, name) == value for name, value in FIELDS.items())
    taken.ack()
    assert calls == ["ack"]
    assert set(FIELDS) == set(Message.__dataclass_fields__)


async def test_it_is_acknowledged_once_the_record_says_so():
    given = hand("claimed", "claimed", "handed_off")
    await given.acknowledge()
    assert await given.outcome() == HandedOff("program")
    await given.acknowledge()


@pytest.mark.parametrize("state", ["unread", "failed", None])
async def test_it_is_too_late_when_the_row_is_not_in_our_hands(state):
    with pytest.raises(Held, match="m_1 is not acknowledged"):
        await hand("claimed", state).acknowledge()


async def test_one_that_is_passed_over_may_have_been_seen_and_one_that_lapsed_not():
    over, lapsed = hand(), hand()
    over.pass_over()
    lapsed.lapse()
    for each, in_doubt in ((over, True), (lapsed, False)):
        outcome = await each.outcome()
        assert isinstance(outcome, NotNow)
        assert outcome.in_doubt is in_doubt


async def test_what_was_acknowledged_is_not_put_back():
    given = hand("handed_off")
    await given.acknowledge()
    given.pass_over()
    assert await given.outcome() == HandedOff("program")
