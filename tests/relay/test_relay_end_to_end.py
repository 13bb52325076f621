"""From `send` to a session's transcript and to a hook, with hub, publisher and relay as real processes."""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio
from daemon_process import Daemon
from fake_claude import Does, fake_claude
from relay_world import World, stopped


@pytest.fixture
def up(world: World) -> Iterator[World]:
    """A world with a hub and a publisher."""
    world.stand_in.release()
    with Daemon(world.directory, "up") as daemon:
        daemon.says("ready: the hub answers")
        yield world
        assert daemon.stop() == 0


def send(world: World, text: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """`wakehub send` with `text` on standard input, which is what every reply hint says."""
    line = [sys.executable, "-m", "wakehub", "send", "--as", "acme/bob", *arguments, "--stdin"]
    return subprocess.run(line, env=world.environ, input=text, capture_output=True, text=True, check=False)


async def test_a_message_into_a_session_and_its_answer_back(up: World) -> None:
    waits = ("--create", "--wait", "handed-off", "--timeout", "20")
    async with fake_claude(up.directory / "c") as claude:
        session = await claude.start("review", Does.ACCEPT, token="t")
        relay = up.start("relay", "--namespace", "acme/", "--backend", "claude", environ=claude.environ)
        await trio.to_thread.run_sync(up.until_held, "acme/")
        sent = await trio.to_thread.run_sync(partial(send, up, "please look", "--to", "acme/review", *waits))
        assert sent.returncode == 0, sent.stderr
        assert "handed off" in sent.stdout
        (got,) = session.got
        assert "| please look" in got.text
        event = up.event(got.row_id, "handed_off")
        assert event.proof == "transcript"
        assert event.woken_by in ("wake", "welcome", "start")
        hint = next(line for line in got.text.splitlines() if line.startswith("[reply: "))
        line = hint.removeprefix("[reply: ").removesuffix("]")
        elsewhere = {"PATH": "/usr/bin:/bin", "HOME": str(up.directory)}  # the shell of a session that knows of nothing
        answer = partial(
            subprocess.run, ["sh", "-c", line], env=elsewhere, input=b"done", capture_output=True, check=False
        )
        assert (await trio.to_thread.run_sync(answer)).returncode == 0
        assert any(event.kind == "answered" for event in up.inbox.events(got.row_id))
        status, _ = await trio.to_thread.run_sync(stopped, relay)
        assert status == 0


def test_a_message_into_a_hook_is_woken_not_polled(up: World, tmp_path: Path) -> None:
    out = tmp_path / "out"
    listener = up.listen("--as", "acme/alice", "--exec", "sh", "-c", f'cat >/dev/null; echo "$WAKEHUB_REASON" >>{out}')
    up.until_held("acme/alice")
    first = send(up, "one", "--to", "acme/alice", "--wait", "handed-off", "--timeout", "20")
    second = send(up, "two", "--to", "acme/alice", "--wait", "handed-off", "--timeout", "20")
    assert (first.returncode, second.returncode) == (0, 0)
    assert stopped(listener)[0] == 0
    assert out.read_text().split()[1] == "wake"


async def test_a_session_that_is_not_there_is_never_called_handed_off(up: World) -> None:
    """F2: the relay is there and is woken, the session is not."""
    async with fake_claude(up.directory / "c") as claude:
        gone = await claude.start("review")
        gone.die()
        relay = up.start("relay", "--namespace", "acme/", "--backend", "claude", environ=claude.environ)
        await trio.to_thread.run_sync(up.until_held, "acme/")
        words = ("--to", "acme/review", "--create", "--wait", "handed-off", "--timeout", "2")
        sent = await trio.to_thread.run_sync(partial(send, up, "hello?", *words))
        assert sent.returncode == 4
        assert "handed off" not in sent.stdout
        await trio.to_thread.run_sync(stopped, relay)
    assert gone.got == []
