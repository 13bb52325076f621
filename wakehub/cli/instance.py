"""Which instance of wakehub a command line means: the configuration, then the flags that change it."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from wakehub.errors import Misconfigured
from wakehub.visible import visible

if TYPE_CHECKING:
    from wakehub.config import Config


def instance(args: argparse.Namespace) -> "Config":
    """The configuration that a command works with.

    ``--state-dir`` counts as WAKEHUB_STATE_DIR for the choice of directories, and rules over ``config.toml``.
    Raises `Misconfigured` (78) when no usable directory can be told, else as `config.load` does.
    """
    from wakehub import config

    state = getattr(args, "state_dir", None)
    environ = dict(os.environ)
    try:
        if state is not None:
            state = state.absolute()
            environ["WAKEHUB_STATE_DIR"] = str(state)
        found = config.load(environ)
        if state is not None:
            found = found.changed(paths=found.paths._replace(state=state))
        found = found.changed(hub_id=getattr(args, "hub_id", None), **_socket_changes(args))
    except OSError as error:
        raise Misconfigured(
            "cannot tell where wakehub's files lie",
            why=error.strerror or "the path cannot be used",
            remedy="run in a directory that exists, with WAKEHUB_HOME an absolute path",
        ) from error
    for path in (found.paths.config_file, found.paths.run, found.paths.state, found.paths.keys, found.hub_socket):
        _check_usable(path)
    return found


def call(args: argparse.Namespace) -> str:
    """How to name wakehub to those who are to find this very instance, as `invocation.call`."""
    from wakehub import invocation

    flags = []
    for flag, value in (
        ("--socket", _absolute(args, "socket")),
        ("--hub-id", getattr(args, "hub_id", None)),
        ("--state-dir", _absolute(args, "state_dir")),
    ):
        flags += [flag, str(value)] if value is not None else []
    return invocation.call(os.environ, flags)


def _socket_changes(args: argparse.Namespace) -> dict[str, Path | None]:
    """The hub's socket, and with it the stats socket, which lies beside it unless told otherwise (awh1.md §7)."""
    socket = _absolute(args, "socket")
    stats = _absolute(args, "stats_socket")
    if stats is None and socket is not None:
        stats = socket.parent / "stats.sock"
    return {
        "hub_socket": socket,
        "stats_socket": stats,
        "allowlist": _absolute(args, "allowlist"),
        "owner_pub": _absolute(args, "owner_pub"),
    }


def _absolute(args: argparse.Namespace, name: str) -> Path | None:
    given: Path | None = getattr(args, name, None)
    return None if given is None else given.absolute()


def _check_usable(path: Path) -> None:
    """No home directory leaves a relative path; bytes that are not UTF-8 cannot be written into ``config.toml``."""
    try:
        str(path).encode()
        usable = path.is_absolute()
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise Misconfigured(
            f"{visible(os.fsencode(path))} cannot be used as a path",
            why="it must be absolute and UTF-8",
            remedy="set WAKEHUB_HOME to such a directory",
        )
