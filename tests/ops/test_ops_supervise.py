"""`wakehub up`: two real child processes in one tree that no death of any process takes apart wrongly."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
from daemon_process import Daemon, environment, is_alive, until
from trio.testing import MockClock, wait_all_tasks_blocked

from wakehub.client.home import ensure_home
from wakehub.client.poke import Answer, poke
from wakehub.config import Config
from wakehub.inbox.clock import Now
from wakehub.inbox.leases import Lease
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.limits import BACKGROUND_CHECK_SECONDS, BACKGROUND_IDLE_SECONDS, RESTART_RESET_AFTER_SECONDS
from wakehub.locks import Lock
from wakehub.ops.supervise import Tree, child_commands, hand_down_tether, is_anyone_listening, until_needless
from wakehub.paths import Paths
from wakehub.processes import ProcessId


@pytest.fixture
def config(short: Path) -> Config:
    return Config.at(Paths(short / "run", short / "state", short / "keys", short / "config.toml"))


@pytest.fixture
def up(short: Path) -> Iterator[Daemon]:
    with Daemon(short, "up") as daemon:
        yield daemon


def pid_of(daemon: Daemon, child: str) -> int:
    """The pid of `child` as the next line about it says."""
    found = re.search(r"pid (\d+)", daemon.says(f"{child}: running as pid"))
    assert found is not None
    return int(found[1])


def pids(daemon: Daemon) -> dict[str, int]:
    """Both children, once `up` is ready."""
    daemon.says("ready: the hub answers")
    lines = "\n".join(daemon.lines)
    return {name: int(pid) for name, pid in re.findall(r"(\w+): running as pid (\d+)", lines)}


def all_gone(children: dict[str, int]) -> Callable[[], bool]:
    return lambda: not any(is_alive(pid) for pid in children.values())


def test_a_fresh_home_is_up_and_says_what_comes_next(up: Daemon, short: Path, config: Config) -> None:
    children = pids(up)
    up.says("wakehub listen --as alice")
    up.says("wakehub send --as bob --to alice --stdin")
    assert set(children) == {"hub", "publisher"}
    assert f"made {short / 'keys' / 'owner.key'}" in up.lines
    assert list(poke(config.paths.publish_socket, ["m_1"])) == [("m_1", Answer("m_1", "refused", 404, False))]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_both_and_ends_with_0(up: Daemon, config: Config, number: int) -> None:
    children = pids(up)
    assert up.stop(number) == 0
    assert up.lines[-1] == "up: stopped"
    assert all_gone(children)()
    assert sorted(path.suffix for path in config.paths.run.iterdir()) == [".jws"]
    text = "\n".join(up.lines)
    assert '"hub stopped"' in text
    assert '"publisher stopped"' in text


@pytest.mark.parametrize("name", ["hub", "publisher"])
def test_a_child_that_dies_is_started_again(up: Daemon, config: Config, name: str) -> None:
    before = pids(up)
    os.kill(before[name], signal.SIGKILL)
    up.says(f"{name}: ended (signal 9, Killed); starting it again in 0.25 s")
    again = pid_of(up, name)
    assert again != before[name]
    up.logs(f"{name} ready")
    other = {"hub": "publisher", "publisher": "hub"}[name]
    assert is_alive(before[other])
    assert list(poke(config.paths.publish_socket, ["m_1"])) == [("m_1", Answer("m_1", "refused", 404, False))]


def test_kill_9_of_up_takes_the_children_along(up: Daemon) -> None:
    children = pids(up)
    up.process.kill()
    until(all_gone(children), "the children are gone")
    assert up.ends() == -signal.SIGKILL


def test_a_second_up_is_refused_with_the_holder(up: Daemon, short: Path) -> None:
    children = pids(up)
    with Daemon(short, "up") as second:
        assert second.ends() == 75
        assert f"pid {up.process.pid}" in "\n".join(second.lines)
    assert all(is_alive(pid) for pid in children.values())


def test_a_hub_of_somebody_else_s_is_final_and_left_alone(short: Path, config: Config) -> None:
    ensure_home(config)
    with Daemon(short, "serve") as other:
        other.logs("hub ready")
        with Daemon(short, "up") as up:
            assert up.ends() == 75
            up_said = "\n".join(up.lines)
        assert "hub: ended with 75, which is final" in up_said
        assert f"pid {other.process.pid}" in up_said
        publisher = int(re.findall(r"publisher: running as pid (\d+)", up_said)[0])
        assert not is_alive(publisher)
        assert other.process.poll() is None


def test_what_answers_for_others_is_not_called_ready(short: Path, config: Config) -> None:
    ensure_home(config)
    with Daemon(short, "serve") as hub, Daemon(short, "publish") as publisher:
        hub.logs("hub ready")
        publisher.logs("publisher ready")
        with Daemon(short, "up") as up:
            assert up.ends() == 75
            assert not any(line.startswith("ready:") for line in up.lines)


def test_a_missing_owner_key_is_final_and_named(short: Path, config: Config) -> None:
    ensure_home(config)
    config.paths.owner_key.unlink()
    with Daemon(short, "up") as up:
        assert up.ends() == 77
        assert str(config.paths.owner_key) in "\n".join(up.lines)
        assert any("publisher: ended with 77, which is final" in line for line in up.lines)


def test_a_damaged_record_is_final_and_the_remedy_mends_it(short: Path, config: Config) -> None:
    """F68: started again and again, the publisher would keep the repair out for ever."""
    ensure_home(config)
    SqliteInbox.open(config.paths.record).close()
    config.paths.record.write_bytes(b"x" * 8192)
    with Daemon(short, "up") as up:
        assert up.ends() == 78
        said = "\n".join(up.lines)
        assert "is damaged" in said
        assert "next: wakehub doctor --repair" in said
        assert any("publisher: ended with 78, which is final" in line for line in up.lines)
    repair = [sys.executable, "-m", "wakehub", "doctor", "--repair"]
    subprocess.run(repair, env=environment(short), capture_output=True, check=False)
    with Daemon(short, "up") as up:
        up.says("ready: the hub answers")


def test_that_nobody_reads_its_output_any_more_does_not_end_it(up: Daemon, config: Config) -> None:
    children = pids(up)
    assert up.process.stdout is not None
    up.process.stdout.close()
    os.kill(children["hub"], signal.SIGKILL)
    until(lambda: not is_alive(children["hub"]), "the hub is dead")
    until(lambda: hub_answers(config), "another hub answers")
    up.process.send_signal(signal.SIGTERM)
    assert up.process.wait(20) == 0


def hub_answers(config: Config) -> bool:
    import socket

    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(5)
        try:
            sock.connect(os.fspath(config.hub_socket))
            return bool(sock.recv(1))
        except OSError:
            return False


def test_children_are_told_the_very_same_instance(config: Config, short: Path) -> None:
    elsewhere = config.changed(hub_id="other", hub_socket=short / "other.sock", stats_socket=short / "other-stats.sock")
    commands = child_commands(elsewhere)
    for command in commands.values():
        assert command[:4] == [sys.executable, "-P", "-m", "wakehub"]
        assert command[command.index("--hub-id") + 1] == "other"
        assert command[command.index("--socket") + 1] == str(short / "other.sock")
        assert command[command.index("--state-dir") + 1] == str(config.paths.state)
    assert str(short / "other-stats.sock") in commands["hub"]


# --- with children made for the test ---

DEAF = """
import os, signal, sys
from wakehub.processes import hold_tether
signal.signal(signal.SIGTERM, signal.SIG_IGN)
hold_tether(os.environ)
print("deaf", sorted(name for name in os.environ if "TETHER" in name), flush=True)
while True:
    signal.pause()
"""

UP = """
import json, sys
from pathlib import Path
from wakehub import config
from wakehub.ops.supervise import run_up
sys.exit(run_up(config.load(), commands=json.loads(sys.argv[1])))
"""


def run_up(home: Path, **commands: list[str]) -> Daemon:
    return Daemon(home, argv=[sys.executable, "-c", UP, json.dumps(commands)])


def test_a_second_signal_kills_what_does_not_end(short: Path) -> None:
    with run_up(short, deaf=[sys.executable, "-c", DEAF]) as up:
        child = pid_of(up, "deaf")
        assert up.says("deaf [").endswith("[]")  # what tells of the tether is not handed on
        up.process.send_signal(signal.SIGTERM)
        up.says("up: SIGTERM, stopping")
        assert is_alive(child)
        assert up.stop(signal.SIGTERM) == 0
        assert not is_alive(child)


class Watched:
    """A tree in this process, on a clock that the test moves; each line it says can be waited for."""

    def __init__(self, command: list[str], tether: int) -> None:
        self._send, self._lines = trio.open_memory_channel[str](100)
        self.tree = Tree({"child": command}, tether, self._send.send_nowait)

    async def says(self, what: str) -> str:
        while what not in (line := await self._lines.receive()):
            pass
        return line


async def test_the_delay_doubles_to_10_s_and_starts_anew_behind_a_long_life(
    config: Config, short: Path, mock_clock: MockClock
) -> None:
    gate = short / "gate"
    os.mkfifo(gate)
    script = f"open({str(gate)!r}).read(); raise SystemExit(1)"
    with hand_down_tether() as tether:
        watched = Watched([sys.executable, "-c", script], tether)

        async def end_after(seconds: float) -> str:
            """Let the child live for so long; how long it is waited then, in words."""
            await watched.says("running as pid")
            mock_clock.jump(seconds)
            async with await trio.open_file(gate, "w"):
                pass
            line = await watched.says("ended (status 1)")
            await wait_all_tasks_blocked()
            return line.rpartition(" in ")[2]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watched.tree.run, config)
            for delay in (0.25, 0.5, 1, 2, 4, 8, 10, 10):
                assert await end_after(0) == f"{delay:g} s"
                mock_clock.jump(delay)
            assert await end_after(RESTART_RESET_AFTER_SECONDS) == "0.25 s"
            mock_clock.jump(0.25)
            assert await end_after(RESTART_RESET_AFTER_SECONDS - 1) == "0.5 s"
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("status", [75, 77, 78])
async def test_what_does_not_go_away_by_itself_is_final(config: Config, status: int) -> None:
    with hand_down_tether() as tether:
        watched = Watched([sys.executable, "-c", f"raise SystemExit({status})"], tether)
        assert await watched.tree.run(config) == status
    await watched.says(f"child: ended with {status}, which is final")


@pytest.mark.parametrize("status", [0, 1, 69, 73])
async def test_every_other_end_is_followed_by_another_start(config: Config, status: int, mock_clock: MockClock) -> None:
    with hand_down_tether() as tether:
        watched = Watched([sys.executable, "-c", f"raise SystemExit({status})"], tether)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watched.tree.run, config)
            await watched.says(f"child: ended (status {status}); starting it again")
            nursery.cancel_scope.cancel()


# --- in the background: it ends by itself ---


def hold(config: Config) -> tuple[SqliteInbox, Lease]:
    inbox = SqliteInbox.open(config.paths.record)
    lease = inbox.leases.acquire(["alice"], ProcessId.own(), "alice", Now.read())
    assert isinstance(lease, Lease)
    return inbox, lease


@pytest.fixture
def lock(config: Config) -> Iterator[Lock]:
    ensure_home(config)
    with Lock.acquire(config.paths.lock("up"), what="a test") as held:
        yield held


async def test_a_tree_that_nobody_needs_ends_after_15_minutes(
    config: Config, lock: Lock, autojump_clock: MockClock
) -> None:
    assert await until_needless(config, lock) == "nobody has listened for 15 min"
    assert BACKGROUND_IDLE_SECONDS <= trio.current_time() <= BACKGROUND_IDLE_SECONDS + BACKGROUND_CHECK_SECONDS


async def test_the_15_minutes_begin_when_the_last_listener_left(
    config: Config, lock: Lock, mock_clock: MockClock
) -> None:
    inbox, lease = hold(config)
    with inbox:
        async with trio.open_nursery() as nursery:
            ended = trio.Event()

            async def wait() -> None:
                await until_needless(config, lock)
                ended.set()

            async def pass_by(seconds: float) -> None:
                mock_clock.jump(seconds)
                await wait_all_tasks_blocked()

            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            for _ in range(3):
                await pass_by(BACKGROUND_IDLE_SECONDS - 1)
                assert not ended.is_set()
            inbox.leases.release(lease.token, Now.read())
            await pass_by(BACKGROUND_IDLE_SECONDS - 1)
            assert not ended.is_set()
            await pass_by(BACKGROUND_CHECK_SECONDS)
            await ended.wait()


async def test_a_tree_whose_directory_was_taken_away_ends(
    config: Config, lock: Lock, autojump_clock: MockClock
) -> None:
    shutil.rmtree(config.paths.state)
    assert await until_needless(config, lock) == "its state directory was removed or replaced"
    assert trio.current_time() == 0


def test_a_record_that_cannot_be_read_may_have_listeners(config: Config) -> None:
    ensure_home(config)
    assert not is_anyone_listening(config)
    config.paths.record.write_bytes(b"not a database")
    assert is_anyone_listening(config)


async def test_the_tree_ends_with_0_and_says_why(config: Config) -> None:
    async def needless() -> str:
        return "the test is over"

    with hand_down_tether() as tether:
        watched = Watched([sys.executable, "-c", "import time; time.sleep(60)"], tether)
        assert await watched.tree.run(config, needless) == 0
    await watched.says("up: the test is over, stopping")
