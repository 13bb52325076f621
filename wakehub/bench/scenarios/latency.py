"""One-way wake latency: from before the sender's write to behind the recipient's read, on one clock.

The pace is the silence before each wake. It cools caches and lets the scheduler sleep, and changes every system's
figure several-fold, so it stands beside each number.
"""

from collections.abc import Sequence
from typing import Any, Final

from wakehub.bench import cpu
from wakehub.bench.figures import median, percentile
from wakehub.bench.report import Column, Table
from wakehub.bench.scenarios import US, Bench, share, versus
from wakehub.bench.systems import SOCKETPAIR, Places

SIZES: Final = (2, 128, 256)
PACES_MS: Final = (2, 200)
_COLUMNS: Final = (
    Column("system", "system"),
    Column("agents", "agents", 0),
    Column("pace_ms", "pace ms", 0),
    Column("p50_us", "p50 µs"),
    Column("p99_us", "p99 µs"),
    Column("max_us", "max µs"),
    Column("cpu_us", "CPU µs/wake"),
    Column("client_percent", "client %"),
)
_RATIO: Final = Column("ratio", "wakehub ÷ it", 2)


def measure(bench: Bench) -> list[Table]:
    """Pinned to one CPU with ratios, and the largest size once more unpinned, without."""
    tables = []
    note = "CPU per wake is all that the server does meanwhile, its housekeeping included: by 200 ms it is mostly that"
    if cpu.can_pin():
        table = Table("pinned", "One-way latency, server and load client on one CPU", (*_COLUMNS, _RATIO))
        for agents in SIZES[-1:] if bench.quick else SIZES:
            _fill(bench, table, agents, Places.together())
        table.notes.append(note)
        tables.append(table)
    table = Table("unpinned", "One-way latency, unpinned: what waking another CPU costs hides the server", _COLUMNS)
    _fill(bench, table, SIZES[-1], Places.anywhere())
    table.notes.append(note)
    tables.append(table)
    return tables


def _fill(bench: Bench, table: Table, agents: int, places: Places) -> None:
    but = () if agents == SIZES[-1] else (SOCKETPAIR,)  # it has no agents: once is enough
    with bench.systems(agents, places, but=but) as systems:
        for pace_ms in PACES_MS:
            count = bench.choose(full=3 if pace_ms > 2 else 150, quick=2 if pace_ms > 2 else 30)
            found = bench.rounds_of(systems, "one_way", count=count, pace_ms=pace_ms)
            _rows(table, agents, pace_ms, found)


def _rows(table: Table, agents: int, pace_ms: int, found: dict[str, list[dict[str, Any]]]) -> None:
    p50 = {name: [median(answer["ns"]) / US for answer in answers] for name, answers in found.items()}
    with_ratio = _RATIO in table.columns
    for name, answers in found.items():
        everything = [took / US for answer in answers for took in answer["ns"]]
        row: dict[str, Any] = {
            "system": name,
            "agents": None if name == SOCKETPAIR else agents,
            "pace_ms": pace_ms,
            "p50_us": median(p50[name]),
            "p99_us": percentile(everything, 99),
            "max_us": max(everything),
            "cpu_us": None if name == SOCKETPAIR else median(_cpu_us(answers)),
            "client_percent": share(answers),
        }
        table.add(**row, **({"ratio": versus(p50, name)} if with_ratio else {}))
        table.rounds.append(
            {"system": name, "agents": agents, "pace_ms": pace_ms, "p50_us": p50[name], "cpu_us": _cpu_us(answers)}
        )


def _cpu_us(answers: Sequence[dict[str, Any]]) -> list[float]:
    return [answer["server_ns"] / US / len(answer["ns"]) for answer in answers]
