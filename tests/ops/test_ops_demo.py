"""`wakehub demo`: what it shows happened, it fails when it did not, and it leaves nothing behind, however it ends."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from wakehub import sockets
from wakehub.errors import Exit
from wakehub.inbox.clock import Now
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.ops import demo
from wakehub.paths import choose
from wakehub.processes import start_time

Start = Callable[..., "subprocess.Popen[str]"]

_PAUSED = """
import sys
from wakehub.ops.demo import _Stage
real = getattr(_Stage, sys.argv[1])
def paused(*arguments, **named):
    sys.stdin.readline()
    return real(*arguments, **named)
setattr(_Stage, sys.argv[1], paused)
from wakehub.cli import run
sys.exit(run(["demo"]))
"""


@pytest.fixture
def start(short: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start the demo; what is temporary lies in `short`, and must be gone with every process that lived there.

    `before` names a step of its stage: it waits there for a line, so that what a test does falls ahead of that step.
    """
    monkeypatch.setenv("TMPDIR", str(short))
    running: list[subprocess.Popen[str]] = []

    def call(before: str | None = None) -> subprocess.Popen[str]:
        words = ["-m", "wakehub", "demo"] if before is None else ["-c", _PAUSED, before]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = subprocess.Popen([sys.executable, "-P", *words], text=True, process_group=0, **pipes)
        running.append(process)
        return process

    yield call
    for process in running:
        process.kill()
        process.communicate()
    assert list(short.iterdir()) == []
    assert living_in(short) == []


def living_in(directory: Path) -> list[int]:
    """The processes that work below `directory` (where /proc tells)."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if Path(os.readlink(entry)).is_relative_to(directory):
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


def read_until(process: "subprocess.Popen[str]", words: str) -> str:
    """What it printed up to the line with `words`."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if words in line:
            return "".join(lines)
    raise AssertionError(f"it never said {words!r}: {''.join(lines)}")


def test_it_holds(start, monkeypatch):
    """Also when it is told of another instance and of a supervisor: it speaks to neither."""
    for name in ("WAKEHUB_HOME", "WAKEHUB_STATE_DIR", "RUNTIME_DIRECTORY", "STATE_DIRECTORY", "NOTIFY_SOCKET"):
        monkeypatch.setenv(name, "/nowhere/at/all")
    monkeypatch.setenv("WAKEHUB_AGENT", "somebody")
    process = start()
    out, err = process.communicate()
    assert (process.returncode, err) == (0, ""), out + err
    assert len(re.findall(r"handed to \w+ \d+ ms after it was written · verified", out)) >= 4
    assert len(re.findall(r"stored [\d.]+ ms · hinted [\d.]+ ms", out)) >= 3
    assert "not hinted: the hub is down" in out
    assert re.search(r"(\d) sent, \1 handed off exactly once", out)
    (first, *_), again = re.findall(r"kill -9 (\d+)", out), re.findall(r"again: pid (\d+)", out)
    assert first not in again
    assert all(start_time(int(pid)) is None for pid in [first, *again])
    assert re.search(r"[\d.]+ s in all; the processes and the directory are gone", out)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_ends_everything_quietly(start, number):
    process = start(before="wait_for_hub")
    read_until(process, "kill -9")
    process.send_signal(number)
    _, err = process.communicate()
    assert (process.returncode, err) == (128 + number, "")


def test_a_signal_before_anything_runs(start):
    process = start()
    read_until(process, "Real processes")
    process.send_signal(signal.SIGHUP)
    process.communicate()
    assert process.returncode == 128 + signal.SIGHUP


def test_a_reader_that_leaves_ends_everything(start):
    process = start()
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait() == Exit.OUTPUT_GONE


def test_it_does_not_claim_what_did_not_happen(start, short):
    """Nobody starts a listener again: the demo must say that its message never arrived, and fail."""
    process = start(before="prepare_send")
    read_until(process, "wakehub listen")
    (home,) = short.iterdir()
    with SqliteInbox.open(choose({"WAKEHUB_HOME": str(home)}).record) as inbox:
        lease = inbox.leases.holder("alice", Now.read())
    assert lease is not None
    os.kill(lease.process.pid, signal.SIGKILL)
    out, err = process.communicate("\n" * 10)
    assert (process.returncode, err) == (Exit.FAILED, ""), out
    assert "The demo did not hold" in out
    assert "none lost" not in out


def test_a_temporary_directory_too_long_for_sockets_is_not_used(short, monkeypatch):
    deep = short / ("d" * 90)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with demo._temporary_home(demo._Signals()) as home:
        sockets.check_directory(choose({"WAKEHUB_HOME": str(home)}).run)
    assert not home.exists()
