"""What becomes of a row that was handed over: acknowledged, put back, or ended; and who is told why it stays.

An outcome is true and must not be lost, so it is entered however long the record is busy or full (receive.md §3; the
rules of a row: `inbox.store`). Everything shows the token of the lease under which the row was claimed.
"""

import re
from collections.abc import Collection
from typing import Final

import trio

from wakehub.client.doorbell import Reason
from wakehub.errors import WakehubError
from wakehub.inbox.clock import Now
from wakehub.inbox.refusals import NotStored, RecordBusy, RecordReplaced
from wakehub.inbox.rows import Row
from wakehub.inbox.store import Inbox
from wakehub.limits import FAILURES_BEFORE_PASSED, LEASE_RECHECK_SECONDS, ROW_RETRY_CAP_SECONDS
from wakehub.relay.backends import HandedOff, Never, NotNow, Outcome
from wakehub.relay.notices import tell
from wakehub.visible import visible

_NUMBER: Final = re.compile(r"\d+")


class Settlement:
    """Enters outcomes under the lease `token`, and counts those that were `handed_off` and those that were `refused`
    for good. `is_patient`: that an agent is busy is no trouble at first, since there is time."""

    def __init__(self, inbox: Inbox, token: bytes, *, is_patient: bool) -> None:
        self.handed_off = 0
        self.refused = 0
        self._inbox = inbox
        self._token = token
        self._is_patient = is_patient
        self._stuck: dict[str, str] = {}

    async def settle(self, row: Row, outcome: Outcome, reason: Reason) -> None:
        """Enter what the backend made of `row`; `reason` is what had made the listener look."""
        while True:
            try:
                self._enter(row, outcome, reason)
            except (RecordBusy, NotStored) as error:
                await pause(error)
            else:
                return

    def leave(self, recipient: str, reason: str, senders: Collection[str] | None) -> None:
        """Enter, and say, why the rows of an agent that is not there stay as they are."""
        for row_id in self._inbox.leave(recipient, self._token, reason, Now.read(), senders=senders):
            self._say(recipient, row_id, reason)

    def abandon(self, row: Row, *, in_doubt: bool) -> None:
        """Put back a row whose handing over was broken off; `in_doubt`: it may have been seen."""
        try:
            self._inbox.release(row.id, self._token, Now.read(), in_doubt=in_doubt)
        except (RecordBusy, NotStored, RecordReplaced):
            pass  # the claim is void when the lease ends, and counts as in doubt then

    def put_back(self, row: Row, outcome: NotNow) -> None:
        """A failed attempt: the next one is twice as far away, up to 10 min."""
        now = Now.read()
        delay_s = min(outcome.retry_s << min(row.attempts, 10), ROW_RETRY_CAP_SECONDS)
        self._inbox.attempt_failed(
            row.id,
            self._token,
            outcome.reason,
            now.ms + delay_s * 1000,
            now,
            busy=outcome.busy,
            in_doubt=outcome.in_doubt,
        )

    def _enter(self, row: Row, outcome: Outcome, reason: Reason) -> None:
        match outcome:
            case HandedOff(proof):
                done = self._inbox.hand_off(row.id, self._token, proof, Now.read(), woken_by=reason.value)
                self.handed_off += done
                self._stuck.pop(row.recipient, None)
            case NotNow():
                self.put_back(row, outcome)
                self._say_stuck(row, outcome)
            case Never(code, why):
                self.refused += self._inbox.fail(row.id, self._token, code, why, Now.read())
                tell(f"{row.id} can never be handed off: {visible(why)}")

    def _say_stuck(self, row: Row, outcome: NotNow) -> None:
        """Say why a row stays; that an agent is busy is trouble only once it was so several times."""
        if outcome.busy and self._is_patient and row.attempts + 1 < FAILURES_BEFORE_PASSED:
            return
        self._say(row.recipient, row.id, outcome.reason)

    def _say(self, recipient: str, row_id: str, reason: str) -> None:
        """Once until there is another reason."""
        trouble = _NUMBER.sub("", reason)
        if trouble != self._stuck.get(recipient):
            self._stuck[recipient] = trouble
            tell(f"{row_id} stays unread: {visible(reason)}")


async def pause(error: WakehubError) -> None:
    """Say what is wrong with the record, and wait a little before it is asked again."""
    tell(f"{error}; trying again")
    await trio.sleep(LEASE_RECHECK_SECONDS)
