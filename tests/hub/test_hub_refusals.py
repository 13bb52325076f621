"""Every row of the refusal table: code, words, closing, counter; and which check answers (awh1.md §5.4)."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, combinations, product

import pytest
from hub_world import (
    FAN_OUT,
    FORGED,
    FULL,
    HUB,
    INTERNAL,
    KIND,
    MANY_TOPICS,
    NO_AGENT,
    NO_DESTINATION,
    NO_SCOPE,
    RATE,
    TOO_LONG,
    UNAUTHORIZED,
    Peer,
    World,
    pair_of,
)

from wakehub.hub.delivery import Entry
from wakehub.hub.ratelimit import TokenBucket
from wakehub.wire.fields import encode_topics
from wakehub.wire.frames import Frame, Kind, encode
from wakehub.wire.payloads import Error, Hello, Wake
from wakehub.wire.protocol import Ponged

GOOD_HELLO = Hello(pair_of("alice").public, bytes(64), b"certificate").encode()
EIGHT = [[b"#team/%d-%d" % (part, number) for number in range(8)] for part in range(5)]


def spoilt(raw: bytes, at: int, value: int) -> bytes:
    return raw[:at] + bytes((value,)) + raw[at + 1 :]


def big_ping() -> bytes:
    raw = encode(Frame(Kind.PING, b"alice", payload=bytes(32)))
    return spoilt(spoilt(raw, 3, raw[3] + 1), 15, 33) + b"x"


def empty_bucket(peer: Peer, tokens: int = 0) -> None:
    peer.session.bucket = TokenBucket(1, tokens, peer.world.now_us)


def fill_queue(peer: Peer) -> None:
    """Leave no room for a wake in the peer's queue."""
    while peer.session.queue.push(encode(Frame(Kind.PONG, HUB))) is None:
        pass


def team_of_three(world: World) -> None:
    for name in ("bob", "carol", "dave"):
        world.connect(name, b"#team")


def too_fast(peer: Peer) -> None:
    empty_bucket(peer)
    peer.ping()


def too_many(peer: Peer) -> None:
    team_of_three(peer.world)
    empty_bucket(peer, 2)
    peer.wake("#team")


# --- before authentication ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", set(Kind) - {Kind.HELLO})
def test_anything_but_a_hello_before_authentication(kind: Kind) -> None:
    world = World()
    peer = world.open()
    peer.read()
    peer.send(Frame(kind, b"alice", b"bob", bytes(12)))
    assert peer.read_raw() == [Frame(Kind.ERROR, HUB, b"", b"\x01\x91unauthorized")]
    assert not peer.is_open
    assert world.refused == {("unauthenticated", kind.name.lower()): 1}


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "malformed hello: 0 B is too short"),
        (bytes(97), "malformed hello: 97 B is too short"),
        (bytes(96) + b"\x01\x87" + bytes(392), "malformed hello: certificate of 391 B exceeds 390 B"),
        (bytes(98), "malformed hello: topic list is empty"),
        (bytes(98) + b"\x01\x01#", "malformed hello: topic of 1 B is not within 2..64 B"),
        (bytes(98) + b"\x09" + b"\x02#a" * 9, "malformed hello: topic list of 9 exceeds 8"),
        (bytes(100), "malformed hello: topic list has 1 trailing B"),
    ],
)
def test_a_malformed_hello(payload: bytes, reason: str) -> None:
    world = World()
    peer = world.open()
    peer.read()
    assert peer.send(Frame(Kind.HELLO, b"alice", payload=payload)) is None
    assert peer.read() == [Error(400, reason)]
    assert not peer.is_open
    assert world.refused == {("malformed", "hello"): 1}


@pytest.mark.parametrize("payload", [GOOD_HELLO, Hello(bytes(32), bytes(64), b"").encode()])
@pytest.mark.parametrize("agent", ["", "alice"])
def test_an_empty_id_and_an_empty_certificate_are_for_the_verifier(payload: bytes, agent: str) -> None:
    world = World()
    world.verifier.denied[agent] = "bad_something"
    peer = world.open(agent)
    peer.read()
    claim = peer.send(Frame(Kind.HELLO, peer.id, payload=payload))
    assert claim is not None
    assert claim.agent_id == agent
    world.hub.admit(peer.session, claim, world.verifier.verify(claim, 0), 0)
    assert peer.read() == [UNAUTHORIZED]
    assert not peer.is_open
    assert world.refused == {("hello", "bad_something"): 1}


@pytest.mark.parametrize("label", ["unknown_agent", "revoked_key", "topic", "transcript_signature"])
def test_all_identity_refusals_look_alike(label: str) -> None:
    world = World()
    world.verifier.denied["alice"] = label
    peer = world.open()
    peer.read()
    world.hub.delivery.journal.clear()
    peer.hello(b"#team")
    assert peer.read_raw() == [Frame(Kind.ERROR, HUB, b"", b"\x01\x91unauthorized")]
    assert not peer.is_open
    assert world.refused == {("hello", label): 1}
    assert world.hub.delivery.journal == [Entry("refused", b"alice", {"cause": "hello", "label": label})]


def test_strangers_have_four_frames_a_second_and_eight_at_once() -> None:
    world = World()
    peer = world.open()
    peer.read()
    peer.session.bucket.take(8, 0)
    assert peer.claim() is None
    assert peer.read() == [RATE]
    assert peer.is_open
    assert world.refused == {("rate_limited", ""): 1}
    world.pass_ms(249)
    assert peer.claim() is None
    world.pass_ms(1)
    assert peer.claim() is not None


@pytest.mark.parametrize("faults", list(chain.from_iterable(combinations(range(5), count) for count in range(1, 6))))
def test_of_several_faults_before_authentication_the_first_answers(faults: tuple[int, ...]) -> None:
    world = World()
    world.verifier.denied["alice"] = "unknown_agent"
    peer = world.open()
    peer.read()
    kind, payload, answer = Kind.HELLO, GOOD_HELLO, UNAUTHORIZED
    if 3 in faults:
        payload, answer = GOOD_HELLO[:90], Error(400, "malformed hello: 90 B is too short")
    if 2 in faults:
        kind, answer = Kind.JOIN, UNAUTHORIZED
    raw = encode(Frame(kind, b"alice", payload=payload))
    if 1 in faults:
        raw, answer = spoilt(raw, 4, 0), Error(400, "bad magic")
    if 0 in faults:
        answer = RATE
        empty_bucket(peer)
    claim = peer.raw_frame(raw)
    if claim is not None:
        assert min(faults) == 4
        world.hub.admit(peer.session, claim, world.verifier.verify(claim, 0), 0)
    assert peer.read() == [answer]
    assert peer.is_open == (0 in faults)


# --- in session: one row each -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """What alice does, what she is told, whether that closes, and what it counts as."""

    act: Callable[[World, Peer], object]
    answer: Error
    closes: bool
    cause: tuple[str, str]


ROWS = {
    "bucket empty": Row(lambda _, alice: too_fast(alice), RATE, False, ("rate_limited", "")),
    "prefix": Row(lambda world, alice: world.hub.refuse_prefix(alice.session), TOO_LONG, True, ("prefix", "")),
    "frame does not decode, 400": Row(
        lambda _, alice: alice.raw_frame(spoilt(encode(Frame(Kind.PING, b"alice")), 8, 2)),
        Error(400, "version 2 is not 1"),
        True,
        ("malformed", ""),
    ),
    "frame does not decode, 413": Row(
        lambda _, alice: alice.raw_frame(big_ping()),
        Error(413, "ping payload 33 B exceeds 32 B"),
        True,
        ("malformed", ""),
    ),
    "forged from": Row(lambda _, alice: alice.send(Frame(Kind.PING, b"bob")), FORGED, False, ("forged_from", "")),
    "hello in session": Row(
        lambda _, alice: alice.send(Frame(Kind.HELLO, b"alice", payload=GOOD_HELLO)), KIND, False, ("kind", "")
    ),
    "welcome from a client": Row(
        lambda _, alice: alice.send(Frame(Kind.WELCOME, b"alice", payload=bytes(25))), KIND, False, ("kind", "")
    ),
    "error from a client": Row(
        lambda _, alice: alice.send(Frame(Kind.ERROR, b"alice", payload=b"\x01\x90")), KIND, False, ("kind", "")
    ),
    "wake metadata": Row(
        lambda _, alice: alice.send(Frame(Kind.WAKE, b"alice", b"bob", bytes(11))),
        Error(400, "wake does not end in an 8 B watermark"),
        True,
        ("malformed", "wake"),
    ),
    "topic list of a subscribe": Row(
        lambda _, alice: alice.send(Frame(Kind.SUBSCRIBE, b"alice", payload=b"\x01\x02a#")),
        Error(400, "topic does not start with #"),
        True,
        ("malformed", "subscribe"),
    ),
    "topic list of an unsubscribe": Row(
        lambda _, alice: alice.send(Frame(Kind.UNSUBSCRIBE, b"alice")),
        Error(400, "topic list is empty"),
        True,
        ("malformed", "unsubscribe"),
    ),
    "no destination": Row(lambda _, alice: alice.wake(""), NO_DESTINATION, False, ("empty_destination", "")),
    "topic outside": Row(lambda _, alice: alice.wake("#other"), NO_SCOPE, False, ("scope", "")),
    "another's inbox topic": Row(lambda _, alice: alice.wake("#_inbox/bob"), NO_SCOPE, False, ("scope", "")),
    "a bare #": Row(lambda _, alice: alice.wake("#"), NO_SCOPE, False, ("scope", "")),
    "an over-long topic": Row(lambda _, alice: alice.wake("#team/" + "x" * 60), NO_SCOPE, False, ("scope", "")),
    "fan-out": Row(lambda _, alice: too_many(alice), FAN_OUT, False, ("fanout", "")),
    "unknown agent": Row(lambda _, alice: alice.wake("nobody"), NO_AGENT, False, ("unknown_agent", "")),
    "subscribe outside": Row(lambda _, alice: alice.subscribe(b"#other"), UNAUTHORIZED, True, ("subscribe", "topic")),
    "one topic of the list outside": Row(
        lambda _, alice: alice.subscribe(b"#team", b"#_inbox/bob"), UNAUTHORIZED, True, ("subscribe", "topic")
    ),
    "join": Row(
        lambda _, alice: alice.send(Frame(Kind.JOIN, b"alice", payload=bytes(64))),
        UNAUTHORIZED,
        True,
        ("join", "signature"),
    ),
    "depart": Row(
        lambda _, alice: alice.send(Frame(Kind.DEPART, b"alice", payload=bytes(64))),
        UNAUTHORIZED,
        True,
        ("depart", "signature"),
    ),
    "the hub failed": Row(lambda world, alice: world.hub.failed(alice.session), INTERNAL, False, ("internal", "")),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_row_of_the_table(row: Row) -> None:
    world = World()
    alice = world.connect("alice")
    row.act(world, alice)
    frames = alice.read_raw()
    assert frames == [Frame(Kind.ERROR, HUB, b"alice", row.answer.encode())]
    assert alice.is_open is not row.closes
    assert world.refused == {row.cause: 1}
    assert row.closes == (row.answer.code in (400, 401, 409, 413))


@pytest.mark.parametrize("row", [row for row in ROWS.values() if not row.closes])
def test_a_refusal_that_does_not_close_leaves_everything_working(row: Row) -> None:
    world = World()
    alice = world.connect("alice")
    row.act(world, alice)
    alice.read()
    empty_bucket(alice, 2)
    alice.wake("alice", b"m_2")
    alice.ping()
    assert [type(event).__name__ for event in alice.read()] == ["Woken", "Ponged"]


def test_too_many_topics_changes_nothing() -> None:
    world = World()
    alice, bob = world.connect("alice", *EIGHT[0]), world.connect("bob")
    for part in EIGHT[1:4]:
        alice.subscribe(*part)
    alice.read()
    alice.subscribe(*EIGHT[3][:7], EIGHT[4][0])
    assert alice.read() == [MANY_TOPICS]
    assert alice.is_open
    assert world.refused == {("too_many_topics", ""): 1}
    assert list(alice.session.topics) == [topic for part in EIGHT[:4] for topic in part]
    bob.wake(EIGHT[4][0])
    bob.wake(EIGHT[3][0])
    assert len(alice.read()) == 1


def test_held_topics_and_repeats_do_not_count_twice() -> None:
    world = World()
    alice = world.connect("alice", *EIGHT[0])
    for part in (*EIGHT[1:4], EIGHT[0], EIGHT[3]):
        alice.subscribe(*part)
    alice.unsubscribe(EIGHT[0][0])
    alice.subscribe(*[EIGHT[4][0]] * 8)
    assert [event for event in alice.read() if isinstance(event, Error)] == []
    assert len(alice.session.topics) == 32


def test_a_topic_outside_is_refused_before_too_many_are() -> None:
    world = World()
    alice = world.connect("alice", *EIGHT[0])
    for part in EIGHT[1:4]:
        alice.subscribe(*part)
    alice.read()
    alice.subscribe(EIGHT[4][0], b"#other")
    assert alice.read() == [UNAUTHORIZED]


def test_the_deadline_is_silent() -> None:
    world = World()
    peer = world.open()
    peer.read()
    world.hub.drop(peer.session, "deadline")
    assert peer.read() == []
    assert not peer.is_open
    assert world.refused == {("deadline", ""): 1}


def test_who_is_closed_already_is_not_refused_again() -> None:
    world = World()
    peer = world.open()
    peer.read()
    peer.send(Frame(Kind.PING, b"alice"))
    world.hub.drop(peer.session, "deadline")
    world.hub.failed(peer.session)
    assert peer.read() == [UNAUTHORIZED]
    assert ("deadline", "") not in world.refused


def test_the_end_of_the_stream_inside_a_frame_is_counted_and_not_answered() -> None:
    world = World()
    alice = world.connect("alice")
    world.hub.eof(alice.session, inside_frame=True)
    assert alice.read() == []
    assert not alice.is_open
    assert world.refused == {("malformed", "eof"): 1}


def test_the_end_of_the_stream_between_frames_is_a_clean_end() -> None:
    world = World()
    alice = world.connect("alice")
    world.hub.eof(alice.session, inside_frame=False)
    assert alice.read() == []
    assert not alice.is_open
    assert world.refused == {}


def test_errors_before_authentication_come_from_the_hub_too() -> None:
    world = World()
    peer = world.open()
    peer.read()
    world.hub.refuse_prefix(peer.session)
    assert peer.read_raw() == [Frame(Kind.ERROR, HUB, b"", TOO_LONG.encode())]


def test_a_refused_frame_costs_its_token() -> None:
    world = World()
    alice = world.connect("alice")
    for row in ("forged from", "no destination", "topic outside", "unknown agent"):
        empty_bucket(alice, 1)
        ROWS[row].act(world, alice)
        alice.read()
        assert not alice.session.bucket.take(1, world.now_us)


# --- in session: which check answers ------------------------------------------------------------------------------

CHECKS = ("bucket", "decode", "from", "kind", "metadata", "ttl")
DESTINATIONS: dict[str, tuple[bytes, Error | None]] = {
    "fine": (b"bob", None),
    "none": (b"", NO_DESTINATION),
    "outside": (b"#secret", NO_SCOPE),
    "fan-out": (b"#team", FAN_OUT),
    "unknown": (b"nobody", NO_AGENT),
    "full": (b"full", FULL),
}


@pytest.mark.parametrize("where", DESTINATIONS)
def test_of_several_faults_in_session_the_first_answers(where: str) -> None:
    """Every subset of the faults with every destination; fan-out that is not covered, to topics outside and full
    queues among them."""
    for chosen in product((False, True), repeat=len(CHECKS)):
        faults = {name for name, has in zip(CHECKS, chosen, strict=True) if has}
        check_the_first_answers(faults, where)


def check_the_first_answers(faults: set[str], where: str) -> None:
    world = World(queued_frames=10)
    world.verifier.own = dict.fromkeys(("bob", "carol", "dave", "full"), ("team", "secret"))
    alice = world.connect("alice")
    for name in ("bob", "carol", "dave"):
        world.connect(name, b"#team", b"#secret")
    fill_queue(world.connect("full", b"#team"))
    to, answer = DESTINATIONS[where]
    frame = Frame(Kind.WAKE, b"alice", to, Wake(b"m_1").encode())
    expired = "ttl" in faults and where != "none"
    if expired:
        frame, answer = frame._replace(ts_ms=world.wall_ms - 5, ttl_ms=5), None
    if "metadata" in faults:
        frame = frame._replace(payload=b"\x05")
        answer = Error(400, "wake's row id is cut short")
    if "kind" in faults:
        frame, answer = frame._replace(kind=Kind.ERROR), KIND
    if "from" in faults:
        frame, answer = frame._replace(from_id=b"mallory"), FORGED
    raw = encode(frame)
    if "decode" in faults:
        raw, answer = spoilt(raw, 10, 9), Error(400, "flags are not zero")
    empty_bucket(alice, 3)
    if "bucket" in faults:
        answer = RATE
        empty_bucket(alice)
    alice.raw_frame(raw)
    assert alice.read() == ([] if answer is None else [answer]), (faults, where)
    assert alice.is_open == (answer is None or answer.code not in (400, 401, 413))
    assert world.hub.counters.wakes_expired == (expired and answer is None)


# --- 429 ----------------------------------------------------------------------------------------------------------


def test_at_most_one_429_in_100_ms_and_the_rest_are_counted() -> None:
    world = World()
    alice = world.connect("alice")
    answers = []
    for _ in range(30):
        empty_bucket(alice)
        alice.wake("bob")
        answers += alice.read()
        world.pass_ms(10)
    assert answers == [RATE] * 3
    assert world.refused == {("rate_limited", ""): 30}


@pytest.mark.parametrize(("gap_ms", "count"), [(99, 1), (100, 2)])
def test_the_interval_between_two_429(gap_ms: int, count: int) -> None:
    world = World()
    alice = world.connect("alice")
    empty_bucket(alice)
    alice.wake("bob")
    world.pass_ms(gap_ms)
    empty_bucket(alice)
    alice.wake("bob")
    assert alice.read() == [RATE] * count


def test_a_429_that_was_held_back_is_said_before_the_next_pong_and_once() -> None:
    world = World()
    alice = world.connect("alice")
    for _ in range(3):
        empty_bucket(alice)
        alice.wake("bob")
    assert alice.read() == [RATE]
    empty_bucket(alice, 2)
    alice.ping()
    alice.ping()
    assert alice.read() == [RATE, Ponged(), Ponged()]


def test_a_held_back_429_keeps_its_own_words() -> None:
    world = World()
    team_of_three(world)
    alice = world.connect("alice")
    empty_bucket(alice)
    alice.wake("bob")
    empty_bucket(alice, 2)
    alice.wake("#team")
    alice.read()
    empty_bucket(alice, 1)
    alice.ping()
    assert alice.read() == [FAN_OUT, Ponged()]


def test_a_429_that_is_said_late_counts_for_the_interval() -> None:
    world = World()
    alice = world.connect("alice")
    for _ in range(2):
        empty_bucket(alice)
        alice.wake("bob")
    world.pass_ms(90)
    empty_bucket(alice, 1)
    alice.ping()
    world.pass_ms(90)
    empty_bucket(alice)
    alice.wake("bob")
    assert alice.read() == [RATE, RATE, Ponged()]


def test_a_new_429_stands_for_those_that_were_held_back() -> None:
    world = World()
    alice = world.connect("alice")
    for _ in range(2):
        empty_bucket(alice)
        alice.wake("bob")
    world.pass_ms(100)
    empty_bucket(alice)
    alice.wake("bob")
    empty_bucket(alice, 1)
    alice.ping()
    assert alice.read() == [RATE, RATE, Ponged()]


def test_429_is_each_connections_own() -> None:
    world = World()
    for name in ("alice", "bob"):
        peer = world.connect(name)
        empty_bucket(peer)
        peer.wake("alice")
        assert RATE in peer.read()


# --- wake and ping is a proof -------------------------------------------------------------------------------------

WAKES: dict[str, Error | None] = {
    "here": None,
    "absent": None,
    "late": None,
    "nobody": NO_AGENT,
    "": NO_DESTINATION,
    "#other": NO_SCOPE,
    "full": FULL,
    "#team": FAN_OUT,
    "rate": RATE,
}


@pytest.mark.parametrize("gap_ms", [0, 40, 120])
def test_a_wake_and_a_ping_are_a_proof(gap_ms: int) -> None:
    """In whatever order wakes were refused: each other error comes, and a 429 if there was any, before the pong."""
    world = World(queued_frames=10)
    alice = world.connect("alice")
    world.connect("absent").finish()
    team_of_three(world)
    here = world.connect("here")
    fill_queue(world.connect("full"))
    for story in product(WAKES, repeat=3):
        for to in story:
            empty_bucket(alice, {"rate": 0, "#team": 2}.get(to, 1))
            if to == "late":
                alice.wake("here", ts_ms=1, ttl_ms=1)
            else:
                alice.wake("here" if to == "rate" else to)
            world.pass_ms(gap_ms)
        empty_bucket(alice, 1)
        alice.ping()
        here.take()
        *answers, pong = alice.read()
        assert pong == Ponged()
        told = [answer for to in story if (answer := WAKES[to]) is not None]
        others = [answer for answer in told if answer.code != 429]
        assert [answer for answer in answers if isinstance(answer, Error) and answer.code != 429] == others
        limited = [answer for answer in answers if isinstance(answer, Error) and answer.code == 429]
        assert bool(limited) == any(answer.code == 429 for answer in told)
        assert len(limited) <= sum(answer.code == 429 for answer in told)


# --- subscribe, unsubscribe, join: answers that are no refusals ---------------------------------------------------


def test_the_acknowledgement_is_the_request_itself() -> None:
    world = World()
    alice = world.connect("alice")
    alice.subscribe(b"#team/b", b"#team/a", b"#team/b")
    alice.unsubscribe(b"#team/a", b"#never/held")
    alice.subscribe()
    alice.unsubscribe()
    assert alice.read_raw() == [
        Frame(Kind.SUBSCRIBE, HUB, b"alice", encode_topics([b"#team/b", b"#team/a", b"#team/b"])),
        Frame(Kind.UNSUBSCRIBE, HUB, b"alice", encode_topics([b"#team/a", b"#never/held"])),
        Frame(Kind.SUBSCRIBE, HUB, b"alice", b"\x00"),
        Frame(Kind.UNSUBSCRIBE, HUB, b"alice", b"\x00"),
    ]
    assert list(alice.session.topics) == [b"#team/b"]


def test_the_own_inbox_topic_is_always_allowed() -> None:
    world = World()
    alice, bob = world.connect("alice"), world.connect("bob")
    alice.subscribe(b"#_inbox/alice")
    alice.read()
    bob.wake("#_inbox/alice")
    assert bob.read() == [NO_SCOPE]
    assert alice.read() == []


@pytest.mark.parametrize("payload", [b"", bytes(32)])
def test_a_ping_is_answered_by_an_empty_pong(payload: bytes) -> None:
    world = World()
    alice = world.connect("alice")
    alice.send(Frame(Kind.PING, b"alice", b"whoever", payload))
    assert alice.read_raw() == [Frame(Kind.PONG, HUB, b"alice")]


def test_a_clients_pong_is_ignored() -> None:
    world = World()
    alice = world.connect("alice")
    alice.send(Frame(Kind.PONG, b"alice", payload=bytes(32)))
    assert alice.read() == []
    assert alice.is_open
