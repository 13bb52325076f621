"""Hub and publisher in the background, started by the first `listen` or `send` that finds nothing running.

A newcomer needs no third terminal (receive.md §6; formats.md, Detached start). Nothing is configured for it. What is
found decides, and whatever is in doubt means no: somebody else's daemons must not be doubled, a sandbox must not found
a world of its own, and where a service manager is in charge, starting is its business.

    no lock of hub, publisher or up has a live holder, and nobody serves their sockets (EPERM and EACCES: unknown)
    no unit of wakehub is installed for this instance
    this process is in the pid namespace in which the instance was made, or `up` last ran
    the owner key can be used, and the reduced environment leads to the very same instance

What is started is `wakehub up`, in a session of its own and nobody's child, with its output in ``state/up.log``; by
that `up` knows that it was started this way, and ends 15 min after the last listener left. Of several first commands
the flock on that file, which `up` keeps, lets one start it; the others wait for it.
"""

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from wakehub import config as configuration
from wakehub import files
from wakehub.client.supervisor import installed_units
from wakehub.config import Config
from wakehub.errors import WakehubError
from wakehub.identity.owner import load_owner
from wakehub.limits import (
    BACKGROUND_AGAIN_SECONDS,
    BACKGROUND_IDLE_SECONDS,
    BACKGROUND_PROBE_MS,
    BACKGROUND_START_SECONDS,
    MAX_LOG_BYTES,
    READY_POLL_MS,
    STOP_GRACE_MS,
)
from wakehub.locks import live_holder, read_holder
from wakehub.paths import Paths
from wakehub.processes import pid_namespace, start_detached, start_time
from wakehub.visible import visible

_LOCKS: Final = ("up", "hub", "publish")
_KEPT: Final = ("HOME", "PATH", "LANG")
_EMPTY_POKE: Final = b'{"v":1,"ids":[]}\n'
_STDOUT: Final = 1


def start(config: Config, tell: Callable[[str], None], environ: Mapping[str, str] = os.environ) -> bool:
    """Start `wakehub up` in the background if that is for us to do; True once hub and publisher answer.

    `tell` gets a line that says so, and how to stop it. Blocks until they answer, at most some 10 s, and raises
    nothing: without them messages are stored and found all the same.
    """
    if running(config.paths) is not None:
        return _comes_up(config, None, BACKGROUND_AGAIN_SECONDS)
    if not _may_start(config, environ):
        return False
    try:
        pid = _spawn(config, environ)
    except (OSError, ValueError, subprocess.SubprocessError, WakehubError) as error:
        tell(f"hub and publisher do not run and cannot be started in the background: {visible(str(error))}")
        return False
    if not _comes_up(config, pid, BACKGROUND_START_SECONDS):
        tell(f"`wakehub up` was started in the background and does not come up; see {_shown(config.paths.log)}")
        return False
    if (up := live_holder(config.paths.lock("up"))) is not None and up.pid == pid:
        tell(
            f"started `wakehub up` in the background: pid {pid}, log {_shown(config.paths.log)}; it ends "
            f"{BACKGROUND_IDLE_SECONDS // 60} min after the last listener left; to stop it now: kill {pid}"
        )
    return True


def stop(where: Paths) -> int | None:
    """End the `wakehub up` that `start` started for the instance at `where`; its pid, None when there is none.

    Returns when it has ended, or after the time that it may take to drain.
    """
    pid = running(where)
    if pid is None:
        return None
    with contextlib.suppress(ProcessLookupError):  # it ended since: what was asked for has happened
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_GRACE_MS / 1000
    while running(where) == pid and time.monotonic() < deadline:
        time.sleep(READY_POLL_MS / 1000)
    return pid


def running(where: Paths) -> int | None:
    """The pid of the `wakehub up` in the background of the instance at `where`, ready or not; None when none runs."""
    up = live_holder(where.lock("up"))
    if up is None or not where.log.exists():
        return None
    try:
        with files.appendable(where.log, wait=False):
            return None
    except (BlockingIOError, WakehubError) as error:
        return up.pid if isinstance(error, BlockingIOError) else None


def is_background(where: Paths) -> bool:
    """Whether this process is the `wakehub up` that `start` started for the instance at `where`: it writes there."""
    try:
        return os.path.samestat(os.fstat(_STDOUT), os.stat(where.log, follow_symlinks=False))
    except OSError:
        return False


# --- whether ---


def _may_start(config: Config, environ: Mapping[str, str]) -> bool:
    return (
        not any(live_holder(config.paths.lock(name)) for name in _LOCKS)
        and all(_is_served_by_nobody(path) for path in (config.paths.publish_socket, config.hub_socket))
        and _is_namespace_of_instance(config.paths)
        and not any(installed_units(config.paths, environ))
        and _may_sign(config.paths)
        and _leads_here(config, environ)
    )


def _is_served_by_nobody(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(BACKGROUND_PROBE_MS / 1000)
        try:
            sock.connect(os.fspath(path))
        except OSError as error:
            return _proves_absence(error)
    return False


def _proves_absence(error: OSError) -> bool:
    """Whether a connection failed because nobody is there; not when it is hidden from us, or its process is slow."""
    return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ECONNREFUSED)


def _is_namespace_of_instance(where: Paths) -> bool:
    """In a container's or sandbox's own pid namespace, leases of the world outside could not be judged."""
    own = pid_namespace()
    if not own:
        return sys.platform != "linux"
    holders = (read_holder(where.lock(name)) for name in ("init", "up"))
    return any(holder is not None and holder.namespace == own for holder in holders)


def _may_sign(where: Paths) -> bool:
    """Whether a publisher could do its work here."""
    try:
        load_owner(where)
    except (WakehubError, OSError):
        return False
    return True


def _leads_here(config: Config, environ: Mapping[str, str]) -> bool:
    try:
        there = configuration.load(_environment(config, environ))
    except (WakehubError, OSError):
        return False
    return there.paths._replace(state=config.paths.state) == config.paths


# --- how ---


def _environment(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """What the background process gets: WAKEHUB_HOME leads to ``config.toml``, which names the directories."""
    kept = {name: environ[name] for name in _KEPT if name in environ}
    return kept | {"WAKEHUB_HOME": str(config.paths.config_file.parent)}


def _spawn(config: Config, environ: Mapping[str, str]) -> int | None:
    """The pid of the `wakehub up` that was started; None when another process is just starting it."""
    where = ["--state-dir", str(config.paths.state), "--hub-id", config.hub_id, "--socket", str(config.hub_socket)]
    command = [sys.executable, "-P", "-m", "wakehub", "up", *where]
    try:
        with files.appendable(config.paths.log, wait=False) as log:
            if os.fstat(log).st_size > MAX_LOG_BYTES:
                os.ftruncate(log, 0)
            return start_detached(command, log, _environment(config, environ), BACKGROUND_START_SECONDS)
    except BlockingIOError:
        return None


def _comes_up(config: Config, pid: int | None, patience_s: float) -> bool:
    """Wait until hub and publisher answer; False when time is over, or when process `pid` ended and no `up` runs."""
    deadline = time.monotonic() + patience_s
    while not (_answers(config.hub_socket) and _answers(config.paths.publish_socket, _EMPTY_POKE)):
        has_ended = pid is not None and start_time(pid) is None and live_holder(config.paths.lock("up")) is None
        if has_ended or time.monotonic() >= deadline:
            return False
        time.sleep(READY_POLL_MS / 1000)
    return True


def _answers(path: Path, question: bytes = b"") -> bool:
    """Whether something at `path` answers: the hub's challenge unasked, the publisher's close when asked."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(BACKGROUND_PROBE_MS / 1000)
        try:
            sock.connect(os.fspath(path))
            sock.sendall(question)
            answer = sock.recv(1)
        except OSError:
            return False
    return not answer if question else bool(answer)


def _shown(path: Path) -> str:
    return visible(str(path))
