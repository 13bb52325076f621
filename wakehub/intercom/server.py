"""The hub of one channel as a process, from winning the channel to leaving it (intercom.md §5).

    nursery of the process
    ├─ signals: SIGTERM, SIGHUP, SIGINT stop it within 2 s
    ├─ nursery of the connections and of what they store
    └─ intake, cancelled first: accept, heartbeats, peers.json, and once a second a look at the path and at idleness

It moves bytes and decides nothing; `mesh` does.
"""

import os
import signal
import socket
from typing import Any

import trio

from wakehub import log
from wakehub.errors import Held, WakehubError
from wakehub.identity.peercred import PeerCredentials, SameUidAuthorizer
from wakehub.intercom.channels import Channel
from wakehub.intercom.connection import Connection
from wakehub.intercom.leadership import Leadership
from wakehub.intercom.mesh import Link, Mesh, Post
from wakehub.intercom.spooler import Errand, Spooler
from wakehub.limits import (
    MAX_MESH_CONNECTIONS,
    MESH_HEARTBEAT_SECONDS,
    MESH_LOCK_MS,
    MESH_PATH_CHECK_SECONDS,
)
from wakehub.locks import Lock
from wakehub.server.admission import accept_forever, gate
from wakehub.server.listener import Place, connection_ceiling

_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class Server:
    """Serves the mesh of the channel that is led; ends after `idle_s` seconds without a connection."""

    def __init__(self, leadership: Leadership, logger: Any, ceiling: int, idle_s: float) -> None:
        self.mesh = Mesh(leadership.channel.name)
        self._leadership = leadership
        self._log = logger
        self._ceiling = ceiling
        self._idle_s = idle_s
        self._authorizer = SameUidAuthorizer()
        self._connections: dict[Link, Connection] = {}
        self._intake = trio.CancelScope()
        self._peers_changed = trio.Event()
        self._repeats = log.Repeats()
        self._busy_at = 0.0

    async def run(self) -> None:
        """Serve until a signal, idleness or another leader ends it."""
        self._busy_at = trio.current_time()
        async with trio.open_nursery() as process:
            process.start_soon(self._watch_signals)
            async with trio.open_nursery() as self._nursery:
                self._spooler = Spooler(self._nursery, lambda: self._leadership.channel, self._stored, self._log)
                with self._intake:
                    async with trio.open_nursery() as intake:
                        intake.start_soon(self._accept)
                        intake.start_soon(self._beat)
                        intake.start_soon(self._write_peers)
                        intake.start_soon(self._look_around)
                        self._peers_changed.set()
                        self._log.info("hub ready", socket=str(self._leadership.channel.socket))
                self._leadership.withdraw()
                for connection in self._connections.values():
                    connection.stop()
                self._nursery.cancel_scope.deadline = trio.current_time() + MESH_LOCK_MS / 1000
            process.cancel_scope.cancel()
        await self._put_peers()
        self._log.info("hub stopped")

    async def _watch_signals(self) -> None:
        with trio.open_signal_receiver(*_SIGNALS) as signals:
            async for number in signals:
                self._log.info("hub stopping", signal=signal.Signals(number).name)
                self._intake.cancel()

    # --- connections ---

    async def _accept(self) -> None:
        await accept_forever(
            self._leadership.listener, self._authorizer, self._take, self._refused_credentials, self._log
        )

    def _take(self, sock: socket.socket, peer: PeerCredentials) -> None:
        if len(self._connections) >= self._ceiling:
            self._tell("refused at the ceiling", f"{self._ceiling} connections")
            sock.close()
            return
        link = self.mesh.open()
        connection = self._connections[link] = Connection(self, sock, link)
        self._nursery.start_soon(self._serve, connection, link, peer)

    async def _serve(self, connection: Connection, link: Link, peer: PeerCredentials) -> None:
        try:
            await connection.run()
        except Exception:  # a bug costs one connection, not the hub
            self._log.exception("connection failed", pid=peer.pid)
        finally:
            del self._connections[link]
            self._busy_at = trio.current_time()

    def _refused_credentials(self, peer: PeerCredentials | None) -> None:
        self._tell("refused a peer", f"uid {peer.uid if peer else 'unknown'}")

    def store(self, post: Post) -> Errand:
        """Have a chat stored for its recipients."""
        return self._spooler.store(post)

    async def hear_out(self, holder: Link) -> bool:
        """Whether the peer of `holder` has hung up: its id is free then. What it said is stored first, or for 1 s."""
        connection = self._connections.get(holder)
        if connection is None or not connection.has_hung_up():
            return False
        with trio.move_on_after(MESH_LOCK_MS / 1000):
            await connection.ended.wait()
        self.mesh.release(holder)
        return True

    def _stored(self, post: Post, session: str) -> None:
        self.mesh.deliver(post, session)
        self.flush()

    def flush(self) -> None:
        """Write what the mesh queued, and note who is connected."""
        mesh = self.mesh
        while mesh.dirty:
            dirty, mesh.dirty = mesh.dirty, []
            for link in dirty:
                if (connection := self._connections.get(link)) is not None:
                    connection.flush()
        if mesh.has_changed:
            mesh.has_changed = False
            self._peers_changed.set()

    # --- from time to time ---

    async def _beat(self) -> None:
        while True:
            await trio.sleep(MESH_HEARTBEAT_SECONDS)
            for session in self.mesh.beat():
                self._log.warning("disconnected: it has stopped reading", session=session)
            self.flush()

    async def _write_peers(self) -> None:
        while True:
            await self._peers_changed.wait()
            self._peers_changed = trio.Event()
            await self._put_peers()

    async def _put_peers(self) -> None:
        channel, sessions = self._leadership.channel, self.mesh.sessions()
        try:
            await trio.to_thread.run_sync(channel.write_peers, os.getpid(), sessions)
        except WakehubError as error:
            self._tell("peers.json cannot be written", str(error))

    async def _look_around(self) -> None:
        while True:
            await trio.sleep(MESH_PATH_CHECK_SECONDS)
            try:
                found = self._leadership.mend()
            except Held as error:
                self._log.warning("another hub leads by now", why=str(error))
                self._intake.cancel()
                return
            except (OSError, WakehubError) as error:
                self._tell("the socket cannot be bound anew", str(error))
                continue
            if found is not Place.OURS:
                self._log.warning("socket bound anew", found=found.value)
                self._peers_changed.set()
            if self._connections or not self._spooler.is_idle:
                self._busy_at = trio.current_time()
            elif trio.current_time() - self._busy_at >= self._idle_s and self._leaves():
                self._log.info("hub ends: nobody was there", seconds=self._idle_s)
                self._intake.cancel()

    def _leaves(self) -> bool:
        """Take the socket's name away, still under the lock, and look who came before that; False if somebody did."""
        self._leadership.hide()
        try:
            sock, _ = self._leadership.listener.sock.accept()
        except OSError:
            return True
        gate(sock, self._authorizer, self._take, self._refused_credentials)
        return False  # the next look binds it anew

    def _tell(self, event: str, why: str) -> None:
        times = self._repeats.due((event, why), trio.current_time())
        if times is not None:
            self._log.warning(event, why=why, times=times)


def serve(channel: Channel, lock: Lock, idle_s: float) -> None:
    """Be the hub of `channel`, whose `lock` is ours and is released at the end; ends when told to, or when idle.

    Raises `Unsafe` (77), `Misconfigured` (78) or `CannotCreate` (73) when it cannot begin.
    """
    logger = log.configure("intercom").bind(channel=channel.name)
    with Leadership(channel, lock) as leadership:
        ceiling = connection_ceiling(MAX_MESH_CONNECTIONS)
        trio.run(Server(leadership, logger, ceiling, idle_s).run)
