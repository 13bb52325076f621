"""How a command line is read: one parser, to which each command group adds its commands.

Nothing here or in the groups' `add` functions imports what a command works with; that happens when it runs. Every
command has a line that says what it does, an example, and the flags that choose the instance.
"""

import argparse
import textwrap
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from wakehub.cli import output, words
from wakehub.errors import Exit, WakehubError
from wakehub.visible import visible

_WIDTH = 100
_FEW = 6

Run = Callable[[argparse.Namespace], int]


class Usage(WakehubError):
    """The words on the command line cannot be used as they are (exit 2)."""

    exit = Exit.USAGE


class Parser(argparse.ArgumentParser):
    """An argument parser that speaks as the rest of the program does and leaves exiting to `run`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            allow_abbrev=False,  # an abbreviation would become ambiguous with the next flag we add
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **options,
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Each command refuses by itself what it does not know, so that the remedy is its own help."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        what, _, why = message.partition(": ")
        raise Usage(what, why=why, remedy=f"{self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """A mistyped command or choice is answered with what it may have been meant for, not with the whole list."""
        if action.choices is None or value in action.choices:
            return
        import difflib  # for who mistypes, not for a daemon's memory

        name = "/".join(action.option_strings) or str(action.metavar or action.dest).lower()
        known = [str(choice) for choice in action.choices]
        near = difflib.get_close_matches(str(value), known, n=1)
        raise Usage(
            f"there is no {name} {visible(str(value))!r}",
            why=f"did you mean {near[0]}?" if near else "",
            remedy=f"{self.prog} --help" if len(known) > _FEW else f"one of {', '.join(known)}",
        )

    def print_help(self, file: object = None) -> None:
        output.say(self.format_help(), end="")


class Commands:
    """Where the command groups put their commands; `flags` adds to each those that all of them have."""

    def __init__(
        self, parser: Parser, *, dest: str = "command", flags: "Callable[[Parser], None] | None" = None
    ) -> None:
        self._flags = flags or add_instance_flags
        self._parsers = parser.add_subparsers(
            metavar="COMMAND", dest=dest, title="commands", parser_class=Parser, required=False
        )

    def add(
        self,
        name: str,
        summary: str,
        run: Run,
        *,
        examples: Iterable[str],
        details: str = "",
        json_keys: str = "",
    ) -> Parser:
        """Add command `name`; `details` are paragraphs, one a line.

        `json_keys` names the keys of its ``--json`` report; without, it has none.
        """
        told = "\n".join(textwrap.fill(part, _WIDTH) for part in details.splitlines())
        tail = "example:\n" + "".join(f"  {line}\n" for line in examples)
        if json_keys:
            tail += "\n" + textwrap.fill(f"--json prints: {json_keys}", _WIDTH, subsequent_indent="  ") + "\n"
        found = self._parsers.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + "." + (f"\n\n{told}" if told else ""),
            epilog=tail,
        )
        assert isinstance(found, Parser)
        if json_keys:
            found.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
        self._flags(found)
        found.set_defaults(run=run)
        return found


def add_instance_flags(parser: Parser) -> None:
    """The flags that every command has. Absent means absent, so that they may stand before or behind the command."""
    group = parser.add_argument_group("which instance")
    for flag, kind, metavar, text in (
        ("--socket", words.path, "PATH", "the hub's socket"),
        ("--hub-id", str, "ID", "the hub's id (default: wakehub)"),
        ("--state-dir", words.path, "DIR", "where the record, the registry and the locks lie"),
    ):
        group.add_argument(flag, type=kind, metavar=metavar, help=text, default=argparse.SUPPRESS)
