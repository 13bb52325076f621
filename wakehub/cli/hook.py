"""What agents that work in turns have run for them: `hook`."""

import argparse

from wakehub.cli.parser import Commands

_EVENTS = ("session-start", "prompt", "stop")


def add(commands: Commands) -> None:
    commands.add(
        "hook",
        "tell an agent at its turns what waits",
        run_hook,
        examples=("wakehub hook session-start", "wakehub hook stop"),
        details="For the hooks of Claude Code and of whatever else works in turns; `wakehub install claude` enters "
        "them. It says nothing when the agent is not enrolled or nothing waits, and takes nothing. session-start "
        "explains how to read and send, prompt names what is unread, stop asks the agent once to read it first.\n"
        "Exit: 0, whatever happens.",
    ).add_argument("event", choices=_EVENTS, help="when it is run")


def run_hook(args: argparse.Namespace) -> int:
    from wakehub.ops.hook import hook

    return hook(args.event)
