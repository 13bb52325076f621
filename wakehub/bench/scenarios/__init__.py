"""The scenarios: each a module with `measure(bench)`, which gives the tables of its part of the report."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from wakehub.bench.stage import Stage
from wakehub.bench.systems import WAKEHUB, Kind, Places, System, turn, turns

US = 1_000
"""Nanoseconds in a microsecond."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What a scenario is given: where to play, how often, with whom, and whom to tell."""

    stage: Stage
    rounds: int
    quick: bool
    kinds: Sequence[Kind]
    tell: Callable[[str], None]

    def choose(self, *, full: int, quick: int) -> int:
        """A number of repetitions."""
        return quick if self.quick else full

    @contextmanager
    def systems(
        self, agents: int, places: Places, *, but: Sequence[str] = (), crowd: bool = False
    ) -> Iterator[list[System]]:
        """Every kind but those, each served and connected, all stopped until they get their turn; ended behind it."""
        made: list[System] = []
        try:
            for kind in self.kinds:
                if kind.name not in but:
                    self.tell(f"starting {kind.name} with {agents} agents")
                    made.append(
                        System(kind, self.stage, agents, server=places.server, client=places.client, crowd=crowd)
                    )
                    made[-1].pause()
            with turns(made):
                yield made
        finally:
            for system in made:
                system.end()

    def rounds_of(self, systems: Sequence[System], do: str, **words: Any) -> dict[str, list[dict[str, Any]]]:
        """The same order to each system in each round, interleaved; the answers by system, one per round."""
        found: dict[str, list[dict[str, Any]]] = {system.name: [] for system in systems}
        for number in range(self.rounds):
            self.tell(f"{do}, round {number + 1} of {self.rounds}")
            for system in systems:
                with turn(system):
                    found[system.name].append(system.measure(do, **words))
        return found


def versus(found: dict[str, list[float]], name: str) -> float | None:
    """How many times as much wakehub takes as `name`, round by round."""
    from wakehub.bench.figures import ratio

    return ratio(found[WAKEHUB], found[name])


def share(answers: Sequence[dict[str, Any]]) -> float:
    """The load client's own share of a CPU, in percent."""
    wall: float = sum(answer["wall_ns"] for answer in answers)
    spent: float = sum(answer["client_ns"] for answer in answers)
    return 100 * spent / wall
