"""Memory of the hub: with nobody connected, with 128 and 256 agents, and when many wakes have gone through."""

import time
from typing import Final

from wakehub.bench import cpu
from wakehub.bench.cpu import Memory
from wakehub.bench.report import Column, Table
from wakehub.bench.scenarios import Bench
from wakehub.bench.systems import SOCKETPAIR, WAKEHUB, Kind, Places, System, Wakehub
from wakehub.limits import FRAME_RATE_PER_SECOND

SIZES: Final = (0, 128, 256)
WAKES: Final = 1_000_000
THOROUGH: Final = 5
"""From so many rounds on, time is no object."""

_SLICE_S: Final = 1.0
_RATE: Final = SIZES[-1] // 2 * FRAME_RATE_PER_SECOND * 0.9
"""Wakes a second; a closed loop would go beyond what its 128 senders may send, and be refused."""

_COLUMNS: Final = (
    Column("state", "hub"),
    Column("rss_mib", "RSS MiB"),
    Column("private_mib", "private MiB"),
    Column("kib_per_agent", "private KiB/agent"),
)


def measure(bench: Bench) -> list[Table]:
    """One hub that grows; the wakes stop at a million, or when their time is up, and the row says how many it were."""
    table = Table("memory", "Memory of the hub, and of what else was measured", _COLUMNS)
    places = Places.apart()
    system = System(Wakehub(), bench.stage, 0, server=places.server, client=places.client, enrolled=SIZES[-1])
    pid = system.served.pids[0]
    try:
        empty = cpu.memory(pid)
        _row(table, "nobody connected", empty, None)
        for agents in SIZES[1:]:
            bench.tell(f"memory with {agents} agents")
            system.grow(agents)
            found = cpu.memory(pid)
            _row(table, f"{agents} agents", found, _each(found, empty, agents))
        long = 60 if bench.rounds >= THOROUGH else 8
        until = time.monotonic() + bench.choose(full=long, quick=1)
        wakes = 0
        while wakes < WAKES and time.monotonic() < until:
            bench.tell(f"memory after {wakes:,} wakes")
            wakes += len(system.measure("steady", rate=_RATE, seconds=_SLICE_S)["ns"])
        found = cpu.memory(pid)
        _row(table, f"256 agents, {wakes:,} wakes later", found, _each(found, empty, SIZES[-1]))
    finally:
        system.end()
    for kind in bench.kinds:
        if kind.name not in (WAKEHUB, SOCKETPAIR):
            _other(bench, table, kind, places)
    return [table]


def _other(bench: Bench, table: Table, kind: Kind, places: Places) -> None:
    """What another system needs for as many."""
    bench.tell(f"memory of {kind.name}")
    system = System(kind, bench.stage, SIZES[-1], server=places.server, client=places.client)
    try:
        _row(table, f"{kind.name}: {SIZES[-1]} agents", cpu.memory(system.served.pids[0]), None)
    finally:
        system.end()


def _each(found: Memory, empty: Memory, agents: int) -> float | None:
    if found.private_kib is None or empty.private_kib is None:
        return None
    return (found.private_kib - empty.private_kib) / agents


def _row(table: Table, state: str, found: Memory, each: float | None) -> None:
    private = None if found.private_kib is None else found.private_kib / 1024
    table.add(state=state, rss_mib=found.rss_kib / 1024, private_mib=private, kib_per_agent=each)
