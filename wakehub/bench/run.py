"""`wakehub bench`: which scenarios, with whom, in what order."""

import contextlib
import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from wakehub import files
from wakehub.bench import peers, report
from wakehub.bench.report import Table
from wakehub.bench.scenarios import Bench
from wakehub.bench.stage import Stage
from wakehub.bench.systems import Epoll, Kind, Socketpair, Wakehub
from wakehub.errors import Unavailable
from wakehub.limits import BENCH_DESCRIPTORS

SCENARIOS: Final = ("latency", "fanout", "hot", "rejoin", "memory", "idle", "endtoend", "record", "crash")


@dataclass(frozen=True, slots=True)
class Findings:
    """All that was measured; `left_out` says what was not and why."""

    machine: dict[str, report.Cell]
    peers: dict[str, str]
    rounds: int
    seconds: float
    tables: dict[str, list[Table]]
    left_out: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        return {
            "machine": self.machine,
            "peers": self.peers,
            "rounds": self.rounds,
            "seconds": round(self.seconds, 1),
            "left_out": self.left_out,
            "scenarios": {
                name: {table.name: table.to_json() for table in tables} for name, tables in self.tables.items()
            },
        }

    def text(self) -> str:
        """Everything in plain text."""
        lines = [report.head(self.machine, self.rounds)]
        for tables in self.tables.values():
            for table in tables:
                lines += ["", *table.lines()]
        lines += ["", *self._remarks(), f"{self.seconds:.0f} s in all"]
        return "\n".join(lines)

    def markdown(self) -> str:
        """Everything in Markdown, for the guide."""
        lines = [report.head(self.machine, self.rounds), ""]
        for tables in self.tables.values():
            for table in tables:
                lines += table.markdown()
        return "\n".join([*lines, *(f"- {remark}" for remark in self._remarks())]).rstrip()

    def _remarks(self) -> list[str]:
        beside = [f"beside it: {name}: {version}" for name, version in self.peers.items()]
        return [
            *beside,
            *(f"left out: {name}: {why}" for name, why in self.left_out.items()),
            *report.platform_notes(),
            *self._busy(),
        ]

    def _busy(self) -> list[str]:
        load, cpus = self.machine["load"], self.machine["cpus"] or os.cpu_count() or 1
        return report.busy(float(load or 0), int(cpus))


def run(chosen: Sequence[str], *, rounds: int, quick: bool, with_peers: bool, tell: Callable[[str], None]) -> Findings:
    """Measure the `chosen` scenarios; `tell` hears what is going on.

    Raises `Unavailable` (69) when something that is needed cannot be started, `Failed` (1) for a measurement that
    came to nothing.
    """
    began = time.monotonic()
    machine = report.machine()
    raise_descriptors()
    kinds: list[Kind] = [Socketpair(), Epoll(), Wakehub()]
    versions: dict[str, str] = {}
    left_out: dict[str, str] = {}
    if with_peers:
        found, left_out = peers.installed()
        kinds += found
        versions = {peer.name: peer.told_version() for peer in found}
    tables: dict[str, list[Table]] = {}
    try:
        with Stage() as stage:
            for name in chosen:
                bench = Bench(stage, rounds, quick, kinds, _teller(tell, name))
                tables[name] = import_module(f"wakehub.bench.scenarios.{name}").measure(bench)
    except OSError as error:
        raise Unavailable(
            "the benchmark cannot go on",
            why=files.why(error),
            remedy="see that the temporary directory ($TMPDIR) can be written and has 100 MiB left",
        ) from error
    return Findings(machine, versions, rounds, time.monotonic() - began, tables, left_out)


def _teller(tell: Callable[[str], None], name: str) -> Callable[[str], None]:
    return lambda what: tell(f"{name}: {what}")


def raise_descriptors() -> None:
    """Make room for the load client's sockets, which children inherit; raises `Unavailable` (69) when there is none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= BENCH_DESCRIPTORS:
        return
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (BENCH_DESCRIPTORS, hard))
        return
    raise Unavailable(
        f"only {soft} files may be open",
        why=f"512 agents with two connections each need {BENCH_DESCRIPTORS}, and the hard limit is {hard}",
        remedy=f"ulimit -n {BENCH_DESCRIPTORS}, or LimitNOFILE= of the service this runs in",
    )
