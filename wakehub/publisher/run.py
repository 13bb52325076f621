"""The publisher's process: the owner's side of an instance (receive.md §6; design.md, Processes).

It alone holds the owner key, under `publish.lock`. Five things run side by side, none of which waits for another: the
allowlist is kept signed (before anything else, since the hub believes nothing older than a minute), wakes are sent,
pokes are answered, spools are emptied, the record is swept. None depends on the hub: without one, rows are stored and
found later.

It ends with 0 on SIGTERM or SIGINT; a second signal ends it at once. It ends with 73 when its lock's path is no longer
the file it holds: another publisher could run then, and a supervisor starts this one anew with the right one. With 69
when that has become of the record, or of the key that the registry has for it.
"""

import os
import signal
import time
from collections.abc import Sequence
from typing import Any, Final

import trio

from wakehub import files, log, sockets
from wakehub.client.home import ensure_home
from wakehub.config import Config
from wakehub.errors import CannotCreate, Exit, Unavailable, only_known
from wakehub.identity import keys
from wakehub.identity.addresses import PUBLISHER
from wakehub.identity.initialisation import init_owner
from wakehub.identity.keys import KeyPair
from wakehub.identity.owner import load_owner, read_registry
from wakehub.inbox.admission import Guard
from wakehub.inbox.attachments import Attachments
from wakehub.inbox.refusals import RecordDamaged
from wakehub.inbox.signing import signer
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.inbox.store import Inbox
from wakehub.limits import FRAME_BURST, FRAME_RATE_PER_SECOND, SOCKET_CHECK_SECONDS
from wakehub.locks import Lock
from wakehub.publisher.allowlist import Keeper, Signer
from wakehub.publisher.forwarder import Forwarder
from wakehub.publisher.hints import Outcome
from wakehub.publisher.poke import PokeServer
from wakehub.publisher.spool import SpoolReader
from wakehub.publisher.spool_directories import SpoolDirectories
from wakehub.publisher.sweep import Sweeper
from wakehub.server.notify import Notifier

_WHAT: Final = "a publisher"


def run(config: Config) -> int:
    """Run the publisher until a signal; makes the instance if there is none at all.

    Raises `Held` (75) with the holder's pid, `Unsafe` (77) when the owner key is missing or cannot be used,
    `Misconfigured` (78), `CannotCreate` (73), and what opening the record raises; a damaged one is 78 here: it does not
    go away by itself, and a supervisor that starts this again and again keeps `doctor --repair` out.
    """
    try:
        return _run(config)
    except RecordDamaged as damaged:
        damaged.exit = Exit.CONFIG
        raise


def _run(config: Config) -> int:
    os.umask(0o077)
    logger = log.configure("publisher")
    for line in ensure_home(config):
        logger.info("first start", did=line)
    sockets.check_directory(config.paths.run)
    files.private_directory(config.paths.state)
    with Lock.acquire(config.paths.lock("publish"), what=_WHAT) as lock:
        owner = load_owner(config.paths)
        init_owner(config.paths, time.time())  # completes what an interrupted init left out
        key = keys.load_key(config.paths.agent_key(PUBLISHER), PUBLISHER)
        guard = Guard(config.max_hops, config.pair_per_minute)
        # Two, so that a sweep never holds up a wake.
        with (
            SqliteInbox.open(config.paths.record) as inbox,
            SqliteInbox.open(config.paths.record, guard=guard) as swept,
        ):
            publisher = Publisher(config, lock, owner, key, inbox, swept, logger)
            try:
                trio.run(publisher.run)
            except BaseExceptionGroup as group:
                known = only_known(group)
                if known is None:
                    raise
                raise known from None
    logger.info("publisher stopped")
    return Exit.DONE


class Publisher:
    """What runs under `lock`: `owner` signs, `key` is the publisher's own, `swept` is a second view of the record."""

    def __init__(
        self,
        config: Config,
        lock: Lock,
        owner: KeyPair,
        key: KeyPair,
        inbox: Inbox,
        swept: Inbox,
        logger: Any,
    ) -> None:
        self._config = config
        self._key = key
        self._lock = lock
        self._log = logger
        self._notifier = Notifier(os.environ, logger)
        self._sweeper = Sweeper(swept, signer(key), Attachments.of(config.paths), keep_s=config.keep_s)
        self._signer = Signer(config.paths.audit, config.allowlist, owner)
        self._keeper = Keeper(self._signer, signed=self._signed)
        self._spool = SpoolReader(
            SpoolDirectories(config),
            swept,
            lambda: self._signer.registry,
            lambda: read_registry(config.paths),
            signer(key),
            config.hub_id,
            Attachments.of(config.paths),
        )
        self._forwarder = Forwarder(
            inbox,
            config.hub_socket,
            config.hub_id,
            key,
            rate=min(FRAME_RATE_PER_SECOND, config.limits.frame_rate_per_second),
            burst=min(FRAME_BURST, config.limits.frame_burst),
        )
        self._pokes = PokeServer(config.paths.publish_socket, self._poked)

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT; raises a `WakehubError` in a group when it cannot go on."""
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._keeper.run)
                nursery.start_soon(self._forwarder.run)
                nursery.start_soon(self._sweeper.run)
                nursery.start_soon(self._spool.run)
                nursery.start_soon(self._watch_lock)
                nursery.start_soon(self._notifier.feed_watchdog)
                await nursery.start(self._pokes.run)
                self._notifier.send("READY=1")
                self._log.info("publisher ready", socket=str(self._config.paths.publish_socket))
                number = await anext(signals)
                self._notifier.send("STOPPING=1")
                self._log.info("publisher stopping", signal=signal.Signals(number).name)
                nursery.cancel_scope.cancel()

    async def _poked(self, ids: Sequence[str]) -> dict[str, Outcome]:
        self._keeper.ring()
        return await self._forwarder.submit(ids)

    def _signed(self) -> None:
        registry = self._signer.registry
        agent = registry.agents.get(PUBLISHER) if registry else None
        if agent is None or agent.key is None or agent.key.public != self._key.public:
            raise Unavailable(
                f"the key of {PUBLISHER} is no longer the one that this publisher has",
                why="it was revoked or exchanged, and the hub admits this process no more",
                remedy="start it again",
            )
        self._sweeper.open_boxes(registry)

    async def _watch_lock(self) -> None:
        while self._lock.is_in_place():  # noqa: ASYNC110 - the file system tells nobody
            await trio.sleep(SOCKET_CHECK_SECONDS)
        raise CannotCreate(
            f"{self._lock.path} is no longer the lock that this publisher holds",
            why="the state directory was removed or replaced under it",
            remedy="start it again",
        )
