"""The hub's decisions: who is admitted, where a frame goes, what is refused (awh1.md §5).

One way down: `receive` takes a delimited frame and the time, and decides; what comes of it is in `delivery`: queues to
be written, and lines for the operator.
Times come in twice: `now_us` is monotonic (buckets, grace periods), `wall_ms` is the clock that ttl and ts_ms speak of.

    hello ─ receive ─▶ Claim ─ verifier (the server's turn) ─▶ admit ─▶ in session ─ receive … ─▶ close ─▶ finish

In session the checks run in this order, and the first that fails answers: bucket, decode, from, kind, metadata or
topic list, destination, ttl, scope, fan-out charge, routing. Every refusal is counted by cause.
"""

from collections.abc import Callable
from typing import Final

from wakehub.errors import ErrorCode, Violation
from wakehub.hub.counters import Gauges
from wakehub.hub.delivery import Delivery, Entry
from wakehub.hub.ratelimit import TokenBucket
from wakehub.hub.session import Session
from wakehub.identity.keys import verify
from wakehub.identity.scope import may_hold
from wakehub.identity.verifier import Claim, Denied, HelloVerifier, Identity, Stale
from wakehub.limits import (
    HANDSHAKE_BURST,
    HANDSHAKE_RATE_PER_SECOND,
    MAX_FRAME_BYTES,
    MAX_TOPICS_PER_SESSION,
    RATE_LIMITED_ANSWER_INTERVAL_MS,
    STALE_GRACE_SECONDS,
    HubLimits,
)
from wakehub.wire.fields import decode_topics
from wakehub.wire.frames import Frame, Kind, decode, encode
from wakehub.wire.glance import plain_wake, wake_head
from wakehub.wire.payloads import Error, Hello, Wake, Welcome
from wakehub.wire.protocol import HUB_TABLE, HubState, Refusal
from wakehub.wire.transcript import membership

_ANSWER_INTERVAL_US: Final = RATE_LIMITED_ANSWER_INTERVAL_MS * 1000
_STALE_GRACE_US: Final = STALE_GRACE_SECONDS * 1_000_000
_FROM_CLIENT: Final = HUB_TABLE[HubState.IN_SESSION]
_REFUSED_IN_SESSION: Final = {kind: step for kind, step in _FROM_CLIENT.items() if isinstance(step, Refusal)}
_TOPIC_MARK: Final = ord("#")
_AUTHENTICATING: Final = HubState.AUTHENTICATING  # an enum looks its members up anew each time
_MAX_SESSION_NUMBER: Final = (1 << 32) - 1


class Hub:
    """`hub_id` is 1..64 bytes of UTF-8; `verifier` decides who an agent is and whether it still is."""

    def __init__(self, hub_id: bytes, limits: HubLimits, verifier: HelloVerifier) -> None:
        self.hub_id = hub_id
        self.limits = limits
        self.verifier = verifier
        self.delivery = Delivery(hub_id, limits)
        self.counters = self.delivery.counters
        self._sessions: dict[Session, None] = {}
        self._last_number = 0
        self._handlers: dict[Kind, Callable[[Session, Frame, bytes, int, int], None]] = {
            Kind.WAKE: self._wake,
            Kind.PING: self._ping,
            Kind.PONG: lambda *_: None,
            Kind.SUBSCRIBE: self._subscribe,
            Kind.UNSUBSCRIBE: self._unsubscribe,
            Kind.JOIN: self._join,
            Kind.DEPART: self._depart,
        }
        assert self._handlers.keys() == _FROM_CLIENT.keys() - _REFUSED_IN_SESSION.keys()

    # --- a connection comes -----------------------------------------------------------------------------------

    def open(self, nonce: bytes, now_us: int) -> Session:
        """A connection was accepted: queue its challenge. `nonce` is 32 fresh random bytes (§2, hello)."""
        session = Session(
            nonce,
            TokenBucket(HANDSHAKE_RATE_PER_SECOND, HANDSHAKE_BURST, now_us),
            self.delivery.new_queue(),
        )
        self._sessions[session] = None
        self.counters.accepted += 1
        self._control(session, Kind.HELLO, nonce)
        return session

    def admit(self, session: Session, claim: Claim, verdict: Identity | Denied, now_us: int) -> None:
        """Admission is one synchronous step (§5.3): nothing can slip in before the welcome.

        A connection that was closed while its claim was verified is let go.
        """
        if not session.is_open:
            return
        if isinstance(verdict, Denied):
            self._refuse(session, ErrorCode.UNAUTHORIZED, "unauthorized", "hello", verdict.label, claim.agent_id)
            return
        agent = verdict.agent_id.encode()
        session.agent = agent
        session.wake_head = wake_head(agent)
        session.identity = verdict
        session.state = HubState.IN_SESSION
        session.bucket = TokenBucket(self.limits.frame_rate_per_second, self.limits.frame_burst, now_us)
        self._last_number = self._last_number % _MAX_SESSION_NUMBER + 1
        session.number = self._last_number
        for topic in claim.topics:
            session.topics[topic] = None
            self.delivery.router.subscribe(topic, session)
        self.delivery.known.enter(agent)
        self.delivery.evict()
        previous = self.delivery.router.install(agent, session)
        if previous is not None:
            self.counters.sessions_replaced += 1
            self._error(previous, ErrorCode.REPLACED, "session replaced")
            self._close(previous, "replaced")
        pending = self.delivery.pending_of(session)
        self.delivery.journal.append(
            Entry("agent connected", agent, {"session": session.number, "pending": pending.count})
        )
        welcome = Welcome(
            session.number,
            pending.count,
            len(pending.ids),
            pending.lagged,
            self.limits.reconnect_base_ms,
            self.limits.reconnect_jitter_ms,
        )
        if self._control(session, Kind.WELCOME, welcome.encode()):
            pending.welcomed()
            self.delivery.replay(session)

    # --- a frame comes ----------------------------------------------------------------------------------------

    def receive(self, session: Session, raw: bytes, now_us: int, wall_ms: int) -> Claim | None:
        """Take one delimited frame of an open session.

        Returns the claim of a well-formed hello, which the server has verified and hands to `admit`; else None.
        """
        assert session.is_open, "nothing that comes from a closed connection is looked at"
        self.counters.frames_in += 1
        if not session.bucket.take(1, now_us):
            self._rate_limited(session, "frame rate exceeded", "rate_limited", now_us)
            return None
        if self._take_plain_wake(session, raw, wall_ms):
            return None
        try:
            frame = decode(raw)
        except Violation as violation:
            self._refuse(session, violation.code, violation.reason, "malformed")
            return None
        if session.state is _AUTHENTICATING:
            return self._hello(session, frame, HUB_TABLE[_AUTHENTICATING][frame.kind])
        if frame.from_id != session.agent:
            self._refuse(session, ErrorCode.FORBIDDEN, "from does not match the session identity", "forged_from")
        elif (handle := self._handlers.get(frame.kind)) is None:
            refusal = _REFUSED_IN_SESSION[frame.kind]
            self._refuse(session, refusal.code, refusal.reason, "kind")
        else:
            try:
                handle(session, frame, raw, now_us, wall_ms)
            except Violation as violation:
                self._refuse(session, violation.code, violation.reason, "malformed", frame.kind.name.lower())
        return None

    def refuse_prefix(self, session: Session) -> None:
        """A length prefix over the ceiling came in (§1)."""
        self._refuse(session, ErrorCode.TOO_LARGE, f"frame exceeds {MAX_FRAME_BYTES} B", "prefix")

    def failed(self, session: Session) -> None:
        """The hub itself failed on a frame; the session stays (§5.4)."""
        self._refuse(session, ErrorCode.INTERNAL, "internal error", "internal")

    def _hello(self, session: Session, frame: Frame, step: HubState | Refusal) -> Claim | None:
        if isinstance(step, Refusal):
            self._refuse(session, step.code, step.reason, "unauthenticated", frame.kind.name.lower())
            return None
        try:
            hello = Hello.decode(frame.payload)
        except Violation as violation:
            self._refuse(session, violation.code, f"malformed hello: {violation.reason}", "malformed", "hello")
            return None
        return Claim(frame.from_id.decode(), hello.key, hello.signature, hello.certificate, hello.topics, session.nonce)

    def _ping(self, session: Session, frame: Frame, raw: bytes, now_us: int, wall_ms: int) -> None:
        if session.owed_429:
            # Held back until now; said before the pong, so that wake and ping together stay a proof.
            self._error(session, ErrorCode.RATE_LIMITED, session.owed_429)
            session.owed_429 = ""
            session.last_429_us = now_us
        self._control(session, Kind.PONG)

    def _join(self, session: Session, frame: Frame, raw: bytes, now_us: int, wall_ms: int) -> None:
        self._proves_membership(session, frame)

    def _depart(self, session: Session, frame: Frame, raw: bytes, now_us: int, wall_ms: int) -> None:
        if self._proves_membership(session, frame):
            self.delivery.known.forget(session.agent)
            self._close(session, "departed")

    def _proves_membership(self, session: Session, frame: Frame) -> bool:
        assert session.identity is not None
        transcript = membership(frame.kind, self.hub_id, session.nonce, session.agent)
        if verify(session.identity.key, transcript, frame.payload):
            return True
        self._refuse(session, ErrorCode.UNAUTHORIZED, "unauthorized", frame.kind.name.lower(), "signature")
        return False

    def _subscribe(self, session: Session, frame: Frame, raw: bytes, now_us: int, wall_ms: int) -> None:
        topics = decode_topics(frame.payload)
        if not all(self._may_use(session, topic) for topic in topics):
            self._refuse(session, ErrorCode.UNAUTHORIZED, "unauthorized", "subscribe", "topic")
            return
        if len(session.topics.keys() | set(topics)) > MAX_TOPICS_PER_SESSION:
            self._refuse(session, ErrorCode.FORBIDDEN, "too many topics for one session", "too_many_topics")
            return
        for topic in topics:
            session.topics[topic] = None
            self.delivery.router.subscribe(topic, session)
        self._control(session, Kind.SUBSCRIBE, frame.payload)

    def _unsubscribe(self, session: Session, frame: Frame, raw: bytes, now_us: int, wall_ms: int) -> None:
        for topic in decode_topics(frame.payload):
            self._drop_topic(session, topic)
        self._control(session, Kind.UNSUBSCRIBE, frame.payload)

    # --- wakes ------------------------------------------------------------------------------------------------

    def _take_plain_wake(self, session: Session, raw: bytes, wall_ms: int) -> bool:
        """The short way for what the hub sees all day, a wake to a connected agent; False leaves it to the long one."""
        wake = plain_wake(raw, session.wake_head, session.agent)
        if wake is None:
            return False
        to, row_id, ts_ms, ttl_ms = wake
        recipient = self.delivery.router.route(to)
        if recipient is None or to[0] == _TOPIC_MARK:
            return False
        deadline_ms = (ts_ms or wall_ms) + ttl_ms if ttl_ms else 0
        if 0 < deadline_ms <= wall_ms:
            self.counters.wakes_expired += 1
        else:
            self._wake_agent(session, recipient, raw, row_id, deadline_ms, ts_ms, wall_ms)
        return True

    def _wake(self, session: Session, frame: Frame, raw: bytes, now_us: int, wall_ms: int) -> None:
        row_id = Wake.decode(frame.payload).row_id
        to = frame.to_id
        if not to:
            self._refuse(session, ErrorCode.UNKNOWN, "empty destination", "empty_destination")
            return
        deadline_ms = (frame.ts_ms or wall_ms) + frame.ttl_ms if frame.ttl_ms else 0
        if 0 < deadline_ms <= wall_ms:
            self.counters.wakes_expired += 1
        elif to[0] == _TOPIC_MARK:
            self._wake_topic(session, frame, raw, row_id, deadline_ms, now_us, wall_ms)
        elif (recipient := self.delivery.router.route(to)) is not None:
            self._wake_agent(session, recipient, raw, row_id, deadline_ms, frame.ts_ms, wall_ms)
        elif (pending := self.delivery.known.pending(to)) is not None:
            self.delivery.retain(pending, row_id)
            self.counters.wakes_routed += 1
        else:
            self._refuse(session, ErrorCode.UNKNOWN, "no such agent", "unknown_agent")

    def _wake_agent(
        self, session: Session, to: Session, raw: bytes, row_id: bytes, deadline_ms: int, ts_ms: int, wall_ms: int
    ) -> None:
        if self.delivery.deliver((to,), raw, row_id, deadline_ms, ts_ms, wall_ms):
            self.counters.wakes_routed += 1
        else:
            self._overflowed(session)

    def _wake_topic(
        self, session: Session, frame: Frame, raw: bytes, row_id: bytes, deadline_ms: int, now_us: int, wall_ms: int
    ) -> None:
        if not self._may_use(session, frame.to_id):
            self._refuse(session, ErrorCode.FORBIDDEN, "topic outside the sender's read scope", "scope")
            return
        recipients = self.delivery.router.subscribers(frame.to_id, but=session)
        if len(recipients) > 1 and not session.bucket.take(len(recipients) - 1, now_us):
            self._rate_limited(session, "fan-out exceeds the frame budget", "fanout", now_us)
            return
        self.counters.wakes_routed += 1
        taken = self.delivery.deliver(recipients, raw, row_id, deadline_ms, frame.ts_ms, wall_ms)
        self.counters.fanout_deliveries += taken
        if taken < len(recipients):
            self._overflowed(session)

    # --- a connection goes ------------------------------------------------------------------------------------

    def finish(self, session: Session, wall_ms: int) -> None:
        """The connection is closed, however it ended: what was not written goes to who is owed it (§5.10)."""
        self._close(session, "disconnected")
        self._sessions.pop(session, None)
        self.delivery.abandon(session, wall_ms)

    def drop(self, session: Session, cause: str, label: str = "") -> None:
        """Close silently for a reason of the hub's own: the handshake deadline, a failed revalidation."""
        if not session.is_open:
            return
        self._count_refusal(session, cause, label)
        self._close(session, cause)

    def eof(self, session: Session, *, inside_frame: bool) -> None:
        """The peer ended its stream; inside a frame that is counted as malformed, and answered by nothing (§1)."""
        if inside_frame:
            self._count_refusal(session, "malformed", "eof")
        self._close(session, "disconnected")

    def _close(self, session: Session, why: str) -> None:
        if not session.is_open:
            return
        was_in_session = session.state is HubState.IN_SESSION
        session.state = HubState.CLOSED
        session.owed = False
        for topic in list(session.topics):
            self._drop_topic(session, topic)
        if was_in_session:
            if self.delivery.router.remove(session.agent, session):
                self.delivery.known.leave(session.agent)
                self.delivery.evict()
            self.delivery.journal.append(
                Entry("agent disconnected", session.agent, {"session": session.number, "why": why})
            )
        self.delivery.dirty.append(session)

    def _drop_topic(self, session: Session, topic: bytes) -> None:
        session.topics.pop(topic, None)
        self.delivery.router.unsubscribe(topic, session)

    # --- once a second ----------------------------------------------------------------------------------------

    def revalidate(self, now_us: int, now_s: float) -> None:
        """Look again at every identity: who expired or was revoked goes, lost topics go, a stale allowlist gets 5 s
        of grace (§5.9). `now_s` is the wall clock in seconds."""
        judge = self.verifier.revalidation(now_s)
        for session in list(self._sessions):
            if session.identity is not None and session.is_open:
                self._revalidated(session, judge(session.identity), now_us)

    def _revalidated(self, session: Session, verdict: Identity | Denied | Stale, now_us: int) -> None:
        match verdict:
            case Identity():
                session.stale_since_us = None
                if verdict is session.identity:
                    return
                session.identity = verdict
                for topic in [topic for topic in session.topics if not self._may_use(session, topic)]:
                    self._drop_topic(session, topic)
                    self.delivery.journal.append(Entry("topic lost", session.agent, {"topic": topic.decode()}))
            case Denied(label):
                self.drop(session, "revalidation", label)
            case Stale():
                if session.stale_since_us is None:
                    session.stale_since_us = now_us
                elif now_us - session.stale_since_us >= _STALE_GRACE_US:
                    self.drop(session, "revalidation", "allowlist_stale")

    # --- state, for who asks ----------------------------------------------------------------------------------

    @property
    def sessions(self) -> tuple[Session, ...]:
        """A snapshot of every connection that is not finished."""
        return tuple(self._sessions)

    @property
    def agents(self) -> int:
        """How many agents are connected."""
        return len(self.delivery.router)

    def gauges(self) -> Gauges:
        """The state right now; one pass over the connections."""
        return Gauges(
            connections=len(self._sessions),
            recipients=self.agents,
            queued_bytes=sum(session.queue.size for session in self._sessions),
            queued_frames=sum(len(session.queue) for session in self._sessions),
            egress_bytes=self.delivery.egress.used,
            slow_consumers=sum(session.queue.is_slow for session in self._sessions),
        )

    # --- answers ----------------------------------------------------------------------------------------------

    def _refuse(
        self, session: Session, code: ErrorCode, reason: str, cause: str, label: str = "", claimed: str = ""
    ) -> None:
        self._count_refusal(session, cause, label, claimed)
        self._error(session, code, reason)
        if code.ends_session:
            self._close(session, cause)

    def _count_refusal(self, session: Session, cause: str, label: str = "", claimed: str = "") -> None:
        self.counters.refused[cause, label] += 1
        self.delivery.journal.append(
            Entry("refused", session.agent or claimed.encode(), {"cause": cause, "label": label})
        )

    def _rate_limited(self, session: Session, reason: str, cause: str, now_us: int) -> None:
        self._count_refusal(session, cause)
        if session.last_429_us is None or now_us - session.last_429_us >= _ANSWER_INTERVAL_US:
            session.last_429_us = now_us
            session.owed_429 = ""
            self._error(session, ErrorCode.RATE_LIMITED, reason)
        else:
            session.owed_429 = reason

    def _overflowed(self, session: Session) -> None:
        self._error(session, ErrorCode.OVERFLOW, "recipient queue or hub egress budget full")

    def _error(self, session: Session, code: ErrorCode, reason: str) -> None:
        self._control(session, Kind.ERROR, Error(code, reason).encode())

    def _control(self, session: Session, kind: Kind, payload: bytes = b"") -> bool:
        """Queue a frame of the hub's own; False when the session is closed, by now or because it did not fit (§5.4)."""
        if not session.is_open:
            return False
        raw = encode(Frame(kind, self.hub_id, session.agent, payload))
        if session.queue.push(raw) is None:
            self.delivery.dirty.append(session)
            return True
        self.drop(session, "own_queue")
        return False

    def _may_use(self, session: Session, topic: bytes) -> bool:
        identity = session.identity
        assert identity is not None
        return may_hold(identity.agent_id, identity.prefixes, topic)
