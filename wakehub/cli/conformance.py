"""`conformance`: is what listens at a socket an AWH1 hub?"""

import argparse

from wakehub.cli import output, words
from wakehub.cli.instance import instance
from wakehub.cli.parser import Commands
from wakehub.errors import Exit, WakehubError


def add(commands: Commands) -> None:
    command = commands.add(
        "conformance",
        "try whether a hub keeps to AWH1",
        run_conformance,
        examples=(
            "wakehub conformance",
            "wakehub delegate check/a --ttl 1h   # and check/b, check/c",
            "wakehub conformance --bundle A --bundle B --bundle C --ours",
            "wakehub conformance --only 5.8 --only handshake-deadline",
        ),
        details="Black-box cases against any hub, each at most 15 s, by section of the specification. Without a bundle "
        "it tries what needs no agent. Make the agents of the bundles for this: the hub is told to forget them. "
        "`wakehub guide conformance` says what it does to a hub.\n"
        "Exit: 0 all passed, 1 some failed, 2 no hub answers (or usage), 3 nothing could be judged.",
        json_keys="reachable, socket, hub_id, why, ours_judged, passed, failed, not_applicable, seconds, cases (name, "
        "section, ours, agents, shared, departs, expected, result, judged, came, ms)",
    )
    command.add_argument(
        "--bundle", action="append", default=[], type=words.path, metavar="FILE", help="an agent; up to three times"
    )
    command.add_argument(
        "--only", action="append", default=[], metavar="SECTION", help="cases of this section, or of this name"
    )
    command.add_argument("--ours", action="store_true", help="judge the rules that are this project's own as well")
    command.add_argument("--list", action="store_true", help="print the cases and what they need; try nothing")


def run_conformance(args: argparse.Namespace) -> int:
    from wakehub.ops.conformance import report, runner
    from wakehub.ops.conformance.guest import load_guests

    cases = runner.chosen(args.only)
    if args.list and args.json:
        output.say_json(report.listed_json(cases))
        return 0
    if args.list:
        output.say("\n".join(report.listed(cases)))
        return 0
    config = instance(args)
    asked_for = getattr(args, "hub_id", None)
    guests = load_guests(args.bundle, asked_for)
    found = runner.look(config.hub_socket, asked_for, guests)
    if found.exit:
        if args.json:
            output.say_json(report.unreachable(found, ours_judged=args.ours))
            return int(Exit.UNREACHABLE)
        raise WakehubError(
            f"no hub to try at {found.socket}",
            why=f"{found.state}: {found.why}",
            remedy=found.remedy,
            exit=Exit.UNREACHABLE,
        )
    findings = runner.run(
        config.hub_socket,
        found.hub_id,
        guests,
        cases,
        judge_ours=args.ours,
        tell=lambda result: None if args.json else output.say(report.line(result)),
    )
    if args.json:
        output.say_json(report.to_json(findings))
    else:
        for line in report.summary(findings):
            output.say(line)
    return int(findings.exit)
