"""Who may say what, and when: the protocol's state as one table for both sides, and the client's side of it.

    hub     AUTHENTICATING ──good hello──▶ IN_SESSION ──▶ CLOSED
    client  AWAITING_CHALLENGE ──challenge──▶ AWAITING_WELCOME ──welcome──▶ IN_SESSION ──▶ CLOSED

`HUB_TABLE[state][kind]` and `CLIENT_TABLE[state][kind]` are what receiving `kind` in `state` leads to: a next state, or
a refusal. The hub's own decisions
(who is admitted, where a wake goes) are in `wakehub.hub`; here is only what the wire alone decides (awh1.md §2, §5.4).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from wakehub.errors import ErrorCode, Violation
from wakehub.limits import NONCE_BYTES
from wakehub.wire.fields import decode_topics, encode_topics, malformed
from wakehub.wire.frames import Frame, Kind, decode, encode
from wakehub.wire.payloads import Error, Hello, Wake, Welcome
from wakehub.wire.reader import FrameReader


class HubState(Enum):
    """Where the hub's side of a connection stands."""

    AUTHENTICATING = "authenticating"
    IN_SESSION = "in session"
    CLOSED = "closed"


class ClientState(Enum):
    """Where the client's side of a connection stands."""

    AWAITING_CHALLENGE = "awaiting challenge"
    AWAITING_WELCOME = "awaiting welcome"
    IN_SESSION = "in session"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Refusal:
    """What the table answers to a kind that has no business in a state."""

    code: ErrorCode
    reason: str


_NOT_FROM_CLIENT = Refusal(ErrorCode.FORBIDDEN, "kind not accepted from a client")
_UNAUTHORIZED = Refusal(ErrorCode.UNAUTHORIZED, "unauthorized")
_ENDING = frozenset(code.value for code in ErrorCode if code.ends_session)
_UNEXPECTED = Refusal(ErrorCode.MALFORMED, "the hub sent a kind that has no place here")


def _hub(otherwise: Refusal, **steps: HubState) -> dict[Kind, HubState | Refusal]:
    return {kind: steps.get(kind.name.lower(), otherwise) for kind in Kind}


def _client(**steps: ClientState) -> dict[Kind, ClientState | Refusal]:
    return {kind: steps.get(kind.name.lower(), _UNEXPECTED) for kind in Kind}


HUB_TABLE: Final[dict[HubState, dict[Kind, HubState | Refusal]]] = {
    # Whether the hello is good is the verifier's to say.
    HubState.AUTHENTICATING: _hub(_UNAUTHORIZED, hello=HubState.IN_SESSION),
    HubState.IN_SESSION: _hub(
        _NOT_FROM_CLIENT,
        **dict.fromkeys(("join", "subscribe", "unsubscribe", "wake", "ping", "pong"), HubState.IN_SESSION),
        depart=HubState.CLOSED,
    ),
}

CLIENT_TABLE: Final[dict[ClientState, dict[Kind, ClientState | Refusal]]] = {
    ClientState.AWAITING_CHALLENGE: _client(hello=ClientState.AWAITING_WELCOME, error=ClientState.CLOSED),
    ClientState.AWAITING_WELCOME: _client(welcome=ClientState.IN_SESSION, error=ClientState.AWAITING_WELCOME),
    ClientState.IN_SESSION: _client(
        **dict.fromkeys(("subscribe", "unsubscribe", "wake", "ping", "pong", "error"), ClientState.IN_SESSION)
    ),
    ClientState.CLOSED: _client(),
}


@dataclass(frozen=True, slots=True)
class Challenge:
    """The hub spoke first: its id and the connection's nonce (32 bytes)."""

    hub_id: bytes
    nonce: bytes


@dataclass(frozen=True, slots=True)
class Woken:
    """A wake came in: who sent it (the hub itself for a replayed one), through which address, and the hint."""

    from_id: bytes
    to_id: bytes
    wake: Wake
    ts_ms: int


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The hub applied a subscribe or unsubscribe."""

    kind: Kind
    topics: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Pinged:
    """The hub asks for a pong."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Ponged:
    """The hub answered a ping; any error for a frame sent before that ping has come before this."""


Event = Challenge | Welcome | Woken | Acknowledged | Pinged | Ponged | Error


class ClientProtocol:
    """The client's side of one connection: `receive_data` gives events, the other methods give bytes to send.

    `agent_id` is this client's id (1..128 bytes of UTF-8).
    """

    def __init__(self, agent_id: bytes) -> None:
        self.agent_id = agent_id
        self.state = ClientState.AWAITING_CHALLENGE
        self._reader = FrameReader()

    def receive_data(self, data: bytes) -> Iterator[Event]:
        """Take `data` in, and give an iterator over the events that are complete by now.

        An event that nobody asked it for comes from the next one. It raises `Violation` when the hub breaks the
        protocol, and whatever comes behind that is refused as well.
        """
        self._reader.feed(data)
        return self._events()

    def _events(self) -> Iterator[Event]:
        try:
            while (raw := self._reader.next_frame()) is not None:
                yield self._receive(decode(raw))
        except Violation:
            self.state = ClientState.CLOSED
            raise

    def receive_eof(self) -> None:
        """The stream ended; raises `Violation` 400 when it ended inside a frame."""
        self.state = ClientState.CLOSED
        if not self._reader.at_boundary:
            raise malformed("the stream ended inside a frame")

    def _receive(self, frame: Frame) -> Event:
        step = CLIENT_TABLE[self.state][frame.kind]
        if isinstance(step, Refusal):
            raise Violation(step.code, f"{step.reason} ({frame.kind.name.lower()}, {self.state.value})")
        event = _event(frame)
        self.state = step
        if isinstance(event, Error) and event.code in _ENDING:
            self.state = ClientState.CLOSED
        return event

    def hello(self, hello: Hello) -> bytes:
        return self._frame(Kind.HELLO, payload=hello.encode())

    def wake(self, to_id: bytes, wake: Wake, *, ts_ms: int = 0, ttl_ms: int = 0) -> bytes:
        return encode(Frame(Kind.WAKE, self.agent_id, to_id, wake.encode(), ts_ms, ttl_ms))

    def subscribe(self, topics: Sequence[bytes]) -> bytes:
        return self._frame(Kind.SUBSCRIBE, payload=encode_topics(topics))

    def unsubscribe(self, topics: Sequence[bytes]) -> bytes:
        return self._frame(Kind.UNSUBSCRIBE, payload=encode_topics(topics))

    def join(self, signature: bytes) -> bytes:
        return self._frame(Kind.JOIN, payload=signature)

    def depart(self, signature: bytes) -> bytes:
        return self._frame(Kind.DEPART, payload=signature)

    def ping(self, payload: bytes = b"") -> bytes:
        return self._frame(Kind.PING, payload=payload)

    def pong(self) -> bytes:
        return self._frame(Kind.PONG)

    def _frame(self, kind: Kind, payload: bytes = b"") -> bytes:
        return encode(Frame(kind, self.agent_id, payload=payload))


def _event(frame: Frame) -> Event:
    match frame.kind:
        case Kind.HELLO:
            if len(frame.payload) != NONCE_BYTES:
                raise malformed(f"challenge of {len(frame.payload)} B is not {NONCE_BYTES} B")
            return Challenge(frame.from_id, frame.payload)
        case Kind.WELCOME:
            return Welcome.decode(frame.payload)
        case Kind.WAKE:
            return Woken(frame.from_id, frame.to_id, Wake.decode(frame.payload), frame.ts_ms)
        case Kind.SUBSCRIBE | Kind.UNSUBSCRIBE:
            return Acknowledged(frame.kind, decode_topics(frame.payload))
        case Kind.PING:
            return Pinged(frame.payload)
        case Kind.PONG:
            return Ponged()
        case Kind.ERROR:
            return Error.decode(frame.payload)
        case Kind.JOIN | Kind.DEPART:  # the table lets neither through
            raise AssertionError(frame.kind)
