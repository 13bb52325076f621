"""What the hub costs while little happens: 256 agents that are silent, and each woken once a second."""

from typing import Final

from wakehub.bench.figures import median
from wakehub.bench.report import Column, Table
from wakehub.bench.scenarios import Bench
from wakehub.bench.systems import Places, System, Wakehub

AGENTS: Final = 256
_COLUMNS: Final = (
    Column("state", "256 agents"),
    Column("seconds", "over s", 0),
    Column("core_percent", "% of a core", 2),
)


def measure(bench: Bench) -> list[Table]:
    """Our hub alone, in two halves, which both are in the rounds."""
    table = Table("idle", f"CPU of the hub with {AGENTS} agents", _COLUMNS)
    places = Places.apart()
    seconds = bench.choose(full=3, quick=1)
    system = System(Wakehub(), bench.stage, AGENTS, server=places.server, client=places.client)
    try:
        for state, do in (("silent", "quiet"), ("one wake per agent and second", "pulse")):
            shares = []
            for number in range(2):
                bench.tell(f"idle: {state}, {number + 1} of 2")
                answer = system.measure(do, seconds=seconds / 2)
                shares.append(100 * answer["server_ns"] / answer["wall_ns"])
            table.add(state=state, seconds=seconds, core_percent=median(shares))
            table.rounds.append({"state": state, "core_percent": shares})
    finally:
        system.end()
    return [table]
