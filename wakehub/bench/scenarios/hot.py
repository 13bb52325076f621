"""Hot: as many wakes as go through, and the latency under half of that.

256 pairs over 512 connections, each with one wake under way: the sender writes the next one when its partner has read
the last. Server and load client have a CPU each. A sender may send 500 wakes a second; 256 of them are far from that.
"""

from typing import Any, Final

from wakehub.bench import cpu
from wakehub.bench.figures import median, percentile
from wakehub.bench.report import Column, Table
from wakehub.bench.scenarios import US, Bench, share, versus
from wakehub.bench.systems import Places, System, turn

AGENTS: Final = 512
RATE: Final = 60_000
"""Wakes a second at which systems are compared that carry as many."""

_MARGIN: Final = 0.9
MOST_WAKES: Final = 10_000_000
_COLUMNS: Final = (
    Column("system", "system"),
    Column("wakes_per_s", "wakes/s", 0),
    Column("cpu_us", "CPU µs/wake", 2),
    Column("core_wakes_per_s", "one core*", 0),
    Column("server_percent", "server %", 0),
    Column("client_percent", "client %", 0),
    Column("cpu_60k_us", "CPU µs at 60k/s", 2),
    Column("half_per_s", "half load/s", 0),
    Column("half_p50_us", "its p50 µs"),
    Column("half_p99_us", "its p99 µs"),
    Column("ratio", "CPU: wakehub ÷ it", 2),
)


def measure(bench: Bench) -> list[Table]:
    """The load is steady for the second half of each round."""
    apart = "a CPU each for server and load client" if len(cpu.usable()) > 1 else "one CPU for both"
    table = Table("hot", f"Hot: 256 closed-loop pairs over {AGENTS} connections, {apart}", _COLUMNS)
    table.notes.append("* computed: what one core would carry at that cost, were there nothing else")
    table.notes.append("half load: wakes are due at even intervals, and a late one counts from when it was due")
    seconds = 0.3 if bench.quick else 0.6
    with bench.systems(AGENTS, Places.apart()) as systems:
        found: dict[str, list[dict[str, Any]]] = {system.name: [] for system in systems}
        half: dict[str, list[dict[str, Any]]] = {system.name: [] for system in systems}
        for number in range(bench.rounds):
            bench.tell(f"hot, round {number + 1} of {bench.rounds}")
            for system in systems:
                with turn(system):
                    full, steady = _one(system, seconds)
                    found[system.name].append(full)
                    half[system.name].append(steady)
    cost = {name: [answer["server_ns"] / US / answer["wakes"] for answer in answers] for name, answers in found.items()}
    for name, answers in found.items():
        has_server = any(cost[name])
        rate = median([answer["wakes"] / answer["wall_ns"] * 1e9 for answer in answers])
        took = [each / US for answer in half[name] for each in answer["ns"]]
        table.add(
            system=name,
            wakes_per_s=rate,
            cpu_us=median(cost[name]) if has_server else None,
            core_wakes_per_s=1e6 / median(cost[name]) if has_server else None,
            server_percent=100 * median([answer["server_ns"] / answer["wall_ns"] for answer in answers])
            if has_server
            else None,
            client_percent=share(answers),
            cpu_60k_us=_at_rate(answers) if has_server else None,
            half_per_s=median([answer["rate"] for answer in half[name]]),
            half_p50_us=median([median(answer["ns"]) / US for answer in half[name]]),
            half_p99_us=percentile(took, 99),
            ratio=versus(cost, name),
        )
        late = [percentile([each / US for each in answer["late_ns"]], 99) for answer in half[name]]
        table.rounds.append({"system": name, "cpu_us": cost[name], "half_late_p99_us": late})
    return [table]


def _one(system: System, seconds: float) -> tuple[dict[str, Any], dict[str, Any]]:
    full = system.measure("hot", seconds=seconds, most=MOST_WAKES)
    rate = full["wakes"] / full["wall_ns"] * 1e9 / 2
    half = system.measure("steady", rate=rate, seconds=seconds / 2) | {"rate": rate}
    if rate * 2 * _MARGIN >= RATE:
        full["at_60k"] = system.measure("steady", rate=RATE, seconds=seconds / 2)
    return full, half


def _at_rate(answers: list[dict[str, Any]]) -> float | None:
    """CPU per wake at 60,000 a second; None when it did not carry as many in every round."""
    found = [answer["at_60k"] for answer in answers if "at_60k" in answer]
    cost: list[float] = [answer["server_ns"] / US / len(answer["ns"]) for answer in found]
    return median(cost) if len(cost) == len(answers) else None
