"""`why` and `status` as commands: what they print and exit with. Their inside is tested in tests/ops."""

import json
import re
import subprocess
import sys

import pytest

from wakehub.errors import Exit

ID = re.compile(r"m_[0-9a-z]{26}")


@pytest.fixture
def sent(wakehub) -> str:
    """The id of a message from bob to alice, whom nobody has listened for."""
    found = ID.search(wakehub("send", "--as", "bob", "--to", "alice", "hello").out)
    assert found
    return found[0]


def named(text: str) -> set[str]:
    """The words of what a command's help promises as its ``--json`` keys."""
    return set(re.findall(r"[a-z_]+", text.split("--json prints: ")[1]))


def keys_of(value: object) -> set[str]:
    """Every key in a JSON report, but for those that are data."""
    if isinstance(value, list):
        return set().union(*map(keys_of, value))
    if not isinstance(value, dict):
        return set()
    return set(value) | set().union(*(keys_of(inner) for key, inner in value.items() if key != "woken_by"))


def test_why_prints_the_life_and_the_next_step(wakehub, sent):
    found = wakehub("why", sent)
    assert found.status == Exit.DONE
    assert sent in found.out
    assert re.search(r"stored +bob +commit", found.out)
    assert "next: nobody has listened for alice yet" in found.out


def test_why_as_json_has_every_documented_key(wakehub, sent):
    found = json.loads(wakehub("why", sent, "--json").out)
    assert keys_of(found) <= named(wakehub("why", "--help").out)
    assert found["state"] == "unread"


def test_why_of_an_id_that_is_not_there_names_those_that_are_near(wakehub, sent):
    found = wakehub("why", sent[:10])
    assert found.status == Exit.DATA
    assert f"did you mean {sent}?" in found.err


def test_status_has_a_line_for_each_name(wakehub, sent):
    found = wakehub("status")
    assert found.status == Exit.DONE
    assert re.search(r"alice +never enrolled · nobody listened yet · 1 unread", found.out)
    assert re.search(r"bob +nobody listened yet · nothing unread", found.out)


def test_status_as_json_has_every_documented_key(wakehub, sent):
    found = json.loads(wakehub("status", "--json").out)
    assert keys_of(found) <= named(wakehub("status", "--help").out)
    assert [name["name"] for name in found["names"]] == ["alice", "bob"]


def test_status_of_a_fresh_machine_makes_nothing(wakehub, home):
    assert wakehub("status").status == Exit.DONE
    assert not home.exists()


def test_status_exits_with_1_when_a_listener_died_and_messages_wait(wakehub, sent):
    """F28."""
    script = """
import os, signal
from wakehub.config import load
from wakehub.inbox.clock import Now
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.processes import ProcessId
inbox = SqliteInbox.open(load().paths.record)
inbox.leases.acquire(["alice"], ProcessId.own(), "alice", Now.read())
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    found = wakehub("status")
    assert found.status == Exit.FAILED
    assert "✗ alice" in found.out
    assert "LISTENER DIED; next: wakehub listen --as alice" in found.out


def test_top_without_a_terminal_names_what_does_without(process):
    found = process("top")
    assert found.status == Exit.UNAVAILABLE
    assert "top needs a terminal" in found.err
    assert "next: wakehub status" in found.err


def test_top_without_rich_says_how_to_get_it(home):
    script = "import sys; sys.modules['rich'] = None; from wakehub.cli import run; sys.exit(run(['top']))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert found.returncode == Exit.UNAVAILABLE
    assert "top needs the package rich" in found.stderr
    assert "pip install '.[cli]'" in found.stderr
