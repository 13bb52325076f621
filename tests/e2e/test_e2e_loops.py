"""Agents that answer each other without end, or wait for each other, on real processes (faults F31, F32)."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from daemon_process import PATIENCE_S, Daemon, environment, stand_in_for_up, until

from wakehub import config as configuration
from wakehub.client.home import ensure_home
from wakehub.errors import Exit
from wakehub.inbox.clock import Now
from wakehub.inbox.rows import NewRow
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.limits import MAX_HOPS, MAX_PAIR_PER_MINUTE
from wakehub.ops import health

# A hook as people write it: whoever says something gets thanks.
THANK = """
import os, subprocess, sys
answer = [sys.executable, "-m", "wakehub", "send", "--as", os.environ["WAKEHUB_TO"], "--to", os.environ["WAKEHUB_FROM"]]
done = subprocess.run([*answer, "--re", os.environ["WAKEHUB_ID"], "thanks"], capture_output=True, text=True)
with open(sys.argv[1], "a") as log:
    print(done.returncode, done.stderr, file=log)
"""


class World:
    """An instance; `inbox` is its record. Without `up` nothing runs in it, nor is anything started."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.config = configuration.load({"WAKEHUB_HOME": str(home)})
        ensure_home(self.config)
        self.stand_in = stand_in_for_up(self.config.paths)
        self.inbox = SqliteInbox.open(self.config.paths.record)
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            [sys.executable, "-m", "wakehub", *words],
            env=environment(self.home),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._processes.append(process)
        return process

    def send(self, sender: str, to: str, *words: str) -> tuple[int, dict[str, Any], str]:
        """The exit status of `send`, its report, and what it complained about."""
        out, err = self.start("send", "--as", sender, "--to", to, "--json", *words, "hello").communicate()
        return self._processes[-1].returncode, json.loads(out or b"{}"), err.decode()

    def chain(self, names: Sequence[str], length: int) -> str:
        """`length` messages, each answering the one before, handed on from name to name; the id of the last."""
        last: str | None = None
        for number in range(length):
            sender, to = names[number % len(names)], names[(number + 1) % len(names)]
            (row,) = self.inbox.append(NewRow(sender, to, b"done", re=last), Now.read())
            last = row.id
        assert last is not None
        return last

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        self.inbox.close()
        self.stand_in.release()


@pytest.fixture
def world() -> Iterator[World]:
    home = Path(tempfile.mkdtemp(prefix="wl", dir="/tmp"))
    made = World(home)
    yield made
    made.close()
    shutil.rmtree(home, ignore_errors=True)  # what ends behind its parent may still write


@pytest.fixture
def up(world: World) -> Iterator[World]:
    """The world with hub and publisher."""
    world.stand_in.release()
    with Daemon(world.home, "up") as daemon:
        daemon.says("ready: the hub answers")
        yield world


# --- without end ---


@pytest.mark.parametrize("names", [("alice", "bob"), ("alice", "bob", "carol")], ids=["pair", "triangle"])
def test_a_chain_of_answers_ends_with_429(world: World, names: tuple[str, ...]) -> None:
    """F31: the message that begins it, and sixteen answers."""
    last = world.chain(names, MAX_HOPS)
    sender, to = names[MAX_HOPS % len(names)], names[(MAX_HOPS + 1) % len(names)]
    status, report, _ = world.send(sender, to, "--re", last)
    assert status == Exit.DONE
    sender, to = to, names[(MAX_HOPS + 2) % len(names)]
    status, report, err = world.send(sender, to, "--re", report["ids"][0])
    assert (status, report) == (Exit.UNAVAILABLE, {})
    assert "429" in err
    assert "send without --re if this begins something new" in err
    assert world.send(sender, to)[0] == Exit.DONE


def test_one_pair_has_its_rate_and_each_direction_its_own(world: World) -> None:
    """F31."""
    world.inbox.append([NewRow("alice", "bob", b"hi")] * (MAX_PAIR_PER_MINUTE - 1), Now.read())
    assert world.send("alice", "bob")[0] == Exit.DONE
    status, _, err = world.send("alice", "bob")
    assert status == Exit.UNAVAILABLE
    assert "429" in err
    assert "wait a minute" in err
    assert world.inbox.count_unread("bob") == MAX_PAIR_PER_MINUTE
    assert world.send("bob", "alice")[0] == Exit.DONE
    assert world.send("alice", "carol")[0] == Exit.DONE


def test_two_hooks_that_thank_each_other_are_stopped(up: World) -> None:
    """F31: nobody looks on; the record alone ends it, the hook that comes too late sees 429, and nothing is lost."""
    log = up.home / "log"
    hook = up.home / "hook.py"
    hook.write_text(THANK)
    for name in ("alice", "bob"):
        up.start("listen", "--as", name, "--exec", sys.executable, str(hook), str(log))
    until(lambda: len(up.inbox.leases.live(Now.read())) == 2, "both listen")
    assert up.send("carol", "alice", "--class", "fyi")[0] == Exit.DONE  # to carol nobody listens: no loop begins
    assert up.send("alice", "bob")[0] == Exit.DONE
    until(lambda: log.exists() and "429: " in log.read_text(), "a hook was refused")
    until(lambda: not up.inbox.count_unread("alice") + up.inbox.count_unread("bob"), "everything is handed off")
    statuses = [line.split()[0] for line in log.read_text().splitlines() if line[:1].isdecimal()]
    assert statuses.count(str(int(Exit.UNAVAILABLE))) == 1
    (thanked,) = up.inbox.unread("carol")
    assert thanked.body == b"thanks"


def sample(world: World, name: str) -> int:
    """One of the hub's counters."""
    text = health.read_metrics(world.config)
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(f"wakehub_{name} "))


def test_fyi_wakes_nobody_and_is_found_all_the_same(up: World) -> None:
    """F31."""
    listener = up.start("listen", "--as", "alice", "--format", "json", "--poll", "1")
    until(lambda: sample(up, "recipients") == 2, "publisher and alice are connected")
    before = sample(up, "wakes_routed_total")
    status, report, _ = up.send("bob", "alice", "--class", "fyi")
    assert status == Exit.DONE
    assert listener.stdout is not None
    assert json.loads(listener.stdout.readline())["class"] == "fyi"
    assert sample(up, "wakes_routed_total") == before
    (row_id,) = report["ids"]
    handed = until(lambda: [event for event in up.inbox.events(row_id) if event.kind == "handed_off"], "acknowledged")
    assert handed[0].woken_by == "backstop"
    assert [event.kind for event in up.inbox.events(row_id)] == ["stored", "claimed", "handed_off"]


# --- for each other ---


def test_two_that_wait_for_each_other_return_early(up: World) -> None:
    """F32: both are busy waiting, so neither reads; each is told that the other has written."""
    waits = [
        up.start("send", "--as", sender, "--to", to, "--wait", "answered", "--timeout", "10m", "hello")
        for sender, to in (("alice", "bob"), ("bob", "alice"))
    ]
    for process in waits:
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == Exit.NOT_REACHED
        assert b"waits for you; read it first" in err
    for name in ("alice", "bob"):
        (message,) = up.inbox.unread(name)
        assert message.body == b"hello"


def test_two_that_wait_for_each_other_still_receive(up: World) -> None:
    """F32: with a listener beside them both messages are handed off while both senders wait."""
    listeners = [up.start("listen", "--as", name, "--format", "json") for name in ("alice", "bob")]
    until(lambda: len(up.inbox.leases.live(Now.read())) == 2, "both listen")
    waits = [
        up.start("send", "--as", sender, "--to", to, "--wait", "answered", "--timeout", "10m", "hello")
        for sender, to in (("alice", "bob"), ("bob", "alice"))
    ]
    heard = []
    for listener in listeners:
        assert listener.stdout is not None
        heard.append(json.loads(listener.stdout.readline()))
    assert [message["to"] for message in heard] == ["alice", "bob"]
    for message in heard:
        assert up.send(message["to"], message["from"], "--re", message["id"])[0] == Exit.DONE
    for process in waits:
        out, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == Exit.DONE
        assert b"answered in" in out
