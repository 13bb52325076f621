"""Where a benchmark plays: a private directory and the processes in it, of which nothing stays.

Everything is started in the process group of a keeper (`wakehub.bench.keeper`), which kills the group and removes the
directory as soon as this process is gone or asks for it; there is no second way of clearing up.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from wakehub.bench import cpu
from wakehub.errors import Unavailable
from wakehub.limits import BENCH_PATIENCE_SECONDS, MAX_SOCKET_DIRECTORY_BYTES, READY_POLL_MS
from wakehub.visible import visible

PYTHON: Final = (sys.executable, "-P", "-m")
"""How a module of this package is run as a process."""

_FOREIGN: Final = ("WAKEHUB_", "LISTEN_", "WATCHDOG_", "NOTIFY_SOCKET")  # what another instance or unit is told
_INSIDE: Final = len("/wakehub-bench-12345678/mosquitto/run")


class Stage:
    """Use it as a context; `path` is the directory."""

    path: Path

    def __enter__(self) -> Self:
        fits = len(os.fsencode(tempfile.gettempdir())) + _INSIDE <= MAX_SOCKET_DIRECTORY_BYTES
        self.path = Path(tempfile.mkdtemp(prefix="wakehub-bench-", dir=None if fits else "/tmp"))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._places = 0
        self._keeper = subprocess.Popen(
            [*PYTHON, "wakehub.bench.keeper", str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
        )
        assert self._keeper.stdout is not None
        if not self._keeper.stdout.readline():
            raise Unavailable("the benchmark's keeper does not start", remedy="look at what it says above")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._keeper.stdin.close()
        for process in [*self._processes, self._keeper]:
            process.wait()
            if process is not self._keeper:
                _close_pipes(process)
        self._keeper.stdout.read()  # its end: the directory is gone
        self._keeper.stdout.close()

    def directory(self, name: str) -> Path:
        """A new directory, 0700; the same name may be asked for again and again."""
        self._places += 1
        made = self.path / f"{name}{self._places}"
        made.mkdir(0o700)
        return made

    def start(
        self,
        command: Sequence[str],
        *,
        log: Path,
        environ: Mapping[str, str] | None = None,
        cpus: Sequence[int] = (),
        pipes: bool = False,
    ) -> "subprocess.Popen[bytes]":
        """Start a process that ends with the benchmark; what it complains about goes to `log`.

        `cpus` are those it may run on (empty: any). With `pipes` its standard input and output are pipes, else they
        are nothing and `log`. Raises `Unavailable` (69) when it cannot be started.
        """
        words = environment() | dict(environ or {})
        try:
            with open(log, "ab") as complaints, cpu.begun_on(cpus):
                process = subprocess.Popen(
                    list(command),
                    env=words,
                    cwd=self.path,
                    stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if pipes else complaints,
                    stderr=complaints,
                    process_group=self._keeper.pid,
                )
        except OSError as error:
            raise Unavailable(
                f"{visible(command[0])} cannot be started", why=error.strerror or "", remedy="look whether it is sound"
            ) from error
        self._processes.append(process)
        return process

    def end(self, process: "subprocess.Popen[bytes]") -> None:
        """Kill a process that was started here, and reap it."""
        process.kill()
        process.wait()
        _close_pipes(process)
        self._processes.remove(process)


def environment() -> dict[str, str]:
    """This process's environment, without what would lead a child to another instance."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}


def await_true(what: str, holds: Callable[[], Any], *, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait until `holds()`; raises `Unavailable` (69) with the last lines of `log` when `process` ended, or after 30 s.

    An `OSError` of `holds` counts as "not yet".
    """
    until = time.monotonic() + BENCH_PATIENCE_SECONDS
    while True:
        with contextlib.suppress(OSError):
            if holds():
                return
        if process.poll() is not None:
            raise Unavailable(f"{what} ended with {process.returncode}", why=last_words(log), remedy="mend that")
        if time.monotonic() > until:
            raise Unavailable(f"{what} does not answer", why=last_words(log), remedy="try again on an idle machine")
        time.sleep(READY_POLL_MS / 1000)


def last_words(log: Path) -> str:
    """The end of what a process complained about, in one line, safe to show."""
    with contextlib.suppress(OSError):
        lines = log.read_text("utf-8", "backslashreplace").splitlines()
        return visible(" / ".join(lines[-3:]))[-400:]
    return ""


def _close_pipes(process: "subprocess.Popen[bytes]") -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
