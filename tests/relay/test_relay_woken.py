"""The listener under a real hub and publisher: woken, not polled; and what it does when they are killed."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from daemon_process import PATIENCE_S, until
from relay_world import World, read_block, stopped


class Tree:
    """`wakehub up` for a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.world.stand_in.release()
        with open(self.world.directory / "up.out", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "wakehub", "up"],
                env=self.world.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until(self.world.config.paths.publish_socket.exists, "the publisher is up")
        until(self.world.config.hub_socket.exists, "the hub is up")

    def hub_pid(self) -> int:
        return int(json.loads(self.world.config.paths.lock("hub").read_text())["pid"])

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(PATIENCE_S)


@pytest.fixture
def up(world: World) -> Iterator[Tree]:
    tree = Tree(world)
    tree.start()
    yield tree
    tree.stop()


@contextmanager
def reading(listener: subprocess.Popen[bytes]) -> Iterator[None]:
    """Somebody reads one message while the block runs."""
    reader = threading.Thread(target=read_block, args=(listener,))
    reader.start()
    yield
    reader.join(PATIENCE_S)
    assert not reader.is_alive()


def send(world: World, text: str, *arguments: str) -> dict[str, object]:
    line = [sys.executable, "-m", "wakehub", "send", "--as", "bob", "--to", "alice", "--json", *arguments, text]
    done = subprocess.run(line, env=world.environ, capture_output=True, check=False)
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    assert found["exit"] == done.returncode
    return found


def until_connected(world: World, times: int = 1) -> None:
    """Until the hub's log has told so many times that alice connected."""
    path = world.directory / "up.out"

    def connected() -> bool:
        lines = [line for line in path.read_text().splitlines() if '"agent connected"' in line]
        return sum(json.loads(line)["agent"] == "alice" for line in lines) >= times

    until(connected, f"alice connected {times} times")


def test_a_row_is_hinted_woken_for_and_handed_off(world: World, up: Tree) -> None:
    world.agent("bob")
    listener = world.listen("--as", "alice")
    world.until_held()
    until_connected(world)
    with reading(listener):
        send(world, "may still be found for the welcome", "--wait", "handed-off", "--timeout", "20")
    with reading(listener):
        found = send(world, "wake up", "--wait", "handed-off", "--timeout", "20")
    assert found["exit"] == 0
    assert [receipt["state"] for receipt in found["receipts"]] == ["stored", "hinted", "handed_off"]  # type: ignore[attr-defined]
    (row_id,) = found["ids"]  # type: ignore[misc]
    assert world.event(row_id, "handed_off").woken_by == "wake"
    assert stopped(listener)[0] == 0


def test_a_new_name_says_no_hello_that_must_be_refused(world: World, up: Tree) -> None:
    listener = world.listen("--as", "alice")
    until_connected(world)
    status, said = stopped(listener)
    assert status == 0
    assert "401" not in said
    assert "unknown_agent" not in (world.directory / "up.out").read_text()


def test_the_hub_is_killed_and_what_was_sent_meanwhile_arrives(world: World, up: Tree) -> None:
    listener = world.listen("--as", "alice")
    until_connected(world)
    before = up.hub_pid()
    os.kill(before, signal.SIGKILL)
    with reading(listener):
        found = send(world, "while it was down", "--wait", "handed-off", "--timeout", "60")
    assert found["exit"] == 0
    until(lambda: up.hub_pid() != before, "another hub is there")
    until_connected(world, 2)
    assert stopped(listener)[0] == 0


def test_a_take_over_under_a_hub_ends_the_displaced_one_with_75_and_not_by_a_fight(world: World, up: Tree) -> None:
    first = world.listen("--as", "alice")
    until_connected(world)
    second = world.listen("--as", "alice", "--take-over")
    assert first.wait(PATIENCE_S) == 75
    until_connected(world, 2)
    assert second.poll() is None
    assert stopped(second)[0] == 0


def test_waiting_once_is_woken_as_well(world: World, up: Tree) -> None:
    listener = world.listen("--as", "alice", "--once", "--wait", "600")
    until_connected(world)
    send(world, "now")
    out, _ = listener.communicate(timeout=PATIENCE_S)
    assert listener.returncode == 0
    assert b"| now" in out
