"""Rejoin: 256 agents come back at once after the hub was killed and started again.

Each waits as the last welcome advised, 250 ms and up to 750 ms more, counted from when the socket is back; and, as the
worst that could be, all of them at that very moment. CPU is the new hub's, from when it says that it is ready.
"""

from typing import Any, Final

from wakehub.bench.figures import median
from wakehub.bench.report import Column, Table
from wakehub.bench.scenarios import US, Bench, share
from wakehub.bench.systems import Places, System, Wakehub
from wakehub.limits import RECONNECT_BASE_MS, RECONNECT_JITTER_MS

AGENTS: Final = 256
_MS: Final = 1000 * US
_COLUMNS: Final = (
    Column("advised", "agents come"),
    Column("agents", "agents", 0),
    Column("cpu_ms", "hub CPU ms"),
    Column("cpu_us_each", "CPU µs each", 0),
    Column("last_ms", "last welcome ms", 0),
    Column("lost", "handshakes lost", 0),
    Column("descriptors", "descriptors", 0),
    Column("descriptor_limit", "their limit", 0),
    Column("client_percent", "client %"),
)


def measure(bench: Bench) -> list[Table]:
    """Our hub alone: nobody else has a handshake to compare."""
    table = Table("rejoin", f"Rejoin of {AGENTS} agents after kill -9 and restart, both signatures verified", _COLUMNS)
    places = Places.apart()
    system = System(Wakehub(), bench.stage, AGENTS, server=places.server, client=places.client)
    try:
        for advised, base_ms, jitter_ms in (("as advised", RECONNECT_BASE_MS, RECONNECT_JITTER_MS), ("at once", 1, 0)):
            answers = []
            for number in range(bench.rounds):
                bench.tell(f"rejoin {advised}, round {number + 1} of {bench.rounds}")
                answers.append(_again(system, places, base_ms, jitter_ms, number))
            _row(table, advised, answers)
    finally:
        system.end()
    return [table]


def _again(system: System, places: Places, base_ms: int, jitter_ms: int, seed: int) -> dict[str, Any]:
    from wakehub.processes import open_files

    hub = system.served.hub
    assert hub is not None
    hub.kill()
    hub.start(places.server)
    answer = system.order("rejoin", base_ms=base_ms, jitter_ms=jitter_ms, seed=seed, pids=[hub.process.pid])
    return answer | {"open": open_files(hub.process.pid)}


def _row(table: Table, advised: str, answers: list[dict[str, Any]]) -> None:
    cost = [answer["server_ns"] / _MS for answer in answers]
    last = [max(answer["welcomed_ns"]) / _MS for answer in answers]
    used, limit = answers[-1]["open"] or (None, None)
    table.add(
        advised=advised,
        agents=AGENTS,
        cpu_ms=median(cost),
        cpu_us_each=median(cost) * 1000 / AGENTS,
        last_ms=median(last),
        lost=sum(answer["lost"] for answer in answers),
        descriptors=used,
        descriptor_limit=limit,
        client_percent=share(answers),
    )
    table.rounds.append({"advised": advised, "cpu_ms": cost, "last_ms": last})
