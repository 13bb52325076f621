"""Messages to a program: real programs, whose exit status decides (faults F1, F8, F11, F17, F89)."""

import json
import os
import signal
import stat
import sys
from importlib.resources import files
from pathlib import Path

import pytest
import trio
from daemon_process import until
from relay_world import World, ended, killed_at, message, stopped
from trio.testing import MockClock, wait_all_tasks_blocked

from wakehub.errors import Exit, WakehubError
from wakehub.inbox.refusals import RecordBusy
from wakehub.limits import MAX_HOOK_VARIABLE_BYTES
from wakehub.relay.backends import HandedOff, Never, NotNow, Outcome
from wakehub.relay.backends.exec import _DROPPED, Hook, variables
from wakehub.relay.message import Message, document

ENVIRON = {"PATH": os.environ["PATH"]}


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def hook(*command: str, environ: dict[str, str] | None = None) -> Hook:
    return Hook(command, ENVIRON | (environ or {}), lambda name: 3)


async def run(script: str, given: Message | None = None, **environ: str) -> Outcome:
    return await hook(*python(script), environ=environ).deliver(given or message())


def executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o700)
    return path


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (0, HandedOff("exit 0")),
        (75, NotNow("the hook is busy (exit 75)", busy=True)),
        (65, Never(65, "the hook refused it for good (exit 65)")),
        (1, NotNow("the hook failed (exit 1)")),
        (127, NotNow("the hook failed (exit 127)")),
    ],
)
async def test_the_exit_status_decides(status: int, outcome: Outcome) -> None:
    assert await run(f"import sys; sys.stdin.read(); sys.exit({status})") == outcome


async def test_a_hook_that_a_signal_ends_leaves_the_message_in_doubt() -> None:
    outcome = await run("import os; os.kill(os.getpid(), 9)")
    assert outcome == NotNow("the hook was ended by SIGKILL", in_doubt=True)


async def test_the_message_is_json_on_standard_input_and_exact(tmp_path: Path) -> None:
    body = "'; touch /tmp/p; ' $(id) `id`\r\n\x00\x1b]52;c;x\x07 \u202e é 漢 \U0001f600"
    given = message(body, re="m_00000000000000000000000001")
    out = tmp_path / "out"
    assert await run(f"import sys; open({str(out)!r}, 'wb').write(sys.stdin.buffer.read())", given) == HandedOff(
        "exit 0"
    )
    assert out.read_bytes().endswith(b"}\n")
    assert json.loads(out.read_bytes()) == document(given)
    assert json.loads(out.read_bytes())["text"] == body


async def test_no_shell_ever_sees_what_a_message_says(tmp_path: Path) -> None:
    """F89: not in the arguments, which are what was given, placeholders and all."""
    out, trap = tmp_path / "out", tmp_path / "trap"
    evil = f"'; touch {trap}; ' $(touch {trap}) `touch {trap}`"
    script = f"import json, os, sys; json.dump([sys.argv[1:], dict(os.environ)], open({str(out)!r}, 'w'))"
    words = ["{text}", "%s", "$WAKEHUB_ID", f"$(touch {trap})"]
    one = hook(*python(script), *words)
    assert await one.deliver(message(evil, sender=evil)) == HandedOff("exit 0")
    arguments, environ = json.loads(out.read_text())
    assert arguments == words
    assert environ["WAKEHUB_FROM"] == evil  # a value that only a careless hook could make a command of
    assert not any(evil in value for name, value in environ.items() if name != "WAKEHUB_FROM")
    assert not trap.exists()


def test_the_environment_is_printable_free_of_nul_and_bounded() -> None:
    given = message("x", sender="a\x00b\n\x1b[2K\udc80", recipient="é" * 10_000, redelivery=2, after_s=7)
    given = Message(given.row, given.verified, given.now_ms, "wake")
    found = variables(given, unread=41)
    assert found.keys() == {
        f"WAKEHUB_{name}" for name in ("ID", "FROM", "TO", "RE", "REASON", "DIGEST", "AGE_S", "REDELIVERY", "UNREAD")
    }
    assert found["WAKEHUB_FROM"] == r"a\x00b\n\x1b[2K\udc80"
    assert len(found["WAKEHUB_TO"].encode()) <= MAX_HOOK_VARIABLE_BYTES
    assert (found["WAKEHUB_AGE_S"], found["WAKEHUB_REDELIVERY"], found["WAKEHUB_UNREAD"]) == ("7", "2", "41")
    assert (found["WAKEHUB_REASON"], found["WAKEHUB_RE"], found["WAKEHUB_DIGEST"]) == ("wake", "", "00" * 32)


async def test_it_gets_our_environment_but_for_what_makes_a_session(tmp_path: Path) -> None:
    out = tmp_path / "out"
    outcome = await run(
        f"import json, os; json.dump(dict(os.environ), open({str(out)!r}, 'w'))",
        OTHER="kept",
        WAKEHUB_ID="of another message",
        CLAUDE_CODE_SESSION_ID="s",
        CLAUDECODE="1",
        CLAUDE_CODE_MESSAGING_SOCKET="/x",
        CLAUDE_CONFIG_DIR="/c",
    )
    assert outcome == HandedOff("exit 0")
    found = json.loads(out.read_text())
    assert (found["OTHER"], found["CLAUDE_CONFIG_DIR"], found["WAKEHUB_ID"]) == ("kept", "/c", message().row.id)
    assert not any(name.startswith(("CLAUDE_CODE_MESSAGING_", "CLAUDE_CODE_SESSION")) for name in found)
    guide = files("wakehub").joinpath("guide/exec-hook.md").read_text("utf-8")
    assert found["CLAUDECODE"] == "1"
    assert all(f"`{name}" in guide for name in (*_DROPPED, "CLAUDECODE"))


@pytest.mark.parametrize("closes", ["", "import os; os.close(0); "])
async def test_one_that_does_not_read_and_exits_with_0_has_taken_it(closes: str) -> None:
    """More than a pipe holds, so that it is noticed when feeding is waited for."""
    assert await run(f"{closes}pass", message("x" * 200_000)) == HandedOff("exit 0")


async def test_a_child_that_stays_and_holds_the_pipe_keeps_nobody_waiting(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"""
import os, subprocess
child = subprocess.Popen(["sleep", "600"])
open({str(pid)!r}, "w").write(str(child.pid))
os._exit(0)
"""
    with trio.fail_after(20):
        assert await run(script, message("x" * 200_000)) == HandedOff("exit 0")
    os.kill(int(pid.read_text()), signal.SIGKILL)  # it was left alone


LINGERER = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL)
with open(sys.argv[1] + "~", "w") as file:
    print(os.getpid(), child.pid, file=file)
os.rename(sys.argv[1] + "~", sys.argv[1])
time.sleep(600)
"""


def is_gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def until_lingering(pids: Path) -> list[int]:
    """The pids of the hook and its child, once both are there."""
    until(pids.exists, "the hook has a child")
    return [int(word) for word in pids.read_text().split()]


async def test_when_the_listener_stops_the_whole_group_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hook(*python(LINGERER), str(pids)).deliver, message("x" * 200_000))
        own, child = await trio.to_thread.run_sync(until_lingering, pids)
        nursery.cancel_scope.cancel()
    until(lambda: is_gone(own) and is_gone(child), "both are gone")


async def test_after_30_s_the_whole_group_is_killed_and_the_message_is_in_doubt(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    pids = tmp_path / "pids"
    done: list[Outcome] = []

    async def deliver() -> None:
        done.append(await hook(*python(LINGERER), str(pids)).deliver(message()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(deliver)
        own, child = await trio.to_thread.run_sync(until_lingering, pids)
        mock_clock.jump(29)
        await wait_all_tasks_blocked()
        assert not is_gone(own)
        mock_clock.jump(1)
    assert done == [NotNow("the hook was killed: it ran for over 30 s", in_doubt=True)]
    until(lambda: is_gone(own) and is_gone(child), "both are gone")


async def test_the_loop_goes_on_meanwhile(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    ticks = 0
    done: list[Outcome] = []

    async def deliver() -> None:
        done.append(await run(f"open({str(gate)!r}).read()"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(deliver)
        while ticks < 50:  # they would not come if it were waited for
            await trio.sleep(0.001)
            ticks += 1
        assert done == []
        await trio.to_thread.run_sync(gate.write_text, "")
    assert done == [HandedOff("exit 0")]


def test_a_program_that_is_not_there_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    for command in ("no-such-program-here", str(tmp_path / "plain"), str(tmp_path), str(tmp_path / "absent")):
        with pytest.raises(WakehubError, match="cannot run") as refused:
            hook(command)
        assert refused.value.exit == Exit.USAGE


async def test_a_program_that_goes_away_later_is_a_failed_attempt(tmp_path: Path) -> None:
    path = executable(tmp_path / "hook", "#!/bin/sh\nexit 0\n")
    one = hook(str(path))
    assert await one.deliver(message()) == HandedOff("exit 0")
    path.unlink()
    assert await one.deliver(message()) == NotNow(f"cannot start {path}: No such file or directory")


async def test_a_record_that_is_busy_is_no_failure_of_the_hook() -> None:
    def unread(name: str) -> int:
        raise RecordBusy("the record is busy")

    outcome = await Hook(["cat"], ENVIRON, unread).deliver(message())
    assert outcome == NotNow("the record is busy", busy=True)


# --- with the loop ---


def test_one_message_per_hand_off_and_no_argument_list_grows(world: World, tmp_path: Path) -> None:
    """F11, with hundreds for thousands."""
    bodies = [f"{number} " + "x" * 2048 for number in range(300)]
    ids = [world.store(body, sender=f"s{number % 10}")[0] for number, body in enumerate(bodies)]
    out = tmp_path / "out"
    script = executable(
        tmp_path / "hook",
        f'#!/bin/sh\nread -r line\nprintf "%s %s %s %s\\n" "$#" "$WAKEHUB_ID" "$WAKEHUB_UNREAD" "${{#line}}" >>{out}\n',
    )
    listener = world.listen("--as", "alice", "--once", "--exec", str(script), "one", "two")
    assert listener.wait(120) == 0
    lines = [line.split() for line in out.read_text().splitlines()]
    assert [line[1] for line in lines] == ids
    assert {line[0] for line in lines} == {"2"}
    assert [int(line[2]) for line in lines] == list(range(300, 0, -1))
    assert all(2048 < int(line[3]) < 3072 for line in lines)
    assert world.states(ids) == ["handed_off"] * 300
    event = world.event(ids[0], "handed_off")
    assert (event.proof, event.by, event.woken_by) == ("exit 0", "alice", "start")


def test_a_hook_that_fails_acknowledges_nothing_and_the_row_comes_again(world: World, tmp_path: Path) -> None:
    """F1."""
    (row_id,) = world.store("x")
    status, said = ended(world.listen("--as", "alice", "--once", "--exec", "sh", "-c", "exit 1"))
    assert status == 4
    assert "1 unread for alice left for later" in said
    assert world.states([row_id]) == ["unread"]
    failed = world.event(row_id, "attempt_failed")
    assert failed.detail == "the hook failed (exit 1)"
    flag = tmp_path / "flag"
    script = f"cat >/dev/null; test -e {flag} && exit 0; touch {flag}; exit 1"
    listener = world.listen("--as", "alice", "--exec", "sh", "-c", script)
    world.until_state(row_id, "handed_off")
    assert stopped(listener)[0] == 0
    (header,) = world.inbox.headers([row_id])
    assert (header.attempts, header.failures, header.redelivery) == (2, 2, 0)


def test_a_busy_hook_is_no_failure(world: World, tmp_path: Path) -> None:
    """F8."""
    ids = world.store("one", "two")
    flag = tmp_path / "flag"
    script = f"cat >/dev/null; test -e {flag} && exit 0; touch {flag}; exit 75"
    listener = world.listen("--as", "alice", "--exec", "sh", "-c", script)
    world.until_state(ids[1], "handed_off")
    assert stopped(listener)[0] == 0
    first = world.inbox.headers(ids)[0]
    assert (first.attempts, first.failures) == (1, 0)
    done = [world.event(row_id, "handed_off") for row_id in ids]
    assert done[0].at_ms <= done[1].at_ms  # the later one did not pass


def test_a_hook_that_refuses_ends_the_row_with_its_code(world: World) -> None:
    (row_id,) = world.store("x")
    ended(world.listen("--as", "alice", "--once", "--exec", "sh", "-c", "exit 65"))
    assert world.states([row_id]) == ["failed"]
    event = world.event(row_id, "failed")
    assert (event.code, event.detail) == (65, "the hook refused it for good (exit 65)")


def test_killed_right_behind_a_hook_that_took_it_the_row_comes_again_with_its_mark(
    world: World, tmp_path: Path
) -> None:
    """F17: the hook kills its listener with -9 and returns 0."""
    (row_id,) = world.store("x")
    killed = world.listen("--as", "alice", "--exec", "sh", "-c", "cat >/dev/null; kill -9 $PPID; exit 0")
    assert killed.wait(20) == -signal.SIGKILL
    assert world.states([row_id]) == ["claimed"]
    out = tmp_path / "out"
    script = f'echo "$WAKEHUB_ID $WAKEHUB_REDELIVERY" >{out}'
    assert ended(world.listen("--as", "alice", "--once", "--exec", "sh", "-c", script))[0] == 0
    assert out.read_text() == f"{row_id} 1\n"
    assert world.states([row_id]) == ["handed_off"]


@pytest.mark.parametrize(
    ("point", "seen", "states", "marks"),
    [
        ("claimed", 0, ["claimed", "unread"], ["1", "0"]),
        ("handed over", 1, ["claimed", "unread"], ["0", "1", "0"]),
        ("acknowledged", 1, ["handed_off", "unread"], ["0", "0"]),
    ],
)
def test_killed_at_any_point_nothing_is_lost_and_only_what_may_have_been_seen_comes_again(
    world: World, tmp_path: Path, point: str, seen: int, states: list[str], marks: list[str]
) -> None:
    ids = world.store("one", "two")
    out = tmp_path / "out"
    arguments = ("--as", "alice", "--once", "--exec", "sh", "-c", f'echo "$WAKEHUB_ID $WAKEHUB_REDELIVERY" >>{out}')
    assert world.listen(*arguments, command=killed_at(point)).wait(20) == -signal.SIGKILL
    assert world.states(ids) == states
    assert (len(out.read_text().splitlines()) if out.exists() else 0) == seen
    assert ended(world.listen(*arguments))[0] == 0
    assert world.states(ids) == ["handed_off"] * 2
    lines = [line.split() for line in out.read_text().splitlines()]
    assert [mark for _, mark in lines] == marks
    assert list(dict.fromkeys(row_id for row_id, _ in lines)) == ids


def test_the_listener_outlives_its_parent_and_its_reader(world: World, tmp_path: Path) -> None:
    """A hook started by a session's own hook, or with nohup, has no living parent and must stay."""
    out = tmp_path / "out"
    listener = world.listen(
        "--as", "alice", "--poll", "1", "--exec", "sh", "-c", f"cat >>{out}",
        command=("sh", "-c", '"$@" & echo $!', "sh"),
    )  # fmt: skip
    assert listener.stdout is not None
    pid = int(listener.stdout.readline())
    world.until_held()
    assert listener.wait(20) == 0  # the parent is gone
    listener.stdout.close()
    (row_id,) = world.store("still here")
    world.until_state(row_id, "handed_off")
    assert json.loads(out.read_text())["text"] == "still here"
    os.kill(pid, signal.SIGTERM)
    until(lambda: not world.is_held(), "the name is free")


def test_it_says_what_it_does(world: World) -> None:
    listener = world.listen("--as", "alice", "--exec", "sh", "-c", "exit 0")
    world.until_held()
    status, said = stopped(listener)
    assert status == 0
    assert "each message to sh -c 'exit 0', acknowledged once that exits with 0" in said


def test_what_a_hook_file_looks_like_does_not_matter_but_that_it_runs(world: World, tmp_path: Path) -> None:
    (row_id,) = world.store("x")
    path = executable(tmp_path / "with blank", f"#!{sys.executable}\nimport sys\nsys.stdin.read()\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert ended(world.listen("--as", "alice", "--once", "--exec", str(path)))[0] == 0
    assert world.states([row_id]) == ["handed_off"]
