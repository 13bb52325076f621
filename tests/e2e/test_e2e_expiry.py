"""What becomes of messages that nobody takes in time, and of those that were taken long ago (faults F15, F20)."""

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from daemon_process import Daemon, environment, until

from wakehub import config as configuration
from wakehub.client.home import ensure_agent, ensure_home
from wakehub.inbox.clock import Now
from wakehub.inbox.rows import NewRow, Row
from wakehub.inbox.signing import signer
from wakehub.inbox.sqlite import SqliteInbox

DAY_MS = 86_400_000


class World:
    """An instance with bob in it, a publisher that sweeps, and commands as processes; `inbox` is the record."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.config = configuration.load(environment(home))
        ensure_home(self.config)
        self.bob = ensure_agent(self.config, "bob")
        self.inbox = SqliteInbox.open(self.config.paths.record)
        self._running: list[subprocess.Popen[bytes]] = []

    def store(self, body: bytes, now: Now, to: str = "alice", **fields: Any) -> Row:
        (row,) = self.inbox.append(NewRow("bob", to, body, signed=signer(self.bob.pair), **fields), now)
        return row

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "wakehub", *words],
            env=environment(self.home),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._running.append(process)
        return process

    def run(self, *words: str) -> tuple[int, str]:
        process = self.start(*words)
        out, _ = process.communicate(timeout=60)
        return process.returncode, out.decode()

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.communicate()
        self.inbox.close()


@pytest.fixture
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="wh") as name:
        made = World(Path(name))
        try:
            yield made
        finally:
            made.close()


@pytest.fixture
def publisher(world: World) -> Iterator[Daemon]:
    with Daemon(world.home, "publish") as daemon:
        daemon.logs("publisher ready")
        yield daemon


def test_a_message_to_an_absent_agent_comes_back_as_a_notice_that_the_senders_listener_shows(
    world: World, publisher: Daemon, tmp_path: Path
) -> None:
    """F15. The body is gone then, and its file; what is left says what happened."""
    (tmp_path / "f").write_bytes(b"content")
    listener = world.start("listen", "--as", "bob", "--format", "json", "--poll", "1")
    status, out = world.run(
        "send", "--as", "bob", "--to", "alice", "--ttl", "2s", "--attach", str(tmp_path / "f"), "deploy now"
    )
    assert status == 0
    id = out.split()[1]
    assert listener.stdout is not None
    notice = json.loads(listener.stdout.readline())
    assert (notice["from"], notice["class"], notice["re"]) == ("wakehub-publisher", "fyi", id)
    assert "expired" in notice["text"]
    assert "alice" in notice["text"]
    assert (notice["verified"], notice["reply"]) == ("yes", None)
    row = world.inbox.row(id)
    assert row is not None
    assert (row.state, row.body) == ("expired", None)
    assert [event.kind for event in world.inbox.events(id)][-1] == "expired"
    until(lambda: not os.listdir(world.config.paths.blobs), "the file of the expired message is gone")
    assert world.run("listen", "--as", "alice", "--once")[0] == 3
    until(lambda: world.inbox.count_unread("bob") == 0, "the notice is acknowledged")


def test_nobody_is_told_of_an_expired_notice(world: World) -> None:
    """Else one message to nobody would echo for ever; a notice whose own time is over just ends."""
    long_ago = Now.read().later(-20 * DAY_MS)
    world.store(b"to nobody", long_ago, ttl_s=60)
    world.inbox.expire(long_ago.later(61_000), signed=signer(world.bob.pair))
    assert states(world) == [("alice", "expired"), ("bob", "unread")]
    with Daemon(world.home, "publish") as daemon:
        daemon.logs("publisher ready")
        until(lambda: states(world) == [("bob", "expired")], "the notice expired, and the message is long gone")
    assert world.inbox.watermark("bob") == 1


def states(world: World) -> list[tuple[str, str]]:
    """Recipient and state of every row."""
    with closing(sqlite3.connect(world.config.paths.record)) as raw:
        return raw.execute("SELECT recipient, state FROM message ORDER BY seq").fetchall()


def test_what_is_old_is_handed_off_with_its_age_and_never_passed_over(world: World, publisher: Daemon) -> None:
    """F20: Friday's "deploy now" is read on Monday, before what came later."""
    old = world.store(b"deploy now", Now.read().later(-3 * DAY_MS), ttl_s=7 * 86_400)
    new = world.store(b"do not", Now.read())
    status, out = world.run("listen", "--as", "alice", "--once", "--format", "agent")
    assert status == 0
    first, second = [line for line in out.splitlines() if line.startswith("[wakehub m_")]
    assert old.id in first
    assert "3 d old · stale" in first
    assert new.id in second
    assert "stale" not in second
    assert {row.state for row in world.inbox.headers([old.id, new.id])} == {"handed_off"}


def test_messages_that_were_handed_off_are_kept_as_long_as_the_configuration_says(world: World) -> None:
    with world.config.paths.config_file.open("a") as file:
        file.write("[record]\nkeep_days = 2\n")
    ended = [world.store(b"x", Now.read().later(-4 * DAY_MS), ttl_s=6 * 86_400) for _ in range(3)]
    for row, days in zip(ended[:2], (3, 1), strict=True):
        world.inbox.ack([row.id], "alice", None, Now.read().later(-days * DAY_MS))
    with Daemon(world.home, "publish") as daemon:
        daemon.logs("publisher ready")
        until(lambda: world.inbox.row(ended[0].id) is None, "the oldest is gone")
    assert world.inbox.row(ended[1].id) is not None
    assert [row.id for row in world.inbox.unread("alice")] == [ended[2].id], "what is unread stays"
