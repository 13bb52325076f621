"""`hook` on the command line."""

import sys

import pytest

from wakehub.cli.hook import _EVENTS
from wakehub.errors import Exit
from wakehub.ops.hook import EVENTS


def test_the_events_are_those_that_are_known():
    assert _EVENTS == EVENTS


def test_a_session_that_is_not_ours_hears_nothing(wakehub, process):
    for event in EVENTS:
        for call in (wakehub, process):
            found = call("hook", event)
            assert (found.status, found.out, found.err) == (0, "", "")


def test_a_session_of_an_agent_is_told(wakehub, process):
    wakehub("init")
    wakehub("enroll", "alice")
    wakehub("send", "--as", "bob", "--to", "alice", "hello")
    start = process("hook", "session-start", env={"WAKEHUB_AGENT": "alice"})
    assert (start.status, len(start.out.splitlines()), start.err) == (0, 5, "")
    assert "1 unread for alice" in process("hook", "prompt", env={"WAKEHUB_AGENT": "alice"}).out
    assert '"decision": "block"' in process("hook", "stop", env={"WAKEHUB_AGENT": "alice"}, input=b"{}", stdin=None).out


@pytest.mark.parametrize("to", [">&-", *(["> /dev/full"] if sys.platform == "linux" else [])])
def test_an_output_that_cannot_be_written_disturbs_no_session(wakehub, shell, to):
    wakehub("init")
    wakehub("enroll", "alice")
    found = shell(f"WAKEHUB_AGENT=alice wakehub hook session-start {to}")
    assert (found.status, found.err) == (0, "")


def test_an_event_that_there_is_not(process):
    found = process("hook", "promt")
    assert found.status == Exit.USAGE
    assert "did you mean prompt?" in found.err
