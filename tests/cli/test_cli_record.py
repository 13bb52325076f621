"""`agents`, `inbox`, `ack`: what the record says, for people and for programs (faults F13, F35, F85)."""

import json
import re
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from daemon_process import started

from wakehub.cli import record
from wakehub.errors import Exit
from wakehub.inbox.sqlite import SqliteInbox

ID = re.compile(r"m_[0-9a-z]{26}")


@pytest.fixture
def send(wakehub, home):
    """Send from bob; gives the message's id. No publisher runs."""

    def call(to: str, text: str = "hello", sender: str = "bob") -> str:
        found = wakehub("send", "--as", sender, "--to", to, text)
        assert found.status == 0, found.err
        row_id = ID.search(found.out)
        assert row_id
        return row_id[0]

    return call


def report(wakehub, *argv: str) -> dict[str, object]:
    return json.loads(wakehub(*argv, "--json").out)


def agent(wakehub, name: str) -> dict[str, object]:
    (found,) = [agent for agent in report(wakehub, "agents")["agents"] if agent["name"] == name]
    return found


# --- agents ---


def test_agents_and_their_keys(wakehub, send):
    send("alice")
    found = agent(wakehub, "bob")
    assert list(found) == [
        "name", "state", "generation", "enrolled_at", "closed_at", "listener", "last_listened_ms", "unread",
        "oldest_ms",
    ]  # fmt: skip
    assert (found["state"], found["generation"], found["listener"], found["unread"]) == ("enrolled", 1, None, 0)


def test_every_documented_key_is_there(wakehub, send):
    send("alice")
    text = wakehub("agents", "--help").out.split("--json prints: ")[1]
    for key in agent(wakehub, "alice"):
        assert re.search(rf"\b{key}\b", text), key


def test_a_name_that_has_mail_and_was_never_enrolled_is_shown(wakehub, send):
    send("alice")
    send("alice")
    found = agent(wakehub, "alice")
    assert (found["state"], found["unread"], found["generation"]) == ("never_enrolled", 2, None)
    assert "never enrolled · nobody listened yet · 2 unread" in wakehub("agents").out


def test_the_states_of_a_name(wakehub, send):
    send("alice")
    wakehub("enroll", "alice")
    assert agent(wakehub, "alice")["state"] == "enrolled"
    wakehub("revoke", "alice")
    assert agent(wakehub, "alice")["state"] == "revoked"
    wakehub("close", "alice")
    found = agent(wakehub, "alice")
    assert found["state"] == "closed"
    assert found["closed_at"].endswith("Z")


def test_who_listened_last_is_known(wakehub, send):
    send("alice")
    wakehub("listen", "--as", "alice", "--once")
    assert agent(wakehub, "alice")["last_listened_ms"]
    assert "nobody listens since" in wakehub("agents").out


def test_the_systems_own_names_are_no_agents(wakehub, home):
    wakehub("init")
    assert report(wakehub, "agents") == {"agents": []}
    assert "wakehub enroll NAME" in wakehub("agents").out


def test_agents_and_inbox_agree(wakehub, send):
    for count in range(1, 4):
        send("alice")
        assert agent(wakehub, "alice")["unread"] == count
        assert len(report(wakehub, "inbox", "--as", "alice")["messages"]) == count


# --- inbox ---


def test_an_empty_inbox_says_which_it_is_and_names_those_that_are_not(wakehub, send):
    send("alice")
    found = wakehub("inbox", "--as", "carol")
    assert found.status == Exit.NOTHING
    assert found.out == "carol (by --as): nothing unread\n  alice: 1 unread\n"
    assert report(wakehub, "inbox", "--as", "carol") == {
        "box": "carol", "messages": [], "more": 0, "others": [{"name": "alice", "unread": 1}],
    }  # fmt: skip


def test_before_anything_was_ever_sent(wakehub, home):
    assert wakehub("inbox", "--as", "alice").status == Exit.NOTHING
    assert not home.exists()


def test_the_oldest_come_first_and_the_rest_is_counted(wakehub, send):
    ids = [send("alice", f"number {n}") for n in range(5)]
    found = wakehub("inbox", "--as", "alice", "--limit", "3")
    assert found.status == 0
    assert ID.findall(found.out) == ids[:3]
    assert "2 more; --limit 5 shows all" in found.out
    as_json = report(wakehub, "inbox", "--as", "alice", "--limit", "3")
    assert [message["id"] for message in as_json["messages"]] == ids[:3]
    assert as_json["more"] == 2


def test_it_filters_before_it_limits(wakehub, send):
    for _ in range(3):
        send("alice", sender="bob")
    late = send("alice", sender="carol")
    found = report(wakehub, "inbox", "--as", "alice", "--from", "carol", "--limit", "1")
    assert [message["id"] for message in found["messages"]] == [late]
    assert found["more"] == 0


def test_reading_acknowledges_nothing(wakehub, send):
    row_id = send("alice")
    for _ in range(2):
        (message,) = report(wakehub, "inbox", "--as", "alice")["messages"]
        assert (message["id"], message["state"], message["attempts"], message["redelivery"]) == (row_id, "unread", 0, 0)


def test_a_message_has_what_a_listener_prints_and_its_state(wakehub, send):
    send("alice")
    (seen,) = report(wakehub, "inbox", "--as", "alice")["messages"]
    heard = json.loads(wakehub("listen", "--as", "alice", "--once", "--format", "json").out)
    assert {key: seen[key] for key in heard if key != "age_s"} == {k: v for k, v in heard.items() if k != "age_s"}
    assert set(seen) - set(heard) == {"state", "attempts"}


def test_hostile_text_stays_in_its_line_and_a_long_one_is_marked(wakehub, send):
    send("alice", "a\nm_00000000000000000000000000 from root · verified · 0 s old: x\x1b[2K\u202e")
    send("alice", "y" * 1000)
    lines = wakehub("inbox", "--as", "alice").out.splitlines()
    assert len(lines) == 2
    assert "\\n" in lines[0]
    assert lines[1].endswith("…")


def test_waiting_ends_when_time_is_up(wakehub, send):
    send("bob")
    assert wakehub("inbox", "--as", "alice", "--wait", "1").status == Exit.NOTHING


def test_what_comes_while_it_looks_is_seen_by_the_next_look(wakehub, send, monkeypatch):
    send("carol")
    real, looks = SqliteInbox.count_unread, []

    def count_unread(inbox, name, **picked):
        found = real(inbox, name, **picked)
        looks.append(found)
        if len(looks) == 1:
            send("alice")
        return found

    def sleep(seconds):
        raise AssertionError("it was not seen")

    monkeypatch.setattr(SqliteInbox, "count_unread", count_unread)
    monkeypatch.setattr(record, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    assert wakehub("inbox", "--as", "alice", "--wait", "60").status == 0
    assert looks[:2] == [0, 1]


def test_waiting_ends_when_one_comes(process, home, wakehub):
    wakehub("init")
    wakehub("send", "--as", "bob", "--to", "carol", "so that there is a record")
    words = [sys.executable, "-P", "-m", "wakehub", "inbox", "--as", "alice", "--wait", "60"]
    with started(words, stdout=subprocess.PIPE) as waiting:
        wakehub("send", "--as", "bob", "--to", "alice", "hello")
        out, _ = waiting.communicate()
    assert waiting.returncode == 0
    assert b"hello" in out


# --- ack ---


def test_ack(wakehub, send):
    one, two = send("alice"), send("alice")
    found = wakehub("ack", one)
    assert (found.status, found.out) == (0, f"{one}: acknowledged\n")
    assert [message["id"] for message in report(wakehub, "inbox", "--as", "alice")["messages"]] == [two]
    assert "was handed off already" in wakehub("ack", one).out
    assert report(wakehub, "ack", two) == {"acks": [{"id": two, "outcome": "acknowledged", "state": "handed_off"}]}


@pytest.mark.parametrize("row_id", ["m_nonsense", "../../x", "x\u202ey"])
def test_ack_of_what_is_not_there(wakehub, send, row_id):
    send("alice")
    found = wakehub("ack", row_id)
    assert found.status == Exit.DATA
    assert "no such message; next: see what waits: wakehub inbox" in found.out
    assert "\u202e" not in found.out


def test_ack_before_there_is_a_record(wakehub, home):
    assert wakehub("ack", "m_1").status == Exit.DATA


def test_ack_while_another_process_listens(wakehub, send, process):
    row_id = send("alice")
    words = [sys.executable, "-P", "-m", "wakehub", "listen", "--as", "alice", "--from", "nobody", "--status"]
    with started(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as listener:
        assert listener.stderr is not None
        assert any(b"listening as" in line for line in listener.stderr)
        found = wakehub("ack", row_id)
        assert found.status == Exit.HELD
        assert f"pid {listener.pid}" in found.out
        assert agent(wakehub, "alice")["listener"]["pid"] == listener.pid
        assert f"pid {listener.pid} listens" in wakehub("agents").out
        assert agent(wakehub, "alice")["listener"]["status"] == "running"
        assert "· running" in wakehub("agents").out
        assert "· running" in wakehub("status").out


def test_a_registry_that_cannot_be_read_is_named_once(wakehub, home):
    wakehub("send", "--as", "bob", "--to", "alice", "one")
    wakehub("send", "--as", "bob", "--to", "alice", "two")
    (home / "keys" / "owner.pub").write_bytes(b"damaged")
    for form in ((), ("--json",)):
        found = wakehub("inbox", "--as", "alice", *form)
        assert found.status == 0
        (line,) = found.err.splitlines()
        assert line.startswith("wakehub: no signature can be verified: ")
