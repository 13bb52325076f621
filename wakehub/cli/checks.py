"""Looking at an instance: `doctor`, `--posture`, `--health`, and `metrics`."""

import argparse

from wakehub.cli import output, words
from wakehub.cli.instance import instance
from wakehub.cli.parser import Commands, Parser, Run, Usage
from wakehub.errors import WakehubError


def add_flags(top: Parser) -> None:
    """The checks that are flags of `wakehub` itself."""
    group = top.add_argument_group("checks")
    which = group.add_mutually_exclusive_group()
    which.add_argument("--posture", action="store_true", help="is the set-up safe, and does it admit anyone?")
    which.add_argument("--health", action="store_true", help="does the hub answer, right now?")
    group.add_argument("--json", action="store_true", dest="check_json", help="one JSON object instead of lines")
    group.add_argument("--require-admits", action="store_true", help="with --posture: exit 3 when it admits nobody")


def chosen_flag(args: argparse.Namespace) -> Run | None:
    """The check that was asked for by a flag; raises `Usage` when it is mixed with what it does not go with."""
    if args.require_admits and not args.posture:
        raise Usage("--require-admits goes with --posture", remedy="wakehub --posture --require-admits")
    if not (args.posture or args.health):
        if args.check_json:
            raise Usage("--json goes behind the command", remedy="wakehub agents --json")
        return None
    if args.command is not None:
        raise Usage("--posture and --health take no command", remedy="wakehub --health")
    return run_posture if args.posture else run_health


def add(commands: Commands) -> None:
    doctor = commands.add(
        "doctor",
        "find out what is wrong and what to do about it",
        run_doctor,
        examples=("wakehub doctor", "wakehub doctor --json --fail-on-warn", "wakehub doctor --repair"),
        details="It sends a real message from the record through publisher and hub to an agent of its own, and says "
        "how long each leg took; its other lines look and change nothing.\n"
        "✗ is critical, ! is worth a look; measured means seen to be so just now.\n"
        "--repair does one thing only: a damaged record is put aside and a fresh one made of what can be read.\n"
        "Exit: 0, or 1 when something is critical; --repair: 1 when messages are lost, 75 while the record is in use.",
        json_keys="healthy, version, round_trip (legs, stopped_at, why, remedy, arrived), checks (check, mark, detail, "
        "remedy, basis); --repair: damage, kept_as, kept, unread, lost, lost_ended, unverified, signatures",
    )
    how = doctor.add_mutually_exclusive_group()
    how.add_argument("--repair", action="store_true", help="save what can be read of a damaged record")
    how.add_argument("--fail-on-warn", action="store_true", help="exit 1 for what is only worth a look, too")
    metrics = commands.add(
        "metrics",
        "print the running hub's counters",
        run_metrics,
        examples=("wakehub metrics", "wakehub metrics | grep wakes_routed", "wakehub metrics --json"),
        details="OpenMetrics text. Exit: 0, or 69 when no hub answers on the stats socket.",
        json_keys="samples (name, labels, value)",
    )
    metrics.add_argument("--stats-socket", type=words.path, metavar="PATH", help="where the hub serves them")


def run_doctor(args: argparse.Namespace) -> int:
    from wakehub.ops import doctor, salvage

    if args.repair:
        repaired = salvage.repair(instance(args))
        if args.json:
            output.say_json(repaired.to_json())
        else:
            output.say(repaired.to_text())
        return int(repaired.exit)
    try:
        found = doctor.examine(instance(args))
    except WakehubError as error:
        found = doctor.unreadable(error)
    if args.json:
        output.say_json(found.to_json())
    else:
        output.say(found.to_text())
    return int(found.exit(fail_on_warn=args.fail_on_warn))


def run_posture(args: argparse.Namespace) -> int:
    from wakehub.ops import posture

    try:
        found = posture.examine(instance(args))
    except WakehubError as error:
        found = posture.unreadable(error)
    if args.check_json:
        output.say_json(found.to_json())
    else:
        output.say(found.to_text())
    return int(found.exit(require_admits=args.require_admits))


def run_health(args: argparse.Namespace) -> int:
    from wakehub.ops import health

    found = health.check_hub(instance(args))
    if args.check_json:
        output.say_json(found.to_json())
    else:
        output.say(found.to_text())
    return int(found.exit)


def run_metrics(args: argparse.Namespace) -> int:
    from wakehub.ops import health, metrics

    text = health.read_metrics(instance(args))
    if args.json:
        output.say_json(metrics.to_json(text))
    else:
        output.say(text, end="")
    return 0
