"""Two terminals as a newcomer would: `listen` in one, `send` in the other, nothing set up before."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_process import PATIENCE_S, is_alive, until

from wakehub.config import Config
from wakehub.errors import Exit, WakehubError
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.locks import live_holder
from wakehub.ops import health
from wakehub.paths import Paths

LINE = r"m_\w{26} from bob · verified · \d s old: hi\n"


class Newcomer:
    """A home directory in which there is nothing, and commands that run in it."""

    def __init__(self, home: Path) -> None:
        self.environ = {"HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        state = home / ".local" / "state" / "wakehub"
        settings = home / ".config" / "wakehub"
        self.config = Config.at(Paths(state / "run", state, settings / "keys", settings / "config.toml"))
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, *words: str, text: str = "") -> "subprocess.Popen[str]":
        """Start a command; with `text` on its standard input."""
        process = subprocess.Popen(
            [sys.executable, "-m", "wakehub", *words],
            env=self.environ,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        process.stdin.write(text)
        process.stdin.close()
        process.stdin = None
        self._processes.append(process)
        return process

    def sending(self, *words: str) -> "subprocess.Popen[str]":
        """`echo hi | wakehub send --as bob --to alice --stdin`, started."""
        return self.start("send", "--as", "bob", "--to", "alice", "--stdin", *words, text="hi\n")

    def up(self) -> int | None:
        """The pid of `wakehub up`, if it runs."""
        holder = live_holder(self.config.paths.lock("up"))
        return holder.pid if holder else None

    def until_connected(self, sessions: int = 2) -> None:
        """Wait until the hub has so many sessions: the publisher's, and those of listeners."""
        until(lambda: self._sessions() == sessions, f"{sessions} sessions with the hub")

    def _sessions(self) -> int:
        try:
            text = health.read_metrics(self.config)
        except WakehubError:
            return 0
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("wakehub_recipients "))

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        if (up := self.up()) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(up, signal.SIGTERM)
            until(lambda: not is_alive(up), "`wakehub up` has ended")


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="knows where Linux has its directories")


@pytest.fixture
def newcomer() -> Iterator[Newcomer]:
    home = Path(tempfile.mkdtemp(prefix="wn", dir="/tmp"))
    made = Newcomer(home)
    yield made
    made.close()
    shutil.rmtree(home, ignore_errors=True)  # what ends behind its parent may still write


def end(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """What a command ends with, and all it said."""
    out, err = process.communicate(timeout=3 * PATIENCE_S)
    return process.returncode, out, err


def read_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def read_until(process: "subprocess.Popen[str]", what: str) -> str:
    """The lines of standard error up to the one that contains `what`."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if what in line:
            return said
    raise AssertionError(f"it ended without saying {what!r}: {said}")


def test_first_listen_then_send(newcomer: Newcomer) -> None:
    listener = newcomer.start("listen", "--as", "alice", "--format", "line")
    said = read_until(listener, "started `wakehub up`")
    assert "enrolled alice" in said
    assert f"in the background: pid {newcomer.up()}" in said
    newcomer.until_connected()
    sending = newcomer.sending("--wait", "handed-off")
    assert re.fullmatch(LINE, read_line(listener))
    status, out, err = end(sending)
    assert status == Exit.DONE
    assert "hinted in" in out
    assert "handed off in" in out
    assert "started" not in err
    listener.send_signal(signal.SIGTERM)
    assert "no hub" not in end(listener)[2]


def test_first_send_then_listen(newcomer: Newcomer) -> None:
    status, out, err = end(newcomer.sending())
    assert status == Exit.DONE
    assert "stored m_" in out
    assert "deliver" not in out + err
    assert f"started `wakehub up` in the background: pid {newcomer.up()}" in err
    assert "nobody is listening for alice yet" in err
    listener = newcomer.start("listen", "--as", "alice", "--format", "line")
    assert re.fullmatch(LINE, read_line(listener))
    with SqliteInbox.open(newcomer.config.paths.record) as inbox:
        until(lambda: not inbox.count_unread("alice"), "it is acknowledged")
    newcomer.until_connected()
    listener.send_signal(signal.SIGTERM)
    assert "started" not in end(listener)[2]


def test_all_at_once(newcomer: Newcomer) -> None:
    """One instance is made, one `up` is started, and every message arrives woken or found, none twice."""
    listener = newcomer.start("listen", "--as", "alice", "--format", "json")
    senders = [
        newcomer.start("send", "--as", f"bob-{number}", "--to", "alice", "--stdin", "--wait", "handed-off", text="hi")
        for number in range(4)
    ]
    heard = [json.loads(read_line(listener)) for _ in senders]
    for sender in senders:
        status, _, err = end(sender)
        assert status == Exit.DONE, err
    assert sorted(message["from"] for message in heard) == [f"bob-{number}" for number in range(4)]
    assert all(message["verified"] == "yes" and message["redelivery"] == 0 for message in heard)
    assert "already running" not in newcomer.config.paths.log.read_text()


def test_what_was_stopped_by_hand_stays_stopped_for_who_is_there(newcomer: Newcomer) -> None:
    """A listener that runs does not start it again: a person has just stopped it."""
    listener = newcomer.start("listen", "--as", "alice", "--format", "line", "--poll", "1")
    said = read_until(listener, "started `wakehub up`")
    newcomer.until_connected()
    pid = int(said.partition("to stop it now: kill ")[2].split()[0])
    os.kill(pid, signal.SIGTERM)
    until(lambda: not is_alive(pid), "`wakehub up` has ended")
    read_until(listener, "the record is read all the same")
    assert newcomer.up() is None
    sending = newcomer.sending("--wait", "handed-off")
    assert "hi" in read_line(listener)
    status, _, err = end(sending)
    assert status == Exit.DONE
    assert "started `wakehub up`" in err


def test_looking_starts_nothing(newcomer: Newcomer) -> None:
    end(newcomer.sending("--class", "fyi"))
    for words in (
        ("listen", "--as", "alice", "--no-ack", "--once"),
        ("inbox", "--as", "alice"),
        ("agents",),
        ("status",),
        ("listen", "--as", "alice", "--once"),
    ):
        end(newcomer.start(*words))
        assert newcomer.up() is None, words
    assert not newcomer.config.paths.log.exists()
