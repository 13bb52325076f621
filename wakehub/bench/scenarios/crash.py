"""kill -9 of the hub while messages flow: what was stored must be heard, each of it, and everybody comes back.

The hub is started again as late as `wakehub up` would. Listeners are real Python clients with their own reconnect
ladder, and their poll every minute behind it.
"""

import time
from typing import Final

from wakehub.bench.ends import Hearer
from wakehub.bench.figures import median
from wakehub.bench.instance import Instance
from wakehub.bench.report import Column, Table
from wakehub.bench.scenarios import US, Bench
from wakehub.bench.systems import Failed
from wakehub.limits import BENCH_PATIENCE_SECONDS, READY_POLL_MS, RESTART_FIRST_MS

LISTENERS: Final = 16
PACE_MS: Final = 10
_MS: Final = 1000 * US
_COLUMNS: Final = (
    Column("kills", "kills", 0),
    Column("listeners", "listeners", 0),
    Column("sent", "sent", 0),
    Column("lost", "lost", 0),
    Column("again", "came again", 0),
    Column("p50_ms", "p50 ms"),
    Column("worst_ms", "worst ms", 0),
    Column("answers_ms", "hub back ms", 0),
    Column("all_back_ms", "all back ms", 0),
)


def measure(bench: Bench) -> list[Table]:
    """One row over all kills; times count from the kill."""
    table = Table("crash", f"kill -9 of the hub, a message every {PACE_MS} ms and the time a send takes", _COLUMNS)
    names = [f"listener{number:02}" for number in range(LISTENERS)]
    instance = Instance(bench.stage)
    instance.start("publish", "serve")
    hearer, sayer = instance.hear(*names), instance.say()
    took: list[float] = []
    answers, back = [], []
    lost = 0
    try:
        _await_sessions(instance, LISTENERS + 1)
        sayer.say(names, LISTENERS, 1)
        kills = 1 if bench.quick else 2
        for number in range(kills):
            bench.tell(f"kill {number + 1} of {kills}")
            numbers = sayer.begin(names, bench.choose(full=80, quick=25), PACE_MS)
            hearer.wait(lambda numbers=numbers: numbers[5] in hearer.heard, "hears the first ones")  # type: ignore[misc]
            killed = time.perf_counter_ns()
            instance.kill("serve")
            time.sleep(RESTART_FIRST_MS / 1000)
            instance.start("serve")
            answers.append((time.perf_counter_ns() - killed) / _MS)
            _await_sessions(instance, LISTENERS + 1)
            back.append((time.perf_counter_ns() - killed) / _MS)
            said = sayer.finish()
            lost += _lost(hearer, numbers)
            pairs = zip(numbers, said["began_ns"], strict=True)
            took += [(hearer.heard[each] - began) / _MS for each, began in pairs if each in hearer.heard]
    finally:
        hearer.end()
        sayer.end()
        instance.end()
    table.add(
        kills=kills,
        listeners=LISTENERS,
        sent=len(took) + lost,
        lost=lost,
        again=hearer.again,
        p50_ms=median(took),
        worst_ms=max(took),
        answers_ms=median(answers),
        all_back_ms=median(back),
    )
    table.rounds.append({"answers_ms": answers, "all_back_ms": back})
    return [table]


def _lost(hearer: Hearer, numbers: range) -> int:
    """How many were never heard; waits for the last one as long as the poll may take."""
    try:
        hearer.wait(lambda: all(number in hearer.heard for number in numbers), "has heard everything")
    except Failed:
        return sum(number not in hearer.heard for number in numbers)
    return 0


def _await_sessions(instance: Instance, wanted: int) -> None:
    until = time.monotonic() + BENCH_PATIENCE_SECONDS
    while instance.sessions() < wanted:
        if time.monotonic() > until:
            raise Failed(f"only {instance.sessions()} of {wanted} sessions came back")
        time.sleep(READY_POLL_MS / 1000)
