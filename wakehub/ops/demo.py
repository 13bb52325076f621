"""`wakehub demo`: the whole thing at work in a temporary place, in a few seconds, with measured numbers only.

`wakehub up`, two listeners and every `send` are the real commands as real processes. Two agents talk; then the hub is
killed with SIGKILL, a message is sent while it is down, the supervisor starts the hub again, and the message arrives.
Each line that is printed was seen to happen; what did not happen within 9 s is said to be missing, and the exit status
is 1.

Nothing stays: every process that is started holds a tether to this one (`processes.hold_tether`), so that even a
kill -9 of the demo ends them, and on every other way out, Ctrl-C and failure included, they are ended and waited for
before the directory goes.
"""

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from wakehub.config import DEFAULT_HUB_ID, Config
from wakehub.errors import Exit, WakehubError
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.limits import DEMO_STEP_SECONDS, MAX_SOCKET_DIRECTORY_BYTES, READY_POLL_MS, STOP_GRACE_MS
from wakehub.locks import live_holder
from wakehub.ops import health
from wakehub.paths import Paths, choose
from wakehub.processes import TETHER, start_time
from wakehub.visible import visible

Say = Callable[[str], None]
_WAKEHUB: Final = (sys.executable, "-P", "-m", "wakehub")
_TALK: Final = (
    ("bob", "alice", "The tests pass. May I merge?"),
    ("alice", "bob", "Yes. Tell me when it is done."),
    ("bob", "alice", "Merged."),
)
_WHILE_DOWN: Final = ("alice", "bob", "Thanks! (sent while the hub is dead)")
_SESSIONS: Final = 3  # the publisher's, alice's and bob's
_KILLS: Final = 3  # how often the hub is killed, at most, until a message was sent in the gap
_FOREIGN: Final = ("WAKEHUB_", "LISTEN_", "WATCHDOG_", "NOTIFY_SOCKET")  # what another instance or unit is told


class Broken(Exception):
    """Something that the demo promises did not happen."""


class Stopped(BaseException):
    """A signal asked the demo to end. Like KeyboardInterrupt: no `except Exception` may swallow it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message as the listener printed it, and when that was read (wall clock, seconds)."""

    message: dict[str, Any]
    at_s: float


def run(say: Say) -> int:
    """Show it, through `say`, one line at a time; 0 only if all of it held."""
    began = time.monotonic()
    try:
        with _Signals() as signals, _temporary_home(signals) as home, _Stage(home, say, signals) as stage:
            _play(stage, began)
    except Broken as broken:
        say(f"✗ {broken}")
        say("  The demo did not hold. Nothing is left behind.")
        return Exit.FAILED
    except Stopped as stopped:
        return 128 + stopped.number
    say(f"✓ {time.monotonic() - began:.1f} s in all; the processes and the directory are gone")
    return Exit.DONE


# --- the play ---


def _play(stage: "_Stage", began: float) -> None:
    say = stage.say
    say(f"Real processes in {stage.paths.run.parent}; every number is measured.")
    say("")
    stage.start_up()
    say(f"✓ `wakehub up`: a hub and a publisher, ready after {time.monotonic() - began:.1f} s")
    stage.start_listeners("alice", "bob")
    say("✓ `wakehub listen`: alice and bob are enrolled, admitted and waiting to be woken")
    say("")
    held = stage.prepare_send(*_WHILE_DOWN[:2])  # it is started now, so that it can be quick in the gap
    before = None
    for sender, recipient, text in _TALK:
        before = _exchange(stage, sender, recipient, text, before)
    say("")
    _survive(stage, held)
    say("")
    _account_for_all(stage)


def _exchange(stage: "_Stage", sender: str, recipient: str, text: str, re: str | None) -> str:
    """One message there, with its receipts, and its id."""
    stage.say(f"  {sender} → {recipient}: {text}")
    sending = stage.prepare_send(sender, recipient, re)
    row_id, receipts = stage.send(sending, text)
    if "hinted" not in receipts:
        raise Broken(f"{recipient} was not hinted: {_told(receipts)}")
    arrival = stage.arrival(recipient, row_id, text)
    stage.say(f"      {_told(receipts)} · {_handed(arrival, recipient)}")
    return row_id


def _survive(stage: "_Stage", sending: "subprocess.Popen[bytes]") -> None:
    """Kill the hub, send in the gap, and see the message arrive; once more when the gap was missed."""
    sender, recipient, text = _WHILE_DOWN
    for _ in range(_KILLS):
        pid = stage.hub_pid()
        with contextlib.suppress(ProcessLookupError):  # it fell by itself: as dead as it was to be
            os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        stage.say(f"✗ kill -9 {pid}: the hub is dead")
        stage.say(f"  {sender} → {recipient}: {text}")
        row_id, receipts = stage.send(sending, text)
        stage.say(f"      {_told(receipts)}")
        again = stage.wait_for_hub(other_than=pid)
        stage.say(f"✓ the supervisor started it again: pid {again} answered {_ms_since(killed)} ms after the kill")
        arrival = stage.arrival(recipient, row_id, text)
        stage.say(f"      {_handed(arrival, recipient)}")
        if "hinted" not in receipts:
            return
        stage.say("  (the hub was back before that was sent; once more)")
        sending = stage.prepare_send(sender, recipient)
    raise Broken("no message could be sent while the hub was down")


def _account_for_all(stage: "_Stage") -> None:
    stage.check_nothing_unread("alice", "bob")
    if stage.extra():
        raise Broken("a listener printed something that was not sent, or something twice")
    stage.say(f"✓ {stage.sent} sent, {stage.sent} handed off exactly once, all signatures verified, none lost")


def _told(receipts: dict[str, dict[str, Any]]) -> str:
    """What `wakehub send` itself reported."""
    parts = []
    for state, receipt in receipts.items():
        if state in ("stored", "hinted"):
            parts.append(f"{state} {receipt['ms']:.1f} ms")
        elif state != "note":
            parts.append(f"{state.replace('_', ' ')}: {receipt['detail']}")
    return visible(" · ".join(parts))


def _handed(arrival: Arrival, recipient: str) -> str:
    """How long after it was made the message, proven its sender's, came out of the listener's pipe."""
    after_ms = arrival.at_s * 1000 - arrival.message["created"]
    return f"handed to {recipient} {after_ms:.0f} ms after it was written · verified"


def _ms_since(moment: float) -> str:
    return f"{(time.monotonic() - moment) * 1000:.0f}"


# --- the stage ---


class _Stage:
    """The processes and what they said. A context manager that ends every one of them."""

    def __init__(self, home: Path, say: Say, signals: "_Signals") -> None:
        self.say = say
        self._signals = signals
        self.sent = 0
        self.environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_FOREIGN) and not name.endswith("_DIRECTORY")
        } | {"WAKEHUB_HOME": str(home)}
        self.paths: Paths = choose(self.environ)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._heard: dict[str, queue.SimpleQueue[Arrival | None]] = {}
        self._threads: list[threading.Thread] = []
        self._trouble = home / "stderr"
        self._tether, self._tether_end = os.pipe()

    def __enter__(self) -> "_Stage":
        return self

    def __exit__(self, *_: object) -> None:
        """End the listeners first, then `up` with its children, and wait until the last one is gone."""
        with self._signals.held():
            children = [pid for name in ("hub", "publish") if (pid := self._holder(name))]
            for process in reversed(self._processes):
                _end(process)
            os.close(self._tether_end)
            os.close(self._tether)
            for thread in self._threads:
                thread.join()
            _wait_until_gone(children)

    # --- acts ---

    def start_up(self) -> None:
        self._start("up", stdout=subprocess.DEVNULL)
        self._until("the hub answers", lambda: health.check(self.paths.hub_socket, DEFAULT_HUB_ID).state == "answers")

    def start_listeners(self, *names: str) -> None:
        """Start one listener for each name and wait until the hub has admitted them all."""
        for name in names:
            process = self._start("listen", "--as", name, "--format", "json", stdout=subprocess.PIPE)
            heard = self._heard[name] = queue.SimpleQueue()
            with self._signals.held():
                thread = threading.Thread(target=_hear, args=(process.stdout, heard), name=f"hear {name}")
                thread.start()
                self._threads.append(thread)
        self._until("the hub admits publisher and listeners", lambda: self._sessions() >= _SESSIONS)

    def prepare_send(self, sender: str, recipient: str, re: str | None = None) -> "subprocess.Popen[bytes]":
        """A `wakehub send` that waits for its text."""
        words = ["send", "--as", sender, "--to", recipient, "--json", "--stdin", *(["--re", re] if re else [])]
        return self._start(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def send(self, process: "subprocess.Popen[bytes]", text: str) -> tuple[str, dict[str, dict[str, Any]]]:
        """Give a prepared `send` its text; the id of the message and the receipts by state, as it printed them."""
        try:
            out, _ = process.communicate(text.encode(), timeout=DEMO_STEP_SECONDS)
        except subprocess.TimeoutExpired:
            raise self._late("`wakehub send` comes back") from None
        if process.returncode != Exit.DONE:
            raise Broken(f"`wakehub send` ended with {process.returncode}{self._last_words()}")
        report = json.loads(out)
        self.sent += 1
        return report["ids"][0], {receipt["state"]: receipt for receipt in report["receipts"]}

    def arrival(self, name: str, row_id: str, text: str) -> Arrival:
        """The next message that the listener of `name` prints; it must be that one, whole and verified."""
        try:
            arrival = self._heard[name].get(timeout=DEMO_STEP_SECONDS)
        except queue.Empty:
            raise self._late(f"the message to {name} arrives") from None
        if arrival is None:
            raise Broken(f"the listener of {name} ended{self._last_words()}")
        message = arrival.message
        if (message["id"], message.get("text"), message["verified"]) != (row_id, text, "yes"):
            raise Broken(f"{name} was handed something else than what was sent")
        return arrival

    def wait_for_hub(self, *, other_than: int) -> int:
        """The pid of the hub that answers, once it is another one."""
        self._until("the hub is started again", lambda: self._holder("hub") not in (None, other_than))
        self._until("the hub answers", lambda: health.check(self.paths.hub_socket, DEFAULT_HUB_ID).state == "answers")
        return self.hub_pid()

    def check_nothing_unread(self, *names: str) -> None:
        """Wait until every hand-off is acknowledged in the record."""
        with SqliteInbox.open(self.paths.record) as inbox:
            self._until("everything is acknowledged", lambda: not any(map(inbox.count_unread, names)))

    def extra(self) -> bool:
        """Whether a listener printed more than was asked for with `arrival`."""
        return not all(heard.empty() for heard in self._heard.values())

    def hub_pid(self) -> int:
        pid = self._holder("hub")
        if pid is None:
            raise Broken("no hub runs")
        return pid

    # --- means ---

    def _start(self, *words: str, stdin: int = subprocess.DEVNULL, stdout: int) -> "subprocess.Popen[bytes]":
        """Start a command, in a process group of its own so that Ctrl-C reaches the demo alone."""
        with open(self._trouble, "ab") as trouble, self._signals.held():
            process = subprocess.Popen(
                [*_WAKEHUB, *words],
                env=self.environ | {TETHER: str(self._tether)},
                cwd=self._trouble.parent,
                stdin=stdin,
                stdout=stdout,
                stderr=trouble,
                pass_fds=(self._tether,),
                process_group=0,
            )
            self._processes.append(process)
        return process

    def _holder(self, lock: str) -> int | None:
        holder = live_holder(self.paths.lock(lock))
        return holder.pid if holder else None

    def _sessions(self) -> int:
        try:
            text = health.read_metrics(Config.at(self.paths))
        except WakehubError:
            return 0
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("wakehub_recipients "))

    def _until(self, what: str, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEMO_STEP_SECONDS
        while not holds():
            if time.monotonic() >= deadline:
                raise self._late(what)
            time.sleep(READY_POLL_MS / 1000)

    def _late(self, what: str) -> Broken:
        return Broken(f"not within {DEMO_STEP_SECONDS} s: {what}{self._last_words()}")

    def _last_words(self) -> str:
        """What the processes complained about last, on lines of their own."""
        try:
            lines = self._trouble.read_text("utf-8", "backslashreplace").splitlines()[-8:]
        except OSError:
            return ""
        return "".join(f"\n    {visible(line)}" for line in lines)


def _hear(stream: Any, heard: "queue.SimpleQueue[Arrival | None]") -> None:
    """Read a listener's lines as they come, each with its moment; None when it ends."""
    with stream:
        for line in stream:
            heard.put(Arrival(json.loads(line), time.time()))
    heard.put(None)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(STOP_GRACE_MS / 1000)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None and process.returncode is not None:
            with contextlib.suppress(OSError):
                stream.close()


def _wait_until_gone(pids: list[int]) -> None:
    """Children of `up` end with it; when it had to be killed, their tether ends them a little later."""
    deadline = time.monotonic() + STOP_GRACE_MS / 1000
    while any(start_time(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(READY_POLL_MS / 1000)


@contextlib.contextmanager
def _temporary_home(signals: "_Signals") -> Iterator[Path]:
    """A directory short enough for sockets; it is gone afterwards."""
    inside = len("/wakehub-demo-12345678/run")
    fits = len(os.fsencode(tempfile.gettempdir())) + inside <= MAX_SOCKET_DIRECTORY_BYTES
    home = Path(tempfile.mkdtemp(prefix="wakehub-demo-", dir=None if fits else "/tmp"))
    try:
        yield home
    finally:
        with signals.held():
            shutil.rmtree(home)


class _Signals:
    """SIGINT, SIGTERM and SIGHUP raise `Stopped`, so that they pass through every `finally`; while held, they wait."""

    _NUMBERS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self._holds = 0
        self._waiting: int | None = None

    def __enter__(self) -> "_Signals":
        self._before = [signal.signal(number, self._stop) for number in self._NUMBERS]
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in zip(self._NUMBERS, self._before, strict=True):
            signal.signal(number, handler)

    def _stop(self, number: int, _: FrameType | None) -> None:
        if self._holds:
            self._waiting = number
        else:
            raise Stopped(number)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """For what must not be left half-done: a process that is started and not yet known, and the clearing up."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
        if self._waiting is not None and not self._holds:
            number, self._waiting = self._waiting, None
            raise Stopped(number)
