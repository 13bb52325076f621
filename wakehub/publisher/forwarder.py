"""Wakes the recipients of new rows by one long-lived hub session (formats.md, Poke; receive.md §5).

    poke ──look up──▶ boxes, one per recipient ──batch of ≤ 64, proof──▶ record: hinted / hint_refused ──▶ answer
    record ──unhinted, at most 1 s apart──▶ boxes

Rules. The record is asked, never believed to be quiet: what nobody poked about is found by looking. Rows of one
recipient wait in one box and leave together with one wake, so being over the budget makes receipts late and loses
nothing. An outcome is recorded before it is answered. What the record does not say was hinted is sent again: after a
crash, a lost session, a 429, a new hub. All other refusals are final: an agent that the hub does not know (404) reads
its inbox when it says hello, and a full queue (507) heals itself.

The record is touched in worker threads only. Its trouble is logged and waited out; it ends neither session nor process.
"""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

import structlog
import trio

from wakehub.client.backoff import Ladder
from wakehub.client.connection import connect
from wakehub.client.credentials import needs_renewal
from wakehub.client.failures import Failure, HubError
from wakehub.client.proof import Prover
from wakehub.errors import ErrorCode, WakehubError, only_known
from wakehub.hub.ratelimit import TokenBucket
from wakehub.identity.addresses import PUBLISHER
from wakehub.identity.delegation import Bundle
from wakehub.identity.keys import KeyPair
from wakehub.inbox.clock import Now
from wakehub.inbox.rows import Header
from wakehub.inbox.store import Inbox
from wakehub.limits import (
    DEFAULT_DELEGATION_SECONDS,
    FRAME_BURST,
    FRAME_RATE_PER_SECOND,
    HUB_SOCKET_POLL_MS,
    POKE_ANSWER_MARGIN_MS,
    POKE_DEADLINE_MS,
    PUBLISHER_TICK_MS,
    PUBLISHER_UNAUTHORIZED_RETRY_SECONDS,
    RECORD_RETRY_SECONDS,
    SWEEP_ROWS,
    WAKE_BATCH,
)
from wakehub.log import Repeats
from wakehub.publisher.hints import Box, Outcome

_log = structlog.get_logger(program="publisher")
_TICK_S: Final = PUBLISHER_TICK_MS / 1000
_ANSWER_S: Final = (POKE_DEADLINE_MS - POKE_ANSWER_MARGIN_MS) / 1000


class _Wait:
    """One row's outcome, for as many as wait for it; settled without one when the session ended first."""

    def __init__(self) -> None:
        self.settled = trio.Event()
        self.outcome: Outcome | None = None

    def settle(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.settled.set()


class Forwarder:
    """Wakes for the rows of `inbox` through the hub at `socket`, as `wakehub-publisher` with its enrolled `key`.

    `rate` and `burst` are the budget in frames; `wall` gives seconds since the epoch.
    """

    def __init__(
        self,
        inbox: Inbox,
        socket: Path,
        hub_id: str,
        key: KeyPair,
        *,
        rate: int = FRAME_RATE_PER_SECOND,
        burst: int = FRAME_BURST,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._inbox = inbox
        self._socket = socket
        self._hub_id = hub_id
        self._key = key
        self._wall = wall
        self._rate = rate
        self._bucket = TokenBucket(rate, burst, 0)
        self._link: Literal["connecting", "up", "down"] = "connecting"
        self._boxes: dict[str, Box] = {}
        self._waits: dict[str, _Wait] = {}
        self._lookers = 0
        self._fresh: dict[str, Outcome] = {}
        self._rung = trio.Event()
        self._poked = trio.Event()
        self._tried: tuple[int, int] | None = None
        self._trouble = ""
        self._repeats = Repeats()
        self._seen: object = None
        self._is_more = False
        self._quiet_until = -math.inf

    # --- what a sender asks ---

    async def submit(self, ids: Sequence[str]) -> dict[str, Outcome]:
        """Wake for the rows `ids`, and say within 1.8 s what became of each.

        Raises `WakehubError` when the record cannot be read.
        """
        with self._looking():
            rows = await self._look_up(lambda: self._inbox.headers(ids))
            if self._link == "down" and self._is_another_hub():
                self._link = "connecting"
                self._poked.set()
            answers, asked = self._ask(ids, rows)
        with trio.move_on_after(_ANSWER_S):
            for wait in asked.values():
                await wait.settled.wait()
        for row_id, wait in asked.items():
            answers[row_id] = wait.outcome or self._undecided(row_id, answers[row_id])
        return answers

    def _ask(
        self, ids: Sequence[str], rows: Iterable[tuple[Header, Box]]
    ) -> tuple[dict[str, Outcome], dict[str, _Wait]]:
        """What can be answered at once, and what is waited for, with its answer if that comes too late."""
        answers: dict[str, Outcome] = dict.fromkeys(ids, Outcome("refused", ErrorCode.UNKNOWN))
        asked: dict[str, _Wait] = {}
        for row, box in rows:
            if row.hinted_ms is not None or not row.is_open:
                answers[row.id] = Outcome("hinted", holder=box.holder)
            elif row.class_ == "fyi":
                answers[row.id] = Outcome("refused", holder=box.holder)
            elif self._link == "down":
                answers[row.id] = Outcome("hub_down", holder=box.holder)
            else:
                answers[row.id] = Outcome("refused", ErrorCode.RATE_LIMITED, box.holder)
                asked[row.id] = self._put(row, box)
        return answers, asked

    def _undecided(self, row_id: str, late: Outcome) -> Outcome:
        """What to say about a row without an outcome: `late` if it only waits for its turn, else the hub is down."""
        in_a_box = any(row_id in box.rows for box in self._boxes.values())
        return late if in_a_box and self._link == "up" else Outcome("hub_down", holder=late.holder)

    async def _look_up(self, read: Callable[[], Sequence[Header]]) -> list[tuple[Header, Box]]:
        """What `read` finds in the record, each with an empty box that says whom to wake.

        Cancelling does not wait for a record that is locked: a sender is answered in time, whatever it does.
        """

        def with_targets() -> list[tuple[Header, Box]]:
            rows, now = read(), Now.read()
            boxes = {name: self._box(name, now) for name in {row.recipient for row in rows}}
            return [(row, boxes[row.recipient]) for row in rows]

        return await trio.to_thread.run_sync(with_targets, abandon_on_cancel=True)

    def _box(self, recipient: str, now: Now) -> Box:
        lease = self._inbox.leases.resolve(recipient, now)
        return Box(recipient, lease.agent_id if lease else recipient, lease is not None, {})

    def _put(self, row: Header, box: Box) -> _Wait:
        """Let the row wait for its wake, unless it does already or had it since the record was read."""
        wait = self._waits.get(row.id)
        if row.id in self._fresh:
            wait = _Wait()
            wait.settle(self._fresh[row.id])
        elif wait is None:
            wait = self._waits[row.id] = _Wait()
            known = self._boxes.setdefault(row.recipient, box)
            known.target, known.holder = box.target, box.holder
            known.rows[row.id] = row
            self._rung.set()
        return wait

    @contextlib.contextmanager
    def _looking(self) -> Iterator[None]:
        """Between reading rows and putting them: outcomes are kept meanwhile, so that no row is woken for twice."""
        self._lookers += 1
        try:
            yield
        finally:
            self._lookers -= 1
            if not self._lookers:
                self._fresh.clear()

    # --- the session ---

    async def run(self) -> None:
        """Hold a session for ever; what ends one is logged when it is another thing than the last time."""
        ladder = Ladder()
        while True:
            began = trio.current_time()
            ended = await self._session(ladder)
            ladder.session_ended(trio.current_time() - began)
            if ended is None:
                continue  # for a new delegation
            self._down(ended)
            with trio.move_on_after(self._delay_s(ladder, ended.failure)):
                await self._another_hub()

    async def _another_hub(self) -> None:
        """Until another socket lies at the path, which means a new hub; one client that does not wait is no herd.

        A poke has it looked at once.
        """
        while not self._is_another_hub():
            self._poked = trio.Event()
            with trio.move_on_after(HUB_SOCKET_POLL_MS / 1000):
                await self._poked.wait()

    def _is_another_hub(self) -> bool:
        found = _identity(self._socket)
        return found is not None and found != self._tried

    def _delay_s(self, ladder: Ladder, failure: Failure) -> float:
        delay_s = ladder.delay_ms(failure) / 1000
        if failure is Failure.UNAUTHORIZED:  # by an allowlist that this very process is about to sign anew
            return min(delay_s, PUBLISHER_UNAUTHORIZED_RETRY_SECONDS)
        return delay_s

    def _down(self, ended: HubError) -> None:
        self._link = "down"
        if str(ended) != self._trouble:
            _log.warning("no session with the hub", why=str(ended))
            self._trouble = str(ended)
        self._boxes.clear()
        for wait in self._waits.values():
            wait.settled.set()  # without an outcome: the hub is down
        self._waits.clear()

    async def _session(self, ladder: Ladder) -> HubError | None:
        """One session, from hello to its end; None when it only needs a new delegation."""
        bundle = Bundle.make(PUBLISHER, self._key, self._hub_id, self._wall(), DEFAULT_DELEGATION_SECONDS)
        self._tried = _identity(self._socket)
        ended: WakehubError | None = None
        try:
            async with connect(self._socket, bundle) as session, trio.open_nursery() as nursery:
                ladder.advise(session.welcome.reconnect_base_ms, session.welcome.reconnect_jitter_ms)
                self._link, self._trouble = "up", ""
                _log.info("session with the hub", session=session.welcome.session)
                prover = Prover(session)
                nursery.start_soon(prover.listen)
                await self._forward(prover, bundle)
                nursery.cancel_scope.cancel()
        except* HubError as group:
            ended = only_known(group)
        assert ended is None or isinstance(ended, HubError)
        return ended

    async def _forward(self, prover: Prover, bundle: Bundle) -> None:
        """Look for rows and wake for them until the delegation is to be renewed; raises `HubError`."""
        self._seen = None
        looked = -math.inf
        while not needs_renewal(bundle, self._wall()):
            self._rung = trio.Event()
            if self._boxes:
                await self._send(prover)
            if trio.current_time() - looked >= _TICK_S or (self._is_more and not self._boxes):
                looked = trio.current_time()
                await self._look()
            if not self._boxes and not self._is_more:
                with trio.move_on_at(looked + _TICK_S):
                    await self._rung.wait()

    async def _look(self) -> None:
        """Put what the record holds without a hint into the boxes, if anything was written since the last look."""
        if trio.current_time() < self._quiet_until:
            return
        try:
            token = await trio.to_thread.run_sync(self._inbox.changed)
            if token == self._seen:
                self._is_more = False
                return
            with self._looking():
                rows = await self._look_up(self._inbox.unhinted)
                for row, box in rows:
                    self._put(row, box)
            self._seen, self._is_more = token, len(rows) == SWEEP_ROWS
        except WakehubError as error:
            self._record_trouble(error)

    def _look_again_after(self, seconds: float) -> None:
        self._seen, self._is_more = None, False
        self._quiet_until = trio.current_time() + seconds

    async def _send(self, prover: Prover) -> None:
        """Wake for up to 64 boxes once the budget allows it, and settle them; raises `HubError`."""
        size = min(len(self._boxes), WAKE_BATCH)
        await self._spend(size + 1)  # meanwhile more rows may come into the same boxes
        batch = [self._boxes.pop(name) for name in list(self._boxes)[:size]]
        codes = await prover.deliver([(box.target, box.wake()) for box in batch], self._spend)
        for code in dict.fromkeys(codes):
            await self._conclude([box for box, found in zip(batch, codes, strict=False) if found == code], code)
        if len(codes) < len(batch):
            raise HubError(Failure.TIMEOUT, "the hub is silent", why="no pong in time, twice")

    async def _spend(self, tokens: int) -> None:
        while not self._bucket.take(tokens, int(trio.current_time() * 1_000_000)):  # noqa: ASYNC110 - time alone refills it
            await trio.sleep(tokens / self._rate)

    async def _conclude(self, boxes: Iterable[Box], code: int | None) -> None:
        """Record what the hub said about the rows in `boxes`, and tell who waits for it."""
        rows = {row_id: box for box in boxes for row_id in box.rows}
        recorded = False
        if code == ErrorCode.RATE_LIMITED:
            self._look_again_after(_TICK_S)
        else:
            try:
                await trio.to_thread.run_sync(self._inbox.record_hint, list(rows), code, Now.read())
                recorded = True
            except WakehubError as error:
                self._record_trouble(error)  # the rows count as not hinted, and another wake does no harm
        state: Literal["hinted", "refused"] = "hinted" if code is None else "refused"
        for row_id, box in rows.items():
            outcome = Outcome(state, code, box.holder)
            self._waits.pop(row_id).settle(outcome)
            if recorded and self._lookers:
                self._fresh[row_id] = outcome

    def _record_trouble(self, error: WakehubError) -> None:
        times = self._repeats.due((str(error),), trio.current_time())
        if times is not None:
            _log.error("the record gives trouble", why=str(error), times=times)
        self._look_again_after(RECORD_RETRY_SECONDS)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
