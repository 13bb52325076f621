"""The process that wants to be a channel's hub: leads it, or ends because another one does (intercom.md §5)."""

import os
from pathlib import Path

from wakehub.errors import Exit, Held
from wakehub.intercom.channels import Channel
from wakehub.intercom.election import lead
from wakehub.limits import MESH_IDLE_SECONDS


def run(base: Path, name: str, *, idle_s: float = MESH_IDLE_SECONDS) -> int:
    """Be the hub of a channel until told to stop, or idle for `idle_s` seconds; the exit status, 0 also for a follower.

    Raises as `Channel.open` does, and `CannotCreate` (73) when the socket cannot be bound.
    """
    os.umask(0o077)
    with Channel.open(base, name) as channel:
        try:
            lock = lead(channel)
        except Held:
            return Exit.DONE  # of many that start at once, most end here, before anything else is loaded
        from wakehub.intercom.server import serve

        serve(channel, lock, idle_s)
    return Exit.DONE
