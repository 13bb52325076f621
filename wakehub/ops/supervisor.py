"""Who starts a daemon again when it dies: `wakehub up`, a systemd unit, a launchd job, or nobody.

Told by what the kernel and the service manager say, not by what a process believes. A control group alone is not
enough: what is started by hand inside some unit belongs to its group too, but its parent is no service manager.
"""

import sys
from pathlib import Path

from wakehub.locks import live_holder
from wakehub.paths import Paths
from wakehub.processes import asked, parent


def supervisor_of(pid: int, paths: Paths) -> str | None:
    """Who supervises process `pid` of the instance at `paths`, in words; None when nobody is known to."""
    up = live_holder(paths.lock("up"))
    if up is not None and up.pid in (pid, parent(pid)):
        return f"wakehub up, pid {up.pid}"
    if sys.platform == "darwin":
        job = launchd_job(pid, asked("/bin/launchctl", "list"))
        return f"launchd job {job}" if job else None
    unit = _systemd_unit(pid)
    return f"systemd unit {unit}" if unit else None


def _systemd_unit(pid: int) -> str | None:
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text()
        manager = Path(f"/proc/{parent(pid)}/comm").read_text().strip()
    except OSError:
        return None
    return unit_in(groups) if manager == "systemd" else None


def unit_in(groups: str) -> str | None:
    """The innermost service in the content of ``/proc/PID/cgroup``; a user's service manager is not one."""
    units = [part for group in groups.split("\n") for part in group.split("/") if part.endswith(".service")]
    return next((unit for unit in reversed(units) if not unit.startswith("user@")), None)


def launchd_job(pid: int, listing: str) -> str | None:
    """The label of process `pid` in what ``launchctl list`` prints: PID, last status and label, parted by tabs."""
    for line in listing.splitlines():
        fields = line.split("\t")
        if len(fields) == 3 and fields[0] == str(pid):
            return fields[2]
    return None
