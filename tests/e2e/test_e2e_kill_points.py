"""kill -9 at every named point between claim, hand-off, acknowledgement and event write (faults F1, F17, F82).

Whatever the point: no message is lost, none is acknowledged that was not proven, none is half done, and what may have
been seen comes again with the mark of a redelivery.
"""

import json
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import kill_points
import pytest
from daemon_process import PATIENCE_S, environment, stand_in_for_up
from kill_points import FAILING, HOOK, RECEIVING, SENDING

from wakehub import config as configuration
from wakehub.client.home import ensure_agent, ensure_home
from wakehub.inbox.clock import Now
from wakehub.inbox.rows import NewRow, Row
from wakehub.inbox.signing import signer
from wakehub.inbox.sqlite import SqliteInbox

_LAUNCHER = Path(kill_points.__file__)
_LISTEN = ("listen", "--as", "alice", "--once", "--format", "json")


class World:
    """An instance without hub and publisher: what is shown here needs neither."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.config = configuration.load(environment(home))
        ensure_home(self.config)
        self.bob = ensure_agent(self.config, "bob")
        ensure_agent(self.config, "alice")
        self.inbox = SqliteInbox.open(self.config.paths.record)

    def store(self, *bodies: str) -> list[str]:
        new = [NewRow("bob", "alice", body.encode(), signed=signer(self.bob.pair)) for body in bodies]
        return [row.id for row in self.inbox.append(new, Now.read())]

    def row(self, id: str) -> Row:
        row = self.inbox.row(id)
        assert row is not None
        return row

    def kinds(self, id: str) -> list[str]:
        return [event.kind for event in self.inbox.events(id)]

    def killed_at(self, point: str, *words: str) -> bytes:
        """What `wakehub` wrote to its reader before it was killed there."""
        done = self._run([sys.executable, str(_LAUNCHER), point, *words])
        assert done.returncode == -signal.SIGKILL, done.stderr
        return done.stdout

    def listen(self, *words: str) -> list[dict[str, Any]]:
        """What the next listener hands off."""
        done = self._run([sys.executable, "-P", "-m", "wakehub", *_LISTEN, *words])
        assert done.returncode in (0, 3), done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def _run(self, words: Sequence[str]) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            words,
            env=environment(self.home),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=PATIENCE_S * 2,
        )


@pytest.fixture
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="wh") as name:
        made = World(Path(name))
        with stand_in_for_up(made.config.paths):
            yield made
        made.inbox.close()


CLAIM_NOT_COMMITTED = ("before the claim", "row claimed, event not written", "claim and event written, not committed")


@pytest.mark.parametrize("point", RECEIVING)
def test_a_listener_killed_at(world: World, point: str) -> None:
    first, second = world.store("first", "second")
    written = world.killed_at(point, *_LISTEN)

    # What it left behind: a whole state, and none that was not reached.
    is_acknowledged = point == "acknowledgement committed"
    row = world.row(first)
    assert row.is_open != is_acknowledged
    assert world.kinds(first) == (
        ["stored"]
        if point in CLAIM_NOT_COMMITTED
        else ["stored", "claimed", *(["handed_off"] if is_acknowledged else [])]
    )
    assert world.row(second).state == "unread"
    assert not (is_acknowledged and not written), "acknowledged, and nobody saw it"

    # What the next one does: everything comes, in order, and marked if it may have been seen.
    got = world.listen()
    expected = [second] if is_acknowledged else [first, second]
    assert [message["id"] for message in got] == expected
    if not is_acknowledged:
        assert got[0]["redelivery"] == (0 if point in CLAIM_NOT_COMMITTED else 1)
        assert not written or got[0]["redelivery"] > 0, "seen twice without a mark"
    assert got[-1]["redelivery"] == 0
    for id in (first, second):
        assert world.row(id).state == "handed_off"
        assert world.kinds(id).count("handed_off") == 1
    assert world.listen() == []


@pytest.mark.parametrize("point", HOOK)
def test_a_listener_with_a_hook_killed_when(world: World, point: str, tmp_path: Path) -> None:
    """F17: the hook has taken the message; it is given the same one again, and can tell."""
    (id,) = world.store("act once")
    seen, hook = tmp_path / "seen", tmp_path / "hook"
    hook.write_text(f'#!/bin/sh\necho "$WAKEHUB_ID $WAKEHUB_REDELIVERY" >> {seen}\n')
    hook.chmod(stat.S_IRWXU)
    words = ("listen", "--as", "alice", "--once", "--exec", str(hook))
    world.killed_at(point, *words)
    assert seen.read_text().splitlines() == [f"{id} 0"]
    assert world.row(id).is_open
    subprocess.run([sys.executable, "-P", "-m", "wakehub", *words], env=environment(world.home), check=True)
    assert seen.read_text().splitlines() == [f"{id} 0", f"{id} 1"]
    assert world.row(id).state == "handed_off"


@pytest.mark.parametrize("point", FAILING)
def test_a_listener_whose_hook_failed_killed_when(world: World, point: str) -> None:
    """F1: it is neither acknowledged nor lost, and a failure that was not recorded whole was none."""
    (id,) = world.store("hello")
    world.killed_at(point, "listen", "--as", "alice", "--once", "--exec", "false")
    row = world.row(id)
    assert row.is_open
    is_recorded = point == "failure committed"
    assert (row.attempts, world.kinds(id)[2:]) == ((1, ["attempt_failed"]) if is_recorded else (0, []))
    (message,) = world.listen("--wait", "10")
    assert message["id"] == id
    assert world.row(id).state == "handed_off"


@pytest.mark.parametrize("point", SENDING)
def test_a_sender_killed(world: World, point: str) -> None:
    """A message is there whole, with its event, or not at all; nothing is said to be stored that is not."""
    said = world.killed_at(point, "send", "--as", "bob", "--to", "alice", "hello")
    assert said == b""
    rows = world.inbox.unread("alice")
    assert [row.body for row in rows] == ([b"hello"] if point == "row committed, nothing said" else [])
    assert [world.kinds(row.id) for row in rows] == [["stored"]] * len(rows)
    assert world.inbox.watermark("alice") == len(rows)
    assert [message["text"] for message in world.listen()] == ["hello"] * len(rows)


def test_killed_again_and_again_at_the_worst_point_it_counts_and_ends_well(world: World) -> None:
    (id,) = world.store("hello")
    for times in range(3):
        (line,) = world.killed_at("proven, not acknowledged", *_LISTEN).splitlines()
        assert json.loads(line)["redelivery"] == times
    (message,) = world.listen()
    assert (message["id"], message["redelivery"]) == (id, 3)
    assert world.kinds(id) == ["stored", *["claimed"] * 4, "handed_off"]
