"""The long run, by hand: `python tests/fuzz/run.py --seconds 2400 --seed 7`.

Goes round the targets until the time is up (or `--inputs` is reached, or five inputs were found that must not do what
they do), each with its share of the inputs, and prints inputs, seconds, outcomes and findings. The inputs of a target
depend on the seed alone, so a run can be had again. Exit 1 when there is a finding.
"""

import argparse
import sys
import time
from collections.abc import Sequence

from fuzz_hub import machine
from fuzz_parsers import parsers
from fuzz_target import MAX_FINDINGS, Run

INPUTS_PER_SHARE = 100
REPORT_SECONDS = 60


def main(argv: Sequence[str] | None = None) -> int:
    targets = {target.name: target for target in (*parsers(), machine())}
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=60, help="how long (default: 60)")
    options.add_argument("--inputs", type=float, default=float("inf"), help="how many (default: no limit)")
    options.add_argument("--seed", type=int, default=0, help="which inputs (default: 0)")
    options.add_argument("--target", action="append", choices=sorted(targets), help="only this one; may be repeated")
    args = options.parse_args(argv)
    runs = [(Run(targets[name], args.seed), targets[name].share) for name in args.target or targets]
    began = reported = time.monotonic()
    while time.monotonic() - began < args.seconds and _inputs(runs) < args.inputs and _findings(runs) < MAX_FINDINGS:
        for run, share in runs:
            run.go_on(INPUTS_PER_SHARE * share)
        if time.monotonic() - reported > REPORT_SECONDS:
            reported = time.monotonic()
            print(f"{reported - began:6.0f} s  {_inputs(runs):>11,} inputs  {_findings(runs)} findings", flush=True)
    _report(runs, time.monotonic() - began, args.seed)
    return 1 if _findings(runs) else 0


def _inputs(runs: list[tuple[Run, int]]) -> int:
    return sum(run.result.inputs for run, _ in runs)


def _findings(runs: list[tuple[Run, int]]) -> int:
    return sum(len(run.result.findings) for run, _ in runs)


def _report(runs: list[tuple[Run, int]], seconds: float, seed: int) -> None:
    print(f"{'target':<18}{'inputs':>12}{'seconds':>9}{'outcomes':>10}{'findings':>10}")
    for run, _ in runs:
        found = run.result
        counts = f"{found.inputs:>12,}{found.seconds:>9.0f}{len(found.outcomes):>10}{len(found.findings):>10}"
        print(f"{found.target:<18}{counts}")
    print(f"{'together':<18}{_inputs(runs):>12,}{seconds:>9.0f}{'':>10}{_findings(runs):>10}   seed {seed}")
    for run, _ in runs:
        for finding in run.result.findings:
            print(finding)


if __name__ == "__main__":
    sys.exit(main())
