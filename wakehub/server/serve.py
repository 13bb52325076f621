"""The hub's process from start to drain (awh1.md §5.1, §5.9, §5.10, §6).

    nursery of the process
    ├─ signals: the first drains, the second ends at once
    ├─ accept loop, stats accept loop       cancelled first, at the drain
    ├─ handshakes that take too long; once a second: revalidate, status; every 15 s: is the path still our socket?
    ├─ watchdog
    └─ nursery of the connections: one task each, with its own nursery

`Server` owns tasks and sockets and decides nothing; every decision is the hub's.
"""

import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import trio

from wakehub import __version__, files, log
from wakehub.config import Config
from wakehub.errors import ErrorCode, Exit, Unsafe, WakehubError
from wakehub.hub.delivery import Entry
from wakehub.hub.hub import Hub
from wakehub.hub.session import Session
from wakehub.identity.allowlist import AllowlistFile
from wakehub.identity.keys import load_public
from wakehub.identity.peercred import Authorizer, PeerCredentials, SameUidAuthorizer
from wakehub.identity.verifier import Claim, DelegationVerifier, DenyAllVerifier, HelloVerifier
from wakehub.limits import (
    ACCEPT_PAUSE_MS,
    DRAIN_MS,
    MAX_STATS_READERS,
    NONCE_BYTES,
    REVALIDATE_SECONDS,
    SOCKET_CHECK_SECONDS,
    STATS_DEADLINE_MS,
    TEARDOWN_FLUSH_MS,
)
from wakehub.processes import give_back_memory
from wakehub.server.admission import accept_forever, say_and_close, turn_away
from wakehub.server.connection import Connection
from wakehub.server.listener import Listener, connection_ceiling
from wakehub.server.notify import Notifier
from wakehub.server.pump import Pump
from wakehub.server.sockets import Sockets
from wakehub.server.stats import render
from wakehub.visible import visible
from wakehub.wire.frames import Frame, Kind, encode
from wakehub.wire.payloads import Error

Clock = Callable[[], tuple[int, int]]

_CHANGES = frozenset({"agent connected", "agent disconnected"})
"""What is told each time; everything else that the hub notes can repeat without end."""


def read_clock() -> tuple[int, int]:
    """Monotonic µs and wall clock ms."""
    return time.monotonic_ns() // 1000, time.time_ns() // 1_000_000


class Server:
    """Serves `hub` on `sockets`; `ceiling` is how many connections may be held at once."""

    def __init__(
        self,
        hub: Hub,
        sockets: Sockets,
        ceiling: int,
        *,
        authorizer: Authorizer,
        notifier: Notifier,
        logger: Any,
        find_verifier: Callable[[], HelloVerifier | None] = lambda: None,
        clock: Clock = read_clock,
    ) -> None:
        self.hub = hub
        self.log = logger
        self.clock = clock
        self._sockets = sockets
        self._ceiling = ceiling
        self._authorizer = authorizer
        self._notifier = notifier
        self._find_verifier = find_verifier
        self._connections: dict[Session, Connection] = {}
        self._strangers: dict[Session, float] = {}  # until when (trio clock) each may take to say hello, the next first
        self._stranger_came = trio.lowlevel.ParkingLot()
        self.pump = Pump(clock)
        self._stats_readers = 0
        self._fanouts = 0
        self._repeats = log.Repeats()
        self._status = ""
        self._drain_deadline: float | None = None
        self._fatal: WakehubError | None = None
        self._everything = trio.CancelScope()
        self._intake = trio.CancelScope()

    # --- life -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until a signal has drained the hub; raises `WakehubError` when it cannot go on."""
        with self._everything:
            async with trio.open_nursery() as process:
                process.start_soon(self._watch_signals)
                async with trio.open_nursery() as self._nursery:
                    with self._intake:
                        async with trio.open_nursery() as intake:
                            intake.start_soon(self._accept, self._sockets.hub, self._take)
                            intake.start_soon(self._accept, self._sockets.stats, self._take_stats_reader)
                            intake.start_soon(self._end_slow_handshakes)
                            intake.start_soon(self._every_second)
                            intake.start_soon(self._watch_path)
                            intake.start_soon(self._notifier.feed_watchdog)
                            await self._announce()
                    self._begin_drain()
                process.cancel_scope.cancel()
        if self._fatal is not None:
            raise self._fatal
        self.log.info("hub stopped")

    async def _announce(self) -> None:
        """Say that the hub is ready, once its socket has answered (§6)."""
        while True:
            if await self._answers():
                break
            await trio.sleep(ACCEPT_PAUSE_MS / 1000)
        self._notifier.send("READY=1")
        self.log.info(
            "hub ready",
            socket=str(self._sockets.hub.path),
            ceiling=self._ceiling,
            verifier=type(self.hub.verifier).__name__,
            version=__version__,
        )

    async def _answers(self) -> bool:
        try:
            async with await trio.open_unix_socket(os.fspath(self._sockets.hub.path)) as stream:
                await stream.send_eof()
                answer = b"".join([part async for part in stream])  # to its end: the slot is free again
                return bool(answer)
        except (OSError, trio.BrokenResourceError):
            return False  # everybody comes back at once after a restart, and the backlog was full

    async def _watch_signals(self) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                if self._drain_deadline is not None:
                    self.log.warning("hub ends at once", signal=signal.Signals(number).name)
                    self._fatal = WakehubError(
                        "the hub was told twice to stop",
                        why="its queues were not all flushed",
                        remedy="nothing is lost: the record has every message",
                    )
                    self._everything.cancel()
                    for connection in self.connections:
                        connection.give_up()
                    return
                self.log.info("hub stopping", signal=signal.Signals(number).name)
                self._drain_deadline = trio.current_time() + DRAIN_MS / 1000
                self._intake.cancel()

    def _begin_drain(self) -> None:
        self._notifier.send("STOPPING=1")
        self._sockets.withdraw()
        for connection in self._connections.values():
            connection.stop()

    def _fail(self, error: WakehubError) -> None:
        self.log.error("hub cannot go on", error=str(error))
        self._fatal = error
        self._everything.cancel()

    @property
    def connections(self) -> tuple[Connection, ...]:
        """Every connection that holds a slot now."""
        return tuple(self._connections.values())

    def flush_deadline(self) -> float:
        """Until when (trio clock) a closing connection may flush its queue (§5.10)."""
        if self._drain_deadline is not None:
            return self._drain_deadline
        return trio.current_time() + TEARDOWN_FLUSH_MS / 1000

    # --- connections ------------------------------------------------------------------------------------------

    async def _accept(self, listener: Listener, take: Callable[[socket.socket, PeerCredentials], None]) -> None:
        log = self.log.bind(socket=str(listener.path))
        await accept_forever(listener, self._authorizer, take, self._refused_credentials, log)

    def _take(self, sock: socket.socket, peer: PeerCredentials) -> None:
        if len(self._connections) >= self._ceiling:
            self._refuse_at_ceiling(sock)
            return
        session = self.hub.open(os.urandom(NONCE_BYTES), self.clock()[0])
        connection = Connection(self, sock, session)
        self._connections[session] = connection
        self._strangers[session] = trio.current_time() + self.hub.limits.handshake_deadline_ms / 1000
        self._stranger_came.unpark()
        self._nursery.start_soon(self._serve, connection, peer)

    async def _serve(self, connection: Connection, peer: PeerCredentials) -> None:
        try:
            await connection.run()
        except Exception:  # a bug costs one connection, not the hub
            self.log.exception("connection failed", pid=peer.pid)

    def forget(self, session: Session) -> None:
        """A connection is closed: release what it held, make good what it could not write."""
        self._connections.pop(session, None)
        self._strangers.pop(session, None)
        self.hub.finish(session, self.clock()[1])
        self.flush()

    async def _end_slow_handshakes(self) -> None:
        """One timer for all: a deadline of each connection's own would cost a turn of the loop when it is lifted."""
        while True:
            while not self._strangers:
                await self._stranger_came.park()
            session, deadline = next(iter(self._strangers.items()))
            await trio.sleep_until(deadline)
            if self._strangers.pop(session, None) is not None:
                self.hub.drop(session, "deadline")
                self.flush()

    def _refuse_at_ceiling(self, sock: socket.socket) -> None:
        self.hub.counters.refused["ceiling", ""] += 1
        self._tell_refusal({"cause": "ceiling", "limit": self._ceiling})
        answer = Error(ErrorCode.OVERFLOW, "hub at its connection ceiling").encode()
        turn_away(sock, encode(Frame(Kind.ERROR, self.hub.hub_id, payload=answer)))

    def _refused_credentials(self, peer: PeerCredentials | None) -> None:
        self.hub.counters.refused["credential", ""] += 1
        self._tell_refusal({"cause": "credential", "uid": peer.uid if peer else "unknown"})

    def admit(self, session: Session, claim: Claim) -> None:
        """Verify a hello and let the hub admit or refuse it, in one step (§5.2, §5.3): one is verified at a time."""
        now_us, wall_ms = self.clock()
        self.hub.admit(session, claim, self.hub.verifier.verify(claim, wall_ms / 1000), now_us)
        self._strangers.pop(session, None)

    # --- bytes out --------------------------------------------------------------------------------------------

    def flush(self, started_us: int = 0, wall_ms: int = 0) -> None:
        """Write what the hub queued, and tell the operator what it noted.

        `started_us` is when the batch of frames that led here was taken; with it, fan-outs are timed.
        """
        hub = self.hub
        wall_ms = wall_ms or self.clock()[1]
        delivery = hub.delivery
        while delivery.dirty:
            dirty, delivery.dirty = delivery.dirty, []
            for session in dirty:
                connection = self._connections.get(session)
                if connection is not None:
                    connection.flush(wall_ms)
        if hub.counters.fanout_deliveries != self._fanouts:
            self._fanouts = hub.counters.fanout_deliveries
            if started_us:
                hub.counters.fanout_us.observe(self.clock()[0] - started_us)
        if delivery.journal:
            entries, delivery.journal = delivery.journal, []
            for entry in entries:
                self._tell(entry)

    # --- what an operator sees --------------------------------------------------------------------------------

    def _tell(self, entry: Entry) -> None:
        detail = {"agent": entry.agent, **entry.detail}
        if entry.event == "refused":
            self._tell_refusal(detail)
        elif entry.event in _CHANGES:
            self.log.info(entry.event, **detail)
        else:
            self._tell_repeated((entry.event, str(entry.agent)), self.log.warning, detail)

    def _tell_refusal(self, detail: dict[str, Any]) -> None:
        self._tell_repeated(("refused", str(detail["cause"]), str(detail.get("label", ""))), self.log.warning, detail)

    def _tell_repeated(self, cause: tuple[str, ...], say: Callable[..., None], detail: dict[str, Any]) -> None:
        """Say `cause[0]` with `detail`, unless the same cause was told lately; then count it for the next time."""
        times = self._repeats.due(cause, self.clock()[0] / 1e6)
        if times is not None:
            say(cause[0], **detail, times=times)

    def _take_stats_reader(self, sock: socket.socket, peer: PeerCredentials) -> None:
        if self._stats_readers >= MAX_STATS_READERS:
            sock.close()
            return
        self._stats_readers += 1
        text = render(self.hub.counters, self.hub.gauges(), __version__, self._ceiling)
        self._nursery.start_soon(say_and_close, sock, text, STATS_DEADLINE_MS, self._stats_reader_done)

    def _stats_reader_done(self) -> None:
        self._stats_readers -= 1

    # --- from time to time ------------------------------------------------------------------------------------

    async def _every_second(self) -> None:
        while True:
            await trio.sleep(REVALIDATE_SECONDS)
            if isinstance(self.hub.verifier, DenyAllVerifier):
                self._look_for_owner()
            now_us, wall_ms = self.clock()
            self.hub.revalidate(now_us, wall_ms / 1000)
            self.flush()
            self._report_status()

    def _look_for_owner(self) -> None:
        """Begin to verify once there is an owner key; one that is not safe admits nobody, and ends nothing."""
        try:
            verifier = self._find_verifier()
        except WakehubError as error:
            self._tell_repeated(("owner key cannot be used",), self.log.error, {"error": str(error)})
            return
        if verifier is not None:
            self.hub.verifier = verifier
            self.log.info("owner key found", verifier=type(verifier).__name__)

    def _report_status(self) -> None:
        status = f"STATUS={self.hub.agents} agents connected"
        if status != self._status:
            self._status = status
            self._notifier.send(status)

    async def _watch_path(self) -> None:
        while True:
            await trio.sleep(SOCKET_CHECK_SECONDS)
            try:
                self.check_paths()
            except WakehubError as error:
                self._fail(error)

    def check_paths(self) -> None:
        """Bind anew where a path no longer is our socket; raises as `Sockets.mend` does (§6)."""
        for listener, found in self._sockets.mend().items():
            self.log.warning("socket bound anew", socket=str(listener.path), found=found.value)


def run(config: Config) -> int:
    """Run the hub until it is told to stop; returns its exit status.

    Raises `Held` (75), `Unsafe` (77), `Misconfigured` (78) or `CannotCreate` (73) when it cannot start (§6).
    """
    os.umask(0o077)
    logger = log.configure("hub")
    ceiling = connection_ceiling(config.limits.max_connections)
    if ceiling < config.limits.max_connections:
        logger.warning(
            "fewer connections than configured",
            ceiling=ceiling,
            configured=config.limits.max_connections,
            remedy="raise the limit of open files",
        )
    verifier = find_verifier(config) or DenyAllVerifier()
    sockets = Sockets.open(config, os.environ)
    try:
        server = Server(
            Hub(config.hub_id.encode(), config.limits, verifier),
            sockets,
            ceiling,
            authorizer=SameUidAuthorizer(),
            notifier=Notifier(os.environ, logger),
            logger=logger,
            find_verifier=lambda: find_verifier(config),
        )
        give_back_memory()
        server.pump.run(server.run)
    finally:
        sockets.close()
    return Exit.DONE


def find_verifier(config: Config) -> HelloVerifier | None:
    """The verifier for the configured owner key, None while there is no such file.

    Raises `Unsafe` (77) when the file is not ours, cannot be read, or holds no key.
    """
    try:
        owner = load_public(config.owner_pub)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unsafe(
            f"cannot read {visible(str(config.owner_pub))}",
            why=error.strerror or "",
            remedy="make it readable for its owner, or allow this path in the sandbox",
        ) from error
    return DelegationVerifier(config.hub_id, AllowlistFile(config.allowlist, owner, files.Spare()))
