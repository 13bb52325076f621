"""Hubs that break one rule each, served in the test's own process, for a conformance run to find.

`BROKEN` says for each which cases must fail. Those that must pass beside them show that the run looks at the right
thing, and not at everything at once.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
import trio
from independent_client import Agent, write_allowlist
from pumped import pump_forever

from wakehub.errors import ErrorCode
from wakehub.hub.hub import Hub
from wakehub.hub.session import Session
from wakehub.identity.allowlist import AllowlistFile
from wakehub.identity.keys import KeyPair
from wakehub.identity.peercred import SameUidAuthorizer
from wakehub.identity.verifier import Claim, DelegationVerifier, Denied, Identity
from wakehub.limits import HubLimits
from wakehub.locks import Lock
from wakehub.ops.conformance.guest import Guest, load_guests
from wakehub.server.listener import Listener
from wakehub.server.notify import Notifier
from wakehub.server.serve import Server
from wakehub.server.sockets import Sockets
from wakehub.wire.fields import decode_topics
from wakehub.wire.frames import Frame, Kind, decode, encode
from wakehub.wire.protocol import HubState

HUB_ID = "wakehub"
AGENTS = ("team/a", "team/b", "team/c")
_FLAGS_AT = 10


# --- hubs -----------------------------------------------------------------------------------------------------


class SameChallenge(Hub):
    def open(self, nonce: bytes, now_us: int) -> Session:
        return super().open(bytes(32), now_us)


class WaitsForTheBody(Hub):
    def refuse_prefix(self, session: Session) -> None:
        pass


class IgnoresFlags(Hub):
    def receive(self, session: Session, raw: bytes, now_us: int, wall_ms: int) -> Claim | None:
        return super().receive(session, raw[:_FLAGS_AT] + b"\0" + raw[_FLAGS_AT + 1 :], now_us, wall_ms)


class FoldsDecodingErrors(Hub):
    """400 where the payload's ceiling says 413."""

    def _refuse(self, session: Session, code: ErrorCode, *rest: str) -> None:
        super()._refuse(session, ErrorCode.MALFORMED if code is ErrorCode.TOO_LARGE else code, *rest)


class StaysOpenAfterErrors(Hub):
    def _refuse(self, session: Session, code: ErrorCode, reason: str, *rest: str) -> None:
        self._error(session, code, reason)


class ToleratesStrangersFrames(Hub):
    """No 401 for what comes before the hello."""

    def _hello(self, session: Session, frame: Frame, step: Any) -> Claim | None:
        return super()._hello(session, frame, step) if frame.kind is Kind.HELLO else None


class TellsWhy(Hub):
    def admit(self, session: Session, claim: Claim, verdict: Identity | Denied, now_us: int) -> None:
        if isinstance(verdict, Denied):
            self._refuse(session, ErrorCode.UNAUTHORIZED, verdict.label, "hello")
        else:
            super().admit(session, claim, verdict, now_us)


class ReplaysFirst(Hub):
    """What waited comes in front of the welcome."""

    def _control(self, session: Session, kind: Kind, payload: bytes = b"") -> bool:
        if kind is Kind.WELCOME:
            self.delivery.replay(session)
        return super()._control(session, kind, payload)


class ReplacesInSilence(Hub):
    def _error(self, session: Session, code: ErrorCode, reason: str) -> None:
        if code is not ErrorCode.REPLACED:
            super()._error(session, code, reason)


class OldEndTakesTheRoute(Hub):
    def finish(self, session: Session, wall_ms: int) -> None:
        super().finish(session, wall_ms)
        if session.agent:
            self.delivery.router._shard(session.agent).routes.pop(session.agent, None)


class InheritsTopics(Hub):
    def admit(self, session: Session, claim: Claim, verdict: Identity | Denied, now_us: int) -> None:
        before = self.delivery.router.route(claim.agent_id.encode())
        topics = tuple(before.topics) if before else ()
        super().admit(session, claim, verdict, now_us)
        if session.state is HubState.IN_SESSION:
            for topic in topics:
                session.topics[topic] = None
                self.delivery.router.subscribe(topic, session)


class BelievesFrom(Hub):
    def receive(self, session: Session, raw: bytes, now_us: int, wall_ms: int) -> Claim | None:
        if session.agent and raw[_FLAGS_AT] == 0:
            raw = encode(decode(raw)._replace(from_id=session.agent))
        return super().receive(session, raw, now_us, wall_ms)


class NoScope(Hub):
    def _may_use(self, session: Session, topic: bytes) -> bool:
        return True


class AnyMembership(Hub):
    def _proves_membership(self, session: Session, frame: Frame) -> bool:
        return True


class KeepsTheDeparted(Hub):
    def _depart(self, session: Session, frame: Frame, *rest: Any) -> None:
        if self._proves_membership(session, frame):
            self._close(session, "departed")


class ForgetsToAcknowledge(Hub):
    def _control(self, session: Session, kind: Kind, payload: bytes = b"") -> bool:
        return kind is Kind.SUBSCRIBE or super()._control(session, kind, payload)


class AcknowledgesTwice(Hub):
    def _control(self, session: Session, kind: Kind, payload: bytes = b"") -> bool:
        if kind is Kind.UNSUBSCRIBE:
            super()._control(session, kind, payload)
        return super()._control(session, kind, payload)


class EndlessTopics(Hub):
    def _subscribe(self, session: Session, frame: Frame, *rest: Any) -> None:
        for topic in decode_topics(frame.payload):
            session.topics[topic] = None
            self.delivery.router.subscribe(topic, session)
        self._control(session, Kind.SUBSCRIBE, frame.payload)


class EchoesPings(Hub):
    def _ping(self, session: Session, frame: Frame, *rest: Any) -> None:
        self._control(session, Kind.PONG, frame.payload)


class NoShortWay(Hub):
    """Every wake goes the long way, in which a rule can be broken; no fault by itself."""

    def _take_plain_wake(self, session: Session, raw: bytes, wall_ms: int) -> bool:
        return False


class RewritesFrames(NoShortWay):
    def _wake(self, session: Session, frame: Frame, raw: bytes, now_us: int, wall_ms: int) -> None:
        super()._wake(session, frame, encode(frame._replace(ts_ms=1)), now_us, wall_ms)


class LaterFirst(Hub):
    """Of two wakes to an agent the second goes first."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        held: dict[Session, tuple[Any, ...]] = {}
        deliver = self.delivery.deliver

        def swapped(recipients: Sequence[Session], *wake: Any) -> int:
            for recipient in recipients:
                first = held.pop(recipient, None)
                if first is None:
                    held[recipient] = wake
                else:
                    deliver((recipient,), *wake)
                    deliver((recipient,), *first)
            return len(recipients)

        self.delivery.deliver = swapped


class EchoesTopics(Hub):
    def _wake_topic(self, session: Session, frame: Frame, raw: bytes, row_id: bytes, *rest: Any) -> None:
        super()._wake_topic(session, frame, raw, row_id, *rest)
        if frame.to_id in session.topics:
            self.delivery.deliver((session,), raw, row_id, 0, 0, 0)


class FreeFanOut(Hub):
    def _wake_topic(self, session: Session, frame: Frame, raw: bytes, row_id: bytes, *rest: Any) -> None:
        if self._may_use(session, frame.to_id):
            self.delivery.deliver(self.delivery.router.subscribers(frame.to_id, but=session), raw, row_id, 0, 0, 0)
        else:
            super()._wake_topic(session, frame, raw, row_id, *rest)


class IgnoresTtl(NoShortWay):
    def _wake(self, session: Session, frame: Frame, raw: bytes, now_us: int, wall_ms: int) -> None:
        super()._wake(session, frame._replace(ttl_ms=0), raw, now_us, wall_ms)


class AnswersForTheAbsent(Hub):
    """404 for a known agent that is away."""

    def _wake(self, session: Session, frame: Frame, *rest: Any) -> None:
        is_topic = frame.to_id.startswith(b"#")
        is_here = is_topic or not frame.to_id or self.delivery.router.route(frame.to_id)
        super()._wake(session, frame if is_here else frame._replace(to_id=b"nobody"), *rest)


class KeepsPending(Hub):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        replay = self.delivery.replay

        def keeping(session: Session) -> None:
            ids = dict(self.delivery.pending_of(session).ids)
            replay(session)
            self.delivery.pending_of(session).ids.update(ids)

        self.delivery.replay = keeping


class OverflowsInSilence(Hub):
    def _overflowed(self, session: Session) -> None:
        pass


class ForgetsToHeal(Hub):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.delivery._owe = lambda recipient: None


# --- verifiers ------------------------------------------------------------------------------------------------


class AnyCertificate(DelegationVerifier):
    def _is_certified(self, *_: Any) -> bool:
        return True


class AnyTranscript(DelegationVerifier):
    def verify(self, claim: Claim, now_s: float) -> Identity | Denied:
        found = super().verify(claim, now_s)
        if found == Denied("transcript_signature"):
            return Identity(claim.agent_id, claim.key, claim.certificate, ("team",))
        return found


@dataclass(frozen=True)
class Broken:
    """A hub that breaks a rule, and the cases that must fail for it."""

    name: str
    fail: tuple[str, ...]
    hub: type[Hub] = Hub
    verifier: type[DelegationVerifier] = DelegationVerifier
    limits: HubLimits = field(default_factory=HubLimits)


def _hub(hub: type[Hub], *fail: str) -> Broken:
    return Broken(hub.__name__, fail, hub)


BROKEN = (
    _hub(SameChallenge, "challenge-is-fresh"),
    _hub(WaitsForTheBody, "prefix-over-ceiling"),
    _hub(IgnoresFlags, "flags", "order-flags-before-ceiling"),
    _hub(FoldsDecodingErrors, "wake-payload-over-256", "order-ceiling-before-from"),
    _hub(StaysOpenAfterErrors, "bad-magic", "one-answer"),
    _hub(ToleratesStrangersFrames, "ping-before-hello"),
    _hub(TellsWhy, "stranger", "refusals-are-uniform"),
    _hub(ReplaysFirst, "pending-is-replayed"),
    _hub(ReplacesInSilence, "replaced"),
    _hub(OldEndTakesTheRoute, "newer-session-stays"),
    _hub(InheritsTopics, "subscriptions-belong-to-the-session"),
    _hub(BelievesFrom, "from-of-somebody-else"),
    _hub(NoScope, "wake-to-a-foreign-topic"),
    _hub(AnyMembership, "join-signed-as-depart"),
    _hub(KeepsTheDeparted, "departed-is-unknown"),
    _hub(ForgetsToAcknowledge, "subscribe-is-acknowledged"),
    _hub(AcknowledgesTwice, "empty-list-is-acknowledged"),
    _hub(EndlessTopics, "33rd-topic", "subscribe-out-of-scope"),
    _hub(EchoesPings, "ping"),
    _hub(RewritesFrames, "wake-is-forwarded", "wake-oneself"),
    _hub(LaterFirst, "wakes-stay-in-order"),
    _hub(EchoesTopics, "sender-is-no-recipient"),
    _hub(FreeFanOut, "fan-out-is-charged"),
    _hub(IgnoresTtl, "expired-wake-is-dropped"),
    _hub(AnswersForTheAbsent, "absent-is-no-error"),
    _hub(KeepsPending, "pending-is-cleared"),
    _hub(OverflowsInSilence, "deaf-recipient"),
    _hub(ForgetsToHeal, "overflow-heals"),
    Broken("AnyCertificate", ("certificate-signature-altered", "certificate-ends-later"), verifier=AnyCertificate),
    Broken("AnyTranscript", ("hello-is-good-once", "hello-for-another-challenge"), verifier=AnyTranscript),
    Broken("EndlessBucket", ("over-budget",), limits=HubLimits(frame_burst=1_000_000)),
    Broken("SmallBucket", ("burst-is-taken",), limits=HubLimits(frame_burst=500)),
    Broken("EndlessHandshake", ("handshake-deadline",), limits=HubLimits(handshake_deadline_ms=60_000)),
    Broken("HastyHandshake", ("handshake-deadline",), limits=HubLimits(handshake_deadline_ms=1_000)),
)


# --- serving --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Served:
    """A hub that is served, and agents that it admits."""

    socket: Path
    guests: tuple[Guest, ...]


@asynccontextmanager
async def serving(directory: Path, broken: Broken) -> AsyncIterator[Served]:
    """Serve the hub until the block ends, with the real clocks and a real signed allowlist."""
    owner, agents = KeyPair.generate(), [Agent(name) for name in AGENTS]
    run, state = directory / "run", directory / "state"
    state.mkdir(mode=0o700)
    hub_listener, stats_listener = (Listener.bind(run / name) for name in ("hub.sock", "stats.sock"))
    sockets = Sockets(hub_listener, stats_listener, Lock.acquire(state / "hub.lock", what="a hub"))
    write_allowlist(run / "allowlist.jws", owner.seed, [agent.entry() for agent in agents])
    verifier = broken.verifier(HUB_ID, AllowlistFile(run / "allowlist.jws", owner.public))
    logger = structlog.wrap_logger(None, processors=[_drop])
    server = Server(
        broken.hub(HUB_ID.encode(), broken.limits, verifier),
        sockets,
        broken.limits.max_connections,
        authorizer=SameUidAuthorizer(),
        notifier=Notifier({}, logger),
        logger=logger,
    )
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pump_forever, server.pump)
            nursery.start_soon(server.run)
            yield Served(run / "hub.sock", load_guests(_write_bundles(directory, agents)))
            nursery.cancel_scope.cancel()
    finally:
        sockets.close()


def _write_bundles(directory: Path, agents: list[Agent]) -> list[Path]:
    paths = [directory / f"{number}.json" for number in range(len(agents))]
    for agent, path in zip(agents, paths, strict=True):
        agent.bundle(HUB_ID).write(path)
    return paths


def _drop(_logger: object, _method: str, _event: Any) -> Any:
    raise structlog.DropEvent
