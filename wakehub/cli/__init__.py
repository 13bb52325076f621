"""The command line: reads words, calls the layer that does the work, prints, and exits with a status.

A command imports its code when it runs, so that ``wakehub --version`` and a hook in a session that is not ours cost
nothing, and the hub process never holds the record's code. What a person can put right is a `WakehubError` and is said
here, once, in one form; anything else that escapes is a bug and shows its traceback.
"""

import argparse
import importlib
import os
from typing import Final

from wakehub import __version__
from wakehub.cli import checks, output
from wakehub.cli.parser import Commands, Parser, Usage, add_instance_flags
from wakehub.errors import WakehubError
from wakehub.visible import visible

_INTERRUPTED = 130
_GROUPS: Final = {
    "agents": ("init", "enroll", "revoke", "close", "delegate", "audit"),
    "daemons": ("serve", "publish", "up"),
    "messages": ("send", "listen"),
    "relay": ("claim", "relay"),
    "record": ("agents", "inbox", "ack"),
    "watching": ("why", "status", "top"),
    "checks": ("doctor", "metrics"),
    "conformance": ("conformance",),
    "bench": ("bench",),
    "hook": ("hook",),
    "install": ("install", "uninstall"),
    "intercom": ("intercom",),
    "learn": ("guide", "demo"),
}
"""The modules that add commands, in the order of the help, and the commands that each adds."""


def run(argv: list[str]) -> int:
    """Run one command and return its exit status (`wakehub.errors.Exit`; 130 when interrupted from the keyboard)."""
    os.umask(0o077)
    output.guard()
    try:
        return _run(argv)
    except WakehubError as error:
        return output.complain(error)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except SystemExit as end:  # argparse ends this way behind --help
        return int(end.code or 0)


def build_parser(first: str = "") -> Parser:
    """The parser of the whole command line; of what its `first` word needs, if that is a command."""
    top = Parser(
        prog="wakehub",
        description="Wakes idle agents on this machine at once, and never loses what woke them.",
        epilog=(
            "example:\n  wakehub demo\n  wakehub up\n  echo 'the tests pass' | wakehub send --to alice --stdin\n"
            "  wakehub listen --as alice --once --wait 60\n\n`wakehub COMMAND --help` shows a command, "
            "`wakehub guide` the longer explanations."
        ),
    )
    top.add_argument("--version", action="store_true", help="print the version")
    checks.add_flags(top)
    add_instance_flags(top)
    commands = Commands(top)
    needed = [group for group, names in _GROUPS.items() if first in names]
    for group in needed or _GROUPS:
        importlib.import_module(f"wakehub.cli.{group}").add(commands)
    return top


def _run(argv: list[str]) -> int:
    for word in argv:
        _check_word(word)
    args = build_parser(*argv[:1]).parse_args(argv)
    if args.version:
        output.say(f"wakehub {__version__}")
        return 0
    chosen = checks.chosen_flag(args)
    return chosen(args) if chosen is not None else _command(args)


def _command(args: argparse.Namespace) -> int:
    if args.command is None:
        raise Usage("no command given", remedy="wakehub --help, or wakehub demo to see it work")
    status: int = args.run(args)
    return status


def _check_word(word: str) -> None:
    """No command takes bytes that are not UTF-8, and no file name or address holds a NUL."""
    try:
        if "\0" not in word and word.encode():
            return
    except UnicodeEncodeError:
        pass
    else:
        if not word:
            return
    raise Usage(
        f"the argument {visible(os.fsencode(word))!r} cannot be used",
        why="it is not UTF-8 without NUL",
        remedy="give such bytes with --stdin or --file",
    )
