"""`guide` and `demo`."""

import re

from wakehub import invocation, limits
from wakehub.cli import build_parser, learn
from wakehub.errors import Exit


def test_the_guides_are_listed_with_what_they_are_about(wakehub):
    found = wakehub("guide")
    assert found.status == 0
    assert {"exits", "guarantees", "operate", "protocol", "receive"} <= {
        line.split()[0] for line in found.out.splitlines()
    }
    assert all(len(line.split()) > 2 for line in found.out.splitlines())


def test_every_guide_can_be_read(wakehub):
    for name in learn.topics():
        found = wakehub("guide", name)
        assert found.status == 0
        assert found.out.startswith("# ")
        assert all(len(line) <= 130 for line in found.out.splitlines() if not line.startswith("|"))


def test_the_guides_that_are_promised_are_there():
    promised = {"agents", "claude", "exec-hook", "guarantees", "operate", "python", "receive", "sandbox"}
    assert promised <= set(learn.topics())


def test_the_primer_for_agents_is_short(wakehub):
    """Under 700 tokens, counted high: a word is one for every four letters, and each mark is one."""
    assert len(re.findall(r"[^\W_]{1,4}|[^\w\s]|_", wakehub("guide", "agents").out)) < 700


def test_the_primer_shows_a_message_as_it_comes(wakehub):
    text = wakehub("guide", "agents").out
    wakehub("init")
    wakehub("send", "--as", "bob", "--to", "alice", "hello")
    head, body, reply, end, _ = wakehub("listen", "--as", "alice", "--once", "--format", "agent").out.split("\n")
    assert re.fullmatch(r"\[wakehub m_\w+ from bob · verified · \d+ s old]", head)
    assert body == "| hello"
    assert re.sub("m_[0-9a-z]+", "m_01…", reply.replace(invocation.call(), "wakehub")).replace("alice", "NAME") in text
    assert end == "---"
    assert f"{limits.MAX_HOPS} answers in a row" in text


def test_an_unknown_guide_names_those_there_are(wakehub):
    found = wakehub("guide", "../../etc/passwd")
    assert found.status == Exit.USAGE
    assert "guarantees" in found.err


def test_every_command_that_a_guide_shows_exists(wakehub):
    known = next(action for action in build_parser()._actions if action.dest == "command").choices
    for name in learn.topics():
        for word in re.findall(r"(?<![/\w])wakehub ([a-z]+)(?![a-z_:-])", wakehub("guide", name).out):
            assert word in known, (name, word)


def test_the_numbers_in_the_guides_are_the_programs(wakehub):
    guarantees, operate, protocol = (wakehub("guide", name).out for name in ("guarantees", "operate", "protocol"))
    assert f"at\nleast every {limits.MAX_BACKSTOP_SECONDS} s" in guarantees
    assert (
        f"({limits.DEFAULT_TTL_SECONDS // 3600} h unless you say otherwise, {limits.MAX_TTL_SECONDS // 86400} days"
        in guarantees
    )
    assert f"every {limits.ALLOWLIST_RESIGN_SECONDS} s for {limits.ALLOWLIST_VALID_SECONDS} s" in operate
    assert f"at most {limits.MAX_SOCKET_DIRECTORY_BYTES} bytes long" in operate
    assert f"at most {limits.MAX_FRAME_BYTES} bytes" in protocol


def test_the_settings_in_the_guide_are_the_programs(wakehub):
    text = wakehub("guide", "operate").out.split("**Settings**")[1].split("A key that")[0]
    listed = set(re.findall(r"`([a-z_]+)`", text)) - {"id"}
    assert listed == set(limits.HubLimits._fields)


def test_demo_is_run_and_its_status_returned(wakehub, monkeypatch):
    monkeypatch.setattr("wakehub.ops.demo.run", lambda say: say("shown") or Exit.FAILED)
    found = wakehub("demo")
    assert (found.status, found.out) == (Exit.FAILED, "shown\n")
