"""`wakehub guide python`: each of its examples is run as it stands, as a program of its own."""

import re
import subprocess
import sys
from importlib import resources

import pytest

import wakehub
from wakehub.api import Message
from wakehub.client.presence import presence
from wakehub.inbox.clock import Now

GUIDE = (resources.files("wakehub.guide") / "python.md").read_text("utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
WAITING, BLOCKING, STOPPING, SENDING, ANSWERING, LOOKING = range(6)


@pytest.fixture
def example(instance):
    """Start an example; the whole of what it prints is its standard output."""
    running: list[subprocess.Popen[str]] = []

    def start(number: int) -> subprocess.Popen[str]:
        words = [sys.executable, "-P", "-u", "-c", EXAMPLES[number]]
        running.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()
        process.stdout.close()


def test_there_are_as_many_as_are_run_here():
    assert len(EXAMPLES) == 6


@pytest.mark.parametrize("number", [WAITING, BLOCKING, STOPPING])
def test_waiting(example, number):
    wakehub.send("alice", "the tests pass", sender="bob")
    wakehub.send("alice", "both of them", sender="bob")
    process = example(number)
    assert [process.stdout.readline() for _ in range(2)] == ["bob the tests pass\n", "bob both of them\n"]


def test_stopping(example, record):
    wakehub.send("alice", "the tests pass", sender="bob")
    process = example(STOPPING)
    assert process.stdout.readline() == "bob the tests pass\n"
    process.terminate()
    assert process.wait() == 0
    assert presence(record.leases, "alice", Now.read()).state == "left"


def test_sending_and_looking(example):
    said, _ = example(SENDING).communicate()
    (message,) = wakehub.inbox("alice")
    assert message.text == "the tests pass"
    assert message.id in said
    assert "stored" in said
    seen, _ = example(LOOKING).communicate()
    assert seen.startswith(f"{message.id} bob ")


def test_answering(example, record):
    question = wakehub.send("bob", "may I?", sender="alice", create=True).row_ids[0]
    example(ANSWERING)
    seen = next(iter(wakehub.listen("alice", poll_s=1)))
    assert (seen.text, seen.re) == ("merged", question)


def test_every_field_of_a_message_is_in_the_guide():
    for name in Message.__dataclass_fields__:
        assert f"`{name}`" in GUIDE, name
