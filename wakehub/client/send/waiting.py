"""Waiting for a state that a message is to reach, and saying what becomes known meanwhile."""

import contextlib
import os
import time
from collections.abc import Sequence
from typing import Final

from wakehub.client.home import ended
from wakehub.client.receipts import Receipts, State, WaitFor
from wakehub.errors import WakehubError
from wakehub.identity.owner import read_registry
from wakehub.identity.registry import Registry
from wakehub.inbox.clock import Now
from wakehub.inbox.refusals import RecordBusy
from wakehub.inbox.rows import EventKind, Row
from wakehub.inbox.store import Inbox
from wakehub.limits import MAIL_WAITS_AFTER_SECONDS, RECORD_WATCH_MS
from wakehub.paths import Paths
from wakehub.visible import visible

_REACHED_BY: Final[dict[WaitFor, frozenset[EventKind]]] = {
    "stored": frozenset({"stored"}),
    "hinted": frozenset({"hinted", "handed_off", "answered"}),
    "handed-off": frozenset({"handed_off", "answered"}),
    "answered": frozenset({"answered"}),
}
_TAKEN: Final = ("handed-off", "answered")
"""What only a recipient that takes the message can bring about."""
_ENDED: Final[dict[EventKind, State]] = {"failed": State.FAILED, "expired": State.EXPIRED}
_TOLD: Final[dict[EventKind, State]] = {"handed_off": State.HANDED_OFF, "answered": State.ANSWERED, **_ENDED}


class Wait:
    """Waits until every row reached a state, and tells what becomes known meanwhile."""

    def __init__(self, paths: Paths, wait: WaitFor, rows: Sequence[Row], inbox: Inbox, receipts: Receipts) -> None:
        self._paths = paths
        self._wait = wait
        self._rows = rows
        self._inbox = inbox
        self._receipts = receipts
        self._told: set[tuple[str, EventKind]] = set()
        self._reasons: dict[str, str] = {}
        self._registry: tuple[object, Registry] = (None, Registry())

    def run(self, timeout_s: float) -> bool:
        """False when time is up, a row ended otherwise or its recipient was closed, or mail from the other side waits
        here (fault F32)."""
        seen: object = None
        left: Sequence[Row] = self._rows
        while True:
            with contextlib.suppress(RecordBusy):  # it is asked again, as long as there is time
                now = self._inbox.changed()
                if now != seen:
                    reached = [self._look(row) for row in self._rows]
                    seen = now
                    if all(reached):
                        return True
                    left = [row for row, is_there in zip(self._rows, reached, strict=True) if not is_there]
                    if None in reached:
                        return self._end(left[0])
                if self._mail_waits():
                    return False
            for row in left:
                if closed := self._closed(row.recipient):
                    return self._end(row, f"{self._wait} is not reached: {closed}")
            if self._receipts.elapsed_s >= timeout_s:
                tried = self._reasons.get(left[0].id)
                why = f"; the last reason: {tried}" if tried else ""
                return self._end(left[0], f"{self._wait} was not reached within {timeout_s:g} s{why}")
            time.sleep(RECORD_WATCH_MS / 1000)

    def _end(self, behind: Row, why: str = "") -> bool:
        """False, and where to see what became of the first row that did not get there."""
        for line in (why, f"next: wakehub why {behind.id}"):
            if line:
                self._receipts.note(line)
        return False

    def _look(self, row: Row) -> bool | None:
        """Whether the row reached the state; None if it ended otherwise."""
        events = self._inbox.events(row.id)
        self._reasons |= {event.id: event.detail for event in events if event.kind == "attempt_failed"}
        for event in events:
            if event.kind in _TOLD and (row.id, event.kind) not in self._told:
                self._told.add((row.id, event.kind))
                said = event.proof or event.detail or self._reasons.get(row.id) or "nobody took it in time"
                self._receipts.say(_TOLD[event.kind], row.id, said)
        kinds = {event.kind for event in events}
        if kinds & _REACHED_BY[self._wait]:
            return True
        return None if kinds & _ENDED.keys() else False

    def _closed(self, name: str) -> str:
        """When `name` was closed, in words, after which nobody takes its mail; empty: it was not, for all we know."""
        if self._wait not in _TAKEN:
            return ""
        with contextlib.suppress(WakehubError, OSError):
            found = os.stat(self._paths.audit, follow_symlinks=False)
            stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
            if stamp != self._registry[0]:
                self._registry = (stamp, read_registry(self._paths))
        agent = self._registry[1].agents.get(name)
        return ended(agent).what if agent is not None and agent.closed_at is not None else ""

    def _mail_waits(self) -> bool:
        """Whether a message from the other side waits for us, which our own listener, if there is one, did not take.

        The other side may be waiting for us just as we wait for it.
        """
        if self._wait not in _TAKEN:
            return False
        own_name = self._rows[0].sender
        waiting = self._inbox.unread(own_name, limit=1, senders={row.recipient for row in self._rows})
        if not waiting:
            return False
        now = Now.read()
        is_new = now.ms - waiting[0].stored_ms < MAIL_WAITS_AFTER_SECONDS * 1000
        if is_new and self._inbox.leases.resolve(own_name, now) is not None:
            return False
        self._receipts.note(f"{waiting[0].id} from {visible(waiting[0].sender)} waits for you; read it first")
        self._receipts.note(f"next: wakehub listen --as {own_name} --once")
        return True
