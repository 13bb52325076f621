"""`bench`: what wakehub costs and how prompt it is, on this machine."""

import argparse

from wakehub.cli import output, words
from wakehub.cli.parser import Commands, Usage


def add(commands: Commands) -> None:
    command = commands.add(
        "bench",
        "measure latency, cost and memory on this machine",
        run_bench,
        examples=(
            "wakehub bench",
            "wakehub bench --quick --only latency,fanout",
            "wakehub bench --peers --rounds 5 --markdown",
        ),
        details="A hub of its own in a temporary place, driven by a load client in another process, beside two floors "
        "(a socketpair, and a hub that forwards and checks nothing) in interleaved rounds. Whatever it starts ends "
        "with it. `wakehub guide performance` explains the columns.\n"
        "Progress goes to stderr. Exit: 0 all was measured, 1 a measurement failed, 2 usage, 69 something cannot be "
        "started.",
        json_keys="machine, peers, rounds, seconds, left_out, scenarios (by name, its tables by name: title, rows, "
        "notes, rounds)",
    )
    command.add_argument("--quick", action="store_true", help="fewer repetitions: a glance, not a result")
    command.add_argument(
        "--only", action="append", default=[], metavar="SCENARIO[,…]", help="these scenarios; see the guide"
    )
    command.add_argument(
        "--rounds", type=words.whole_number(least=1), metavar="N", help="interleaved rounds (default 3)"
    )
    command.add_argument("--peers", action="store_true", help="measure what else is installed beside it")
    command.add_argument("--markdown", action="store_true", help="print the tables in Markdown")


def run_bench(args: argparse.Namespace) -> int:
    from wakehub.bench import run as bench

    chosen = _chosen(args.only, bench.SCENARIOS)
    if args.json and args.markdown:
        raise Usage("--json and --markdown exclude each other", remedy="give one of them")
    rounds = args.rounds if args.rounds is not None else (1 if args.quick else 3)
    findings = bench.run(chosen, rounds=rounds, quick=args.quick, with_peers=args.peers, tell=output.warn)
    if args.json:
        output.say_json(findings.to_json())
    else:
        output.say(findings.markdown() if args.markdown else findings.text())
    return 0


def _chosen(only: list[str], known: tuple[str, ...]) -> list[str]:
    """The scenarios that were asked for, in their own order; all when none was."""
    asked = [name for names in only for name in names.split(",")]
    for name in asked:
        if name not in known:
            raise Usage(f"there is no scenario {name!r}", remedy=f"--only with some of {', '.join(known)}")
    return [name for name in known if not asked or name in asked]
