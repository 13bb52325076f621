"""A conformance run finds hubs that break a rule, by the case that is about that rule, and finds nothing else."""

from pathlib import Path

import pytest
import trio
from broken_hubs import BROKEN, Broken, Served, serving

from wakehub.ops.conformance import runner
from wakehub.ops.conformance.case import Verdict
from wakehub.ops.conformance.runner import Findings

PATIENCE_S = 2.0
CONTROLS = ("end-at-boundary", "hub-speaks-first", "hello-is-welcomed", "join", "pong-is-ignored", "wake-to-nobody")
"""Cases that none of the broken hubs fails."""


async def run(served: Served, *cases: str, judge_ours: bool = True) -> Findings:
    """These cases against a hub that is served here, from another thread."""
    return await trio.to_thread.run_sync(
        lambda: runner.run(
            served.socket,
            "wakehub",
            served.guests,
            runner.chosen(cases),
            judge_ours=judge_ours,
            patience_s=PATIENCE_S,
        )
    )


def failed(findings: Findings) -> set[str]:
    return {result.case.name for result in findings.results if result.verdict is Verdict.FAILED}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.name)
async def test_a_broken_rule_is_found_by_its_case(broken: Broken, short: Path) -> None:
    async with serving(short, broken) as served:
        findings = await run(served, *broken.fail, *CONTROLS)
    assert failed(findings) == set(broken.fail)
    assert findings.exit == 1
    assert len(findings.results) == len(broken.fail) + len(CONTROLS)
    assert all(result.came for result in findings.results if result.verdict is Verdict.FAILED)


async def test_a_hub_that_breaks_no_rule_passes_the_same_cases(short: Path) -> None:
    names = {name for broken in BROKEN for name in broken.fail} - {"handshake-deadline"}
    async with serving(short, Broken("sound", ())) as served:
        findings = await run(served, *names, *CONTROLS)
    assert failed(findings) == set()
    assert findings.exit == 0
    assert len(findings.results) == len(names | {*CONTROLS})
