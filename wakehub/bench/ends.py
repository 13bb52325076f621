"""Both ends of a message, as processes: who says, who hears, and how long it took from the one to the other."""

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wakehub.bench.programs import number_of
from wakehub.bench.stage import PYTHON, Stage, last_words
from wakehub.bench.systems import Failed
from wakehub.limits import BENCH_PATIENCE_SECONDS


class Hearer:
    """A process that hears messages. `command` is a program of `wakehub.bench.programs`, or a whole command line whose
    lines are the messages in JSON (then the time is when the line was read). It is waited for `ready` times.
    """

    def __init__(self, stage: Stage, command: Sequence[str], environ: Mapping[str, str], *, ready: int = 1) -> None:
        self._stage = stage
        self._log = stage.directory("e") / "log"
        self._prints = ready == 0
        words = command if self._prints else [*PYTHON, "wakehub.bench.programs", *command]
        self._process = stage.start(words, log=self._log, environ=environ, pipes=True)
        self._news = threading.Condition()
        self._ready = 0
        self.heard: dict[int, int] = {}
        """When each message was heard first, by its number."""
        self.again = 0
        """How many came more than once."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.wait(lambda: self._ready >= ready, "is ready")

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until `holds()`; raises `Failed` after 30 s, or when the process ends."""
        until = time.monotonic() + BENCH_PATIENCE_SECONDS
        with self._news:
            while not holds():
                if time.monotonic() > until or not self._reader.is_alive():
                    raise Failed(f"it never came to pass that the listener {what}", why=last_words(self._log))
                self._news.wait(0.1)

    def end(self) -> None:
        """Kill it."""
        self._process.kill()
        self._reader.join()
        self._stage.end(self._process)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            at = time.perf_counter_ns()
            with self._news:
                if line == b"ready\n":
                    self._ready += 1
                else:
                    number, at = (number_of(json.loads(line)["text"]), at) if self._prints else map(int, line.split())
                    self.again += number in self.heard
                    self.heard.setdefault(number, at)
                self._news.notify_all()


class Sayer:
    """A process that sends messages when it is told to; `first` counts them on."""

    def __init__(self, stage: Stage, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self._stage = stage
        self._log = stage.directory("e") / "log"
        words = [*PYTHON, "wakehub.bench.programs", *command]
        self._process: subprocess.Popen[bytes] = stage.start(words, log=self._log, environ=environ, pipes=True)
        self._said = 0
        self._answer()

    def begin(self, to: Sequence[str], count: int, pace_ms: float) -> range:
        """Send `count` messages to the names in turn, after `pace_ms` each; the numbers they bear. Does not wait."""
        numbers = range(self._said, self._said + count)
        order = {"to": list(to), "count": count, "pace_ms": pace_ms, "first": self._said}
        self._said += count
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        return numbers

    def finish(self) -> dict[str, Any]:
        """Wait until they are sent: when each began, and how long the call took."""
        found: dict[str, Any] = json.loads(self._answer())
        return found

    def say(self, to: Sequence[str], count: int, pace_ms: float) -> tuple[range, dict[str, Any]]:
        """Both."""
        numbers = self.begin(to, count, pace_ms)
        return numbers, self.finish()

    def end(self) -> None:
        """Kill it."""
        self._stage.end(self._process)

    def _answer(self) -> bytes:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Failed("a sender ended", why=last_words(self._log))
        return line


def took_ns(sayer: Sayer, hearer: Hearer, to: Sequence[str], count: int, pace_ms: float) -> list[int]:
    """Send `count` messages and wait for all; from before each send to behind its hearing."""
    numbers, said = sayer.say(to, count, pace_ms)
    hearer.wait(lambda: all(number in hearer.heard for number in numbers), "has heard everything")
    return [hearer.heard[number] - began for number, began in zip(numbers, said["began_ns"], strict=True)]
