"""`wakehub.listen`: the same as `subscribe` for programs without Trio."""

import subprocess
import sys
import threading

import pytest
from daemon_process import started

import wakehub
from wakehub.client.presence import presence
from wakehub.errors import Held
from wakehub.inbox.clock import Now

INTERRUPTED = """
import wakehub
messages = wakehub.listen("alice")
try:
    for message in messages:
        print(message.text, flush=True)
        message.ack()
except KeyboardInterrupt:
    messages.close()
    print("interrupted", flush=True)
"""

STILL_REFERRED_TO = """
import wakehub
messages = wakehub.listen("alice")
next(messages).ack()
print("acknowledged", flush=True)
"""
FORKED = """
import os, sys, wakehub
messages = wakehub.listen("alice")
next(messages).ack()
if (child := os.fork()) == 0:
    sys.exit(0)
print(os.waitpid(child, 0)[1], flush=True)
sys.stdin.read()
"""
STOPPED_BY_A_SIGNAL = """
import signal, sys, wakehub
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
messages = wakehub.listen("alice")
for message in messages:
    message.ack()
    print("acknowledged", flush=True)
"""


def post(text: str) -> str:
    (row_id,) = wakehub.send("alice", text, sender="bob").row_ids
    return row_id


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def test_messages_come_and_are_acknowledged(record):
    ids = [post("one"), post("two")]
    got = []
    for message in wakehub.listen("alice"):
        got.append((message.id, message.text, message.verified))
        message.ack()
        assert record.headers([message.id])[0].state == "handed_off"
        if len(got) == 2:
            break
    assert got == [(ids[0], "one", "yes"), (ids[1], "two", "yes")]


def test_the_end_of_the_iteration_frees_the_name_and_ends_the_thread(record):
    post("hello")
    messages = wakehub.listen("alice")
    message = next(messages)
    assert "wakehub" in threads()
    messages.close()
    assert "wakehub" not in threads()
    assert record.leases.holder("alice", Now.read()) is None
    assert record.headers([message.id])[0].state == "unread"
    with pytest.raises(Held, match="expect the message again"):
        message.ack()


def test_one_that_was_passed_over_comes_again(record):
    row_id = post("hello")
    messages = wakehub.listen("alice")
    assert next(messages).redelivery == 0
    again = next(messages)
    assert (again.id, again.redelivery) == (row_id, 1)
    again.ack()
    messages.close()


def test_a_name_that_is_held_is_refused_with_the_first_step(record):
    post("hello")
    first = wakehub.listen("alice")
    next(first)
    with pytest.raises(Held, match="another listener"):
        next(wakehub.listen("alice"))
    first.close()


def test_interrupted_from_the_keyboard_while_it_waits(record):
    words = [sys.executable, "-P", "-c", INTERRUPTED]
    with started(words, stdout=subprocess.PIPE, text=True) as process:
        post("hello")
        assert process.stdout.readline() == "hello\n"
        process.send_signal(2)
        assert process.stdout.readline() == "interrupted\n"
        assert process.wait() == 0
    assert record.leases.holder("alice", Now.read()) is None


def test_the_end_of_the_interpreter_frees_the_name(record):
    post("hello")
    with started([sys.executable, "-P", "-c", STILL_REFERRED_TO], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "acknowledged\n"
        assert process.wait() == 0
    assert presence(record.leases, "alice", Now.read()).state == "left"


@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_that_the_program_turns_into_an_exit_frees_the_name(record, signals):
    """A second one comes while the first makes it stop."""
    post("hello")
    with started([sys.executable, "-P", "-c", STOPPED_BY_A_SIGNAL], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "acknowledged\n"
        for _ in range(signals):
            process.terminate()
        assert process.wait() == 7
    assert presence(record.leases, "alice", Now.read()).state == "left"


def test_the_end_of_a_child_leaves_the_name_to_its_parent(record):
    post("hello")
    words = [sys.executable, "-P", "-c", FORKED]
    with started(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "0\n"
        assert presence(record.leases, "alice", Now.read()).state == "listening"
        process.stdin.close()
        assert process.wait() == 0
