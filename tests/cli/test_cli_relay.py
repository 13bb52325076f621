"""`relay`, `claim` and the flags that say where messages go. What becomes of them is tested where it is done."""

from pathlib import Path

import pytest

from wakehub.errors import Exit
from wakehub.relay.options import ToClaude, ToFile, ToHook


@pytest.fixture
def given(monkeypatch):
    """The options that a listener was started with."""
    found = []
    monkeypatch.setattr("wakehub.relay.loop.run", lambda config, options: found.append(options) or Exit.DONE)
    return found


@pytest.mark.parametrize(
    ("flags", "to"),
    [
        ("", None),
        ("--backend stdout", None),
        ("--exec ./hook --as x --opt y", ToHook(("./hook", "--as", "x", "--opt", "y"))),
        ("--backend file --opt path=/in --opt format=line", ToFile(Path("/in"), "line")),
        ("--backend claude --opt session=review --opt exit_after=0", ToClaude("review", None, 0)),
    ],
)
def test_where_a_listener_sends_messages(wakehub, given, flags, to):
    assert wakehub("listen", "--as", "alice", *flags.split()).status == 0
    assert given[0].to == to
    assert given[0].names == ("alice",)


def test_a_relay_is_a_listener_for_namespaces_that_takes_them_over(wakehub, given):
    line = "relay --namespace acme/ --namespace corp/ --from bob --poll 5 --backend claude --opt agents=a,b"
    assert wakehub(*line.split()).status == 0
    (options,) = given
    assert (options.names, options.namespaces, options.sender, options.poll_s) == ((), ("acme/", "corp/"), "bob", 5)
    assert options.to == ToClaude(None, frozenset({"a", "b"}))
    assert options.session == "relay acme/ corp/"
    assert not options.once


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("relay --namespace acme/", 2, "--backend claude, or --exec CMD"),
        ("relay --backend claude", 2, "--namespace"),
        ("relay --namespace acme --backend claude", 2, "write acme/"),
        ("relay --namespace acme/ --backend claude --opt session=x", 2, "a name with --as"),
        ("listen --as alice --backend pipe", 2, "stdout, file, claude, or --exec"),
        ("listen --as alice --backend file", 2, "--opt path=FILE"),
        ("listen --as alice --opt path=x", 2, "name a --backend"),
        ("listen --as alice --exec", 2, "--exec PROGRAM ARGUMENT"),
        ("listen --as alice --backend claude --exec cat", 2, "takes no backend"),
        ("listen --as alice --no-ack --exec cat", 2, "--no-ack only looks"),
        ("listen --as alice --format json --exec cat", 2, "--format is for standard output"),
        ("listen --as alice --exec /no/such/program", 2, "cannot run /no/such/program"),
        ("claim", 69, "run it inside of one"),
    ],
)
def test_what_cannot_be_done_says_what_can(wakehub, monkeypatch, line, status, said):
    monkeypatch.delenv("CLAUDE_CODE_SESSION_ID", raising=False)
    found = wakehub(*line.split())
    assert found.status == status
    assert said in found.err
    assert found.out == ""


def test_a_hook_gets_a_message_and_the_sender_sees_it_handed_off(wakehub, tmp_path):
    out = tmp_path / "out"
    wakehub("send", "--as", "bob", "--to", "alice", "hello")
    assert wakehub("listen", "--as", "alice", "--once", "--exec", "sh", "-c", f"cat >{out}").status == 0
    assert '"text":"hello"' in out.read_text()
    assert wakehub("listen", "--as", "alice", "--once", "--exec", "cat").status == 3
