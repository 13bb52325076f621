"""What to do about a hub or publisher that is not as it must be: the one rule behind every "next" that a person reads.

What lives decides, and who supervises it (faults F47, F66, F73). `wakehub up` is advised only where it can help: it
refuses (75) to run beside another `up`, and its children end where a hub or a publisher runs alone.

| nobody serves its socket, and | the next step |
|---|---|
| something else is at its path | that is moved away |
| its process lives | it binds the socket again by itself within 15 s; if not, start it anew |
| a directory, the owner key or the record would end it at its start | that is mended first |
| `wakehub up` lives | that starts it again within 10 s, and says why it ended; stopped itself, it must go on first |
| a unit or job of this instance is installed | start that; its own command, if there is one for the other alone |
| the other one lives alone | `wakehub serve` or `wakehub publish` |
| nothing lives | `wakehub up` |

A process that keeps silent is named with its pid. A stopped one (SIGSTOP) is told to go on, a hung one is started anew
the way its supervisor does it. Nothing is connected to here, and no lock is tried.
"""

import contextlib
import os
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wakehub import files, ownership
from wakehub.client import background
from wakehub.client.supervisor import installed_units, start_of, supervisor_of
from wakehub.config import Config
from wakehub.errors import WakehubError
from wakehub.identity.allowlist import Unusable
from wakehub.identity.owner import load_owner
from wakehub.inbox import filesystem
from wakehub.inbox.refusals import RecordDamaged
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.limits import ALLOWLIST_RESIGN_SECONDS, RESTART_CAP_MS, SOCKET_CHECK_SECONDS
from wakehub.locks import Holder, live_holder
from wakehub.paths import Paths
from wakehub.processes import is_stopped
from wakehub.visible import visible

SANDBOX: Final = "allow it in the sandbox, or run as its owner"


@dataclass(frozen=True, slots=True)
class Daemon:
    """One of the two: what it is called, its lock, the command that runs it alone, and a mark of its units' names."""

    name: str
    lock: str
    command: str

    def holder(self, where: Paths) -> Holder | None:
        """Its process, if it lives."""
        return live_holder(where.lock(self.lock))

    def socket(self, where: Paths) -> Path:
        """Where it serves, if nothing else was given."""
        return where.hub_socket if self is HUB else where.publish_socket

    def why_absent(self, where: Paths) -> str:
        """Why nobody serves its socket."""
        holder = self.holder(where)
        return f"{self.name} not running" if holder is None else f"the {self.name}, pid {holder.pid}, has no socket now"

    @property
    def other(self) -> "Daemon":
        return PUBLISHER if self is HUB else HUB


HUB: Final = Daemon("hub", "hub", "wakehub serve")
PUBLISHER: Final = Daemon("publisher", "publish", "wakehub publish")


def to_start(where: Paths, daemon: Daemon, environ: Mapping[str, str] = os.environ) -> str:
    """The next step when nobody serves the socket of `daemon`."""
    if (holder := daemon.holder(where)) is not None:
        if is_stopped(holder.pid):
            return f"kill -CONT {holder.pid} (the {daemon.name} is stopped)"
        again = to_restart(where, daemon, hangs=True)
        return (
            f"wait: the {daemon.name}, pid {holder.pid}, lives and binds its socket again within "
            f"{SOCKET_CHECK_SECONDS} s, if this is the path it was given; if it does not: {again}"
        )
    socket = daemon.socket(where)
    if os.path.lexists(socket) and not stat.S_ISSOCK(os.lstat(socket).st_mode):
        return f"{ownership.to_move_away(socket)} (it is never replaced)"
    if (up := live_holder(where.lock("up"))) is not None:
        if is_stopped(up.pid):
            return f"kill -CONT {up.pid} (wakehub up, which starts the {daemon.name} again, is stopped)"
        return (
            f"wait: wakehub up, pid {up.pid}, starts the {daemon.name} again within {RESTART_CAP_MS // 1000} s; "
            f"why it ended: {log_of(where, daemon)}"
        )
    if mend := _obstacle(where, daemon):
        return f"{mend}; then: {_command(where, daemon, environ)}"
    return _command(where, daemon, environ)


def _command(where: Paths, daemon: Daemon, environ: Mapping[str, str]) -> str:
    """The command that starts `daemon`, and the other one with it where nothing lives."""
    units = {is_publishers(file.name): file for file in installed_units(where, environ)}
    if units:
        unit = units.get(daemon is PUBLISHER)
        return start_of(unit) if unit is not None else daemon.command
    if daemon.other.holder(where) is not None:
        return f"{daemon.command} (the {daemon.other.name} runs alone)"
    if not os.path.lexists(where.config_file):
        return to_set_up(where, "wakehub up", environ)
    return "wakehub up"


def to_set_up(where: Paths, command: str = "wakehub init", environ: Mapping[str, str] = os.environ) -> str:
    """What to do where no instance is: `command` makes one; but a wrong WAKEHUB_HOME would found a second world."""
    if not environ.get("WAKEHUB_HOME") or os.path.lexists(where.config_file):
        return command
    home = shlex.quote(visible(str(where.config_file.parent)))
    return f"correct WAKEHUB_HOME: nothing was ever set up in {home}; or set it up there: {command}"


def _obstacle(where: Paths, daemon: Daemon) -> str:
    """What would end `daemon` at its start again, or the publisher that `wakehub up` starts beside it, and how that is
    mended; empty: nothing."""
    if filesystem.is_unwritable(where.state):
        return filesystem.to_make_room(where.state)
    try:
        for directory in (where.run, where.state, where.keys, where.agents):
            if os.path.lexists(directory):
                files.check_directory(directory)
    except WakehubError as error:
        return f"{error.what}: {error.remedy}"
    if not os.path.lexists(where.config_file) or (daemon is HUB and PUBLISHER.holder(where) is not None):
        return ""
    try:
        load_owner(where)
    except (WakehubError, OSError) as error:
        return f"{error.what}: {error.remedy}" if isinstance(error, WakehubError) else f"{error}: {SANDBOX}"
    with contextlib.suppress(WakehubError):
        try:
            with SqliteInbox.open(where.record, create=False):
                pass
        except RecordDamaged:
            return to_repair(where)
    return ""


def is_publishers(unit: str) -> bool:
    """Whether a unit or job of this name runs the publisher."""
    return "publish" in unit


def to_answer(where: Paths, daemon: Daemon) -> tuple[str, str]:
    """Why `daemon` keeps silent, as far as it can be seen, and the next step."""
    holder = daemon.holder(where)
    if holder is None:
        return "it did not answer in time; which process it is cannot be told", f"see who serves it; {SANDBOX}"
    if is_stopped(holder.pid):
        return f"the {daemon.name}, pid {holder.pid}, is stopped and did not answer in time", f"kill -CONT {holder.pid}"
    again = to_restart(where, daemon, hangs=True)
    return (
        f"the {daemon.name}, pid {holder.pid}, did not answer in time; it is overloaded or hangs",
        f"if it stays so: {again}",
    )


def to_restart(where: Paths, daemon: Daemon, *, hangs: bool = False) -> str:
    """How `daemon`, which lives, is started anew; one that `hangs` heeds no SIGTERM."""
    holder = daemon.holder(where)
    if holder is None:
        return to_start(where, daemon)
    by = supervisor_of(holder.pid, where)
    if by is not None:
        return by.restart(holder.pid, hangs=hangs)
    return f"kill {'-KILL ' if hangs else ''}{holder.pid}, then: {daemon.command}"


def to_sign(config: Config, found: Unusable | None = None) -> str:
    """What to do about an allowlist that cannot be used, or lacks a name: only the publisher writes it, whatever lies
    there."""
    if found is not None and found.label == "unreadable":
        return SANDBOX
    if config.allowlist.is_dir():
        return ownership.to_move_away(config.allowlist)
    publisher = PUBLISHER.holder(config.paths)
    if publisher is None or is_stopped(publisher.pid):
        return to_start(config.paths, PUBLISHER)
    if filesystem.is_unwritable(config.allowlist.parent):
        return filesystem.to_make_room(config.allowlist.parent)
    return (
        f"wait: the publisher, pid {publisher.pid}, signs it anew within {ALLOWLIST_RESIGN_SECONDS} s; "
        f"why, if it does not: {log_of(config.paths, PUBLISHER)}"
    )


def to_repair(where: Paths) -> str:
    """What to do about a damaged record, which nobody may use meanwhile: a publisher or `up` that does is ended."""
    stop = to_stop(where)
    return f"{f'{stop}; then: ' if stop else ''}wakehub doctor --repair (the damaged file is kept)"


def to_stop(where: Paths) -> str:
    """The command that ends whatever has the record open for good; empty when nothing does but, perhaps, listeners."""
    up, publisher = live_holder(where.lock("up")), PUBLISHER.holder(where)
    if up is not None:
        return f"kill {up.pid} (wakehub up)"
    if publisher is None:
        return ""
    by = supervisor_of(publisher.pid, where)
    return f"{by.stop() if by else f'kill {publisher.pid}'} (the publisher)"


def log_of(where: Paths, daemon: Daemon) -> str:
    """Where what `daemon` says is to be read."""
    if background.running(where) is not None:
        return f"tail {shlex.quote(str(where.log))}"
    holder = daemon.holder(where)
    by = supervisor_of(holder.pid, where) if holder else None
    if by is not None and by.kind.startswith("systemd"):
        return f"journalctl {'--user ' if by.kind == 'systemd_user' else ''}-u {by.name}"
    return "it says so in its terminal or log file"
