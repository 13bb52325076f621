"""Which words of a command line mean which backend, and that each refuses options that are not its own."""

import os
from pathlib import Path

import pytest
from relay_world import World

from wakehub.errors import BadData
from wakehub.relay.backends.choice import Unusable, make, parse
from wakehub.relay.backends.claude.deliver import Sessions
from wakehub.relay.backends.exec import Hook
from wakehub.relay.backends.file import Mailbox
from wakehub.relay.options import To, ToClaude, ToFile, ToHook


@pytest.mark.parametrize(
    ("backend", "options", "command", "to"),
    [
        (None, [], None, None),
        ("stdout", [], None, None),
        (None, [], ["hook", "--as", "x"], ToHook(("hook", "--as", "x"))),
        ("file", ["path=/a=b"], None, ToFile(Path("/a=b"), "agent")),
        ("file", ["format=json", "path=here"], None, ToFile(Path.cwd() / "here", "json")),
        ("claude", [], None, ToClaude(None, None, 600)),
        ("claude", ["session=fix auth"], None, ToClaude("fix auth")),
        ("claude", ["agents=a,b/c", "exit_after=0"], None, ToClaude(None, frozenset({"a", "b/c"}), 0)),
    ],
)
def test_words(backend: str | None, options: list[str], command: list[str] | None, to: To | None) -> None:
    assert parse(backend, options, command) == to


@pytest.mark.parametrize(
    ("backend", "options", "command", "said"),
    [
        ("pipe", [], None, "one of stdout, file, claude, or --exec"),
        (None, ["path=x"], None, "standard output has no option path"),
        ("file", [], None, "--opt path=FILE"),
        ("file", ["path="], None, "--opt path=FILE"),
        ("file", ["path=x", "format=xml"], None, "one of agent, line, json"),
        ("file", ["path=x", "mode=0644"], None, "known are path, format"),
        ("file", ["path=x", "path=y"], None, "twice"),
        ("claude", ["path=x"], None, "known are session, agents, exit_after"),
        ("claude", ["session"], None, "KEY=VALUE"),
        ("claude", ["=x"], None, "KEY=VALUE"),
        ("claude", ["session="], None, "names no session"),
        ("claude", ["exit_after=-1"], None, "0 for never"),
        ("claude", ["exit_after=10m"], None, "0 for never"),
        (None, [], [], "--exec PROGRAM"),
        ("claude", [], ["hook"], "takes no backend"),
        (None, ["x=y"], ["hook"], "no --opt"),
    ],
)
def test_what_is_refused(backend: str | None, options: list[str], command: list[str] | None, said: str) -> None:
    with pytest.raises(Unusable) as refused:
        parse(backend, options, command)
    assert refused.value.exit == 2
    assert said in str(refused.value)


def test_agents_are_addresses() -> None:
    with pytest.raises(BadData):
        parse("claude", ["agents=a,,b"], None)


def test_each_becomes_its_backend(world: World, tmp_path: Path) -> None:
    def made(to: To) -> object:
        return make(to, ["alice"], world.config.paths, world.inbox, os.environ)

    assert isinstance(made(ToHook(("cat",))), Hook)
    assert isinstance(made(ToFile(tmp_path / "inbox")), Mailbox)
    assert isinstance(made(ToClaude()), Sessions)
