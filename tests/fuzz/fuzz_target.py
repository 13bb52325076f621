"""What is fuzzed, and the loop that does it.

A target is a function over bytes that says in a few words what came of them, or raises: then the input is a finding.
An input with an outcome that was not seen before joins the corpus, which is all the guidance that mutation gets.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from fuzz_mutator import Mutator

MAX_CORPUS = 2048
MAX_FINDINGS = 5
_NO_DIGITS = str.maketrans("", "", "0123456789")


@dataclass(frozen=True)
class Target:
    """`run` takes an input. `repair` mends what mutation breaks most often, such as a frame's lengths; two inputs of
    three go through it. `share` is this target's part of the inputs of a long run, beside the others'."""

    name: str
    seeds: Sequence[bytes]
    run: Callable[[bytes], str]
    repair: Callable[[bytes], bytes] = bytes
    share: int = 1


@dataclass(frozen=True)
class Finding:
    """An input that must not do what it did."""

    target: str
    data: bytes
    error: Exception

    def __str__(self) -> str:
        return f"{self.target}: {type(self.error).__name__}: {self.error}\n  input {self.data.hex()}"


@dataclass
class Result:
    """What a run over one target came to; `outcomes` are the different things that inputs led to, numbers aside."""

    target: str
    inputs: int = 0
    seconds: float = 0.0
    outcomes: set[str] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)


class Run:
    """A run over one target: every seed as it is, then mutations; which ones depends on `seed` alone."""

    def __init__(self, target: Target, seed: int) -> None:
        self.result = Result(target.name)
        self._target = target
        self._corpus = list(target.seeds)
        self._inputs = self._make(Mutator(f"{target.name} {seed}", self._corpus), tuple(target.seeds))

    @property
    def is_over(self) -> bool:
        """Whether enough was found."""
        return len(self.result.findings) >= MAX_FINDINGS

    def go_on(self, inputs: int) -> None:
        """Try so many inputs more, unless it is over."""
        began = time.monotonic()
        for _ in range(inputs):
            if self.is_over:
                break
            self._try(next(self._inputs))
        self.result.seconds += time.monotonic() - began

    def _try(self, data: bytes) -> None:
        result = self.result
        result.inputs += 1
        try:
            outcome = self._target.run(data).translate(_NO_DIGITS)
        except Exception as error:
            result.findings.append(Finding(self._target.name, data, error))
            return
        if outcome not in result.outcomes and len(self._corpus) < MAX_CORPUS:
            result.outcomes.add(outcome)
            self._corpus.append(data)

    def _make(self, mutator: Mutator, seeds: Sequence[bytes]) -> Iterator[bytes]:
        yield from seeds
        while True:
            data = mutator.next_input()
            yield self._target.repair(data) if mutator.chance(2 / 3) else data


def fuzz(target: Target, seed: int, inputs: int) -> Result:
    """Try so many inputs of `target`, fewer when five findings end it."""
    run = Run(target, seed)
    run.go_on(inputs)
    return run.result
