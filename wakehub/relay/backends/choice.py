"""Which backend a listener uses: `--exec`, `--backend NAME` with its `--opt k=v`, or stdout (receive.md §3, §4).

Each backend knows its own options and refuses every other one: a misspelt option would be none.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, get_args

from wakehub.errors import Exit, WakehubError
from wakehub.identity.addresses import check_address
from wakehub.inbox.store import Inbox
from wakehub.limits import SESSION_EXIT_AFTER_SECONDS
from wakehub.paths import Paths
from wakehub.relay.backends import Backend
from wakehub.relay.options import Format, To, ToClaude, ToFile, ToHook
from wakehub.visible import visible

STDOUT: Final = "stdout"
NAMES: Final = ("file", "claude")
"""The backends that take messages elsewhere than to standard output."""
_FORMATS: Final[tuple[Format, ...]] = get_args(Format)


class Unusable(WakehubError):
    """A backend or an option of it that cannot be used as it was given (exit 2)."""

    exit = Exit.USAGE


def parse(
    backend: str | None, options: Sequence[str], command: Sequence[str] | None, *, elsewhere: bool = False
) -> To | None:
    """Where messages go, from the words of a command line; None: standard output. Raises `Unusable` (2).

    `elsewhere`: standard output is none of the choices, and is not named as one.
    """
    if command is not None:
        return _hook(backend, options, command)
    values = _pairs(options)
    match backend:
        case None | "stdout":
            _refuse_other(values, (), "standard output")
            return None
        case "file":
            _refuse_other(values, ("path", "format"), backend)
            return _file(values)
        case "claude":
            _refuse_other(values, ("session", "agents", "exit_after"), backend)
            return _claude(values)
    names = NAMES if elsewhere else (STDOUT, *NAMES)
    raise Unusable(f"there is no backend {visible(backend)}", remedy=f"one of {', '.join(names)}, or --exec")


def make(to: To, names: Sequence[str], paths: Paths, inbox: Inbox, environ: Mapping[str, str]) -> Backend:
    """The backend for a listener under `names`; raises what is wrong with a program or file."""
    match to:
        case ToHook(command):
            from wakehub.relay.backends.exec import Hook

            return Hook(command, environ, inbox.count_unread)
        case ToFile(path, form):
            from wakehub.relay.backends.file import Mailbox

            return Mailbox(path, form)
        case ToClaude():
            from wakehub.relay.backends.claude.deliver import Sessions

            return Sessions(to, names, paths, environ)


def _hook(backend: str | None, options: Sequence[str], command: Sequence[str]) -> ToHook:
    if backend is not None or options:
        raise Unusable("--exec takes no backend and no --opt", remedy="give the program its arguments behind --exec")
    if not command:
        raise Unusable("--exec without a program", remedy="--exec PROGRAM ARGUMENT…, as the last flag")
    return ToHook(tuple(command))


def _file(values: Mapping[str, str]) -> ToFile:
    if not values.get("path"):
        raise Unusable("the file backend needs a file", remedy="--opt path=FILE")
    form = values.get("format", "agent")
    for known in _FORMATS:
        if form == known:
            return ToFile(Path(values["path"]).absolute(), known)
    raise Unusable(f"there is no format {visible(form)}", remedy=f"one of {', '.join(_FORMATS)}")


def _claude(values: Mapping[str, str]) -> ToClaude:
    session = values.get("session")
    if session == "":
        raise Unusable("--opt session= names no session", remedy="--opt session=NAME")
    agents = frozenset(map(check_address, values["agents"].split(","))) if "agents" in values else None
    return ToClaude(session, agents, _seconds(values.get("exit_after", str(SESSION_EXIT_AFTER_SECONDS))))


def _seconds(text: str) -> int:
    if re.fullmatch("[0-9]{1,9}", text) is None:
        raise Unusable(
            f"exit_after={visible(text)} is no number of seconds", remedy="--opt exit_after=600, 0 for never"
        )
    return int(text)


def _pairs(options: Sequence[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for option in options:
        key, separator, value = option.partition("=")
        if not separator or not key:
            raise Unusable(f"--opt {visible(option)} is no setting", remedy="--opt KEY=VALUE")
        if key in values:
            raise Unusable(f"--opt {visible(key)} is given twice", remedy="leave one out")
        values[key] = value
    return values


def _refuse_other(values: Collection[str], known: Sequence[str], backend: str) -> None:
    for key in values:
        if key not in known:
            remedy = f"known are {', '.join(known)}" if known else "name a --backend"
            raise Unusable(f"{backend} has no option {visible(key)}", remedy=remedy)
