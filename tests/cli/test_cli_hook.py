"""`hook` on the command line."""

import os
import subprocess
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


def test_an_agent_whose_shell_knows_nothing_of_the_instance_is_led_to_it_and_its_answer_too(wakehub, process):
    wakehub("init")
    wakehub("enroll", "alice")
    wakehub("send", "--as", "bob", "--to", "alice", "hello")
    said = process("hook", "prompt", env={"WAKEHUB_AGENT": "alice"}).out
    block = in_a_bare_shell(said.partition("read with: ")[2])
    assert "| hello" in block
    (reply,) = (line for line in block.splitlines() if line.startswith("[reply: "))
    in_a_bare_shell(f"echo yes | {reply.removeprefix('[reply: ').removesuffix(']')}")
    assert "yes" in wakehub("inbox", "--as", "bob").out


def test_the_flags_that_chose_the_instance_stand_in_what_is_to_be_typed(wakehub, home):
    state = str(home / "other")
    assert wakehub("--state-dir", state, "send", "--as", "bob", "--to", "alice", "hello").status == 0
    block = wakehub("listen", "--as", "alice", "--once", "--format", "agent", "--state-dir", state).out
    assert f" --state-dir {state} send --as alice --to bob" in block


def in_a_bare_shell(line: str) -> str:
    bare = {"PATH": os.defpath, "HOME": "/nonexistent"}
    return subprocess.run(["sh", "-c", line], env=bare, cwd="/", capture_output=True, text=True, check=True).stdout


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
