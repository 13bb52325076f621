"""One of the daemons as a real process, and what it says, for the publisher's and the supervisor's tests."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from wakehub.locks import Lock
from wakehub.paths import Paths

PATIENCE_S = 20.0
"""How long something that must happen is waited for before the test fails; never slept through."""


def environment(home: Path) -> dict[str, str]:
    """This process's environment, with WAKEHUB_HOME and without what would lead a daemon elsewhere."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("WAKEHUB_", "LISTEN_", "NOTIFY_"))
    }
    return kept | {"WAKEHUB_HOME": str(home)}


def until(holds: Callable[[], Any], what: str) -> Any:
    """Look again and again until `holds()` is true, and return that; for states that nothing announces."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < deadline, f"it never came to pass: {what}"
        time.sleep(0.005)
    return found


def is_alive(pid: int) -> bool:
    """Whether a process `pid` runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the latter when it is reaped between opening and reading
        return False
    return state not in "ZX"


def has_open(pid: int, path: Path) -> bool:
    """Whether process `pid` has the file at `path` open; a descriptor may go while it is looked at."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for link in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if os.readlink(f"/proc/{pid}/fd/{link}") == str(path):
                    return True
    return False


@contextlib.contextmanager
def started(words: Sequence[str | Path], **popen: Any) -> "Iterator[subprocess.Popen[Any]]":
    """A process that is killed if it still runs, waited for, and without open pipes behind the block, come what may."""
    with subprocess.Popen(words, **popen) as process:
        try:
            yield process
        finally:
            process.kill()


def stand_in_for_up(paths: Paths) -> Lock:
    """Hold the lock of `wakehub up`: `listen` and `send` take it for running, and start none in the background.

    For tests of what happens while neither hub nor publisher runs; release it before a real `up` is to run.
    """
    return Lock.acquire(paths.lock("up"), what="a test that stands in for wakehub up")


class Daemon:
    """`wakehub COMMAND` (or any command line) in `home`; its output lines are in `lines`."""

    def __init__(self, home: Path, *command: str, argv: list[str] | None = None) -> None:
        self.lines: list[str] = []
        self._rest = b""
        self.process = subprocess.Popen(
            argv or [sys.executable, "-m", "wakehub", *command],
            env=environment(home),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.stop(signal.SIGKILL)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def says(self, what: str) -> str:
        """Wait for the next line that contains `what`."""
        while True:
            line = self._line()
            assert line is not None, f"ended without saying {what!r}: {self.lines}"
            if what in line:
                return line

    def logs(self, event: str) -> dict[str, Any]:
        """Wait for the next log entry with that event."""
        found: dict[str, Any] = json.loads(self.says(f'"event": "{event}"'))
        return found

    def ends(self) -> int:
        """Read on to the end, and return the exit status."""
        while self._line() is not None:
            pass
        return self.process.wait(PATIENCE_S)

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.ends()

    def _line(self) -> str | None:
        assert self.process.stdout is not None
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
            assert ready, f"it says nothing any more: {self.lines}"
            data = os.read(self.process.stdout.fileno(), 65_536)
            if not data:
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        self.lines.append(line.decode())
        return self.lines[-1]
