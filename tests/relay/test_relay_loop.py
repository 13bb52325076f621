"""`wakehub listen` as people run it: real processes, pipes, signals; no hub is needed for any of it."""

import array
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from daemon_process import until
from relay_world import World, ended, read_block, stopped

from wakehub.identity import enrolment
from wakehub.inbox.clock import Now
from wakehub.inbox.rows import NewRow
from wakehub.inbox.signing import signer
from wakehub.inbox.sqlite import SqliteInbox

ON_LINUX = sys.platform == "linux"


def test_what_was_there_before_is_handed_off_too(world: World) -> None:
    """F4."""
    ids = world.store("one", "two", "three")
    listener = world.listen("--as", "alice", "--once")
    out, err = listener.communicate(timeout=20)
    assert listener.returncode == 0
    assert [line for line in out.decode().splitlines() if line.startswith("| ")] == ["| one", "| two", "| three"]
    assert out.decode().count("\n---\n") == 3
    assert world.states(ids) == ["handed_off"] * 3
    event = world.event(ids[0], "handed_off")
    assert (event.by, event.proof, event.woken_by) == ("alice", "read" if ON_LINUX else "buffered", "start")
    assert err.decode() == "wakehub: enrolled alice\n"


def test_an_empty_box_is_named_and_so_are_the_ones_that_are_not(world: World) -> None:
    """F35."""
    world.store("x", "y", to="carl")
    status, said = ended(world.listen("--as", "alice", "--once"))
    assert status == 3
    assert "nothing unread for alice; unread elsewhere: carl 2" in said


def test_a_wait_returns_the_moment_a_row_comes_hub_or_no_hub(world: World) -> None:
    world.agent("alice")
    listener = world.listen("--as", "alice", "--once", "--wait", "600", "--format", "json")
    assert listener.stderr is not None
    assert b"the record is read all the same" in listener.stderr.readline()  # it has looked once, and asks for the hub
    (row_id,) = world.store("now")
    out, _ = listener.communicate(timeout=20)
    assert listener.returncode == 0
    assert json.loads(out)["id"] == row_id
    assert world.event(row_id, "handed_off").woken_by == "watch"


def test_a_wait_for_nothing_exits_3(world: World) -> None:
    status, said = ended(world.listen("--as", "alice", "--once", "--wait", "1"))
    assert status == 3
    assert "nothing unread for alice" in said


def test_a_reader_that_takes_one_line_and_goes_leaves_the_rest_unread(world: World) -> None:
    """F7: `listen | head -1`, three messages."""
    ids = world.store("one", "two", "three")
    listener = world.listen("--as", "alice", stdout=subprocess.PIPE)
    head = subprocess.run(["head", "-1"], stdin=listener.stdout, capture_output=True, check=True)
    listener.stdout.close()  # type: ignore[union-attr]
    status, said = ended(listener)
    assert status == 74
    assert "gone" in said
    assert ids[0] in head.stdout.decode()
    assert world.states(ids)[1:] == ["unread", "unread"]
    assert not world.is_held()
    again = world.listen("--as", "alice", "--once")
    out, _ = again.communicate(timeout=20)
    assert "| two" in out.decode()
    assert "| three" in out.decode()
    assert world.states(ids) == ["handed_off"] * 3


@pytest.mark.skipif(not ON_LINUX, reason="the kernel does not tell what a reader has taken")
def test_a_reader_that_stops_reading_puts_one_row_in_doubt_and_no_more(world: World) -> None:
    """F7: an unread pipe swallows 64 KiB; F17, F82: killed in that state, the row comes again with its mark."""
    ids = world.store("one", "two", "three")
    listener = world.listen("--as", "alice")
    world.until_state(ids[0], "claimed")
    until(lambda: _held_in(listener) > 0, "the first row is in the pipe")
    assert world.states(ids) == ["claimed", "unread", "unread"]
    assert "| two" not in os.read(listener.stdout.fileno(), 10).decode()  # type: ignore[union-attr]
    assert world.states(ids) == ["claimed", "unread", "unread"]
    listener.kill()
    listener.wait()
    again = world.listen("--as", "alice")
    first = read_block(again)
    assert f"{ids[0]} from bob · verified · " in first
    assert "redelivery 1]" in first
    assert "redelivery" not in read_block(again)
    world.until_state(ids[1], "handed_off")
    assert world.states(ids[:1]) == ["handed_off"]
    assert "| three" in read_block(again)
    assert stopped(again)[0] == 0


def _held_in(listener: subprocess.Popen[bytes]) -> int:
    """How many bytes are in the pipe, unread."""
    count = array.array("i", [0])
    fcntl.ioctl(listener.stdout, termios.FIONREAD, count)  # type: ignore[arg-type]
    return count[0]


@pytest.mark.skipif(not ON_LINUX, reason="the kernel does not tell what a reader has taken")
def test_a_reader_that_is_slow_gets_each_row_once(world: World) -> None:
    ids = world.store("one", "two")
    listener = world.listen("--as", "alice")
    for position, row_id in enumerate(ids):
        world.until_state(row_id, "claimed")
        until(lambda: _held_in(listener) > 0, "the row is in the pipe")
        block = read_block(listener)
        assert block.startswith(f"[wakehub {row_id} from bob")
        world.until_state(row_id, "handed_off")
        assert world.states(ids[:position]) == ["handed_off"] * position
    assert stopped(listener)[0] == 0


def test_a_reader_that_goes_while_nothing_happens_is_noticed(world: World) -> None:
    """F1."""
    listener = world.listen("--as", "alice")
    world.until_held()
    listener.stdout.close()  # type: ignore[union-attr]
    status, _ = ended(listener)
    assert status == 74
    assert not world.is_held()
    ids = world.store("for the next one")
    assert world.states(ids) == ["unread"]


def test_a_closed_output_acknowledges_nothing(world: World) -> None:
    ids = world.store("one")
    shell = ("sh", "-c", 'exec "$@" >&-', "sh")
    status, said = ended(world.listen("--as", "alice", "--once", command=shell, stdout=subprocess.DEVNULL))
    assert status == 74
    assert "closed" in said
    assert world.states(ids) == ["unread"]


def test_the_second_listener_is_refused_with_the_holder_and_another_name(world: World) -> None:
    """F34."""
    first = world.listen("--as", "alice")
    world.until_held()
    status, said = ended(world.listen("--as", "alice"))
    assert status == 75
    assert f"pid {first.pid}" in said
    assert "since 20" in said
    assert "listen as alice-2" in said
    assert "--take-over" in said
    assert first.poll() is None


def test_a_take_over_tells_the_displaced_one(world: World) -> None:
    """F34."""
    first = world.listen("--as", "alice")
    world.until_held()
    second = world.listen("--as", "alice", "--take-over")
    status, said = ended(first)
    assert status == 75
    assert f"alice is no longer held here: displaced by pid {second.pid}" in said
    (row_id,) = world.store("hello")
    second.send_signal(signal.SIGTERM)
    assert second.wait(20) == 0
    assert world.states([row_id]) in (["handed_off"], ["unread"])


@pytest.mark.parametrize("mode", [(), ("--no-ack",), ("--once", "--wait", "600")], ids=["stays", "peeks", "waits"])
def test_a_record_that_is_replaced_ends_it_and_says_so(world: World, mode: tuple[str, ...]) -> None:
    (first,) = world.store("first") if mode != ("--once", "--wait", "600") else ("",)
    listener = world.listen("--as", "alice", "--format", "line", *mode)
    if first:
        assert listener.stdout is not None
        assert first.encode() in listener.stdout.readline()
    else:
        world.until_held()
    for part in world.config.paths.state.glob("record.db*"):
        part.unlink()
    with SqliteInbox.open(world.config.paths.record):
        status, said = ended(listener)
    assert status == 69
    assert re.search(r"record\.db is (gone|another file)", said), said
    assert "next: start it again" in said
    assert "Traceback" not in said


def test_a_session_takes_its_own_name_back(world: World) -> None:
    first = world.listen("--as", "alice", environ={"WAKEHUB_SESSION": "s1"})
    world.until_held()
    status, _ = ended(world.listen("--as", "alice", "--once", environ={"WAKEHUB_SESSION": "s1"}))
    assert status == 3
    assert ended(first)[0] == 75


def test_a_session_that_was_killed_takes_its_own_name_back_at_once(world: World) -> None:
    """F37: also where it cannot be told that its process is dead, as from another pid namespace."""
    first = world.listen("--as", "alice", environ={"WAKEHUB_SESSION": "s1"})
    world.until_held()
    first.send_signal(signal.SIGSTOP)
    second = world.listen("--as", "alice", "--once", environ={"WAKEHUB_SESSION": "s2"})
    assert ended(second)[0] == 75
    assert ended(world.listen("--as", "alice", "--once", environ={"WAKEHUB_SESSION": "s1"}))[0] == 3


def test_a_listener_that_stays_at_an_empty_box_is_told_of_the_others(world: World) -> None:
    """F35."""
    world.store("for carl", to="carl")
    listener = world.listen("--as", "alice")
    assert listener.stderr is not None
    said = [listener.stderr.readline().decode() for _ in range(3)]
    assert said[2] == "wakehub: nothing unread for alice; unread elsewhere: carl 1\n"


@pytest.mark.parametrize(
    ("acts", "said"),
    [
        (["revoke"], "alice was revoked on 20"),
        (["close"], "alice was closed on 20"),
        (["close", "enroll"], "alice is another agent since 20"),
    ],
)
@pytest.mark.parametrize("flags", [[], ["--once", "--wait", "600"], ["--exec", "true"]])
def test_a_listener_whose_name_ended_takes_nothing_more_and_says_when(
    world: World, acts: list[str], said: str, flags: list[str]
) -> None:
    world.agent("alice")
    listener = world.listen("--as", "alice", *flags)
    world.until_held()
    for act in acts:
        process = world.start(act, "alice")
        assert ended(process)[0] == 0
    status, told = ended(listener)
    assert status == 77
    assert said in told
    assert "next: " in told
    assert not world.is_held()


def test_a_name_that_was_revoked_and_enrolled_keeps_its_listener(world: World) -> None:
    world.agent("alice")
    listener = world.listen("--as", "alice", "--poll", "1")
    world.until_held()
    now_s = time.time()
    with open(world.config.paths.audit, "rb") as log:
        fcntl.flock(log, fcntl.LOCK_EX)  # it must not be stopped in the middle of reading the registry
        listener.send_signal(signal.SIGSTOP)  # so that it sees both at once
    enrolment.revoke(world.config.paths, "alice", now_s)
    enrolment.enroll(world.config.paths, "alice", "wakehub", now_s)
    listener.send_signal(signal.SIGCONT)
    (row_id,) = world.store("still there?")
    assert f"{row_id} from" in read_block(listener)
    assert stopped(listener)[0] == 0


def test_a_new_name_that_may_be_a_slip_is_enrolled_and_remarked_on(world: World) -> None:
    world.agent("alice")
    _, said = ended(world.listen("--as", "alcie", "--once"))
    assert "enrolled alcie; did you mean alice?" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_with_0_and_frees_the_name(world: World, number: signal.Signals) -> None:
    listener = world.listen("--as", "alice")
    world.until_held()
    assert stopped(listener, number)[0] == 0
    assert not world.is_held()
    assert world.inbox.leases.last_holder("alice", Now.read()).reason == "released"  # type: ignore[union-attr]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 3), (signal.SIGHUP, 3), (signal.SIGINT, 130)])
def test_a_signal_before_the_first_message_is_no_message(world: World, number: signal.Signals, status: int) -> None:
    listener = world.listen("--as", "alice", "--once", "--wait", "600")
    world.until_held()
    assert stopped(listener, number)[0] == status
    assert not world.is_held()


@pytest.mark.skipif(not ON_LINUX, reason="there is no such device")
def test_an_output_that_cannot_be_written_is_said_and_ends_a_look(world: World) -> None:
    ids = world.store("one")
    with open("/dev/full", "wb") as full:
        status, said = ended(world.listen("--as", "alice", "--once", stdout=full))
        assert status == 74
        assert "cannot be written (No space left on device)" in said
        assert world.states(ids) == ["unread"]
        (header,) = world.inbox.headers(ids)
        assert (header.redelivery, header.attempts) == (0, 0)
        staying = world.listen("--as", "alice", stdout=full)
        until(lambda: world.inbox.headers(ids)[0].attempts > 1, "it is tried again")
        status, said = stopped(staying)
    assert status == 0
    assert said.count(f"{ids[0]} stays unread: the output cannot be written (No space left on device)") == 1
    assert ended(world.listen("--as", "alice", "--once"))[0] in (0, 4)


def test_a_signal_in_the_middle_of_a_row_acknowledges_nothing(world: World) -> None:
    ids = world.store("x" * 200_000)
    listener = world.listen("--as", "alice")
    world.until_state(ids[0], "claimed")
    until(lambda: _held_in(listener) > 0, "a part of it is written")
    assert stopped(listener)[0] == 0
    assert world.states(ids) == ["unread"]
    assert world.inbox.headers(ids)[0].redelivery == 1


PARENT = """
import subprocess, sys
with subprocess.Popen(sys.argv[1:]) as listener:
    print(listener.pid, file=sys.stderr, flush=True)
    listener.wait()
"""


def test_it_does_not_outlive_its_parent(world: World) -> None:
    """F39, F83: the reader, this test, is still there; the parent is killed."""
    parent = world.listen("--as", "alice", command=(sys.executable, "-c", PARENT))
    world.until_held()
    parent.kill()
    parent.wait()
    assert parent.stdout is not None
    assert parent.stdout.read() == b""  # the listener was the last that held the writing end
    assert not world.is_held()


@pytest.mark.skipif(not ON_LINUX, reason="the kernel does not tell what a reader has taken")
def test_behind_its_parent_s_end_it_acknowledges_nothing_more(world: World) -> None:
    """F83: the agent is killed with a message on its way; who holds the other end of the pipe reads it too late."""
    ids = world.store("one", "two")
    parent = world.listen("--as", "alice", command=(sys.executable, "-c", PARENT))
    until(lambda: _held_in(parent) > 0, "the first is in the pipe")
    parent.kill()
    parent.wait()
    until(lambda: not world.is_held(), "the listener has ended")
    assert "| one" in read_block(parent)
    assert world.states(ids) == ["unread", "unread"]
    assert [header.redelivery for header in world.inbox.headers(ids)] == [1, 0]


def test_with_a_file_as_output_it_outlives_its_parent(world: World, tmp_path: Path) -> None:
    with open(tmp_path / "out", "wb") as out:
        parent = world.listen("--as", "alice", "--poll", "1", command=(sys.executable, "-c", PARENT), stdout=out)
    world.until_held()
    parent.kill()
    parent.wait()
    (row_id,) = world.store("still here")
    world.until_state(row_id, "handed_off")
    assert world.event(row_id, "handed_off").proof == "synced"
    lease = world.inbox.leases.holder("alice", Now.read())
    assert lease is not None
    os.kill(lease.process.pid, signal.SIGTERM)
    until(lambda: not world.is_held(), "the name is free")
    assert b"| still here" in (tmp_path / "out").read_bytes()


def test_under_nohup_a_hang_up_is_nothing(world: World, tmp_path: Path) -> None:
    with open(tmp_path / "out", "wb") as out:
        listener = world.listen("--as", "alice", "--poll", "1", command=("nohup",), stdout=out)
    world.until_held()
    listener.send_signal(signal.SIGHUP)
    (row_id,) = world.store("after")
    world.until_state(row_id, "handed_off")
    assert stopped(listener)[0] == 0


def test_the_backstop_finds_what_nobody_announced_and_says_so(world: World) -> None:
    listener = world.listen("--as", "alice", "--poll", "1")
    world.until_held()
    (row_id,) = world.store("quiet")
    assert "| quiet" in read_block(listener)
    world.until_state(row_id, "handed_off")
    assert world.event(row_id, "handed_off").woken_by in ("backstop", "start")
    assert stopped(listener)[0] == 0


@pytest.mark.parametrize("seconds", ["0", "61"])
def test_a_longer_backstop_is_refused_not_clamped(world: World, seconds: str) -> None:
    status, said = ended(world.listen("--as", "alice", "--poll", seconds))
    assert status in (2, 78)
    assert "60" in said


def test_it_says_on_standard_error_what_it_does_and_under_which_name(world: World) -> None:
    listener = world.listen(environ={"WAKEHUB_AGENT": "carl"})
    world.until_held("carl")
    status, said = stopped(listener)
    assert status == 0
    assert "listening as carl (from $WAKEHUB_AGENT) until stopped; format agent" in said
    assert listener.stdout.read() == b""  # type: ignore[union-attr]


def test_only_rows_of_one_sender(world: World) -> None:
    other, wanted = *world.store("no", sender="carl"), *world.store("yes")
    out, _ = world.listen("--as", "alice", "--from", "bob", "--once").communicate(timeout=20)
    assert "| yes" in out.decode()
    assert "| no" not in out.decode()
    assert world.states([other, wanted]) == ["unread", "handed_off"]


def test_a_namespace_and_several_names_under_one_session(world: World) -> None:
    ids = [*world.store("a", to="acme/x"), *world.store("b", to="acme/y/z"), *world.store("c", to="alice")]
    outside = world.store("d", to="acmes/x")
    listener = world.listen("--namespace", "acme/", "--as", "alice", "--format", "json")
    blocks = [json.loads(listener.stdout.readline()) for _ in ids]  # type: ignore[union-attr]
    assert [block["to"] for block in blocks] == ["acme/x", "acme/y/z", "alice"]
    lease = world.inbox.leases.holder("acme/", Now.read())
    assert lease is not None
    assert lease.agent_id == "alice"
    assert stopped(listener)[0] == 0
    assert world.states(outside) == ["unread"]


def test_a_namespace_alone_listens_as_its_relay(world: World) -> None:
    listener = world.listen("--namespace", "acme/")
    world.until_held("acme/")
    lease = world.inbox.leases.holder("acme/", Now.read())
    assert lease is not None
    assert lease.agent_id == "acme/relay"
    assert "enrolled acme/relay" in stopped(listener)[1]


def test_a_more_specific_holder_comes_first(world: World) -> None:
    relay = world.listen("--namespace", "acme/", "--poll", "1")
    world.until_held("acme/")
    own = world.listen("--as", "acme/x", "--poll", "1")
    world.until_held("acme/x")
    mine, others = *world.store("mine", to="acme/x"), *world.store("others", to="acme/y")
    assert f"{mine} from" in read_block(own)
    assert f"{others} from" in read_block(relay)
    assert stopped(own)[0] == stopped(relay)[0] == 0


def test_a_wrong_signature_is_shown_and_said(world: World) -> None:
    world.agent("bob")
    (row,) = world.inbox.append(NewRow("bob", "alice", b"forged"), Now.read())
    out, _ = world.listen("--as", "alice", "--once").communicate(timeout=20)
    assert "· unverified (unsigned) ·" in out.decode()
    carl = world.agent("carl")
    (row,) = world.inbox.append(NewRow("bob", "alice", b"forged", signed=signer(carl.pair)), Now.read())
    out, err = world.listen("--as", "alice", "--once").communicate(timeout=20)
    assert "· unverified (no known key of the sender made the signature) ·" in out.decode()
    assert row.id in err.decode()
