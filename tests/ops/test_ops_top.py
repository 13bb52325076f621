"""`wakehub top` on a real terminal, and what it shows there."""

import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon_process import PATIENCE_S, Daemon, environment
from rich.console import Console

from wakehub import config as configuration
from wakehub.client.home import ensure_home
from wakehub.config import Config
from wakehub.errors import Exit
from wakehub.inbox.clock import Now
from wakehub.inbox.rows import NewRow
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.inbox.store import Inbox
from wakehub.limits import TOP_REFRESH_MS
from wakehub.ops.status import survey
from wakehub.ops.top import View, cells, in_order, picture
from wakehub.processes import ProcessId

OTHER_SCREEN, BACK = b"\x1b[?1049h", b"\x1b[?1049l"
CLEAR = re.compile(rb"\x1b\[[0-3]?J")
NOW = Now.read()


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a present of its own: leases held at the import of this file would be void in a long run."""
    monkeypatch.setattr(sys.modules[__name__], "NOW", Now.read())


def put(inbox: Inbox, to: str = "alice") -> None:
    inbox.append(NewRow("bob", to, b"hello"), Now.read())


def shown(config: Config, width: int = 120, height: int = 24) -> list[str]:
    """The picture as lines of text."""
    console = Console(file=io.StringIO(), width=width, height=height, highlight=False)
    console.print(picture(survey(config), width, height))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


# --- what is shown ---


def test_daemons_then_names_with_what_is_wrong_first(config: Config, inbox: Inbox) -> None:
    put(inbox, "zoe")
    put(inbox, "bob")
    dead = ProcessId.own()._replace(started="of another")
    inbox.leases.acquire(["zoe"], dead, "zoe", NOW)
    inbox.leases.acquire(["alice"], ProcessId.own(), "alice", NOW)
    lines = shown(config)
    assert lines[0].startswith("hub        down")
    assert lines[1].startswith("publisher  down")
    assert lines[2].split()[:3] == ["name", "listener", "unread"]
    assert [line.split()[0] for line in lines[3:6]] == ["zoe", "bob", "alice"]
    assert "DEAD LISTENER" in lines[3]
    assert f"pid {os.getpid()} for" in lines[5]
    assert lines[6] == "q quits"


def test_a_small_terminal_gets_what_fits_and_is_told_of_the_rest(config: Config, inbox: Inbox) -> None:
    for number in range(30):
        put(inbox, f"agent-{number:02}")
    lines = shown(config, width=40, height=12)
    assert len(lines) <= 12
    names = [line for line in lines if line.startswith("agent-")]
    assert names
    assert lines[-1] == f"{30 - len(names)} more: wakehub status · q quits"
    assert all(len(line) <= 40 for line in lines)
    assert len(shown(config, width=40, height=1)) < 12


def test_three_lines_are_enough_for_a_name_and_how_many_more(config: Config, inbox: Inbox) -> None:
    for number in range(30):
        put(inbox, f"agent-{number:02}")
    lines = shown(config, width=80, height=3)
    assert [line.split()[0] for line in lines] == ["name", "agent-00", "29"]


def test_what_to_do_about_a_daemon_is_folded_and_not_cut(config: Config, inbox: Inbox) -> None:
    found = survey(config)
    text = " ".join(shown(config, width=40))
    assert "…" not in text
    for daemon in (found.hub, found.publisher):
        assert daemon.remedy
        assert "".join(daemon.remedy.split()) in "".join(text.split())


@pytest.mark.parametrize("width", [40, 80, 100])
def test_a_long_name_is_cut_in_its_middle_and_no_number_is(config: Config, inbox: Inbox, width: int) -> None:
    put(inbox, "first" + "x" * 54 + "-last")
    put(inbox, "alice")
    by_name = {line.split()[0]: line for line in shown(config, width) if " 1 " in line}
    (long,) = (name for name in by_name if name != "alice")
    assert re.fullmatch(r"first.*….*-last", long)
    assert all(line.count("…") == (name == long) for name, line in by_name.items())
    assert set(by_name) == {long, "alice"}


def test_text_of_others_is_neither_markup_nor_control(config: Config, inbox: Inbox) -> None:
    for name in ("[bold]a[/bold]", ":smile:", "b\x1b[2J\u202e", "c\n"):
        put(inbox, name)
    text = "\n".join(shown(config))
    for name in ("[bold]a[/bold]", ":smile:", "b\\x1b[2J\\u202e", "c\\n"):
        assert name in text
    assert not set("\x1b\u202e") & set(text)


def test_a_name_has_a_cell_in_every_column(config: Config, inbox: Inbox) -> None:
    put(inbox)
    (box,) = in_order(survey(config))
    found = cells(box, Now.read())
    assert list(found[:4]) == ["alice", "never", "1", "0 s"]
    assert len(found) == len(re.split(r" {2,}", shown(config, width=200)[2].strip()))


# --- when it is drawn ---


def later(ms: int) -> Now:
    return NOW.later(ms)


def test_it_is_drawn_anew_when_something_changed_and_only_then(config: Config, inbox: Inbox) -> None:
    """No flicker: what is there is not drawn again."""
    view = View(config)
    inbox.open_box("alice", 1, NOW)
    assert view.look(later(0))
    assert not view.look(later(1000))
    inbox.append(NewRow("bob", "alice", b"hello"), later(1500))
    assert view.look(later(2000))
    assert view.look(later(3000)), "the message grew older"
    assert not view.look(later(3000 + TOP_REFRESH_MS))
    assert view.look(later(4000 - TOP_REFRESH_MS), size=(80, 24)), "the terminal has another size"
    view.__exit__()


def test_it_is_drawn_five_times_a_second_at_most(config: Config, inbox: Inbox) -> None:
    view = View(config)
    assert view.look(later(0))
    put(inbox)
    assert not view.look(later(TOP_REFRESH_MS - 1))
    assert view.look(later(TOP_REFRESH_MS))
    view.__exit__()


def test_a_record_that_is_made_later_is_seen(short: Path) -> None:
    nowhere = configuration.load({"WAKEHUB_HOME": str(short / "home")})
    view = View(nowhere)
    assert view.look(later(0))
    ensure_home(nowhere)
    with SqliteInbox.open(nowhere.paths.record) as inbox:
        put(inbox)
    assert view.look(later(1000))
    view.__exit__()


def test_a_record_that_is_replaced_is_seen(config: Config, inbox: Inbox) -> None:
    view = View(config)
    assert view.look(later(0))
    config.paths.record.unlink()
    with SqliteInbox.open(config.paths.record) as anew:
        put(anew)
    assert view.look(later(1000))
    assert view._status is not None
    assert [box.name for box in view._status.boxes if box.unread] == ["alice"]
    assert not view._status.note
    view.__exit__()


# --- on a terminal ---


class Terminal:
    """`wakehub top` on a pseudo-terminal; `text` is everything it wrote."""

    def __init__(self, home: Path, **environ: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.text = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "wakehub", "top"],
            env=environment(home) | {"TERM": "xterm-256color"} | environ,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def shows(self, what: str, behind: int = 0) -> int:
        """Wait for `what` behind that place of `text`; the place behind it."""
        while (found := self.text.find(what.encode(), behind)) < 0:
            ready, _, _ = select.select([self.master], [], [], PATIENCE_S)
            assert ready, f"it does not show {what!r}: {self.text!r}"
            self.text += os.read(self.master, 65_536)
        return found + len(what)

    def ends(self) -> int:
        """Read to the end; the exit status."""
        while self.process.poll() is None:
            if select.select([self.master], [], [], 0.05)[0]:
                self.text += os.read(self.master, 65_536)
        while select.select([self.master], [], [], 0)[0]:
            self.text += os.read(self.master, 65_536)
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal(config: Config, inbox: Inbox, short: Path) -> Iterator[Terminal]:
    put(inbox)
    made = Terminal(short)
    yield made
    made.close()


@pytest.mark.parametrize(
    "end",
    [
        lambda terminal: os.write(terminal.master, b"q"),
        lambda terminal: os.write(terminal.master, b"\x03"),
        lambda terminal: terminal.process.send_signal(signal.SIGTERM),
    ],
    ids=["q", "Ctrl-C", "SIGTERM"],
)
def test_it_ends_with_0_and_leaves_the_terminal_as_it_was(terminal: Terminal, end: Any) -> None:
    terminal.shows("alice")
    assert OTHER_SCREEN in terminal.text
    assert not termios.tcgetattr(terminal.slave)[3] & termios.ECHO
    end(terminal)
    assert terminal.ends() == Exit.DONE
    assert terminal.text.rstrip().endswith((BACK, b"\x1b[?25h"))
    assert BACK in terminal.text
    assert termios.tcgetattr(terminal.slave) == terminal.before
    assert b"Traceback" not in terminal.text


def test_a_change_of_the_record_is_shown_without_clearing_the_screen(terminal: Terminal, inbox: Inbox) -> None:
    behind = terminal.shows("q quits")
    put(inbox, "zebra")
    terminal.shows("zebra", behind)
    assert not CLEAR.search(terminal.text[behind:])


def test_another_size_is_drawn_for(terminal: Terminal, inbox: Inbox) -> None:
    for number in range(30):
        put(inbox, f"agent-{number:02}")
    behind = terminal.shows("agent-17")
    fcntl.ioctl(terminal.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 120, 0, 0))
    terminal.shows("more: wakehub status", behind)


def test_a_stopped_hub_does_not_stop_the_picture(terminal: Terminal, inbox: Inbox, short: Path) -> None:
    """F47: it is asked by a thread of its own, and called unknown."""
    with Daemon(short, "serve") as hub:
        hub.logs("hub ready")
        os.kill(hub.process.pid, signal.SIGSTOP)
        behind = terminal.shows("is stopped")
        os.kill(hub.process.pid, signal.SIGCONT)
        behind = terminal.shows("answers in", behind)
        os.kill(hub.process.pid, signal.SIGSTOP)
        behind = terminal.shows("is stopped", behind)
        put(inbox, "zebra")
        terminal.shows("zebra", behind)
        os.write(terminal.master, b"q")
        assert terminal.ends() == Exit.DONE


def test_ctrl_z_does_nothing(terminal: Terminal, inbox: Inbox) -> None:
    behind = terminal.shows("q quits")
    os.write(terminal.master, b"\x1a")
    put(inbox, "zebra")
    terminal.shows("zebra", behind)


def test_a_terminal_that_is_gone_ends_it(terminal: Terminal) -> None:
    terminal.shows("alice")
    os.close(terminal.master)
    terminal.master = os.open(os.devnull, os.O_RDONLY)
    assert terminal.process.wait(PATIENCE_S) in (Exit.DONE, Exit.OUTPUT_GONE)


def test_a_dumb_terminal_gets_the_remedy(config: Config, short: Path) -> None:
    dumb = Terminal(short, TERM="dumb")
    assert dumb.ends() == Exit.UNAVAILABLE
    assert b"wakehub status" in dumb.text
    dumb.close()
