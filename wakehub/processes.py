"""Which process this is, and whether another one is provably dead (formats.md, Leases).

A pid alone proves nothing: it may have been reused, or belong to another pid namespace. A process is named by pid,
start time, boot id and pid namespace together.
"""

import functools
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process, told apart from every other one this machine will ever run.

    `started` is an opaque start time (clock ticks since boot on Linux), `boot` the boot id, `namespace` the inode of
    the pid namespace (0 where there is none).
    """

    pid: int
    started: str
    boot: str
    namespace: int

    @classmethod
    def own(cls) -> "ProcessId":
        pid = os.getpid()
        return cls(pid, start_time(pid) or "", boot_id(), pid_namespace())

    def is_provably_dead(self) -> bool:
        """True only if it ran in this boot and pid namespace and its pid is gone or was given to another process."""
        if self.boot != boot_id() or self.namespace != pid_namespace():
            return False
        now = start_time(self.pid)
        return now is None or (bool(self.started) and now != self.started)


def start_time(pid: int) -> str | None:
    """The start time of `pid` as an opaque string, or None when there is no such process."""
    if sys.platform == "linux":
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return None
        # The command name may hold spaces and parentheses; the fields go on behind the last one.
        state, *fields = stat[stat.rindex(b")") + 2 :].split()
        return None if state in (b"Z", b"X") else fields[18].decode()
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    answer = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or None


@functools.cache
def boot_id() -> str:
    """An opaque id of this boot of the machine."""
    if sys.platform == "linux":
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    answer = subprocess.run(["sysctl", "-n", "kern.boottime"], capture_output=True, text=True, check=False)
    return answer.stdout.strip()


def pid_namespace() -> int:
    """The inode of this process's pid namespace, 0 where the platform has none."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0
