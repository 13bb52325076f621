"""What a hub that died left on a channel, taken away (intercom.md §6; faults F47, F50).

Only under the hub's own lock, so that no hub runs and none begins meanwhile; and a socket only when it refuses, since a
hub of another tool may not know the lock. The lock itself stays for ever. A mailbox goes only when everything in it was
read by all of its readers: mail that waits for somebody who is away is what a mailbox is for. Who reads under a name
of its own, as a bridge does, and is away is named, for a person to decide.
"""

import errno
import os
import socket
import stat
from dataclasses import dataclass
from typing import Final

from wakehub.errors import BadData, Held, Unsafe
from wakehub.intercom.channels import Channel
from wakehub.intercom.election import lead
from wakehub.intercom.ndjson import is_session
from wakehub.intercom.spool import Inbox, sessions
from wakehub.visible import visible

_LEFT: Final = ("hub.sock", "hub.sock~", "peers.json")


@dataclass(frozen=True, slots=True)
class Reader:
    """A place of its own in an inbox; `is_attended` while a process is that reader."""

    session: str
    name: str
    unread: int
    is_attended: bool

    def __str__(self) -> str:
        return f"{self.session}@{self.name}"


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What became of a channel: the names of the files that went, and who still has how much unread."""

    is_live: bool
    removed: tuple[str, ...] = ()
    kept: tuple[tuple[str, int], ...] = ()


def readers(channel: Channel) -> list[Reader]:
    """Who has a place of its own in an inbox of the channel, sorted; raises `Held` (75) while one is locked."""
    found = []
    for session in sessions(channel):
        for inbox in Inbox(channel, session).others():
            found.append(Reader(session, inbox.reader, inbox.count_unread(), inbox.is_attended()))
    return found


def forget(channel: Channel, name: str) -> Reader:
    """Take a reader's place away, `name` being ``ID@READER``, with what it had not read.

    Raises `BadData` (65) for one that has none, `Held` (75) while a process is that reader.
    """
    session, _, reader = name.partition("@")
    if is_session(session) and is_session(reader):
        for inbox in Inbox(channel, session).others():
            if inbox.reader == reader:
                return Reader(session, reader, inbox.forget(), is_attended=False)
    raise BadData(
        f"{visible(name)} has no place in an inbox of channel {channel.name}",
        why="a reader is named as ID@READER, such as rowan@bridge",
        remedy="wakehub intercom cleanup shows those that there are",
    )


def clean(channel: Channel, *, stale: bool) -> Cleaned:
    """Remove what a dead hub left; with `stale` mailboxes, too, in which nothing is unread.

    Nothing is touched while a hub lives. Raises `Unsafe` (77) for what is none of the mesh's files, or may not go.
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
            channel.remove(name)
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
