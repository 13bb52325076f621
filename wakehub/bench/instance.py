"""A whole instance in a private home: hub and publisher as real processes, and Python clients at its ends."""

import os
import subprocess
from pathlib import Path

from wakehub import config as configuration
from wakehub.bench.ends import Hearer, Sayer
from wakehub.bench.stage import PYTHON, Stage, await_true
from wakehub.client.home import ensure_home
from wakehub.errors import WakehubError
from wakehub.limits import MAX_RECORD_SETTING
from wakehub.ops import health


class Instance:
    """`start` it; then `hear` and `say`. The loop guard is opened wide: a benchmark is a loop."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        home = stage.directory("i")
        self.environ = {"WAKEHUB_HOME": str(home)}
        ensure_home(configuration.load(self.environ), explicit=True)
        with open(home / "config.toml", "a", encoding="utf-8") as file:
            file.write(f"[record]\npair_per_minute = {MAX_RECORD_SETTING}\n")
        self.config = configuration.load(self.environ)
        self._log = home / "log"
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *commands: str) -> None:
        """Start `publish`, `serve` or both, and wait until they say that they are ready."""
        for command in commands:
            log = Path(f"{self._log}-{command}")
            ready = {"serve": b'"hub ready"', "publish": b'"publisher ready"'}[command]
            said = _count(log, ready)
            process = self._stage.start([*PYTHON, "wakehub", command], log=log, environ=self.environ)
            self._running[command] = process
            await_true(command, lambda: _count(log, ready) > said, process=process, log=log)  # noqa: B023

    def kill(self, command: str) -> None:
        """kill -9."""
        self._stage.end(self._running.pop(command))

    def end(self) -> None:
        """Kill all of it."""
        for command in list(self._running):
            self.kill(command)

    def sessions(self) -> int:
        """How many agents are connected to the hub; 0 when it does not tell."""
        try:
            text = health.read_metrics(self.config)
        except WakehubError:
            return 0
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("wakehub_recipients "))

    def hear(self, *names: str) -> Hearer:
        """A Python program that listens under each of the names."""
        return Hearer(self._stage, ["hear", "wakehub", "-", *names], self.environ, ready=len(names))

    def hear_printed(self, name: str) -> Hearer:
        """`wakehub listen`, whose lines are read."""
        words = [*PYTHON, "wakehub", "listen", "--as", name, "--format", "json"]
        return Hearer(self._stage, words, self.environ, ready=0)

    def say(self) -> Sayer:
        """A Python program that sends."""
        return Sayer(self._stage, ["say", "wakehub", "-"], self.environ)


def _count(log: Path, text: bytes) -> int:
    return log.read_bytes().count(text) if os.path.exists(log) else 0
