"""One listener at work: waits to be woken, hands rows off one at a time, acknowledges what was proven.

    arm ──▶ read: next row? ──yes──▶ claim ──▶ backend delivers ──HandedOff──▶ acknowledge ──┐
     ▲            │ no                            └─NotNow, Never─▶ put back, or end it ─────┤
     └── wait: wake, welcome, retry due, backstop ◀──────────────────────────────────────────┘

Rules (receive.md §3). A row is acknowledged only after the backend proved the hand-off, and only under a lease that
still is ours: every claim and acknowledgement shows its token. Arm first, then read, so that nothing falls between
"empty" and "asleep"; the backstop is armed whatever the hub does. Which row is next is the record's decision. What
ends the loop (a signal, a name that was lost, revoked or closed, a reader or parent that is gone) also puts the row in
hand back.

Where agents are apart (`Backend.is_apart`) each that is there has a lane: its rows are handed off one at a time beside
those of the others. Rows of an agent that is not there are not even claimed, the record only says why; that it comes
rings as a wake does.
"""

import time
from collections.abc import Awaitable, Callable, Collection, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import trio

from wakehub.client.credentials import Credentials
from wakehub.client.doorbell import Doorbell, Reason
from wakehub.client.subscriber import Subscriber
from wakehub.config import Config
from wakehub.errors import Exit, Held, WakehubError
from wakehub.identity.addresses import check_address
from wakehub.inbox.attachments import Attachments
from wakehub.inbox.clock import Now
from wakehub.inbox.leases import Lease
from wakehub.inbox.refusals import NotStored, RecordBusy
from wakehub.inbox.rows import Header, Row
from wakehub.inbox.store import Inbox
from wakehub.inbox.tenure import covers, is_namespace
from wakehub.limits import (
    LEASE_RECHECK_SECONDS,
    LEASE_RENEW_SECONDS,
    PARENT_WATCH_MS,
    RECORD_WATCH_MS,
    STOP_IN_HAND_MS,
)
from wakehub.relay.backends import Backend, NotNow, Outcome, OutputGone, orphan
from wakehub.relay.endings import Endings
from wakehub.relay.keyring import Keyring
from wakehub.relay.message import Message
from wakehub.relay.notices import clock, nothing_for, tell
from wakehub.relay.options import ListenOptions
from wakehub.relay.settlement import Settlement, pause
from wakehub.relay.standing import Standing
from wakehub.visible import visible

_NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a listener is to do, resolved: the names it holds, where everything lies, and what its hub session needs.

    `is_new` says that the session's name was enrolled just now.
    """

    options: ListenOptions
    names: tuple[str, ...]
    config: Config
    credentials: Credentials
    is_new: bool


class Listener:
    """One run of the loop under one lease; `wall` is the wall clock in seconds, compared with Trio's."""

    def __init__(
        self,
        task: Assignment,
        inbox: Inbox,
        lease: Lease,
        backend: Backend,
        keyring: Keyring,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._task = task
        self._inbox = inbox
        self._token = lease.token
        self._backend = backend
        self._keyring = keyring
        addresses = [name for name in task.names if not is_namespace(name)]
        self._standing = Standing(keyring, dict.fromkeys([task.credentials.agent_id, *addresses]))
        self._attachments = Attachments.of(task.config.paths)
        self._wall = wall
        self._bell = Doorbell()
        self._senders = None if task.options.sender is None else [check_address(task.options.sender)]
        self._renewed = _NEVER
        self._in_hand = 0
        self._lanes: set[str] = set()
        self._there: Collection[Hashable] = ()
        self._record_seen: Hashable = None
        self._is_stopping = False
        self._error: WakehubError | None = None
        self._settlement = Settlement(inbox, lease.token, is_patient=not task.options.once)

    async def run(self, ends: Endings) -> Exit:
        """Deliver until it is over; the exit status.

        Raises the error that ended it, if one did, and `KeyboardInterrupt` for one that was to end with a first
        message and was interrupted from the keyboard before.
        """
        self._renewed = trio.current_time()
        async with trio.open_nursery() as nursery:
            self._scope = nursery.cancel_scope
            nursery.start_soon(self._heed, ends.signalled, self.stop)
            nursery.start_soon(self._guard, self._keep_lease, LEASE_RECHECK_SECONDS)
            nursery.start_soon(self._guard, self._look_around, PARENT_WATCH_MS / 1000)
            if self._backend.dies_with_parent:
                nursery.start_soon(self._heed, ends.orphaned, self._orphaned)
            try:
                await self._deliver(nursery)
            except WakehubError as error:
                self._error = error
            nursery.cancel_scope.cancel()
        if self._error is not None:
            raise self._error
        return self._exit(ends)

    def stop(self, error: WakehubError | None = None) -> None:
        """End the loop. Asked to by a signal, it gives a row in hand a second to finish; by an `error`, none."""
        self._error = self._error or error
        self._is_stopping = True
        grace_s = STOP_IN_HAND_MS / 1000 if self._in_hand and error is None else 0.0
        self._scope.deadline = min(self._scope.deadline, trio.current_time() + grace_s)

    def _exit(self, ends: Endings) -> Exit:
        """With `--once`, 0 says that a message came, and 3 that there was none: nothing else may look like these."""
        if not self._task.options.once or self._settlement.handed_off:
            return Exit.DONE
        if ends.is_interrupt():
            raise KeyboardInterrupt
        tell(nothing_for(self._inbox, self._task.names))
        return Exit.NOT_REACHED if self._settlement.refused or self._left() else Exit.NOTHING

    def _left(self) -> int:
        """How many rows are there that this listener could not hand off."""
        now = Now.read()
        ours = [
            box
            for box in self._boxes()
            if (lease := self._inbox.leases.resolve(box, now)) and lease.token == self._token
        ]
        return sum(self._inbox.count_unread(box, senders=self._senders, now=now) for box in ours)

    # --- what ends it ---

    async def _heed(self, event: Callable[[], Awaitable[None]], act: Callable[[], None]) -> None:
        await event()
        act()

    async def _guard(self, check: Callable[[], None], every_s: float) -> None:
        """Check again and again; an error ends the loop, but a record that is busy or full is asked again."""
        while True:
            try:
                check()
            except (RecordBusy, NotStored):
                pass
            except WakehubError as error:
                self.stop(error)
            await trio.sleep(every_s)

    def _orphaned(self) -> None:
        self.stop(orphan())

    def _look_around(self) -> None:
        """Raise `OutputGone` when nobody is there any more; ring when somebody came."""
        self._backend.check()
        there = self._backend.list_agents()
        if not set(there) <= set(self._there):
            self._bell.ring(Reason.AGENT)
        self._there = there

    def _keep_lease(self) -> None:
        """Renew when due; raise `Held` when a name is no longer ours, `Unsafe` when it ended."""
        self._standing.check()
        leases, now = self._inbox.leases, trio.current_time()
        if now - self._renewed >= LEASE_RENEW_SECONDS:
            lease = leases.renew(self._token, Now.read())
            self._renewed = now
        else:
            lease = leases.find(self._token)
        if lease is None or set(lease.names) != set(self._task.names):
            raise self._displaced()

    def _is_ours(self) -> bool:
        try:
            self._keep_lease()
        except (RecordBusy, NotStored):
            pass  # not known to be lost
        except WakehubError as error:
            self.stop(error)
            return False
        return True

    def _displaced(self) -> Held:
        for past in self._inbox.leases.lost(self._token):
            by = f" by pid {past.by_pid}" if past.by_pid else ""
            return Held(
                f"{past.name} is no longer held here",
                why=f"{past.reason}{by} at {clock(past.ended_ms)}",
                remedy="listen as another, or take the name over: --take-over, in Python take_over=True",
            )
        return Held(f"{', '.join(self._task.names)} is no longer held here", remedy="listen again")

    # --- waiting ---

    async def _deliver(self, nursery: trio.Nursery) -> None:
        options = self._task.options
        give_up = trio.current_time() + (options.wait_s or 0.0) if options.once else _NEVER
        is_subscribed = not options.once
        if is_subscribed:
            self._subscribe(nursery)
        reason = Reason.START
        while True:
            self._bell.arm()
            read_at = trio.current_time()
            await self._drain(reason, nursery)
            is_over = options.once and (self._settlement.handed_off > 0 or trio.current_time() >= give_up)
            is_over = is_over or self._is_stopping
            if is_over and not self._lanes:  # else they may finish: until they have, or a stop's grace is over
                return
            if not is_subscribed and not is_over:  # so there is a wait that a session can cut short
                is_subscribed = True
                self._subscribe(nursery)
            reason = await self._wait(read_at, _NEVER if self._lanes else give_up)

    def _subscribe(self, nursery: trio.Nursery) -> None:
        task = self._task
        subscriber = Subscriber(
            task.config,
            task.credentials,
            self._bell,
            still_ours=self._is_ours,
            tell=tell,
            is_new=task.is_new,
            wall=self._wall,
        )
        nursery.start_soon(subscriber.run)
        if task.options.once:
            nursery.start_soon(self._guard, self._watch_record, RECORD_WATCH_MS / 1000)

    def _watch_record(self) -> None:
        """For a wait of limited time: see a new row also when hub or publisher are down."""
        now = self._inbox.changed()
        if now != self._record_seen:  # the first time, too: what came between the last reading and this one
            self._record_seen = now
            self._bell.ring(Reason.WATCH)

    async def _wait(self, read_at: float, give_up: float) -> Reason:
        backstop = read_at + self._task.config.poll_s
        due = self._next_due()
        if due < backstop:
            return await self._bell.wait(min(due, give_up), Reason.RETRY)
        return await self._bell.wait(min(backstop, give_up), Reason.BACKSTOP)

    def _next_due(self) -> float:
        """When, on Trio's clock, the next row that waits may be tried again."""
        now = Now.read()
        try:
            due_ms = self._inbox.next_due(self._task.names, self._token, now)
        except RecordBusy:
            return _NEVER  # the backstop finds it
        return _NEVER if due_ms is None else trio.current_time() + (due_ms - now.ms) / 1000

    # --- handing off ---

    async def _drain(self, reason: Reason, lanes: trio.Nursery) -> None:
        """Hand off whatever may be handed off now; returns while lanes still work, if there are any."""
        if not self._backend.is_apart:
            await self._work_off(lambda: self._task.names, reason)
            return
        while (header := await self._next(self._reachable)) is not None:
            self._lanes.add(header.recipient)
            lanes.start_soon(self._lane, header.recipient, reason)
        with suppress(RecordBusy, NotStored):  # at the next look
            self._leave_absent()

    def _leave_absent(self) -> None:
        for box in self._inbox.boxes_with_unread():
            if any(covers(name, box.name) for name in self._task.names) and not self._backend.exists(box.name):
                self._settlement.leave(box.name, self._backend.absence(box.name), self._senders)

    def _reachable(self) -> Sequence[str]:
        """The recipients whose agent is there and has no lane yet."""
        return [box for box in self._boxes() if box not in self._lanes and self._backend.exists(box)]

    def _boxes(self) -> list[str]:
        return [box for box in self._inbox.boxes() if any(covers(name, box) for name in self._task.names)]

    async def _lane(self, recipient: str, reason: Reason) -> None:
        try:
            await self._work_off(lambda: [recipient] if self._backend.exists(recipient) else [], reason)
        except WakehubError as error:
            self.stop(error)
        finally:
            self._lanes.discard(recipient)
            self._bell.ring(Reason.RETRY)  # a row that it put back may be due before all that is waited for

    async def _work_off(self, names: Callable[[], Sequence[str]], reason: Reason) -> None:
        """Hand off one row after another until there is none for `names`."""
        while (header := await self._next(names)) is not None:
            try:
                row = self._inbox.claim(header.id, self._token, Now.read(), deadline_s=self._backend.deadline_s)
            except (RecordBusy, NotStored) as error:
                await pause(error)
                continue
            if row is not None:  # else it ended, or the lease did, since it was looked at
                await self._hand_over(row, reason)
            else:
                await trio.lowlevel.checkpoint()

    async def _next(self, names: Callable[[], Sequence[str]]) -> Header | None:
        """The next row to hand off, once the record can be read; None when there is none, or the end has come."""
        while not self._is_stopping:
            try:
                self._keep_lease()
                return self._inbox.next_for(names(), self._token, Now.read(), senders=self._senders)
            except (RecordBusy, NotStored) as error:
                await pause(error)
        return None

    async def _hand_over(self, row: Row, reason: Reason) -> None:
        self._in_hand += 1
        try:
            outcome = await self._present(row, reason)
        except BaseException as error:
            self._settlement.abandon(row, in_doubt=error.in_doubt if isinstance(error, OutputGone) else True)
            raise
        finally:
            self._in_hand -= 1
        await self._settlement.settle(row, outcome, reason)

    async def _present(self, row: Row, reason: Reason) -> Outcome:
        """Lay the row's files out, and give it to the backend."""
        try:
            copies = await trio.to_thread.run_sync(self._attachments.hand_over, row) if row.attachments else ()
        except WakehubError as error:
            return NotNow(f"its files cannot be handed over: {error}")
        verdict = self._keyring.verdict(row)
        message = Message(row, verdict, Now.read().ms, reason.value, copies, self._task.options.call)
        if message.verified == "no" and not self._keyring.trouble:
            tell(f"{row.id}: the signature is not by a known key of {visible(row.sender)}; shown as unverified")
        return await self._backend.deliver(message)
