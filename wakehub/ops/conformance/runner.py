"""Runs the cases against the hub at a socket: one after the other, each with connections of its own.

Before the first case each agent says hello once. Who is refused takes part in nothing that needs it (the case
`hello-is-welcomed` fails for it). For whom something waited is in use by somebody: the hub must not be made to forget
it. At the end every other agent departs, so that the hub knows as little of them as before.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from wakehub.errors import Exit, WakehubError
from wakehub.limits import CONFORMANCE_PATIENCE_SECONDS
from wakehub.ops.conformance import absence, deafness, framing, greeting, identity, sessions, topics, wakes
from wakehub.ops.conformance.case import Case, Result, Verdict
from wakehub.ops.conformance.guest import Guest
from wakehub.ops.conformance.lab import Lab
from wakehub.ops.conformance.outcome import Mismatch, NotApplicable, Stop
from wakehub.ops.health import Health, check
from wakehub.visible import visible

CASES: tuple[Case, ...] = tuple(
    case
    for module in (framing, greeting, identity, sessions, wakes, absence, topics, deafness)
    for case in module.BOOK.cases
)
"""Every case, in the order in which they run."""

_MAX_AGENTS = 3


@dataclass(frozen=True, slots=True)
class Findings:
    """What a run found: the hub's id, and a result for each case that was asked for."""

    socket: Path
    hub_id: str
    ours_judged: bool
    seconds: float
    results: tuple[Result, ...]

    def count(self, verdict: Verdict) -> int:
        return sum(result.verdict is verdict for result in self.results)

    @property
    def exit(self) -> Exit:
        """0 all that was judged passed, 1 something failed, 3 nothing was judged."""
        if any(result.counts_against for result in self.results):
            return Exit.FAILED
        judged = any(result.judged and result.verdict is Verdict.PASSED for result in self.results)
        return Exit.DONE if judged else Exit.NOTHING


def chosen(only: Sequence[str]) -> tuple[Case, ...]:
    """The cases of these sections (``5`` takes in ``5.8``) and of these names; all when none are given.

    Raises `WakehubError` (exit 2) for a word that chooses nothing.
    """
    for word in only:
        if not any(_is_chosen(case, word) for case in CASES):
            raise WakehubError(
                f"no case has the section or name {visible(word)!r}",
                remedy="wakehub conformance --list shows them all",
                exit=Exit.USAGE,
            )
    return tuple(case for case in CASES if not only or any(_is_chosen(case, word) for word in only))


def _is_chosen(case: Case, word: str) -> bool:
    return word == case.name or f"{case.section}.".startswith(f"{word}.")


def look(socket: Path, hub_id: str | None, guests: Sequence[Guest]) -> Health:
    """Whether an AWH1 hub answers at the socket, by the id that is expected: the one given, or the bundles', or any."""
    expected = hub_id or (guests[0].bundle.hub_id if guests else "")
    found = check(socket, expected, CONFORMANCE_PATIENCE_SECONDS * 1000)
    if found.state == "other_hub" and not expected:
        return check(socket, found.hub_id, CONFORMANCE_PATIENCE_SECONDS * 1000)
    return found


def run(
    socket: Path,
    hub_id: str,
    guests: Sequence[Guest],
    cases: Sequence[Case],
    *,
    judge_ours: bool = False,
    patience_s: float = CONFORMANCE_PATIENCE_SECONDS,
    tell: Callable[[Result], None] = lambda result: None,
) -> Findings:
    """Try `cases` in order; `tell` hears of each result at once. One answer may take `patience_s`."""
    began = time.monotonic()
    runner = _Runner(socket, guests[:_MAX_AGENTS], patience_s, judge_ours, tell)
    runner.run(cases)
    return Findings(socket, hub_id, judge_ours, time.monotonic() - began, tuple(runner.results))


@dataclass(slots=True)
class _Runner:
    socket: Path
    guests: Sequence[Guest]
    patience_s: float
    judge_ours: bool
    tell: Callable[[Result], None]
    results: list[Result] = field(default_factory=list)
    refused: dict[Guest, str] = field(default_factory=dict)
    in_use: set[Guest] = field(default_factory=set)
    stopped: str = ""
    token: str = field(default_factory=lambda: os.urandom(3).hex())

    def run(self, cases: Sequence[Case]) -> None:
        guests = self.guests if any(case.agents for case in cases) else ()
        for guest in guests:
            self._arrive(guest)
        for case in cases:
            self._try(case)
        for guest in guests:
            self._depart(guest)

    def _lab(self) -> Lab:
        return Lab(self.socket, self.guests, self.token, self.patience_s)

    def _arrive(self, guest: Guest) -> None:
        lab = self._lab()
        try:
            welcome = lab.welcomed(guest).welcome
            if welcome is not None and welcome.pending_count:
                self.in_use.add(guest)
        except Mismatch as mismatch:
            self.refused[guest] = str(mismatch)
        except Stop as stop:
            self.stopped = str(stop)
        finally:
            lab.close()

    def _depart(self, guest: Guest) -> None:
        if self.stopped or guest in self.refused or guest in self.in_use:
            return
        lab = self._lab()
        try:
            lab.depart(lab.session(guest), guest)
        except (Mismatch, Stop):
            pass  # what is wrong with it, the cases have said
        finally:
            lab.close()

    def _try(self, case: Case) -> None:
        began = time.monotonic()
        verdict, came = self._attempt(case)
        judged = self.judge_ours or not case.ours
        self.results.append(Result(case, verdict, came, (time.monotonic() - began) * 1000, judged))
        self.tell(self.results[-1])

    def _attempt(self, case: Case) -> tuple[Verdict, str]:
        if hindrance := self._hindrance(case):
            return Verdict.NOT_APPLICABLE, hindrance
        lab = self._lab()
        try:
            if case.shared:
                lab.namespace(case.agents)
            case.attempt(lab)
        except NotApplicable as reason:
            return Verdict.NOT_APPLICABLE, str(reason)
        except Mismatch as mismatch:
            return Verdict.FAILED, str(mismatch)
        except Stop as stop:
            self.stopped = str(stop)
            return Verdict.FAILED, str(stop)
        finally:
            lab.close()
        return Verdict.PASSED, ""

    def _hindrance(self, case: Case) -> str:
        """Why a case cannot be tried, empty when it can."""
        if self.stopped:
            return f"not tried: {self.stopped}"
        taking_part = self.guests[: case.agents]
        if len(taking_part) < case.agents:
            return f"needs {case.agents} bundle{'s' * (case.agents > 1)}, {len(taking_part)} given"
        for guest in taking_part:
            if guest in self.refused and case.name != "hello-is-welcomed":
                return f"{visible(guest.agent)} was not admitted: {self.refused[guest]}"
        if case.departs and taking_part[-1] in self.in_use:
            return f"{visible(taking_part[-1].agent)} is in use: something waited for it"
        return ""
