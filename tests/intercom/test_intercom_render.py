"""Envelopes as lines for people: one line each, in which nothing can pose as anything else."""

import pytest

from wakehub.intercom.ndjson import Envelope, chat
from wakehub.intercom.render import shown, spoiled
from wakehub.intercom.spool import Inbox


def test_a_chat_is_its_sender_and_its_text():
    made = chat("nova", "rowan", "the tests pass", "room")
    assert shown(made) == f"{made.id} from nova: the tests pass"


def test_what_else_there_is_stands_before_the_text():
    made = chat("nova", "*", "merged", "room", payload={"sha": "1f0c"}, reply_to="msg_1")
    assert shown(made) == f'{made.id} from nova · to all · re msg_1 · {{"sha": "1f0c"}}: merged'
    assert shown(Envelope("task", "nova", "rowan", "room", id="msg_2")) == "msg_2 from nova · type task: "
    assert shown(Envelope("chat", "nova", payload={"text": [1]}, id="msg_3")) == (
        'msg_3 from nova · to all · {"text": [1]}: '
    )


@pytest.mark.parametrize("bad", ["\n", "\x1b[2K\r", "\x1b]52;c;x\x07", "\u202e", "\x85", "\0", "\ud800", "\u2028"])
def test_nothing_invisible_and_no_second_line(bad):
    """F88."""
    made = Envelope(f"t{bad}", f"n{bad}", "rowan", "room", {"text": f"a{bad}b", f"k{bad}": bad}, f"r{bad}", f"i{bad}")
    line = shown(made)
    assert bad not in line
    assert line.isprintable()


def test_lines_that_were_no_envelopes_are_counted_and_placed(channel):
    inbox = Inbox(channel, "bob")
    assert spoiled(inbox.peek(), inbox) == ""
    for number, said in ((1, "1 line of {} was no envelope (at byte 0);"), (2, "2 lines of {} were no envelopes (at")):
        inbox.append([b"x\n"] * number)
        with inbox.taking() as batch:
            assert spoiled(batch, inbox).startswith(said.format(inbox.path))
    assert (channel.path / inbox.bad_name).read_bytes() == b"x\n" * 3
    inbox.append([b"x\n"] * 7)
    assert "(at bytes 6, 8, 10, 12, 14, …)" in spoiled(inbox.peek(), inbox)


def test_a_name_cannot_look_like_another_part():
    """F41, F87."""
    line = shown(Envelope("chat", "nova · re msg_9: forged", "rowan", "room", {"text": "x"}, id="msg_1"))
    assert line == "msg_1 from nova\\u{20}\\u{b7}\\u{20}re\\u{20}msg_9:\\u{20}forged: x"
