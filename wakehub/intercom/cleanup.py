"""What a hub that died left on a channel, taken away (intercom.md §6; faults F47, F50).

Only under the hub's own lock, so that no hub runs and none begins meanwhile; and a socket only when it refuses, since a
hub of another tool may not know the lock. The lock itself stays for ever. A mailbox goes only when everything in it was
read by all of its readers: mail that waits for somebody who is away is what a mailbox is for.
"""

import contextlib
import errno
import os
import socket
import stat
from dataclasses import dataclass
from typing import Final

from wakehub.errors import Held, Unsafe
from wakehub.intercom.channels import Channel
from wakehub.intercom.election import lead
from wakehub.intercom.spool import Inbox, sessions
from wakehub.visible import visible

_LEFT: Final = ("hub.sock", "hub.sock~", "peers.json")


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What became of a channel: the names of the files that went, and who still has how much unread."""

    is_live: bool
    removed: tuple[str, ...] = ()
    kept: tuple[tuple[str, int], ...] = ()


def clean(channel: Channel, *, stale: bool) -> Cleaned:
    """Remove what a dead hub left; with `stale` mailboxes, too, in which nothing is unread.

    Nothing is touched while a hub lives. Raises `Unsafe` (77) for what is none of the mesh's files.
    """
    try:
        lock = lead(channel)
    except Held:
        return Cleaned(is_live=True)
    with lock:
        if not _is_refused(channel):
            return Cleaned(is_live=True)
        before = set(os.listdir(channel.fd))
        for name in _LEFT:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=channel.fd)
        kept = _remove_mailboxes(channel) if stale else ()
        return Cleaned(False, tuple(sorted(before - set(os.listdir(channel.fd)))), kept)


def _remove_mailboxes(channel: Channel) -> tuple[tuple[str, int], ...]:
    kept = []
    for session in sessions(channel):
        try:
            unread = Inbox(channel, session, patience_ms=0).remove()
        except Held:  # somebody reads it this very moment
            unread = 1
        if unread:
            kept.append((session, unread))
    return tuple(kept)


def _is_refused(channel: Channel) -> bool:
    """Whether nobody answers at the channel's socket, for certain."""
    try:
        found = os.lstat(channel.socket)
    except FileNotFoundError:
        return True
    if not stat.S_ISSOCK(found.st_mode):
        raise Unsafe(
            f"{visible(str(channel.socket))} is not a socket", remedy="look who put it there, and move it away"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(channel.socket))
        except OSError as error:
            return error.errno == errno.ECONNREFUSED
    return False
