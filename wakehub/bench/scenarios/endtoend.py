"""End to end, as a program sees it: from before `send` to behind the other program's receiving, commit included.

Every client is in Python, and in a process of its own; nothing is pinned. The others keep nothing: what they publish
while nobody listens is gone. So they are compared with our own client at the hub alone, a wake and nothing stored; what
`send` takes more is the record: two commits to disk, a signature, a publisher between.
"""

from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Final

from wakehub.bench.ends import Hearer, Sayer, took_ns
from wakehub.bench.figures import median, percentile, ratio
from wakehub.bench.hubs import Hub
from wakehub.bench.instance import Instance
from wakehub.bench.report import Column, Table
from wakehub.bench.scenarios import US, Bench
from wakehub.bench.systems import WAKEHUB, Served

PACE_MS: Final = 20
_MS: Final = 1000 * US
_CLIENTS: Final = {"redis": "redis", "nats": "nats"}
_COLUMNS: Final = (
    Column("path", "from → to"),
    Column("stored", "stored"),
    Column("p50_ms", "p50 ms", 2),
    Column("p99_ms", "p99 ms", 2),
    Column("max_ms", "max ms", 2),
    Column("ratio", "wakehub ÷ it", 2),
)

_SEND: Final = f"{WAKEHUB} send() → listen()"
_WAKE: Final = "our wake → session"

Measure = Callable[[], list[int]]


def measure(bench: Bench) -> list[Table]:
    """wakehub's Python client, `wakehub listen` as a command, and the peers' own Python clients when they are there."""
    table = Table("endtoend", f"End to end, Python programs at both ends, {PACE_MS} ms pace", _COLUMNS)
    count = bench.choose(full=25, quick=5)
    with ExitStack() as ending:
        unstored = _hub_alone(bench, ending, count) | _others(bench, ending, count, table)
        paths = _ours(bench, ending, count) | unstored
        found: dict[str, list[list[int]]] = {path: [] for path in paths}
        for number in range(bench.rounds):
            bench.tell(f"round {number + 1} of {bench.rounds}")
            for path, act in paths.items():
                found[path].append(act())
    p50 = {path: [median(took) / _MS for took in rounds] for path, rounds in found.items()}
    for path, rounds in found.items():
        everything = [each / _MS for took in rounds for each in took]
        table.add(
            path=path,
            stored="no" if path in unstored else "yes",
            p50_ms=median(p50[path]),
            p99_ms=percentile(everything, 99),
            max_ms=max(everything),
            ratio=ratio(p50[_WAKE if path in unstored else _SEND], p50[path]),
        )
        table.rounds.append({"path": path, "p50_ms": p50[path]})
    return [table]


def _ours(bench: Bench, ending: ExitStack, count: int) -> dict[str, Measure]:
    bench.tell("starting hub, publisher and clients")
    instance = Instance(bench.stage)
    ending.callback(instance.end)
    instance.start("publish", "serve")
    sayer = instance.say()
    ending.callback(sayer.end)
    paths = {}
    for path, name, hearer in (
        (_SEND, "program", instance.hear("program")),
        (f"{WAKEHUB} send() → `wakehub listen` prints", "command", instance.hear_printed("command")),
    ):
        ending.callback(hearer.end)
        paths[path] = _path(sayer, hearer, name, count)
    return paths


def _hub_alone(bench: Bench, ending: ExitStack, count: int) -> dict[str, Measure]:
    hub = Hub(bench.stage, 2)
    hub.start(())
    ending.callback(hub.kill)
    hearer = Hearer(bench.stage, ["hear", "session", hub.address, str(hub.bundles)], {})
    ending.callback(hearer.end)
    sayer = Sayer(bench.stage, ["say", "session", hub.address, str(hub.bundles)], {})
    ending.callback(sayer.end)
    return {_WAKE: _path(sayer, hearer, "", count)}


def _others(bench: Bench, ending: ExitStack, count: int, table: Table) -> dict[str, Measure]:
    paths = {}
    for kind in bench.kinds:
        client = _CLIENTS.get(kind.name)
        if client is None:
            continue
        if find_spec(client) is None:
            table.notes.append(f"no {kind.name} here: its Python client is not installed")
            continue
        bench.tell(f"starting {kind.name} and its clients")
        served = kind.serve(bench.stage, 2, ())
        for process in served.processes:
            ending.callback(bench.stage.end, process)
        hearer = Hearer(bench.stage, ["hear", client, _address(served), "program"], {})
        ending.callback(hearer.end)
        sayer = Sayer(bench.stage, ["say", client, _address(served)], {})
        ending.callback(sayer.end)
        paths[f"{client}-py publish → receive"] = _path(sayer, hearer, "program", count)
    return paths


def _path(sayer: Sayer, hearer: Hearer, name: str, count: int) -> Measure:
    took_ns(sayer, hearer, [name], 2, PACE_MS)  # the first ones enrol, open and load
    return lambda: took_ns(sayer, hearer, [name], count, PACE_MS)


def _address(served: Served) -> str:
    return served.address if isinstance(served.address, str) else f"nats://{served.address[0]}:{served.address[1]}"
