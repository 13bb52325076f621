"""What reaches whom: routes, queues, and what is owed to an agent whose queue was full (awh1.md §5.6–§5.8, §5.10).

A wake goes into its recipient's queue, or its row id into the recipient's pending set; from there it is made good by a
wake of the hub's own, as soon as the queue has drained or the hub-wide budget has space again. Sessions with something
new to write are listed in `dirty`, what an operator should know in `journal`; the server empties both.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from wakehub.hub.accounting import Budget
from wakehub.hub.counters import Counters
from wakehub.hub.pending import KnownAgents, PendingSet
from wakehub.hub.router import Router
from wakehub.hub.send_queue import Overflow, SendQueue
from wakehub.hub.session import Session
from wakehub.identity.scope import inbox_topic
from wakehub.limits import HubLimits
from wakehub.wire.frames import Frame, Kind, decode, encode, wake_timestamp_ms
from wakehub.wire.payloads import Wake, Welcome


@dataclass(frozen=True, slots=True)
class Entry:
    """One line for the operator: what happened to which agent (its id, empty before admission), and details."""

    event: str
    agent: bytes = b""
    detail: dict[str, str | int] = field(default_factory=dict)


class Delivery:
    """`hub_id` is whom hub-made wakes come from. All tables are in memory and never iterated across a suspension."""

    def __init__(self, hub_id: bytes, limits: HubLimits) -> None:
        self.router = Router()
        self.known = KnownAgents(limits.known_agents)
        self.egress = Budget(limits.egress_bytes)
        self.dirty: list[Session] = []
        self.journal: list[Entry] = []
        self.counters = Counters()
        self._hub_id = hub_id
        self._limits = limits
        self._spare = limits.egress_reserve
        # Sessions that are owed something and wait for the hub-wide budget, longest first; also some that are closed by
        # now and not gone yet.
        self._starved: dict[Session, None] = {}

    def new_queue(self) -> SendQueue:
        """An empty queue, charged to the hub-wide budget."""
        return SendQueue(self._limits.queued_frames, self._limits.queued_bytes, self.egress)

    # --- in ---------------------------------------------------------------------------------------------------

    def deliver(
        self, recipients: Sequence[Session], raw: bytes, row_id: bytes, deadline_ms: int, ts_ms: int, wall_ms: int
    ) -> int:
        """Send a wake: at once to whom nothing else waits for and whose kernel takes it, else into the queue.

        Where it does not fit, its id goes to the recipient's pending set, to be made good (§5.6). Returns how many of
        the recipients it has reached or will reach as it is; `ts_ms` is the wake's own, for the latency.
        """
        size, at_once, queued = len(raw), 0, 0
        fits_an_empty_queue = False  # what one of them says holds for all, until something is charged
        for recipient in recipients:
            queue = recipient.queue
            if queue.waiting or not fits_an_empty_queue:
                overflow = queue.refusal(raw, self._spare)
                if overflow is not None:
                    self._overflowed(recipient, row_id, overflow)
                    continue
                fits_an_empty_queue = not queue.waiting
            sent = 0 if queue.waiting else recipient.transmit(raw)
            if sent == size:
                at_once += 1
                continue
            queue.add(raw, deadline_ms, sent)
            queued += 1
            fits_an_empty_queue = False
            self.dirty.append(recipient)
        if at_once:
            self._count_written(at_once, ts_ms, wall_ms)
        return at_once + queued

    def _overflowed(self, recipient: Session, row_id: bytes, overflow: Overflow) -> None:
        self.counters.overflow[overflow.value] += 1
        self.retain(self.pending_of(recipient), row_id)
        if not recipient.owed:
            self.journal.append(Entry("recipient overflow", recipient.agent, {"cause": overflow.value}))
        self._owe(recipient)

    def _count_written(self, wakes: int, ts_ms: int, wall_ms: int) -> None:
        self.counters.frames_out += wakes
        self.counters.wakes_written += wakes
        if ts_ms:
            self.counters.wake_latency_us.observe((wall_ms - ts_ms) * 1000, wakes)

    def retain(self, pending: PendingSet, row_id: bytes) -> None:
        """Keep a wake for an agent that cannot take it now."""
        pending.record(row_id)
        self.counters.pending_coalesced += 1

    def replay(self, session: Session) -> None:
        """Queue a hub-made wake for each retained id; from the first that does not fit on they stay retained."""
        pending = self.pending_of(session)
        for row_id in pending.waiting():
            if session.queue.push(self._made_wake(session.agent, row_id), 0, self._spare) is not None:
                self._owe(session)
                return
            pending.replayed(row_id)
            self.dirty.append(session)

    def pending_of(self, session: Session) -> PendingSet:
        """What is retained for the agent of a session; it is known, since it is or was connected."""
        pending = self.known.pending(session.agent)
        assert pending is not None, "a connected agent is known"
        return pending

    def evict(self) -> None:
        """Forget absent agents while there are more known ones than the limit (§5.8)."""
        while (evicted := self.known.evict()) is not None:
            self.counters.pending_evicted += 1
            self.journal.append(Entry("agent evicted", evicted))

    # --- out --------------------------------------------------------------------------------------------------

    def output(self, session: Session, wall_ms: int) -> bytes | memoryview | None:
        """The bytes to write next to `session`, None when nothing waits; expired wakes are dropped here (§5.6)."""
        queue = session.queue
        while expired := queue.drop_expired(wall_ms):
            self.counters.wakes_expired += expired
            self._released(session)
        return queue.head()

    def sent(self, session: Session, count: int, wall_ms: int) -> bytes | memoryview | None:
        """`count` of the bytes that `output` gave have been written; what to write next, as `output` says it."""
        raw = session.queue.sent(count)
        if raw is None:
            return session.queue.head()
        ts_ms = wake_timestamp_ms(raw)
        if ts_ms is None:
            self.counters.frames_out += 1
        else:
            self._count_written(1, ts_ms, wall_ms)
        if session.owed or self._starved:
            self._released(session)
        return self.output(session, wall_ms) if session.queue.waiting else None

    def abandon(self, session: Session, wall_ms: int) -> None:
        """Nothing more can be written to a closed session: what its frames told is retained for its agent, and told
        to the agent's newer session at once if there is one (§5.10)."""
        told = [
            _told_by(raw) for raw, deadline_ms in session.queue.clear() if not self._has_expired(deadline_ms, wall_ms)
        ]
        if session.agent in self.known:
            for row_id in told:
                if row_id is not None:
                    self.retain(self.pending_of(session), row_id)
            newer = self.router.route(session.agent)
            if newer is not None and not newer.owed:
                self.replay(newer)
        # Else those who come and go while the hub is full would pile up behind the first that waits.
        self._starved.pop(session, None)
        self._released(session)

    def _has_expired(self, deadline_ms: int, wall_ms: int) -> bool:
        expired = 0 < deadline_ms <= wall_ms
        self.counters.wakes_expired += expired
        return expired

    def _owe(self, recipient: Session) -> None:
        recipient.owed = True
        if not recipient.queue:
            # Its own queue will not drain again to trigger the healing: the hub-wide budget has to.
            self._starved[recipient] = None

    def _released(self, session: Session) -> None:
        if session.owed and not session.queue:
            self._heal(session)
        while self._starved:
            longest = next(iter(self._starved))
            if longest.owed and not longest.queue:
                self._heal(longest)
                if longest.owed and not longest.queue:
                    return  # the space that came back is used up
            self._starved.pop(longest, None)

    def _heal(self, session: Session) -> None:
        session.owed = False
        if session.is_open:
            self.replay(session)

    def _made_wake(self, agent: bytes, row_id: bytes) -> bytes:
        topic = inbox_topic(agent.decode())
        wake = Wake(row_id, topic.removeprefix(b"#") if topic else b"")
        return encode(Frame(Kind.WAKE, self._hub_id, agent, wake.encode()))


def _told_by(raw: bytes) -> bytes | None:
    """The row id that a frame would have told its recipient of, empty for "some id"; None when it tells of none."""
    frame = decode(raw)
    if frame.kind is Kind.WAKE:
        return Wake.decode(frame.payload).row_id
    if frame.kind is Kind.WELCOME and Welcome.decode(frame.payload).lagged:
        return b""
    return None
