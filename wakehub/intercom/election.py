"""Who is a channel's hub, and how one is started (intercom.md §5).

An exclusive flock on hub.lock decides, and the file is never deleted (F50). Only its holder binds or unlinks hub.sock.
A client that finds nobody there starts a hub; of many that do, one wins the lock and the others end.
"""

import fcntl
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

from wakehub import processes
from wakehub.errors import CannotCreate
from wakehub.intercom.channels import VARIABLE, Channel
from wakehub.limits import MAX_LOG_BYTES, MESH_START_SECONDS
from wakehub.locks import Lock
from wakehub.visible import visible

_LOCK: Final = "hub.lock"
_KEPT: Final = ("HOME", "PATH", "LANG", VARIABLE)


def lead(channel: Channel) -> Lock:
    """The channel's lock, ours until it is released; raises `Held` (75) while a hub lives, `Unsafe` (77)."""
    with channel.opened(_LOCK, os.O_RDWR | os.O_CREAT):  # judged, and 0600 also where another tool made it
        pass
    return Lock.acquire(channel.path / _LOCK, what=f"a hub of the channel {channel.name}")


def spawn(channel: Channel, environ: Mapping[str, str] = os.environ) -> bool:
    """Start a hub in the background; False when one that was started so still runs, or is starting.

    It keeps hub.log locked while it lives, so that of many clients one starts it. Nothing is waited for but the start
    of the process. Raises `CannotCreate` when there is no starting it.
    """
    command = [sys.executable, "-P", "-m", "wakehub.intercom", str(channel.base), channel.name]
    kept = {name: environ[name] for name in _KEPT if name in environ}
    with channel.opened(channel.log.name, os.O_RDWR | os.O_APPEND | os.O_CREAT) as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if os.fstat(log).st_size > MAX_LOG_BYTES:
            os.ftruncate(log, 0)
        try:
            processes.start_detached(command, log, kept, MESH_START_SECONDS)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise CannotCreate(
                f"no hub of the channel {channel.name} can be started",
                why=visible(str(error)),
                remedy="start one by hand: wakehub intercom daemon",
            ) from error
    return True
