"""What the record needs done now and then, and only the publisher does (receive.md §1; formats.md, Rows).

Rows whose time is over become tombstones, and their senders are told; rows that ended a week ago are removed, and with
them their files; leases of processes that are gone are ended, which never touches a row. Each is done in portions, so
that no other process waits for long. A name that was enrolled anew gets a new box, in case the process that enrolled it
did not live to open it.
"""

import time
from collections.abc import Callable

import structlog
import trio

from wakehub.errors import WakehubError
from wakehub.identity.registry import Registry
from wakehub.inbox.attachments import Attachments
from wakehub.inbox.clock import Now
from wakehub.inbox.refusals import RecordReplaced
from wakehub.inbox.rows import Signer
from wakehub.inbox.store import Inbox
from wakehub.limits import COLLECT_SECONDS, KEEP_HANDED_OFF_SECONDS, SWEEP_ROWS, SWEEP_SECONDS
from wakehub.log import Repeats

_log = structlog.get_logger(program="publisher")


class Sweeper:
    """Sweeps `inbox` and its `attachments`; the notices about expired rows are signed with `signer`.

    Rows are kept for `keep_s` seconds behind their end.
    """

    def __init__(
        self, inbox: Inbox, signer: Signer, attachments: Attachments, *, keep_s: int = KEEP_HANDED_OFF_SECONDS
    ) -> None:
        self._inbox = inbox
        self._signer = signer
        self._attachments = attachments
        self._keep_s = keep_s
        self._collected: float | None = None
        self._generations: dict[str, int] = {}
        self._repeats = Repeats()

    async def run(self) -> None:
        """Sweep every 5 s until cancelled; trouble with the record is logged and the next round tries again.

        Raises `RecordReplaced`: no later round could reach the record that the others have.
        """
        while True:
            try:
                await trio.to_thread.run_sync(self.sweep)
            except RecordReplaced:
                raise
            except (WakehubError, OSError) as error:
                self._tell(error)
            await trio.sleep(SWEEP_SECONDS)

    def sweep(self) -> None:
        """One round, to its end; raises `WakehubError` for trouble with the record, `OSError` for that with files."""
        expired = _repeated(lambda: len(self._inbox.expire(Now.read(), signed=self._signer)))
        pruned = _repeated(lambda: self._inbox.prune(Now.read(), keep_s=self._keep_s))
        self._inbox.leases.sweep(Now.read())
        if expired or pruned or self._is_collecting_due():
            self._attachments.collect(self._inbox)
            self._collected = time.monotonic()

    def _is_collecting_due(self) -> bool:
        """What a killed sender left behind has no row that could tell of it."""
        return self._collected is None or time.monotonic() - self._collected > COLLECT_SECONDS

    def open_boxes(self, registry: Registry | None) -> None:
        """Let the box of each name belong to the enrolment that the registry tells of; trouble is logged."""
        for agent in registry.agents.values() if registry else ():
            if agent.is_daemon or self._generations.get(agent.agent_id) == agent.generation:
                continue
            try:
                self._inbox.open_box(agent.agent_id, agent.generation, Now.read())
            except WakehubError as error:
                self._tell(error)
            else:
                self._generations[agent.agent_id] = agent.generation

    def _tell(self, error: Exception) -> None:
        times = self._repeats.due((str(error),), time.monotonic())
        if times is not None:
            _log.error("the record gives trouble", why=str(error), times=times)


def _repeated(portion: Callable[[], int]) -> int:
    """Do a portion of work until one is not full; how much it was in all."""
    done = last = portion()
    while last == SWEEP_ROWS:
        last = portion()
        done += last
    return done
