"""Which name this process acts under (receive.md §2; formats.md; faults F35, F37).

The first that there is counts:

    --as                            given for this command
    $WAKEHUB_AGENT                  given for this process and its children
    $WAKEHUB_BUNDLE                 the agent whose bundle this process was given
    the name of the session         that the user gave the CLI session which this process runs in
    the directory of the session    where that session was started
    the working directory           of this process, outside of any session

So whatever a session runs acts under one name, be it a shell in a shell, a hook, or a command in another worktree; and
that name stays when the session forgets everything or is resumed. Every command prints the one it took.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from wakehub.client import claude_sessions
from wakehub.errors import BadData, Exit, WakehubError
from wakehub.identity.addresses import check_address, is_reserved, name_from_directory


class OwnName(NamedTuple):
    """The name a process acts under, and where it came from, in words."""

    name: str
    source: str


def choose(given: str | None, environ: Mapping[str, str] = os.environ) -> OwnName:
    """The own name: `given` (`--as`), else as the head of this module says.

    Raises `BadData` (65) for a name that was given and is no address, `Unsafe` (77) for a bundle that is none,
    `WakehubError` (2) when nothing gives one.
    """
    if given is not None:
        return OwnName(check_given(given), "--as")
    if from_environment := environ.get("WAKEHUB_AGENT"):
        return OwnName(check_address(from_environment), "$WAKEHUB_AGENT")
    if environ.get("WAKEHUB_BUNDLE"):
        from wakehub.identity.delegation import Bundle  # with the cryptography, which others do without (fault F86)

        if (bundle := Bundle.from_environment(environ)) is not None:
            return OwnName(check_address(bundle.agent_id), "$WAKEHUB_BUNDLE")
    for text, source in _sources(environ):
        name = name_from_directory(text)
        if name is not None and not is_reserved(name):
            return OwnName(name, source)
    raise WakehubError(
        "no name to act under",
        why="this directory's name gives none",
        remedy="give one with --as NAME or WAKEHUB_AGENT",
        exit=Exit.USAGE,
    )


def check_given(text: str) -> str:
    """`text`, the value of `--as`, if it is an address; raises `BadData` (65). An empty one names nobody."""
    if not text:
        raise BadData(
            "--as is empty", why="perhaps a variable that is not set", remedy="give a name, or leave --as out"
        )
    return check_address(text)


def _sources(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What may give a name, and where that comes from. A session's directory rules out that of a single command."""
    session = claude_sessions.own(environ)
    if session is not None and session.users_name:
        yield session.users_name, "the name of this session"
    if session is not None and session.cwd:
        yield Path(session.cwd).name, "the directory of this session"
        return
    try:
        yield Path.cwd().name, "this directory"
    except OSError:  # it is gone
        return
