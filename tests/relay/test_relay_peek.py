"""`listen --no-ack`: looking changes nothing."""

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from daemon_process import PATIENCE_S
from relay_world import World, ended, read_block, stopped

from wakehub.errors import Exit
from wakehub.identity import enrolment
from wakehub.inbox.clock import Now
from wakehub.inbox.rows import Row
from wakehub.relay.backends.stdout import Output
from wakehub.relay.endings import Endings
from wakehub.relay.keyring import Keyring
from wakehub.relay.options import ListenOptions
from wakehub.relay.peek import Peek


def test_looking_leaves_everything_as_it_was(world: World) -> None:
    ids = world.store("one", "two")
    before = [world.inbox.row(row_id) for row_id in ids]
    for _ in range(2):
        out, err = world.listen("--as", "alice", "--no-ack", "--once", "--format", "json").communicate(timeout=20)
        assert [json.loads(line)["id"] for line in out.splitlines()] == ids
        assert err == b""
    assert [world.inbox.row(row_id) for row_id in ids] == before
    assert [event.kind for event in world.inbox.events(ids[0])] == ["stored"]
    assert world.inbox.leases.last_holder("alice", Now.read()) is None


@pytest.mark.parametrize("spoilt", ["owner_pub", "audit"])
def test_it_says_why_it_can_verify_nothing(world: World, spoilt: str) -> None:
    world.store("one", "two")
    getattr(world.config.paths, spoilt).write_bytes(b"damaged")
    out, err = world.listen("--as", "alice", "--no-ack", "--once").communicate(timeout=PATIENCE_S)
    assert out.count(b"unverified") == 2
    (line,) = err.decode().splitlines()
    assert line.startswith("wakehub: no signature can be verified: ")
    assert line.endswith("; next: wakehub doctor")


def test_it_needs_no_name_and_takes_none(world: World) -> None:
    holder = world.listen("--as", "alice", "--poll", "1")
    world.until_held()
    status, said = ended(world.listen("--as", "alice", "--no-ack", "--once"))
    assert status == 3
    assert "nothing unread for alice" in said
    assert holder.poll() is None
    assert stopped(holder)[0] == 0


def test_it_sees_new_rows_as_they_come_and_each_once(world: World) -> None:
    world.store("first")
    peek = world.listen("--as", "alice", "--no-ack")
    assert "| first" in read_block(peek)
    world.store("second")
    assert "| second" in read_block(peek)
    status, _ = stopped(peek, signal.SIGINT)
    assert status == 0
    assert peek.stdout.read() == b""  # type: ignore[union-attr]


def test_a_wait_of_limited_time(world: World) -> None:
    peek = world.listen("--as", "alice", "--no-ack", "--once", "--wait", "600")
    world.store("came")
    out, _ = peek.communicate(timeout=20)
    assert peek.returncode == 0
    assert b"| came" in out


def test_namespaces_and_senders(world: World) -> None:
    world.store("a", to="acme/x")
    world.store("b", to="acme/y", sender="carl")
    world.store("c", to="other")
    out, _ = world.listen("--namespace", "acme/", "--from", "carl", "--no-ack", "--once").communicate(timeout=20)
    assert [line for line in out.decode().splitlines() if line.startswith("| ")] == ["| b"]


def test_more_rows_than_one_reading_takes(world: World) -> None:
    senders = [f"s{number}" for number in range(3)]
    for sender in senders:
        world.store(*[f"{sender} {number}" for number in range(50)], sender=sender)
    out, _ = world.listen("--as", "alice", "--no-ack", "--once", "--format", "line").communicate(timeout=20)
    assert len(out.splitlines()) == 150


def test_a_reader_that_goes_is_noticed(world: World) -> None:
    world.store("one")
    peek = world.listen("--as", "alice", "--no-ack")
    assert "| one" in read_block(peek)
    peek.stdout.close()  # type: ignore[union-attr]
    assert ended(peek)[0] == 74


@pytest.mark.parametrize("interrupted", [False, True])
async def test_a_stop_before_anything_was_seen(
    world: World, autojump_clock: trio.testing.MockClock, interrupted: bool
) -> None:
    options = ListenOptions(once=True, wait_s=600, acknowledge=False)
    fd = os.open(os.devnull, os.O_WRONLY)
    try:
        peek = Peek(options, ["alice"], world.inbox, Output(fd, "agent"), Keyring(world.config.paths))
        ends = Endings(partial(trio.sleep, 5), trio.sleep_forever, lambda: interrupted)
        if interrupted:
            with pytest.raises(KeyboardInterrupt):
                await peek.run(ends)
        else:
            assert await peek.run(ends) is Exit.NOTHING
    finally:
        os.close(fd)


async def test_a_row_that_comes_behind_the_look_is_shown(
    world: World, autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """F23: between "nothing there" and the watch over the record."""
    real, late = world.inbox.unread, list[str]()

    def unread(*arguments: Any, **named: Any) -> list[Row]:
        found = real(*arguments, **named)
        if not late:
            late.extend(world.store("late"))
        return found

    world.inbox.unread = unread  # type: ignore[method-assign]
    with (tmp_path / "out").open("wb") as out:
        options = ListenOptions(once=True, wait_s=600, acknowledge=False)
        peek = Peek(options, ["alice"], world.inbox, Output(out.fileno(), "agent"), Keyring(world.config.paths))
        assert await peek.run(Endings(trio.sleep_forever, trio.sleep_forever)) is Exit.DONE
    assert b"| late" in (tmp_path / "out").read_bytes()
    assert trio.current_time() < 600, "it is not found by the last look of all"


def test_what_waits_under_a_name_that_was_closed_is_shown_and_that_is_said(world: World) -> None:
    world.agent("alice")
    (row_id,) = world.store("left")
    enrolment.close(world.config.paths, "alice", Now.read().ms / 1000)
    peek = world.listen("--as", "alice", "--once", "--no-ack", "--format", "line")
    status, said = ended(peek)
    assert status == 0
    assert peek.stdout is not None
    assert row_id.encode() in peek.stdout.read()
    assert "alice was closed on " in said
    assert "nobody takes its messages" in said
