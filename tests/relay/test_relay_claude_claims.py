"""`wakehub claim`: which session is the shared endpoint of a workspace."""

import json
import stat
from pathlib import Path

import pytest
from fake_claude import FakeClaude, fake_claude
from relay_world import World, message
from trio.testing import MockClock

from wakehub import files
from wakehub.cli import run
from wakehub.client import claude_sessions as sessions
from wakehub.errors import BadData, Unavailable
from wakehub.inbox.clock import Now
from wakehub.processes import ProcessId
from wakehub.relay.backends import HandedOff
from wakehub.relay.backends.claude import claims
from wakehub.relay.backends.claude.deliver import Sessions
from wakehub.relay.message import Message
from wakehub.relay.options import ToClaude


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def to_shared(number: int) -> Message:
    return message(id=f"m_{number:026}", sender="acme/bob", recipient="acme/claude")


async def claim(world: World, claude: FakeClaude, session_id: str, namespace: str | None = "acme/") -> claims.Claim:
    environ = claude.environ | {"CLAUDE_CODE_SESSION_ID": session_id}
    return claims.claim(world.config.paths, namespace, claude.config, environ)


async def test_the_claiming_session_gets_what_is_for_everyone(world: World, autojump_clock: MockClock) -> None:
    async with fake_claude(world.directory / "c") as claude:
        old, new = await claude.start("old"), await claude.start("new", started_at=1_900_000_000_000)
        backend = Sessions(ToClaude(), ["acme/"], world.config.paths, claude.environ)
        assert await backend.deliver(to_shared(0)) == HandedOff("transcript")
        made = await claim(world, claude, old.session_id)
        assert (made.address, made.session.pid) == ("acme/claude", old.pid)
        assert await backend.deliver(to_shared(1)) == HandedOff("transcript")
        old.clear()
        assert await backend.deliver(to_shared(2)) == HandedOff("transcript")
        old.die()
        assert await backend.deliver(to_shared(3)) == HandedOff("transcript")
        assert [got.row_id[-1] for got in old.got] == ["1", "2"]
        assert [got.row_id[-1] for got in new.got] == ["0", "3"]


async def test_a_later_claim_takes_its_place_and_each_workspace_has_its_own(
    world: World, autojump_clock: MockClock
) -> None:
    async with fake_claude(world.directory / "c") as claude:
        one, two = await claude.start("one"), await claude.start("two")
        await claim(world, claude, one.session_id)
        await claim(world, claude, two.session_id)
        made = await claim(world, claude, one.session_id, None)
        assert made.address == "claude"
        running = sessions.scan(claude.config)
        found = {name: claims.claimed(world.config.paths, name) for name in ("acme/claude", "claude", "corp/claude")}
        assert found["acme/claude"].find(running).pid == two.pid  # type: ignore[union-attr]
        assert found["claude"].find(running).pid == one.pid  # type: ignore[union-attr]
        assert found["corp/claude"] is None


async def test_only_in_a_session_that_runs(world: World, autojump_clock: MockClock) -> None:
    async with fake_claude(world.directory / "c") as claude:
        with pytest.raises(Unavailable, match="run it inside of one") as refused:
            claims.claim(world.config.paths, "acme/", claude.config, {})
        assert refused.value.exit == 69
        with pytest.raises(Unavailable, match="not among those that run"):
            await claim(world, claude, "no-such-id")
        session = await claude.start()
        with pytest.raises(BadData):
            await claim(world, claude, session.session_id, "acme")
        assert not world.config.paths.claims.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"pid": "1"},
        {"pid": 0},
        {"started": 7},
        {"session_id": None},
        {"extra": 1},
    ],
)
def test_a_file_that_is_not_as_it_must_be_is_no_claim(world: World, change: dict[str, object]) -> None:
    paths = world.config.paths
    files.private_directory(paths.claims)
    good = {"v": 1, "pid": 7, "started": "x", "session_id": "s"}
    files.replace(paths.claim("claude"), json.dumps(good).encode())
    assert claims.claimed(paths, "claude") is not None
    files.replace(paths.claim("claude"), json.dumps(good | change).encode())
    assert claims.claimed(paths, "claude") is None
    files.replace(paths.claim("claude"), json.dumps(good).encode())
    paths.claim("claude").chmod(0o644)
    assert claims.claimed(paths, "claude") is None


async def test_the_command(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with fake_claude(world.directory / "c") as claude:
        session = await claude.start()
        for name, value in (claude.environ | {"WAKEHUB_HOME": str(world.directory)}).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("CLAUDE_CODE_SESSION_ID", session.session_id)
        assert run(["claim", "--namespace", "acme/"]) == 0
        said = capsys.readouterr()
        assert said.out == f"acme/claude is session review (pid {session.pid}) until it ends\n"
        assert "nobody hands on what is sent to acme/claude" in said.err
        assert said.err.endswith(" relay --namespace acme/ --backend claude\n")
        world.inbox.leases.acquire(["acme/"], ProcessId.own(), "acme/relay", Now.read())
        assert run(["claim", "--namespace", "acme/"]) == 0
        assert capsys.readouterr().err == ""
        assert run(["claim", "--json"]) == 0
        said = capsys.readouterr()
        assert said.err.endswith(" listen --as claude --backend claude\n")
        assert json.loads(said.out) == {
            "address": "claude",
            "session": "review",
            "session_id": session.session_id,
            "pid": session.pid,
        }
    assert mode(world.config.paths.claim("acme/claude")) == 0o600
