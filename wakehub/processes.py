"""Which process this is, and whether another one is provably dead (formats.md, Leases).

A pid alone proves nothing: it may have been reused, or belong to another pid namespace. A process is named by pid,
start time, boot id and pid namespace together.
"""

import functools
import os
import stat
import sys
import time
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from wakehub.limits import STOP_GRACE_MS

TETHER: Final = "WAKEHUB_TETHER"
"""The environment variable in which a supervisor names the descriptor of the tether it handed down."""


class ProcessId(NamedTuple):
    """One process, told apart from every other one this machine will ever run.

    `started` is an opaque start time (clock ticks since boot on Linux), `boot` the boot id, `namespace` the inode of
    the pid namespace (0 where there is none). Empty means that it could not be told.
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
        """True only if it ran in this boot and pid namespace and its pid is gone or was given to another process.

        What cannot be told is not proven.
        """
        if not self.boot or self.boot != boot_id() or self.namespace != pid_namespace():
            return False
        if sys.platform == "linux" and not self.namespace:
            return False
        now = start_time(self.pid)
        return now is None or ("" not in (now, self.started) and now != self.started)


def start_time(pid: int) -> str | None:
    """The start time of `pid` as an opaque string: None when there is no such process, empty when it cannot be told."""
    if pid <= 0:
        return None
    if sys.platform == "linux":
        return _start_time_linux(pid)
    if _is_gone(pid):
        return None
    # In C and UTC, so that two processes with other settings read the same.
    state, _, started = asked("/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)).partition(" ")
    return None if state.startswith("Z") else started.strip()


def _start_time_linux(pid: int) -> str | None:
    try:
        line = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        # A /proc that is not there, or hides the processes of others (hidepid), proves nothing.
        return None if Path("/proc/self/stat").exists() and _is_gone(pid) else ""
    except OSError:
        return ""
    # The command name may hold spaces and parentheses; the fields go on behind the last one.
    state, *fields = line[line.rindex(b")") + 2 :].split()
    return None if state in (b"Z", b"X") else fields[18].decode()


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass
    return False


@functools.cache
def boot_id() -> str:
    """An opaque id of this boot of the machine, empty when it cannot be told."""
    if sys.platform == "linux":
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return ""
    # Not kern.boottime: that moves when the clock is set.
    return asked("/usr/sbin/sysctl", "-n", "kern.bootsessionuuid")


def parent(pid: int) -> int | None:
    """The pid of the parent of process `pid`; None when it cannot be told."""
    if sys.platform != "linux":
        answer = asked("/bin/ps", "-o", "ppid=", "-p", str(pid))
        return int(answer) if answer.isdecimal() else None
    try:
        line = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return int(line[line.rindex(b")") + 2 :].split()[1])


def is_stopped(pid: int) -> bool:
    """Whether process `pid` was stopped by a signal, and does nothing until SIGCONT; no where it cannot be told."""
    if sys.platform != "linux":
        return asked("/bin/ps", "-o", "stat=", "-p", str(pid)).startswith("T")
    try:
        line = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return line[line.rindex(b")") + 2 :].split()[0] in (b"T", b"t")


def arguments(pid: int) -> list[str]:
    """The command line of process `pid`; empty when it cannot be told. Where ps tells it, it is split at blanks."""
    if sys.platform != "linux":
        return asked("/bin/ps", "-o", "command=", "-p", str(pid)).split()
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(word) for word in line.split(b"\0")[:-1]]


def open_files(pid: int) -> tuple[int, int] | None:
    """How many descriptors process `pid` has open, and its soft limit; None where the platform does not tell."""
    try:
        limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
        used = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None
    soft = next((line.split()[3] for line in limits if line.startswith("Max open files")), "unlimited")
    return used, int(soft) if soft.isdecimal() else sys.maxsize


def asked(*command: str) -> str:
    """What a program of the system prints, in C and UTC; empty when there is no such program."""
    import subprocess  # only where there is no /proc

    environment = {"LC_ALL": "C", "TZ": "UTC"}
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    except OSError:
        return ""
    return answer.stdout.strip()


def start_detached(command: Sequence[str], log: int, environment: Mapping[str, str], patience_s: float) -> int:
    """Start `command` in a session of its own and nobody's child; its pid.

    It gets /dev/null as its input, the descriptor `log` as its outputs (and whatever lock that holds), ``/`` as its
    directory and 077 as its umask. Raises `OSError` or `subprocess.SubprocessError`.
    """
    import subprocess  # only who starts another process

    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _FORK, str(log), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=(log,),
        cwd="/",
        env=dict(environment),
        start_new_session=True,
        timeout=patience_s,
        check=True,
    )
    return int(done.stdout)


# The second fork. A session's leader could get a terminal by opening one; its child cannot, and has no parent of ours.
_FORK: Final = """
import os, sys
log = int(sys.argv[1])
pid = os.fork()
if pid:
    os.write(1, b"%d" % pid)
    os._exit(0)
os.umask(0o077)
os.dup2(log, 1)
os.dup2(log, 2)
os.close(log)
os.execv(sys.argv[2], sys.argv[2:])
"""


def pid_namespace() -> int:
    """The inode of this process's pid namespace, 0 where the platform has none."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def hold_tether(environ: MutableMapping[str, str]) -> None:
    """Bind this process's life to that of the supervisor that started it, if one did (see `ops.supervise`).

    The tether is the reading end of a pipe whose writing end only the supervisor holds and never writes to. Whatever
    ends the supervisor, kill -9 included, the kernel closes it; this process then gets a SIGTERM, and 7 s later, if it
    has not drained by then, it ends. Unlike Linux's PR_SET_PDEATHSIG this works wherever there are pipes, does not
    depend on which thread of the supervisor started us, and leaves no window before it is armed.
    """
    name = environ.pop(TETHER, "")
    if not name.isdecimal():
        return
    tether = int(name)
    try:
        if not stat.S_ISFIFO(os.fstat(tether).st_mode):
            return
    except OSError:
        return  # the variable came through without the descriptor: nobody holds the other end
    import threading  # here and not above: a hook wants the rest of this module (fault F86)

    os.set_inheritable(tether, False)
    threading.Thread(target=_end_with, args=(tether,), name="tether", daemon=True).start()


def _end_with(tether: int) -> None:
    import signal  # as above

    while os.read(tether, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_GRACE_MS / 1000)
    os._exit(1)


def give_back_memory() -> None:
    """Return what imports and start-up left free in the heap to the system, where the C library can (glibc)."""
    import ctypes  # here, since only a daemon calls this
    import gc

    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
