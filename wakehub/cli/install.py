"""Writing into other programs' places, and out of them again: `install`, `uninstall`."""

import argparse
import json
import os
import shlex
import sys
from typing import TYPE_CHECKING

from wakehub.cli import output
from wakehub.cli.instance import instance
from wakehub.cli.parser import Commands, Usage
from wakehub.errors import Exit, WakehubError
from wakehub.visible import visible

if TYPE_CHECKING:
    from wakehub.config import Config
    from wakehub.ops.install import Plan

_TARGETS = ("claude", "systemd", "launchd")


def add(commands: Commands) -> None:
    for name, summary, run, details in (
        (
            "install",
            "enter wakehub into Claude Code, systemd or launchd",
            run_install,
            "claude: the hooks of `wakehub hook` into its settings.json. systemd, launchd: hub and publisher as "
            "services of this user, with the paths of this installation; what to run to start them is printed. The "
            "change is shown as a diff first, and made when you say yes.\n"
            "Exit: 0, 1 not wanted, 2 a flag cannot be entered, 65 the settings cannot be changed, 75 a file is in the "
            "way, 77 the settings cannot be read, 78 a path does not fit.",
        ),
        (
            "uninstall",
            "take out what `install` entered",
            run_uninstall,
            "Exactly that: settings that nobody changed since become what they were, byte for byte; from others only "
            "the hooks go. A service's file that was changed since stays.\n"
            "Exit: 0, 1 not wanted, 65 the settings cannot be changed, 75 the service is still switched on, 77 the "
            "settings cannot be read.",
        ),
    ):
        parser = commands.add(
            name, summary, run, examples=(f"wakehub {name} claude", f"wakehub {name} systemd --yes"), details=details
        )
        parser.add_argument("target", choices=_TARGETS, help="where")
        parser.add_argument("--yes", action="store_true", help="do not ask")


def run_install(args: argparse.Namespace) -> int:
    from wakehub.ops import install

    config = instance(args)
    _refuse_flags(args, config)
    plan = install.plan(args.target, config)
    _note(plan)
    if not plan.changes:
        output.say(f"{args.target}: installed already")
        return Exit.DONE
    _change(plan, config, yes=args.yes)
    for line in plan.next:
        output.say(f"next: {line}")
    return Exit.DONE


def run_uninstall(args: argparse.Namespace) -> int:
    from wakehub.ops import install

    config = instance(args)
    plan = install.plan_removal(args.target, config)
    _note(plan)
    if not plan.changes:
        install.carry_out(plan, config)
        output.say(f"{args.target}: nothing to remove")
        return Exit.DONE
    if args.target == "launchd":
        output.say(f"first, if they run: {' ; '.join(install.to_stop(args.target))}")
    _change(plan, config, yes=args.yes)
    return Exit.DONE


def _refuse_flags(args: argparse.Namespace, config: "Config") -> None:
    """What is entered finds the instance by its config.toml alone; raises `Usage` (2) for flags that lead elsewhere."""
    from wakehub import config as configuration

    plain = configuration.load()
    for name, key, wanted, found in (
        ("state_dir", "[paths] state", config.paths.state, plain.paths.state),
        ("socket", "[hub] socket", config.hub_socket, plain.hub_socket),
        ("hub_id", "[hub] id", config.hub_id, plain.hub_id),
    ):
        if hasattr(args, name) and wanted != found:
            remedy = f"say {key} = {json.dumps(str(wanted))} there, and leave the flag out"
            if not os.path.lexists(config.paths.config_file):
                init = f"wakehub init --state-dir {shlex.quote(str(wanted))}, which writes that file"
                remedy = f"{init}; then leave the flag out" if name == "state_dir" else f"wakehub init; then {remedy}"
            raise Usage(
                f"--{name.replace('_', '-')} cannot be entered into {args.target}",
                why=f"what runs there goes by {visible(str(config.paths.config_file))}, which leads to "
                f"{visible(str(found))}",
                remedy=remedy,
            )


def _note(plan: "Plan") -> None:
    for note in plan.notes:
        output.warn(f"wakehub: {visible(note)}")


def _change(plan: "Plan", config: "Config", *, yes: bool) -> None:
    """Show what changes, ask, and do it; raises `WakehubError` (1) when it is not wanted."""
    from wakehub.ops.install import carry_out

    for change in plan.changes:
        output.say(change.diff())
    if not yes and not _is_wanted():
        raise WakehubError("nothing was changed", remedy="say y, or --yes", exit=Exit.FAILED)
    for line in carry_out(plan, config):
        output.say(visible(line))
    for change in plan.changes:
        output.say(f"{'wrote' if change.after is not None else 'removed'} {visible(str(change.path))}")


def _is_wanted() -> bool:
    if sys.stdin is None or not sys.stdin.isatty():
        return False
    output.say("apply this? [y/N] ", end="")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
