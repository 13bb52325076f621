"""One connection's bytes at a hub of the mesh: lines in to its decisions, out of the link's queue (intercom.md §2, §5).

The reader hands over every whole line it has, lets the chats among them be stored together, answers them in order, and
reads on only then: a sender is slowed down by its own chats, and holds at most one read's worth of them here. What the
kernel does not take at once is left to the connection's own writer, which sleeps otherwise.
"""

import contextlib
import select
import socket
from typing import Protocol

import trio

from wakehub.intercom.mesh import Claim, Link, Mesh, Post
from wakehub.intercom.ndjson import LineReader, Refusal
from wakehub.intercom.spooler import Errand
from wakehub.limits import MAX_MESH_QUEUED_LINES, MESH_FLUSH_MS, MESH_HEARTBEAT_SECONDS

_RECEIVE = 64 * 1024
_UNREAD_SECONDS = 2 * MESH_HEARTBEAT_SECONDS
_HUNG_UP = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)


class Host(Protocol):
    """What a connection asks of the process it lives in."""

    mesh: Mesh

    def flush(self) -> None:
        """Write what the mesh put into any queue."""

    def store(self, post: Post) -> Errand:
        """Have a chat stored."""

    async def hear_out(self, holder: Link) -> bool:
        """Whether the peer of `holder` has hung up; its id is free then."""


class Connection:
    """Owns `sock` (non-blocking) until its end."""

    def __init__(self, host: Host, sock: socket.socket, link: Link) -> None:
        self._host = host
        self._sock = sock
        self._link = link
        self.ended = trio.Event()
        self._reader = LineReader()
        self._is_blocked = False
        self._is_broken = False
        self._is_stopping = False
        self._backlog = trio.lowlevel.ParkingLot()
        self._room = trio.lowlevel.ParkingLot()
        self._reading = trio.CancelScope()
        self._waiting = trio.CancelScope()

    async def run(self) -> None:
        """Serve the connection to its end; returns when the socket is closed and its id is free."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write_backlog)
                with self._reading:
                    while await self._take_lines() and await self._receive():
                        pass
                nursery.cancel_scope.cancel()
        finally:
            try:
                await self._finish()
            finally:
                trio.lowlevel.notify_closing(self._sock)
                self._sock.close()
                self._host.mesh.close(self._link)
                self._host.flush()
                self.ended.set()

    def has_hung_up(self) -> bool:
        """Whether the peer will say nothing more, however much of what it said is still to be read."""
        poll = select.poll()
        poll.register(self._sock, _HUNG_UP)
        return bool(poll.poll(0))

    def stop(self) -> None:
        """Take what has arrived, and end."""
        self._is_stopping = True
        self._waiting.cancel()

    def flush(self) -> None:
        """Write what the queue holds, as far as the kernel takes it now; a link that was closed then ends."""
        if not self._is_blocked:
            self._write()
        if not self._link.is_open:
            self._reading.cancel()

    def _write(self) -> None:
        queue = self._link.queue
        while (head := queue.head()) is not None and not self._is_broken:
            try:
                count = self._sock.send(head)
            except BlockingIOError:
                self._is_blocked = True
                self._backlog.unpark()
                return
            except OSError:
                self._is_broken = True
                if not self.has_hung_up():  # what it said before it did is heard to the end
                    self._reading.cancel()
                break
            self._host.mesh.sent(self._link, count)
        if self._is_broken:
            queue.clear()
        self._room.unpark_all()

    async def _write_backlog(self) -> None:
        while True:
            while not self._is_blocked:
                await self._backlog.park()
            await trio.lowlevel.wait_writable(self._sock)
            self._is_blocked = False
            self.flush()

    async def _take_lines(self) -> bool:
        """Hand over every whole line there is; False when the connection is to end."""
        mesh, link = self._host.mesh, self._link
        errands: list[Errand] = []
        while link.is_open:
            try:
                line = self._reader.next_line()
            except Refusal as refusal:
                mesh.refuse(link, refusal)
                break
            if line is None:
                break
            found = mesh.receive(link, line)
            while isinstance(found, Claim) and await self._host.hear_out(found.holder):
                found = mesh.receive(link, line)
            if isinstance(found, Claim):
                mesh.contest(link, found)
            elif found is not None:
                errands.append(self._host.store(found))
            self._host.flush()
            await self._have_room()
        for errand in errands:
            await errand.done.wait()
            mesh.settle(link, errand.post)
            self._host.flush()
            await self._have_room()
        self._host.flush()
        return link.is_open

    async def _have_room(self) -> None:
        """Until its answers are read: who asks more than it reads waits for itself, and who reads nothing is let go."""
        link = self._link
        with trio.move_on_after(_UNREAD_SECONDS) as patience:
            while link.is_open and len(link.queue) > MAX_MESH_QUEUED_LINES // 2 and not self._is_broken:
                await self._room.park()
        if patience.cancelled_caught:
            self._reading.cancel()

    async def _receive(self) -> bool:
        """Wait for bytes and feed them to the reader; False when the stream has ended."""
        if not self._is_stopping:
            with trio.CancelScope() as self._waiting:
                await trio.lowlevel.wait_readable(self._sock)
        try:
            data = self._sock.recv(_RECEIVE)
        except BlockingIOError:
            return not self._is_stopping
        except OSError:
            return False
        self._reader.feed(data)
        return bool(data)

    async def _finish(self) -> None:
        """Let the last lines leave, and the peer end first: closing on what it still sends would take them away."""
        with trio.CancelScope(shield=True) as scope, contextlib.suppress(OSError):
            scope.deadline = trio.current_time() + MESH_FLUSH_MS / 1000
            while len(self._link.queue) and not self._is_broken:
                self._is_blocked = False
                self._write()
                if self._is_blocked:
                    await trio.lowlevel.wait_writable(self._sock)
            if self._link.is_open or self._is_broken:
                return
            self._sock.shutdown(socket.SHUT_WR)
            while True:
                await trio.lowlevel.wait_readable(self._sock)
                with contextlib.suppress(BlockingIOError):
                    if not self._sock.recv(_RECEIVE):
                        return
