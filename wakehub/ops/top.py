"""`wakehub top`: what `status` tells, live (issue: a live `top`; extra `cli`, for rich).

The record is watched, and what is shown is drawn anew when it changed, when an age did, or the terminal's size; at most
five times a second, and only if it differs from what is there. It is drawn over the old in one go, on the terminal's
other screen, so that nothing flickers and what was there before comes back. Hub and publisher are asked by a thread
each: one that keeps silent must not stop the picture, nor what is said of the other.

A terminal that is too small gets what matters: numbers are never cut, names in their middle, and columns are left out
from the right.

What others wrote becomes visible text without any markup before it is given to rich.
"""

import contextlib
import os
import select
import signal
import sys
import termios
import textwrap
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from wakehub.config import Config
from wakehub.errors import Exit, Unavailable, WakehubError
from wakehub.identity.registry import Registry
from wakehub.inbox.clock import Now
from wakehub.inbox.refusals import NoRecord, RecordReplaced
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.inbox.store import Inbox
from wakehub.limits import RECORD_WATCH_MS, TOP_ANSWER_MS, TOP_ASK_MS, TOP_REFRESH_MS
from wakehub.ops import status
from wakehub.ops.status import Box, Daemon, Status, ago, counts
from wakehub.visible import visible

_COLUMNS: Final = ("name", "listener", "unread", "oldest", "last wake", "last hand-off", "taken by")
_LEFT_OUT: Final = (6, 5, 4, 1, 3)  # where there is no room for all: these columns, in this order
_NAME_ROOM: Final = 12
_GAP: Final = 2
_AROUND: Final = 2  # lines that are neither names nor daemons: the head of the table, the foot
_QUIT: Final = frozenset(b"qQ\x03\x04")
_ASK: Final = {"hub": status.hub, "publisher": status.publisher}
_STYLE: Final = {"up": "green", "down": "yellow", "unknown": "bold yellow"}


def run(config: Config) -> Exit:
    """Show it until ``q``, Ctrl-C or a signal (0), or the terminal is gone (74).

    Raises `Unavailable` (69) where there is no terminal that could show it, and what opening the record raises.
    """
    console = Console(highlight=False, markup=False, emoji=False)
    if not (sys.stdout.isatty() and console.is_terminal) or console.is_dumb_terminal:
        raise Unavailable(
            "top needs a terminal", why="its output goes elsewhere, or TERM is dumb", remedy="wakehub status"
        )
    view = View(config)
    with view, _quiet_keyboard(sys.stdin), _Ending() as ending:
        try:
            with Live(
                console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
            ) as live:
                while not ending.asked:
                    if view.look(Now.read(), console.size):
                        live.update(view.picture(*console.size), refresh=True)
                    _wait(ending)
        except OSError:
            return Exit.OUTPUT_GONE
    return Exit.DONE


class View:
    """What is known at the moment; as a context manager it asks hub and publisher now and then."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._inbox: Inbox | None = None
        self._daemons = {what: Daemon(what, "unknown", None, 0.0, "asking …") for what in _ASK}
        self._over = threading.Event()
        self._askers = [
            threading.Thread(target=self._ask, args=(what,), name=f"top asks the {what}", daemon=True) for what in _ASK
        ]
        self._registry: tuple[object, Registry, str] = (None, Registry(), "")
        self._seen: object = None
        self._drawn_ms = 0
        self._status: Status | None = None

    def __enter__(self) -> "View":
        for asker in self._askers:
            asker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()  # a thread may be waiting for a stopped daemon; it ends by itself
        if self._inbox is not None:
            self._inbox.close()

    def look(self, now: Now, size: object = None) -> bool:
        """Look again if it is time to; whether the picture, on a terminal of that `size`, has to be drawn anew."""
        if now.mono_ms - self._drawn_ms < TOP_REFRESH_MS:
            return False
        self._drawn_ms = now.mono_ms
        self._status = self._survey(now)
        shown = (size, head(self._status), [cells(box, now) for box in in_order(self._status)])
        has_changed = shown != self._seen
        self._seen = shown
        return has_changed

    def picture(self, width: int, height: int) -> RenderableType:
        """What was looked at last, for a terminal of that size."""
        assert self._status is not None
        return picture(self._status, width, height)

    def _survey(self, now: Now) -> Status:
        registry, note = self._registry_now()
        try:
            if self._inbox is None:
                self._inbox = SqliteInbox.open(self._config.paths.record, create=False)
            found = status.boxes(self._inbox, registry, now)
        except NoRecord:
            found = []
        except RecordReplaced:
            assert self._inbox is not None
            self._inbox.close()
            self._inbox = None
            return self._survey(now)
        except WakehubError as error:
            found, note = [], str(error)
        return Status(now, self._daemons["hub"], self._daemons["publisher"], tuple(found), note)

    def _registry_now(self) -> tuple[Registry, str]:
        """The registry, proven anew only when its file has changed."""
        try:
            there = os.stat(self._config.paths.audit, follow_symlinks=False)
            stamp: object = (there.st_ino, there.st_mtime_ns, there.st_size)
        except OSError:
            stamp = None
        if stamp is None or self._registry[0] != stamp:
            self._registry = (stamp, *status.registry_of(self._config))
        return self._registry[1:]

    def _ask(self, what: str) -> None:
        while not self._over.is_set():
            self._daemons[what] = _ASK[what](self._config, TOP_ANSWER_MS)
            self._over.wait(TOP_ASK_MS / 1000)


# --- the picture ---


def picture(found: Status, width: int, height: int) -> RenderableType:
    """All of it in at most `height` lines (3 at least) of `width`."""
    boxes = in_order(found)
    lines = _daemon_lines(head(found), width, max(0, height - _AROUND - min(1, len(boxes))))
    room = max(1, height - _AROUND - len(lines))
    left_out = max(0, len(boxes) - room)
    foot = f"{left_out} more: wakehub status · q quits" if left_out else "q quits"
    return Group(*lines, _table(boxes[:room], found.now, width), Text(foot, "dim", no_wrap=True, overflow="ellipsis"))


def _daemon_lines(said: list[tuple[str, str]], width: int, room: int) -> list[Text]:
    """What is `said`, folded; cut to a line each where `room` is too small, what is not up first."""
    folded = [Text(part, _STYLE[state]) for line, state in said for part in textwrap.wrap(line, width)]
    if len(folded) <= room:
        return folded
    urgent = sorted(said, key=lambda each: each[1] == "up")
    return [Text(line, _STYLE[state], no_wrap=True, overflow="ellipsis") for line, state in urgent[:room]]


def head(found: Status) -> list[tuple[str, str]]:
    """A line about each daemon, with its state, and one about what could not be looked at."""
    lines: list[tuple[str, str]] = [
        (f"{each.what:<9}  {visible(each.in_words())}", each.state) for each in (found.hub, found.publisher)
    ]
    return [*lines, (visible(found.note), "unknown")] if found.note else lines


def in_order(found: Status) -> list[Box]:
    """What is wrong first, then where most waits, then by name."""
    return sorted(found.boxes, key=lambda box: (box.trouble(found.now) is None, -box.unread, box.name))


def cells(box: Box, now: Now) -> Sequence[str]:
    """A name's line in the table, by column."""
    listener, trouble = box.presence.listener, box.trouble(now)
    if listener is not None:
        there = f"pid {listener.process.pid} for {ago(now, listener.since_ms)}"
    else:
        since_ms = box.presence.since_ms
        there = "never" if since_ms is None else f"{box.presence.state} {ago(now, since_ms)} ago"
    return (
        visible(box.name),
        there if trouble is None else f"{there} · {trouble.replace('_', ' ').upper()}",
        str(box.unread or ""),
        ago(now, box.waiting.oldest_ms) if box.waiting else "",
        _since(now, box.activity.hinted_ms),
        _since(now, box.activity.handed_off_ms),
        visible(counts(box.activity.woken_by)),
    )


def _since(now: Now, ms: int | None) -> str:
    return "" if ms is None else f"{ago(now, ms)} ago"


def _table(boxes: Sequence[Box], now: Now, width: int) -> Table:
    rows = [cells(box, now) for box in boxes]
    widths = [max(map(cell_len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    shown = list(range(len(_COLUMNS)))

    def room() -> int:
        return width - sum(widths[at] + _GAP for at in shown[1:])

    for at in _LEFT_OUT:
        if room() < min(widths[0], _NAME_ROOM):
            shown.remove(at)
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    for at in shown:
        right = _COLUMNS[at] in ("unread", "oldest")
        table.add_column(
            _COLUMNS[at],
            justify="right" if right else "left",
            min_width=widths[at] if at else None,
            no_wrap=True,
            overflow="ellipsis",
        )
    for box, row in zip(boxes, rows, strict=True):
        style = "bold red" if box.trouble(now) else "" if box.presence.listener else "dim"
        table.add_row(*(Text(row[at] if at else shortened(row[at], room())) for at in shown), style=style)
    return table


def shortened(name: str, room: int) -> str:
    """`name` in at most `room` characters: what tells names apart is more often at their ends than in the middle."""
    if len(name) <= room or room < 3:
        return name
    return f"{name[: room // 2]}…{name[-(room - room // 2 - 1) :]}"


# --- the terminal ---


class _Ending:
    """Whether a signal asked for the end; as a context manager it hears them."""

    _NUMBERS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> "_Ending":
        self._before = [signal.signal(number, self._heed) for number in self._NUMBERS]
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in zip(self._NUMBERS, self._before, strict=True):
            signal.signal(number, handler)

    def _heed(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


def _wait(ending: _Ending) -> None:
    """Wait a moment for a key; one that quits, or the end of the terminal, asks for the end."""
    moment_s = RECORD_WATCH_MS / 1000
    keyboard = [sys.stdin] if sys.stdin is not None and sys.stdin.isatty() else []
    ready, _, _ = select.select(keyboard, [], [], moment_s)
    if ready:
        keys = os.read(ready[0].fileno(), 1024)
        ending.asked = ending.asked or not keys or not _QUIT.isdisjoint(keys)


@contextlib.contextmanager
def _quiet_keyboard(stdin: Any) -> Iterator[None]:
    """Keys come at once and are not shown; Ctrl-Z does nothing, since it would leave the terminal as it is here."""
    if stdin is None or not stdin.isatty():
        yield
        return
    before = termios.tcgetattr(stdin)
    changed = termios.tcgetattr(stdin)
    changed[3] &= ~(termios.ICANON | termios.ECHO)
    changed[6][termios.VSUSP] = bytes([os.fpathconf(stdin.fileno(), "PC_VDISABLE") & 0xFF])
    termios.tcsetattr(stdin, termios.TCSADRAIN, changed)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(stdin, termios.TCSADRAIN, before)
