"""The record alone, with the hub off and on in turn, A-B-A-B: the hub must not slow it.

A row is stored in a transaction of its own, by a process that does nothing else. On means: 256 agents are connected,
and each is woken once a second.
"""

from typing import Final

from wakehub.bench.ends import Sayer
from wakehub.bench.figures import median, percentile, spread
from wakehub.bench.instance import Instance
from wakehub.bench.report import Column, Table
from wakehub.bench.scenarios import US, Bench
from wakehub.bench.systems import Places, System, Wakehub

AGENTS: Final = 256
PACE_MS: Final = 3
_COLUMNS: Final = (
    Column("hub", "hub"),
    Column("rows", "rows", 0),
    Column("p50_us", "p50 µs", 0),
    Column("p99_us", "p99 µs", 0),
    Column("ratio", "on ÷ off", 2),
    Column("noise", "spread of off", 2),
)


def measure(bench: Bench) -> list[Table]:
    """`noise` is how far the rounds without the hub lie apart: a ratio within that says nothing."""
    table = Table("record", "Storing a row, hub off and on in turn", _COLUMNS)
    places = Places.anywhere()
    count = bench.choose(full=100, quick=30)
    system = System(Wakehub(), bench.stage, AGENTS, server=places.server, client=places.client)
    instance = Instance(bench.stage)
    sayer = Sayer(bench.stage, ["store", "-"], instance.environ)
    hub = system.served.hub
    assert hub is not None
    found: dict[str, list[list[int]]] = {"off": [], "on": []}
    try:
        sayer.say(["nobody"], 2, PACE_MS)
        for number in range(max(2, bench.rounds)):
            bench.tell(f"A-B, round {number + 1} of {max(2, bench.rounds)}")
            hub.kill()
            found["off"].append(_stored(sayer, count))
            hub.start(places.server)
            system.order("rejoin", base_ms=1, jitter_ms=0, seed=number, pids=[])
            system.begin("pulse", seconds=count * PACE_MS / 1000, pids=[])
            found["on"].append(_stored(sayer, count))
            system.finish("pulse")
    finally:
        sayer.end()
        system.end()
    p50 = {state: [median(took) / US for took in rounds] for state, rounds in found.items()}
    for state, rounds in found.items():
        table.add(
            hub=state,
            rows=sum(map(len, rounds)),
            p50_us=median(p50[state]),
            p99_us=percentile([each / US for took in rounds for each in took], 99),
            ratio=median([on / off for on, off in zip(p50["on"], p50["off"], strict=True)]) if state == "on" else None,
            noise=spread(p50["off"]),
        )
        table.rounds.append({"hub": state, "p50_us": p50[state]})
    return [table]


def _stored(sayer: Sayer, count: int) -> list[int]:
    _, said = sayer.say(["nobody"], count, PACE_MS)
    took: list[int] = said["took_ns"]
    return took
