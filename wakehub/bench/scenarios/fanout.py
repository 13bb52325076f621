"""Fan-out: one wake to 255 agents, until the first and until the last of them has read it.

A topic wake costs its sender one token of its rate limit for each recipient, so with our hub the senders rotate.
"""

from typing import Final

from wakehub.bench import cpu
from wakehub.bench.figures import median, percentile
from wakehub.bench.report import Column, Table
from wakehub.bench.scenarios import US, Bench, share, versus
from wakehub.bench.systems import SOCKETPAIR, Places

AGENTS: Final = 256
PACE_MS: Final = 20
_COLUMNS: Final = (
    Column("system", "system"),
    Column("listeners", "listeners", 0),
    Column("first_us", "first p50 µs", 0),
    Column("last_us", "last p50 µs", 0),
    Column("last_p99_us", "last p99 µs", 0),
    Column("cpu_us", "CPU µs/fan-out", 0),
    Column("client_percent", "client %"),
    Column("ratio", "wakehub ÷ it", 2),
)


def measure(bench: Bench) -> list[Table]:
    """Server and client on one CPU where that can be had; `ratio` compares the last reader's time."""
    where = "server and load client on one CPU" if cpu.can_pin() else "unpinned"
    table = Table("fanout", f"Fan-out 1 → {AGENTS - 1}, {where}", _COLUMNS)
    with bench.systems(AGENTS, Places.together(), but=(SOCKETPAIR,), crowd=True) as systems:
        found = bench.rounds_of(systems, "fan_out", count=bench.choose(full=30, quick=5), pace_ms=PACE_MS)
    last = {name: [median(answer["last_ns"]) / US for answer in answers] for name, answers in found.items()}
    for name, answers in found.items():
        cost = [answer["server_ns"] / US / len(answer["last_ns"]) for answer in answers]
        table.add(
            system=name,
            listeners=answers[0]["listeners"],
            first_us=median([median(answer["first_ns"]) / US for answer in answers]),
            last_us=median(last[name]),
            last_p99_us=percentile([took / US for answer in answers for took in answer["last_ns"]], 99),
            cpu_us=median(cost),
            client_percent=share(answers),
            ratio=versus(last, name),
        )
        table.rounds.append({"system": name, "last_us": last[name], "cpu_us": cost})
    return [table]
