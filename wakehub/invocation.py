"""The command line that leads to this very program and this very instance, from any shell (receive.md §7).

What we say is often run elsewhere than where it was said: by an agent whose hook, relay or listener has another
environment than its own shell. So it is short only where that is right anywhere: `wakehub` on PATH is this program, and
the instance is the user's default one.
"""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from wakehub.errors import WakehubError
from wakehub.paths import config_file
from wakehub.visible import visible

SHORT: Final = "wakehub"


def program() -> list[str]:
    """The words that start this very installation from anywhere."""
    beside = Path(sys.executable).with_name(SHORT)
    return [str(beside)] if os.access(beside, os.X_OK) else [sys.executable, "-P", "-m", SHORT]


def words(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The words that start this program with this instance from anywhere, written out."""
    home = environ.get("WAKEHUB_HOME")
    return [*(("env", f"WAKEHUB_HOME={Path(home).absolute()}") if home else ()), *program()]


def call(environ: Mapping[str, str] = os.environ, flags: Sequence[str] = ()) -> str:
    """The same for a person or an agent to type, as short as it may be; `flags` chose the instance besides."""
    found = words(environ)
    if found[0] == "env" and _is_default(environ):
        del found[:2]
    own = program()
    if _is_on_path(own, environ):
        found[-len(own) :] = [SHORT]
    return visible(shlex.join([*found, *flags]))


def _is_default(environ: Mapping[str, str]) -> bool:
    """Whether the same instance is found without WAKEHUB_HOME."""
    plain = {name: value for name, value in environ.items() if name != "WAKEHUB_HOME"}
    try:
        return config_file(plain) == config_file(environ)
    except WakehubError:  # no home directory
        return False


def _is_on_path(own: list[str], environ: Mapping[str, str]) -> bool:
    for directory in environ.get("PATH", os.defpath).split(os.pathsep):
        found = os.path.join(directory, SHORT)
        if os.path.isfile(found) and os.access(found, os.X_OK):
            return len(own) == 1 and os.path.samefile(found, own[0])
    return False
