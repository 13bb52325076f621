"""What the record needs done now and then, and only the publisher does (receive.md §1; formats.md, Rows).

Rows whose time is over become tombstones, and their senders are told; rows that ended a week ago are removed; leases of
processes that are gone are ended, which never touches a row. Each is done in portions, so that no other process waits
for long. A name that was enrolled anew gets a new box, in case the process that enrolled it did not live to open it.
"""

import time

import structlog
import trio

from wakehub.errors import WakehubError
from wakehub.identity.enrolment import Registry
from wakehub.inbox.clock import Now
from wakehub.inbox.store import Inbox, Signer
from wakehub.limits import SWEEP_ROWS, SWEEP_SECONDS
from wakehub.log import Repeats

_log = structlog.get_logger(program="publisher")


class Sweeper:
    """Sweeps `inbox`; the notices about expired rows are signed with `signer`."""

    def __init__(self, inbox: Inbox, signer: Signer) -> None:
        self._inbox = inbox
        self._signer = signer
        self._generations: dict[str, int] = {}
        self._repeats = Repeats()

    async def run(self) -> None:
        """Sweep every 5 s until cancelled; trouble with the record is logged and the next round tries again."""
        while True:
            try:
                await trio.to_thread.run_sync(self.sweep)
            except WakehubError as error:
                self._tell(error)
            await trio.sleep(SWEEP_SECONDS)

    def sweep(self) -> None:
        """One round, to its end; raises `WakehubError` for trouble with the record."""
        expired = pruned = SWEEP_ROWS
        while expired == SWEEP_ROWS:
            expired = len(self._inbox.expire(Now.read(), signed=self._signer))
        while pruned == SWEEP_ROWS:
            pruned = self._inbox.prune(Now.read())
        self._inbox.leases.sweep(Now.read())

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

    def _tell(self, error: WakehubError) -> None:
        times = self._repeats.due((str(error),), time.monotonic())
        if times is not None:
            _log.error("the record gives trouble", why=str(error), times=times)
