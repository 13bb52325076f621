"""What a case is, and what can come of it.

A case returns when the hub did what the specification says, and raises `Mismatch` when it did not. Rules that are
marked **(ours)** in awh1.md go beyond the base protocol: their cases are tried like all others, and judged on request.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from wakehub.ops.conformance.lab import Lab

Try = Callable[[Lab], None]


@dataclass(frozen=True, slots=True)
class Case:
    """One rule of the specification.

    `agents` is how many bundles it needs (0..3); with `shared`, these must lie under one path, so that they may hold a
    topic together; with `departs`, it makes the hub forget the last of them.
    """

    name: str
    section: str
    expects: str
    attempt: Try
    agents: int = 0
    shared: bool = False
    departs: bool = False
    ours: bool = False


class Book:
    """The cases of one module, in order."""

    def __init__(self) -> None:
        self.cases: list[Case] = []

    def case(
        self,
        name: str,
        section: str,
        expects: str,
        *,
        agents: int = 0,
        shared: bool = False,
        departs: bool = False,
        ours: bool = False,
    ) -> Callable[[Try], Try]:
        """Put the decorated function down as a case."""

        def put_down(attempt: Try) -> Try:
            self.cases.append(Case(name, section, expects, attempt, agents, shared, departs, ours))
            return attempt

        return put_down


class Verdict(Enum):
    """What came of a case."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not_applicable"


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a case: `came` says what was seen instead, or why it does not apply; it took `ms`.

    `judged` is false for a rule of ours that was only looked at.
    """

    case: Case
    verdict: Verdict
    came: str
    ms: float
    judged: bool

    @property
    def counts_against(self) -> bool:
        return self.judged and self.verdict is Verdict.FAILED
