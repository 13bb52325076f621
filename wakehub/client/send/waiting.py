"""Waiting for a state that a message is to reach, and saying what becomes known meanwhile."""

import contextlib
import time
from collections.abc import Sequence
from typing import Final

from wakehub.client.receipts import Receipts, State, WaitFor
from wakehub.inbox.clock import Now
from wakehub.inbox.refusals import RecordBusy
from wakehub.inbox.rows import EventKind, Row
from wakehub.inbox.store import Inbox
from wakehub.limits import MAIL_WAITS_AFTER_SECONDS, RECORD_WATCH_MS
from wakehub.visible import visible

_REACHED_BY: Final[dict[WaitFor, frozenset[EventKind]]] = {
    "stored": frozenset({"stored"}),
    "hinted": frozenset({"hinted", "handed_off", "answered"}),
    "handed-off": frozenset({"handed_off", "answered"}),
    "answered": frozenset({"answered"}),
}
_ENDED: Final[dict[EventKind, State]] = {"failed": State.FAILED, "expired": State.EXPIRED}
_TOLD: Final[dict[EventKind, State]] = {"handed_off": State.HANDED_OFF, "answered": State.ANSWERED, **_ENDED}


class Wait:
    """Waits until every row reached a state, and tells what becomes known meanwhile."""

    def __init__(self, wait: WaitFor, rows: Sequence[Row], inbox: Inbox, receipts: Receipts) -> None:
        self._wait = wait
        self._rows = rows
        self._inbox = inbox
        self._receipts = receipts
        self._told: set[tuple[str, EventKind]] = set()

    def run(self, timeout_s: float) -> bool:
        """False when time is up, a row ended otherwise, or mail from the other side waits here (fault F32)."""
        seen: object = None
        behind = self._rows[0]
        while True:
            with contextlib.suppress(RecordBusy):  # it is asked again, as long as there is time
                now = self._inbox.changed()
                if now != seen:
                    reached = [self._look(row) for row in self._rows]
                    seen = now
                    if all(reached):
                        return True
                    behind = next(row for row, is_there in zip(self._rows, reached, strict=True) if not is_there)
                    if None in reached:
                        return self._end(behind)
                if self._mail_waits():
                    return False
            if self._receipts.elapsed_s >= timeout_s:
                return self._end(behind, f"{self._wait} was not reached within {timeout_s:g} s")
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
        for event in events:
            if event.kind in _TOLD and (row.id, event.kind) not in self._told:
                self._told.add((row.id, event.kind))
                self._receipts.say(_TOLD[event.kind], row.id, event.proof or event.detail)
        kinds = {event.kind for event in events}
        if kinds & _REACHED_BY[self._wait]:
            return True
        return None if kinds & _ENDED.keys() else False

    def _mail_waits(self) -> bool:
        """Whether a message from the other side waits for us, which our own listener, if there is one, did not take.

        The other side may be waiting for us just as we wait for it.
        """
        if self._wait not in ("handed-off", "answered"):
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
