"""Who starts a daemon again when it dies (`wakehub up`, a systemd unit, a launchd job), and what is installed for it.

Told by what the kernel and the service manager say, not by what a process believes. A control group alone is not
enough: what is started by hand inside some unit belongs to its group too, but its parent is no service manager.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from wakehub import paths
from wakehub.errors import WakehubError
from wakehub.locks import live_holder
from wakehub.paths import Paths
from wakehub.processes import asked, parent

_MAX_UNIT_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Supervisor:
    """What starts a daemon again; `name` is the unit's or the job's, `pid` that of `wakehub up`."""

    kind: Literal["up", "systemd_user", "systemd", "launchd"]
    name: str = ""
    pid: int = 0

    def __str__(self) -> str:
        match self.kind:
            case "up":
                return f"wakehub up, pid {self.pid}"
            case "launchd":
                return f"launchd job {self.name}"
            case _:
                return f"systemd unit {self.name}"

    def restart(self, pid: int, *, hangs: bool = False) -> str:
        """The command that has the daemon with process `pid` started anew; one that `hangs` heeds no SIGTERM."""
        match self.kind:
            case "up":
                return f"kill {'-KILL ' if hangs else ''}{pid}"  # it is started again at once
            case "launchd":
                return f"launchctl kickstart -k gui/{os.getuid()}/{self.name}"
            case "systemd":
                return f"systemctl restart {self.name}"
            case _:
                return f"systemctl --user restart {self.name}"

    def stop(self) -> str:
        """The command that ends the daemon, and keeps it from being started again."""
        match self.kind:
            case "up":
                return f"kill {self.pid}"
            case "launchd":
                return f"launchctl bootout gui/{os.getuid()}/{self.name}"
            case "systemd":
                return f"systemctl stop {self.name}"
            case _:
                return f"systemctl --user stop {self.name}"


def supervisor_of(pid: int, where: Paths) -> Supervisor | None:
    """Who supervises process `pid` of the instance at `where`; None when nobody is known to."""
    up = live_holder(where.lock("up"))
    if up is not None and up.pid in (pid, parent(pid)):
        return Supervisor("up", pid=up.pid)
    if sys.platform == "darwin":
        job = launchd_job(pid, asked("/bin/launchctl", "list"))
        return Supervisor("launchd", job) if job else None
    return _systemd_unit(pid)


def _systemd_unit(pid: int) -> Supervisor | None:
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text()
        manager = Path(f"/proc/{parent(pid)}/comm").read_text().strip()
    except OSError:
        return None
    return unit_in(groups) if manager == "systemd" else None


def unit_in(groups: str) -> Supervisor | None:
    """The innermost service in the content of ``/proc/PID/cgroup``; a user's service manager is not one."""
    parts = [part for group in groups.split("\n") for part in group.split("/") if part.endswith(".service")]
    unit = next((part for part in reversed(parts) if not part.startswith("user@")), None)
    if unit is None:
        return None
    return Supervisor("systemd_user" if any(part.startswith("user@") for part in parts) else "systemd", unit)


def launchd_job(pid: int, listing: str) -> str | None:
    """The label of process `pid` in what ``launchctl list`` prints: PID, last status and label, parted by tabs."""
    for line in listing.splitlines():
        fields = line.split("\t")
        if len(fields) == 3 and fields[0] == str(pid):
            return fields[2]
    return None


# --- what is installed ---


def start_of(file: Path) -> str:
    """The command that starts what `file`, a unit or a job, describes."""
    if file.suffix == ".plist":
        return f"launchctl kickstart gui/{os.getuid()}/{file.stem}"
    user = "" if file.parent.name == "system" else "--user "
    return f"systemctl {user}start {file.name}"


def installed_units(where: Paths, environ: Mapping[str, str]) -> Iterator[Path]:
    """The files of systemd units and launchd jobs that run the instance at `where`.

    One that names no directory runs the default instance, and one that names the directories of `where` runs that.
    """
    is_default = _is_default(where, environ)
    for file in _units(environ):
        if is_default or _names(file, where, environ):
            yield file


def _units(environ: Mapping[str, str]) -> Iterator[Path]:
    home = Path(environ.get("HOME") or "/")
    systemd = [
        Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "systemd/user",
        Path(environ.get("XDG_DATA_HOME") or home / ".local/share") / "systemd/user",
        *(Path(place) / kind for place in ("/etc/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd")
          for kind in ("user", "system")),
    ]  # fmt: skip
    launchd = [home / "Library/LaunchAgents", Path("/Library/LaunchAgents"), Path("/Library/LaunchDaemons")]
    for places, pattern in ((systemd, "wakehub*.service"), (launchd, "*wakehub*.plist")):
        for place in places:
            yield from sorted(place.glob(pattern))


def _is_default(where: Paths, environ: Mapping[str, str]) -> bool:
    chosen = ("WAKEHUB_HOME", "CONFIGURATION_DIRECTORY")
    plain = {name: value for name, value in environ.items() if name not in chosen}
    try:
        return paths.config_file(plain) == where.config_file
    except WakehubError:
        return False


def _names(unit: Path, where: Paths, environ: Mapping[str, str]) -> bool:
    """Whether a unit, or a file that adds to it, names a directory of the instance."""
    home = environ.get("HOME", "")
    for file in (unit, *unit.with_name(f"{unit.name}.d").glob("*.conf")):
        try:
            with file.open("rb") as opened:
                text = os.fsdecode(opened.read(_MAX_UNIT_BYTES))
        except OSError:
            continue
        for short in ("%h", "$HOME"):
            text = text.replace(short, home)
        if any(str(directory) in text for directory in (where.config_file.parent, where.state)):
            return True
    return False
