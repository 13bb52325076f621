"""The protocol's tables, every state with every kind, and the client's side of a connection (awh1.md §2, §5.4)."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_cases import BUDGET, CHALLENGE, SUBSCRIBE, U64, UNAUTHORIZED, chunked, refused

from wakehub.errors import ErrorCode, Violation
from wakehub.wire.frames import Frame, Kind, decode, encode
from wakehub.wire.payloads import Error, Hello, Wake, Welcome
from wakehub.wire.protocol import (
    CLIENT_TABLE,
    HUB_TABLE,
    Acknowledged,
    Challenge,
    ClientProtocol,
    ClientState,
    Event,
    HubState,
    Pinged,
    Ponged,
    Refusal,
    Woken,
)

HUB, AGENT = b"ai-memory-wake-hub", b"alice"
WELCOME = Welcome(3, 2, 1, False, 250, 750)
WAKE = Wake(b"m_1", b"_inbox/alice", b"bob", bytes(32), 7)

# --- the tables ---------------------------------------------------------------------------------------------------

UNAUTHORIZED_ROW = Refusal(ErrorCode.UNAUTHORIZED, "unauthorized")
NOT_ACCEPTED = Refusal(ErrorCode.FORBIDDEN, "kind not accepted from a client")

HUB_EXPECTED = {
    HubState.AUTHENTICATING: dict.fromkeys(Kind, UNAUTHORIZED_ROW) | {Kind.HELLO: HubState.IN_SESSION},
    HubState.IN_SESSION: {
        Kind.HELLO: NOT_ACCEPTED,
        Kind.WELCOME: NOT_ACCEPTED,
        Kind.JOIN: HubState.IN_SESSION,
        Kind.DEPART: HubState.CLOSED,
        Kind.SUBSCRIBE: HubState.IN_SESSION,
        Kind.UNSUBSCRIBE: HubState.IN_SESSION,
        Kind.WAKE: HubState.IN_SESSION,
        Kind.PING: HubState.IN_SESSION,
        Kind.PONG: HubState.IN_SESSION,
        Kind.ERROR: NOT_ACCEPTED,
    },
}

CLIENT_STEPS = {
    (ClientState.AWAITING_CHALLENGE, Kind.HELLO): ClientState.AWAITING_WELCOME,
    (ClientState.AWAITING_CHALLENGE, Kind.ERROR): ClientState.CLOSED,
    (ClientState.AWAITING_WELCOME, Kind.WELCOME): ClientState.IN_SESSION,
    (ClientState.AWAITING_WELCOME, Kind.ERROR): ClientState.AWAITING_WELCOME,
    (ClientState.IN_SESSION, Kind.SUBSCRIBE): ClientState.IN_SESSION,
    (ClientState.IN_SESSION, Kind.UNSUBSCRIBE): ClientState.IN_SESSION,
    (ClientState.IN_SESSION, Kind.WAKE): ClientState.IN_SESSION,
    (ClientState.IN_SESSION, Kind.PING): ClientState.IN_SESSION,
    (ClientState.IN_SESSION, Kind.PONG): ClientState.IN_SESSION,
    (ClientState.IN_SESSION, Kind.ERROR): ClientState.IN_SESSION,
}


def test_the_hub_table() -> None:
    """A closed connection has no row: nothing that comes from it is looked at."""
    assert HUB_TABLE == HUB_EXPECTED


@pytest.mark.parametrize("state", ClientState)
@pytest.mark.parametrize("kind", Kind)
def test_the_client_table(state: ClientState, kind: Kind) -> None:
    expected = CLIENT_STEPS.get((state, kind))
    if expected is None:
        step = CLIENT_TABLE[state][kind]
        assert isinstance(step, Refusal)
        assert step.code is ErrorCode.MALFORMED
    else:
        assert CLIENT_TABLE[state][kind] is expected


# --- the client's side --------------------------------------------------------------------------------------------


def frame(kind: Kind, payload: bytes = b"", to: bytes = AGENT) -> bytes:
    return encode(Frame(kind, HUB, to, payload))


def error(code: int, reason: str = "") -> bytes:
    return frame(Kind.ERROR, Error(code, reason).encode())


def events(client: ClientProtocol, *pieces: bytes) -> list[Event]:
    return [event for piece in pieces for event in client.receive_data(piece)]


def in_state(state: ClientState) -> ClientProtocol:
    """A client that got there by what a hub may send."""
    client = ClientProtocol(AGENT)
    way = [CHALLENGE, frame(Kind.WELCOME, WELCOME.encode()), error(409, "session replaced")]
    events(client, *way[: list(ClientState).index(state)])
    assert client.state is state
    return client


BY_KIND: dict[Kind, tuple[bytes, Event]] = {
    Kind.HELLO: (bytes([7]) * 32, Challenge(HUB, bytes([7]) * 32)),
    Kind.WELCOME: (WELCOME.encode(), WELCOME),
    Kind.SUBSCRIBE: (b"\x01\x02#a", Acknowledged(Kind.SUBSCRIBE, (b"#a",))),
    Kind.UNSUBSCRIBE: (b"\x00", Acknowledged(Kind.UNSUBSCRIBE, ())),
    Kind.WAKE: (WAKE.encode(), Woken(HUB, AGENT, WAKE, 0)),
    Kind.PING: (b"are you there", Pinged(b"are you there")),
    Kind.PONG: (b"", Ponged()),
    Kind.ERROR: (b"\x01\x94no such agent", Error(404, "no such agent")),
}


@pytest.mark.parametrize("state", ClientState)
@pytest.mark.parametrize("kind", Kind)
def test_a_client_in_each_state_receives_each_kind(state: ClientState, kind: Kind) -> None:
    client = in_state(state)
    payload, event = BY_KIND.get(kind, (bytes(64), None))
    expected = CLIENT_STEPS.get((state, kind))
    if expected is None:
        with refused(f"the hub sent a kind that has no place here ({kind.name.lower()}, {state.value})"):
            events(client, frame(kind, payload))
        assert client.state is ClientState.CLOSED
    else:
        assert events(client, frame(kind, payload)) == [event]
        assert client.state is expected


@pytest.mark.parametrize("code", ErrorCode)
@pytest.mark.parametrize("state", [ClientState.AWAITING_WELCOME, ClientState.IN_SESSION])
def test_which_errors_end_the_session(state: ClientState, code: ErrorCode) -> None:
    client = in_state(state)
    assert events(client, error(code, "why")) == [Error(code, "why")]
    assert client.state is (ClientState.CLOSED if code in (400, 401, 409, 413) else state)


def test_a_code_from_the_future_ends_nothing() -> None:
    client = in_state(ClientState.IN_SESSION)
    assert events(client, error(599, "new")) == [Error(599, "new")]
    assert client.state is ClientState.IN_SESSION


def test_the_reference_conversation() -> None:
    client = ClientProtocol(b"agent-sub")
    assert events(client, CHALLENGE + UNAUTHORIZED) == [Challenge(HUB, bytes([7]) * 32), Error(401, "unauthorized")]
    assert client.state is ClientState.CLOSED


def test_a_wake_says_who_sent_it_whereto_and_when() -> None:
    client = in_state(ClientState.IN_SESSION)
    raw = encode(Frame(Kind.WAKE, b"bob", b"#team", WAKE.encode(), U64, 5))
    assert events(client, raw) == [Woken(b"bob", b"#team", WAKE, U64)]


@pytest.mark.parametrize(
    ("state", "raw", "reason"),
    [
        (ClientState.AWAITING_CHALLENGE, frame(Kind.HELLO, bytes(31)), "challenge of 31 B is not 32 B"),
        (ClientState.AWAITING_CHALLENGE, frame(Kind.HELLO, bytes(33)), "challenge of 33 B is not 32 B"),
        (ClientState.AWAITING_WELCOME, frame(Kind.WELCOME, bytes(24)), "welcome of 24 B is not 25 B"),
        (ClientState.IN_SESSION, frame(Kind.WAKE, bytes(11)), "wake does not end in an 8 B watermark"),
        (ClientState.IN_SESSION, frame(Kind.SUBSCRIBE), "topic list is empty"),
        (ClientState.IN_SESSION, frame(Kind.ERROR, b"\x01"), "error without a code"),
        (ClientState.IN_SESSION, bytes(4), "frame of 0 B is shorter than its header"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_hub_that_sends_nonsense(state: ClientState, raw: bytes, reason: str) -> None:
    client = in_state(state)
    with refused(reason):
        events(client, raw)
    assert client.state is ClientState.CLOSED


def test_a_violation_is_for_good() -> None:
    client = in_state(ClientState.IN_SESSION)
    with pytest.raises(Violation):
        events(client, bytes(4))
    with refused("the hub sent a kind that has no place here (pong, closed)"):
        events(client, frame(Kind.PONG))


def test_a_prefix_over_the_ceiling() -> None:
    client = in_state(ClientState.IN_SESSION)
    for _ in range(2):
        with refused("frame exceeds 1304 B", 413):
            events(client, b"\x00\x00\x05\x19")
        assert client.state is ClientState.CLOSED


def test_what_came_whole_before_a_violation_still_comes() -> None:
    client = in_state(ClientState.IN_SESSION)
    came: list[Event] = []
    with pytest.raises(Violation):
        came.extend(client.receive_data(frame(Kind.PONG) + error(404) + bytes(4)))
    assert came == [Ponged(), Error(404, "")]
    assert client.state is ClientState.CLOSED


def test_bytes_are_taken_in_even_when_their_events_are_not() -> None:
    """An iterator that nobody asks must not lose what was received: the next one goes on where it stopped."""
    client = in_state(ClientState.IN_SESSION)
    stream = error(404) + frame(Kind.PONG) + error(429)
    client.receive_data(stream[:10])
    assert next(client.receive_data(stream[10:])) == Error(404, "")
    assert events(client, b"") == [Ponged(), Error(429, "")]


@pytest.mark.parametrize("state", ClientState)
def test_the_end_of_the_stream_between_frames(state: ClientState) -> None:
    client = in_state(state)
    client.receive_eof()
    assert client.state is ClientState.CLOSED


@pytest.mark.parametrize("cut", range(1, len(SUBSCRIBE)))
def test_the_end_of_the_stream_inside_a_frame(cut: int) -> None:
    client = in_state(ClientState.IN_SESSION)
    assert events(client, SUBSCRIBE[:cut]) == []
    with refused("the stream ended inside a frame"):
        client.receive_eof()
    assert client.state is ClientState.CLOSED


@BUDGET
@given(
    st.data(),
    st.lists(st.sampled_from([kind for kind in BY_KIND if kind not in (Kind.HELLO, Kind.WELCOME)]), max_size=8),
)
def test_all_ways_to_feed_give_the_same_events(data: st.DataObject, kinds: list[Kind]) -> None:
    stream = CHALLENGE + b"".join(frame(kind, BY_KIND[kind][0]) for kind in [Kind.WELCOME, *kinds])
    expected = [BY_KIND[kind][1] for kind in [Kind.HELLO, Kind.WELCOME, *kinds]]
    byte_wise = [stream[at : at + 1] for at in range(len(stream))]
    for pieces in ([stream], byte_wise, data.draw(chunked(stream))):
        assert events(ClientProtocol(AGENT), *pieces) == expected


# --- what a client sends ------------------------------------------------------------------------------------------

HELLO = Hello(bytes(32), bytes(64), b"cert", (b"#a",))


@pytest.mark.parametrize(
    ("send", "sent"),
    [
        (lambda client: client.hello(HELLO), Frame(Kind.HELLO, AGENT, payload=HELLO.encode())),
        (lambda client: client.join(bytes(64)), Frame(Kind.JOIN, AGENT, payload=bytes(64))),
        (lambda client: client.depart(bytes(64)), Frame(Kind.DEPART, AGENT, payload=bytes(64))),
        (lambda client: client.subscribe([b"#a"]), Frame(Kind.SUBSCRIBE, AGENT, payload=b"\x01\x02#a")),
        (lambda client: client.unsubscribe([]), Frame(Kind.UNSUBSCRIBE, AGENT, payload=b"\x00")),
        (lambda client: client.wake(b"bob", WAKE), Frame(Kind.WAKE, AGENT, b"bob", WAKE.encode())),
        (
            lambda client: client.wake(b"#a", WAKE, ts_ms=12, ttl_ms=34),
            Frame(Kind.WAKE, AGENT, b"#a", WAKE.encode(), 12, 34),
        ),
        (lambda client: client.ping(), Frame(Kind.PING, AGENT)),
        (lambda client: client.ping(bytes(32)), Frame(Kind.PING, AGENT, payload=bytes(32))),
        (lambda client: client.pong(), Frame(Kind.PONG, AGENT)),
    ],
)
def test_what_a_client_sends(send: Callable[[ClientProtocol], bytes], sent: Frame) -> None:
    raw = send(ClientProtocol(AGENT))
    assert decode(raw) == sent
    assert raw == encode(sent)


@pytest.mark.parametrize(
    ("send", "reason", "code"),
    [
        (lambda client: client.ping(bytes(33)), "ping payload 33 B exceeds 32 B", 413),
        (lambda client: client.subscribe([b"a"]), "topic does not start with #", 400),
        (lambda client: client.wake(b"x" * 129, WAKE), "to of 129 B exceeds 128 B", 400),
        (
            lambda client: client.wake(b"bob", WAKE, ttl_ms=1 << 32),
            "ttl_ms 4294967296 is not within 0..4294967295",
            400,
        ),
    ],
)
def test_what_a_client_does_not_send(send: Callable[[ClientProtocol], bytes], reason: str, code: int) -> None:
    with refused(reason, code):
        send(ClientProtocol(AGENT))


@pytest.mark.parametrize("agent", [b"", b"a" * 129, b"\xff", b"a\nb"])
def test_an_id_that_no_frame_but_a_hello_could_carry(agent: bytes) -> None:
    with pytest.raises(Violation):
        ClientProtocol(agent).ping()
