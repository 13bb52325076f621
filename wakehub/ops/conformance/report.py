"""How a run is told: a line for each case and a summary for people, one object for programs.

`JSON_KEYS` and `CASE_KEYS` are stable: keys are only added. `LISTED_KEYS` are those of ``--list --json``.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Any, Final

from wakehub.ops.conformance.case import Case, Result, Verdict
from wakehub.ops.conformance.runner import Findings
from wakehub.ops.health import Health
from wakehub.visible import visible

JSON_KEYS: Final = (
    "reachable", "socket", "hub_id", "why", "ours_judged", "passed", "failed", "not_applicable", "seconds", "cases",
)  # fmt: skip
LISTED_KEYS: Final = ("name", "section", "ours", "agents", "shared", "departs", "expected")
CASE_KEYS: Final = (*LISTED_KEYS, "result", "judged", "came", "ms")

_MARKS: Final = {Verdict.PASSED: "✓", Verdict.FAILED: "✗", Verdict.NOT_APPLICABLE: "–"}


def line(result: Result) -> str:
    """One case, on one line: mark, name, section, what was expected, and what came where that is another thing."""
    told = f"{_MARKS[result.verdict]} {_title(result.case)}"
    if result.verdict is Verdict.PASSED:
        return told
    if result.verdict is Verdict.NOT_APPLICABLE:
        return f"{told} – {result.came}"
    return f"{told} – came: {result.came}" + ("" if result.judged else " (ours: not judged)")


def listed(cases: Iterable[Case]) -> Iterable[str]:
    """What ``--list`` prints: every case and what it needs."""
    for case in cases:
        needs = (
            f" [{case.agents} agent{'s' * (case.agents > 1)}{' under one path' * case.shared}]" if case.agents else ""
        )
        yield f"{_title(case)}{needs}"


def _title(case: Case) -> str:
    return f"{case.name} §{case.section}{' (ours)' * case.ours}: {case.expects}"


def summary(findings: Findings) -> Sequence[str]:
    """What it all came to, and what to do next."""
    failed = findings.count(Verdict.FAILED)
    unjudged = sum(result.verdict is Verdict.FAILED and not result.judged for result in findings.results)
    idle = findings.count(Verdict.NOT_APPLICABLE)
    told = f"{findings.count(Verdict.PASSED)} passed, {failed} failed"
    if unjudged:
        told += f" ({unjudged} of them rules of ours, not judged)"
    lines = [f"{told}, {idle} not applicable; hub {visible(findings.hub_id)}, {findings.seconds:.1f} s"]
    if any(result.verdict is Verdict.NOT_APPLICABLE and "bundle" in result.came for result in findings.results):
        lines.append("  next: give --bundle three times, of agents under one path, to try every case")
    elif findings.exit:
        lines.append("  next: read the sections named above in the specification; wakehub guide conformance")
    return lines


def to_json(findings: Findings) -> dict[str, Any]:
    """The report for programs: exactly `JSON_KEYS`, and `CASE_KEYS` for each case."""
    return {
        "reachable": True,
        "socket": os.fsdecode(findings.socket),
        "hub_id": findings.hub_id,
        "why": "",
        "ours_judged": findings.ours_judged,
        "passed": findings.count(Verdict.PASSED),
        "failed": findings.count(Verdict.FAILED),
        "not_applicable": findings.count(Verdict.NOT_APPLICABLE),
        "seconds": round(findings.seconds, 3),
        "cases": [_result(result) for result in findings.results],
    }


def unreachable(found: Health, *, ours_judged: bool) -> dict[str, Any]:
    """The report for programs when no hub answers: the same keys, nothing tried."""
    return dict.fromkeys(JSON_KEYS, 0) | {
        "reachable": False,
        "socket": os.fsdecode(found.socket),
        "hub_id": found.hub_id,
        "why": f"{found.state}: {visible(found.why)}",
        "ours_judged": ours_judged,
        "cases": [],
    }


def listed_json(cases: Iterable[Case]) -> list[dict[str, Any]]:
    """What ``--list --json`` prints."""
    return [_listed(case) for case in cases]


def _listed(case: Case) -> dict[str, Any]:
    values = (case.name, case.section, case.ours, case.agents, case.shared, case.departs, case.expects)
    return dict(zip(LISTED_KEYS, values, strict=True))


def _result(result: Result) -> dict[str, Any]:
    return _listed(result.case) | {
        "result": result.verdict.value,
        "judged": result.judged,
        "came": result.came,
        "ms": round(result.ms, 3),
    }
