"""Which name this process acts under (receive.md §2; formats.md).

The first that is given counts: `--as`, `$WAKEHUB_AGENT`, the name of the working directory. The same process tree in
the same directory thus always has the same name, and every command prints the one it took.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wakehub.errors import Exit, WakehubError
from wakehub.identity.enrolment import check_address, is_reserved, name_from_directory


@dataclass(frozen=True, slots=True)
class OwnName:
    """The name a process acts under, and where it came from, in words."""

    name: str
    source: str


def choose(given: str | None, environ: Mapping[str, str] = os.environ, directory: Path | None = None) -> OwnName:
    """The own name: `given` (`--as`), else `$WAKEHUB_AGENT`, else the base name of `directory` (default: the cwd).

    Raises `BadData` (65) for a name that was given and is no address, `WakehubError` (2) when the directory gives none.
    """
    if given:
        return OwnName(check_address(given), "--as")
    if from_environment := environ.get("WAKEHUB_AGENT"):
        return OwnName(check_address(from_environment), "$WAKEHUB_AGENT")
    try:
        name = name_from_directory((directory or Path.cwd()).name)
    except OSError:  # the directory is gone
        name = None
    if name is None or is_reserved(name):
        raise WakehubError(
            "no name to act under",
            why="this directory's name gives none",
            remedy="give one with --as NAME or WAKEHUB_AGENT",
            exit=Exit.USAGE,
        )
    return OwnName(name, "this directory")
