"""A hub and its agents, without sockets and clock: the tests push bytes in, take bytes out, and say when it is.

The transport, the clock and the verifier are the tests' own; the hub and the client's protocol are the real ones.
"""

import hashlib
from dataclasses import dataclass, field

from wakehub.hub.hub import Hub
from wakehub.hub.session import Session
from wakehub.identity.keys import KeyPair
from wakehub.identity.scope import may_hold
from wakehub.identity.verifier import Claim, Denied, Identity, Judge, Stale
from wakehub.limits import HubLimits
from wakehub.wire.fields import encode_topics
from wakehub.wire.frames import Frame, Kind, decode, encode
from wakehub.wire.payloads import Error, Hello, Wake, Welcome
from wakehub.wire.protocol import Challenge, ClientProtocol, Event
from wakehub.wire.transcript import membership

HUB = b"hub"
NOON_MS = 1_788_436_800_000

FORGED = Error(403, "from does not match the session identity")
KIND = Error(403, "kind not accepted from a client")
UNAUTHORIZED = Error(401, "unauthorized")
NO_DESTINATION = Error(404, "empty destination")
NO_AGENT = Error(404, "no such agent")
NO_SCOPE = Error(403, "topic outside the sender's read scope")
RATE = Error(429, "frame rate exceeded")
FAN_OUT = Error(429, "fan-out exceeds the frame budget")
FULL = Error(507, "recipient queue or hub egress budget full")
REPLACED = Error(409, "session replaced")
MANY_TOPICS = Error(403, "too many topics for one session")
INTERNAL = Error(500, "internal error")
TOO_LONG = Error(413, "frame exceeds 1304 B")


def pair_of(agent: str) -> KeyPair:
    """The session key of `agent`, the same in every run."""
    return KeyPair(hashlib.sha256(agent.encode()).digest())


@dataclass
class Verifier:
    """Admits whom the test does not deny; everybody may read below `prefixes`, or below what `own` says of it."""

    prefixes: tuple[str, ...] = ("team",)
    own: dict[str, tuple[str, ...]] = field(default_factory=dict)
    denied: dict[str, str] = field(default_factory=dict)
    stale: bool = False

    def verify(self, claim: Claim, now_s: float) -> Identity | Denied:
        if claim.agent_id in self.denied:
            return Denied(self.denied[claim.agent_id])
        if self.stale:
            return Denied("allowlist_stale")
        prefixes = self.own.get(claim.agent_id, self.prefixes)
        if not all(may_hold(claim.agent_id, prefixes, topic) for topic in claim.topics):
            return Denied("topic")
        return Identity(claim.agent_id, claim.key, claim.certificate, prefixes)

    def revalidation(self, now_s: float) -> Judge:
        return self._judge

    def _judge(self, identity: Identity) -> Identity | Denied | Stale:
        if identity.agent_id in self.denied:
            return Denied(self.denied[identity.agent_id])
        if self.stale:
            return Stale()
        prefixes = self.own.get(identity.agent_id, self.prefixes)
        return Identity(identity.agent_id, identity.key, identity.certificate, prefixes)


class World:
    """One hub and the time: `now_us` is its monotonic clock, `wall_ms` the wall clock."""

    def __init__(self, **limits: int) -> None:
        self.verifier = Verifier()
        self.hub = Hub(HUB, HubLimits(**limits), self.verifier)
        self.now_us = 0
        self.wall_ms = NOON_MS
        self._nonces = 0

    def pass_ms(self, ms: float) -> None:
        self.now_us += round(ms * 1000)
        self.wall_ms += int(ms)

    def open(self, agent: str = "alice") -> "Peer":
        """A connection that was just accepted; its challenge has not been written."""
        self._nonces += 1
        return Peer(self, agent, self.hub.open(self._nonces.to_bytes(32, "big"), self.now_us))

    def connect(self, agent: str, *topics: bytes) -> "Peer":
        """An agent in session that has read its welcome and whatever was waiting; see `Peer.first` for it."""
        peer = self.open(agent)
        peer.read()
        peer.hello(*topics)
        peer.first = peer.read()
        assert isinstance(peer.first[0], Welcome), peer.first
        return peer

    def revalidate(self) -> None:
        self.hub.revalidate(self.now_us, self.wall_ms / 1000)

    @property
    def refused(self) -> dict[tuple[str, str], int]:
        return dict(self.hub.counters.refused)

    @property
    def egress(self) -> int:
        return self.hub.gauges().egress_bytes


class Peer:
    """One connection from the client's end. `read` takes everything the hub has for it; nothing leaves before."""

    def __init__(self, world: World, agent: str, session: Session) -> None:
        self.world = world
        self.hub = world.hub
        self.agent = agent
        self.id = agent.encode()
        self.session = session
        self.protocol = ClientProtocol(self.id)
        self.nonce = b""
        self.first: list[Event] = []
        self.raw: list[bytes] = []

    # --- to the hub ---

    def raw_frame(self, raw: bytes) -> Claim | None:
        return self.hub.receive(self.session, raw, self.world.now_us, self.world.wall_ms)

    def send(self, frame: Frame) -> Claim | None:
        return self.raw_frame(encode(frame))

    def claim(self, *topics: bytes, certificate: bytes = b"certificate") -> Claim | None:
        """Send a hello; the claim that the server would have verified now."""
        return self.raw_frame(self.protocol.hello(Hello(pair_of(self.agent).public, bytes(64), certificate, topics)))

    def hello(self, *topics: bytes) -> None:
        claim = self.claim(*topics)
        assert claim is not None
        self.hub.admit(self.session, claim, self.world.verifier.verify(claim, 0), self.world.now_us)

    def wake(self, to: bytes | str, row_id: bytes = b"m_1", *, ts_ms: int = 0, ttl_ms: int = 0) -> bytes:
        """Send a wake; returns the frame."""
        to_id = to if isinstance(to, bytes) else to.encode()
        raw = encode(Frame(Kind.WAKE, self.id, to_id, Wake(row_id).encode(), ts_ms, ttl_ms))
        self.raw_frame(raw)
        return raw

    def ping(self) -> None:
        self.raw_frame(self.protocol.ping())

    def subscribe(self, *topics: bytes) -> None:
        self.send(Frame(Kind.SUBSCRIBE, self.id, payload=encode_topics(topics)))

    def unsubscribe(self, *topics: bytes) -> None:
        self.send(Frame(Kind.UNSUBSCRIBE, self.id, payload=encode_topics(topics)))

    def depart(self) -> None:
        self.send(Frame(Kind.DEPART, self.id, payload=self.signed(Kind.DEPART)))

    def signed(self, kind: Kind) -> bytes:
        return pair_of(self.agent).sign(membership(kind, HUB, self.nonce, self.id))

    # --- from the hub ---

    def take(self, most: int | None = None) -> bytes:
        """Let up to `most` bytes leave, as a kernel does; without a number, everything."""
        out = bytearray()
        while most is None or most > 0:
            data = self.hub.delivery.output(self.session, self.world.wall_ms)
            if data is None:
                break
            written = bytes(data[:most])
            out += written
            most = None if most is None else most - len(written)
            self.hub.delivery.sent(self.session, len(written), self.world.wall_ms)
        return bytes(out)

    def read(self) -> list[Event]:
        """Everything the hub has for this connection, as a client sees it."""
        return self.see(self.take())

    def see(self, data: bytes) -> list[Event]:
        events = list(self.protocol.receive_data(data))
        for event in events:
            if isinstance(event, Challenge):
                self.nonce = event.nonce
        return events

    def read_raw(self) -> list[Frame]:
        """Everything the hub has for this connection, as frames."""
        data, frames = self.take(), []
        while data:
            size = 4 + int.from_bytes(data[:4], "big")
            frames.append(decode(data[:size]))
            data = data[size:]
        return frames

    def finish(self) -> None:
        """The connection is closed; what was not taken was not written."""
        self.hub.finish(self.session, self.world.wall_ms)

    @property
    def is_open(self) -> bool:
        return self.session.is_open

    @property
    def queued(self) -> int:
        return len(self.session.queue)


def ids(events: list[Event]) -> list[bytes]:
    """The row ids of the wakes among `events`."""
    return [event.wake.row_id for event in events if hasattr(event, "wake")]
