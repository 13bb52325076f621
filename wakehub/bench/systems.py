"""What is measured side by side: a server that runs, and how the load client speaks to it.

A `System` is started for one scenario and number of agents; `Turns` gives each of several its turn, in rounds, with
all the others stopped (SIGSTOP), so that nobody's housekeeping falls into somebody else's measurement.
"""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from wakehub.bench import cpu
from wakehub.bench.hubs import Hub
from wakehub.bench.stage import PYTHON, Stage, await_true, last_words
from wakehub.errors import WakehubError
from wakehub.limits import DEFAULT_MAX_CONNECTIONS

Answer = dict[str, Any]

WAKEHUB: Final = "wakehub"
SOCKETPAIR: Final = "socketpair"
EPOLL: Final = "epoll"
FLOORS: Final = (SOCKETPAIR, EPOLL)


class Failed(WakehubError):
    """A measurement that came to nothing: the system did something else than it should."""


@dataclass(frozen=True, slots=True)
class Served:
    """A running server: its process, where it answers (empty: nowhere), its dialect and that one's options.

    `hub` is set for the hub under test, which can be started anew.
    """

    process: "subprocess.Popen[bytes] | None"
    address: Any
    dialect: str
    options: dict[str, Any] = field(default_factory=dict)
    hub: Hub | None = None

    @property
    def processes(self) -> list["subprocess.Popen[bytes]"]:
        """The process that runs now, if there is one."""
        process = self.hub.process if self.hub else self.process
        return [process] if process else []

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]


class Kind(Protocol):
    """How a system is started."""

    @property
    def name(self) -> str:
        """What the tables call it."""

    def serve(self, stage: Stage, agents: int, cpus: Sequence[int]) -> Served:
        """Start it for so many agents, on `cpus` (empty: any)."""


class Wakehub:
    """The hub under test."""

    name = WAKEHUB

    def serve(self, stage: Stage, agents: int, cpus: Sequence[int]) -> Served:
        hub = Hub(stage, agents, ceiling=agents + 2 if agents > DEFAULT_MAX_CONNECTIONS else None)
        hub.start(cpus)
        return Served(hub.process, hub.address, "awh1", hub.options, hub)


class Epoll:
    """The forward-only hub."""

    name = EPOLL

    def serve(self, stage: Stage, agents: int, cpus: Sequence[int]) -> Served:
        place = stage.directory("f")
        path, log = place / "s", place / "log"
        process = stage.start([*PYTHON, "wakehub.bench.floors", str(path)], log=log, cpus=cpus)
        await_true("the forward-only hub", path.exists, process=process, log=log)
        # It checks nothing, but the frames must be the same: so are the agents.
        return Served(process, str(path), "awh1", Hub(stage, agents).options)


class Socketpair:
    """No server at all."""

    name = SOCKETPAIR

    def serve(self, stage: Stage, agents: int, cpus: Sequence[int]) -> Served:
        return Served(None, "", "awh1", Hub(stage, 2).options)


class System:
    """A served system and its load client."""

    def __init__(
        self,
        kind: Kind,
        stage: Stage,
        agents: int,
        *,
        server: Sequence[int],
        client: Sequence[int],
        crowd: bool = False,
        enrolled: int = 0,
    ) -> None:
        """`server` and `client` are the CPUs of each (empty: any); `enrolled` agents may connect, `agents` do now."""
        self.name = kind.name
        self._stage = stage
        self._log = stage.directory("l") / "log"
        self.served = kind.serve(stage, max(agents, enrolled), server)
        self._load = stage.start([*PYTHON, "wakehub.bench.load"], log=self._log, cpus=client, pipes=True)
        self.order("connect", **self._greeting(agents, crowd))

    def _greeting(self, agents: int, crowd: bool) -> Answer:
        served = self.served
        return {
            "dialect": served.dialect,
            "options": served.options,
            "address": served.address,
            "agents": agents,
            "crowd": crowd,
        }

    def grow(self, agents: int) -> None:
        """Connect more agents, up to `agents`."""
        self.order("connect", **self._greeting(agents, False))

    def order(self, do: str, **words: Any) -> Answer:
        """Have the load client do something; raises `Failed` when it could not."""
        self.begin(do, **words)
        return self.finish(do)

    def begin(self, do: str, **words: Any) -> None:
        """Have it do something, and go on meanwhile."""
        assert self._load.stdin is not None
        with contextlib.suppress(OSError):  # it is gone: `finish` says so
            self._load.stdin.write(json.dumps({"do": do, **words}).encode() + b"\n")
            self._load.stdin.flush()

    def finish(self, do: str) -> Answer:
        """What came of the order that was begun."""
        assert self._load.stdout is not None
        line = self._load.stdout.readline()
        if not line:
            raise Failed(f"the load client for {self.name} ended", why=last_words(self._log))
        answer: Answer = json.loads(line)
        if "wrong" in answer:
            raise Failed(
                f"{self.name}: {do} went wrong", why=answer["wrong"], remedy="run it again; if it stays: a bug"
            )
        return answer

    def measure(self, do: str, **words: Any) -> Answer:
        """An order whose cost counts."""
        return self.order(do, pids=self.served.pids, **words)

    def end(self) -> None:
        """End load client and server."""
        self._stage.end(self._load)
        for process in self.served.processes:
            self._stage.end(process)

    def pause(self) -> None:
        for pid in self.served.pids:
            os.kill(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        for pid in self.served.pids:
            os.kill(pid, signal.SIGCONT)


@dataclass(frozen=True, slots=True)
class Places:
    """Which CPUs server and client get."""

    server: Sequence[int]
    client: Sequence[int]

    @classmethod
    def together(cls) -> "Places":
        """Both on one CPU: unpinned, the cost of waking another CPU hides the server."""
        return cls(cpu.usable()[-1:], cpu.usable()[-1:])

    @classmethod
    def apart(cls) -> "Places":
        """The server alone on one CPU, the client on another one; on a machine with one CPU together."""
        cpus = cpu.usable()
        return cls(cpus[-1:], cpus[:1])

    @classmethod
    def anywhere(cls) -> "Places":
        return cls((), ())


@contextmanager
def turns(systems: Sequence[System]) -> Iterator[None]:
    """Inside, all are stopped but the one that `turn` gives its turn."""
    for system in systems:
        system.pause()
    try:
        yield
    finally:
        for system in systems:
            system.go_on()


@contextmanager
def turn(system: System) -> Iterator[None]:
    """One system's turn."""
    system.go_on()
    try:
        yield
    finally:
        system.pause()
