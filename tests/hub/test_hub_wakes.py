"""Where wakes go, what they cost, and when they are too late (awh1.md §5.5, §5.6)."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hub_world import FAN_OUT, HUB, NO_AGENT, NO_DESTINATION, NO_SCOPE, RATE, World, ids

from wakehub.hub import delivery as delivery_module
from wakehub.hub import hub as hub_module
from wakehub.hub.ratelimit import TokenBucket
from wakehub.wire.frames import Frame, Kind, encode
from wakehub.wire.payloads import Wake, Welcome
from wakehub.wire.protocol import Ponged, Woken

# --- direct -------------------------------------------------------------------------------------------------------


def test_a_wake_is_forwarded_as_the_very_bytes_that_came_in() -> None:
    world = World()
    alice, bob = world.connect("alice"), world.connect("bob")
    wake = Wake(b"m_1", b"_inbox/bob", b"alice", bytes(range(32)), 77)
    raw = encode(Frame(Kind.WAKE, b"alice", b"bob", wake.encode(), world.wall_ms, 60_000))
    alice.raw_frame(raw)
    assert world.hub.delivery.output(bob.session, world.wall_ms) is raw
    assert bob.read() == [Woken(b"alice", b"bob", wake, world.wall_ms)]
    assert alice.read() == []


def test_a_wake_to_oneself_is_delivered() -> None:
    world = World()
    alice = world.connect("alice")
    raw = alice.wake("alice")
    assert alice.take() == raw


def test_a_wake_to_nobody() -> None:
    world = World()
    alice = world.connect("alice")
    alice.wake("nobody")
    alice.wake("Alice")
    assert alice.read() == [NO_AGENT, NO_AGENT]


def test_a_stranger_that_only_claims_an_id_is_nobody() -> None:
    world = World()
    alice, bob = world.connect("alice"), world.open("bob")
    assert bob.claim() is not None
    alice.wake("bob")
    assert alice.read() == [NO_AGENT]


def test_wakes_of_one_sender_to_one_recipient_stay_in_order() -> None:
    world = World()
    alice, bob = world.connect("alice"), world.connect("bob", b"#team")
    sent = [b"m_%d" % number for number in range(100)]
    for number, row_id in enumerate(sent):
        alice.wake("bob" if number % 3 else "#team", row_id)
    assert ids(bob.read()) == sent


def test_a_direct_wake_needs_no_scope() -> None:
    world = World()
    world.verifier.prefixes = ()
    alice, bob = world.connect("alice"), world.connect("bob")
    alice.wake("bob")
    assert len(bob.read()) == 1


def test_a_wake_that_was_routed_is_counted_once_written() -> None:
    world = World()
    alice, bob = world.connect("alice"), world.connect("bob")
    before = world.hub.counters.frames_out
    raw = alice.wake("bob")
    counters = world.hub.counters
    assert (counters.wakes_routed, counters.wakes_written, counters.fanout_deliveries) == (1, 0, 0)
    bob.take(len(raw) - 1)
    assert counters.wakes_written == 0
    bob.take()
    assert (counters.wakes_written, counters.frames_out - before) == (1, 1)


# --- the absent ---------------------------------------------------------------------------------------------------


def test_a_wake_to_a_known_but_absent_agent_is_silent_and_comes_at_its_return() -> None:
    world = World()
    alice = world.connect("alice")
    world.connect("bob").finish()
    alice.wake("bob", b"m_1", ts_ms=5)
    alice.wake("bob", b"m_2")
    alice.wake("bob", b"m_1")
    assert alice.read() == []
    assert world.hub.counters.pending_coalesced == 3
    back = world.open("bob")
    back.read()
    back.hello()
    assert back.read_raw() == [
        Frame(Kind.WELCOME, HUB, b"bob", Welcome(3, 3, 2, False, 250, 750).encode()),
        Frame(Kind.WAKE, HUB, b"bob", Wake(b"m_1", b"_inbox/bob").encode()),
        Frame(Kind.WAKE, HUB, b"bob", Wake(b"m_2", b"_inbox/bob").encode()),
    ]


def test_what_was_lost_is_told_by_the_welcome() -> None:
    world = World()
    alice = world.connect("alice")
    world.connect("bob").finish()
    for number in range(65):
        alice.wake("bob", b"m_%d" % number)
    back = world.connect("bob")
    assert back.first[0] == Welcome(3, 65, 64, True, 250, 750)
    assert ids(back.first) == [b"m_%d" % number for number in range(64)]


@pytest.mark.parametrize("row_id", [b"", b"x" * 129])
def test_an_id_that_cannot_be_kept_is_told_by_the_welcome_alone(row_id: bytes) -> None:
    world = World()
    alice = world.connect("alice")
    world.connect("bob").finish()
    alice.wake("bob", row_id)
    assert world.connect("bob").first == [Welcome(3, 1, 0, True, 250, 750)]


@pytest.mark.parametrize(("size", "fits"), [(56, True), (57, False), (128, False)])
def test_a_made_wake_names_the_inbox_when_that_fits_a_topic(size: int, fits: bool) -> None:
    world = World()
    alice, name = world.connect("alice"), "b" * size
    world.connect(name).finish()
    alice.wake(name, b"x" * 128)
    woken = world.connect(name).first[1]
    assert isinstance(woken, Woken)
    assert woken == Woken(HUB, name.encode(), Wake(b"x" * 128, f"_inbox/{name}".encode() if fits else b""), 0)


def test_absent_subscribers_are_not_owed_a_topic_wake() -> None:
    world = World()
    alice = world.connect("alice")
    world.connect("bob", b"#team").finish()
    alice.wake("#team")
    assert alice.read() == []
    assert world.connect("bob").first == [Welcome(3, 0, 0, False, 250, 750)]


# --- topics -------------------------------------------------------------------------------------------------------


def test_a_topic_wake_goes_to_every_subscriber_but_the_sender_as_one_object() -> None:
    world = World()
    alice = world.connect("alice", b"#team")
    team = [world.connect(name, b"#team") for name in ("bob", "carol")]
    outsider = world.connect("dave", b"#team/other")
    raw = alice.wake("#team")
    assert all(world.hub.delivery.output(peer.session, world.wall_ms) is raw for peer in team)
    assert [peer.take() for peer in team] == [raw, raw]
    assert alice.read() == []
    assert outsider.read() == []
    assert (world.hub.counters.wakes_routed, world.hub.counters.fanout_deliveries) == (1, 2)


def test_a_topic_without_subscribers_is_fine() -> None:
    world = World()
    alice = world.connect("alice")
    alice.wake("#team/empty")
    alice.ping()
    assert alice.read() == [Ponged()]


def test_subscribing_and_unsubscribing_take_effect_before_the_acknowledgement() -> None:
    world = World()
    alice, bob = world.connect("alice"), world.connect("bob")
    alice.wake("#team", b"m_0")
    bob.subscribe(b"#team")
    alice.wake("#team", b"m_1")
    bob.unsubscribe(b"#team")
    alice.wake("#team", b"m_2")
    kinds = [frame.kind for frame in bob.read_raw()]
    assert kinds == [Kind.SUBSCRIBE, Kind.WAKE, Kind.UNSUBSCRIBE]


def test_a_topic_held_twice_is_delivered_once() -> None:
    world = World()
    alice, bob = world.connect("alice"), world.connect("bob", b"#team", b"#team")
    bob.subscribe(b"#team")
    bob.read()
    alice.wake("#team")
    assert len(bob.read()) == 1


def test_scope_is_the_senders_own() -> None:
    world = World()
    world.verifier.own = {"alice": ("acme/eng",), "bob": ("acme",)}
    alice, bob = world.connect("alice"), world.connect("bob", b"#acme/eng/x", b"#acme/sales")
    alice.wake("#acme/eng/x", b"m_1")
    alice.wake("#acme/sales", b"m_2")
    alice.wake("#acme/engineering", b"m_3")
    alice.wake("#acme", b"m_4")
    assert alice.read() == [NO_SCOPE] * 3
    assert ids(bob.read()) == [b"m_1"]


# --- what it costs ------------------------------------------------------------------------------------------------


def tokens_left(world: World, bucket: TokenBucket) -> int:
    count = 0
    while bucket.take(1, world.now_us):
        count += 1
    return count


@pytest.mark.parametrize(("subscribers", "cost"), [(0, 1), (1, 1), (2, 2), (5, 5)])
@pytest.mark.parametrize("sender_holds_it", [False, True])
def test_a_topic_wake_costs_its_recipients(subscribers: int, cost: int, sender_holds_it: bool) -> None:
    world = World()
    alice = world.connect("alice", *[b"#team"] * sender_holds_it)
    for number in range(subscribers):
        world.connect(f"agent-{number}", b"#team")
    alice.session.bucket = TokenBucket(1, 20, world.now_us)
    alice.wake("#team")
    assert tokens_left(world, alice.session.bucket) == 20 - cost


def test_a_fan_out_that_is_not_covered_reaches_nobody_and_costs_one() -> None:
    world = World()
    alice = world.connect("alice")
    team = [world.connect(f"agent-{number}", b"#team") for number in range(5)]
    alice.session.bucket = TokenBucket(1, 4, world.now_us)
    alice.wake("#team")
    assert alice.read() == [FAN_OUT]
    assert all(peer.read() == [] for peer in team)
    assert tokens_left(world, alice.session.bucket) == 3
    assert world.hub.counters.wakes_routed == 0


def test_a_fan_out_that_is_just_covered() -> None:
    world = World()
    alice = world.connect("alice")
    team = [world.connect(f"agent-{number}", b"#team") for number in range(5)]
    alice.session.bucket = TokenBucket(1, 5, world.now_us)
    alice.wake("#team")
    assert alice.read() == []
    assert all(len(peer.read()) == 1 for peer in team)
    assert tokens_left(world, alice.session.bucket) == 0


def test_a_fan_out_above_the_burst_is_never_covered() -> None:
    world = World(frame_burst=3)
    alice = world.connect("alice")
    for number in range(4):
        world.connect(f"agent-{number}", b"#team")
    for _ in range(3):
        world.pass_ms(60_000)
        alice.wake("#team")
        assert alice.read() == [FAN_OUT]


def test_every_frame_costs_one_token_also_one_that_does_not_parse() -> None:
    world = World(frame_burst=4, frame_rate_per_second=1)
    alice = world.connect("alice")
    alice.ping()
    alice.wake("alice")
    alice.subscribe()
    alice.send(Frame(Kind.PONG, b"alice"))
    alice.read()
    alice.raw_frame(bytes(4))
    assert alice.read() == [RATE]
    assert alice.is_open
    world.pass_ms(1000)
    alice.raw_frame(bytes(4))
    assert not alice.is_open
    assert tokens_left(world, alice.session.bucket) == 0


def test_the_bucket_of_a_session_is_new_and_as_configured() -> None:
    world = World()
    assert tokens_left(world, world.connect("alice").session.bucket) == 2000
    small = World(frame_burst=7, frame_rate_per_second=2)
    bucket = small.connect("alice").session.bucket
    assert tokens_left(small, bucket) == 7
    small.pass_ms(2500)
    assert tokens_left(small, bucket) == 5


def test_a_recipient_pays_nothing() -> None:
    world = World()
    alice, bob = world.connect("alice"), world.connect("bob", b"#team")
    for _ in range(20):
        alice.wake("bob")
        alice.wake("#team")
    assert tokens_left(world, bob.session.bucket) == 2000


# --- too late -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stamped_ms_ago", "ttl_ms", "late"),
    [
        (1000, 1000, True),
        (1000, 999, True),
        (1000, 1001, False),
        (1000, 0, False),
        (0, 1, False),
        (-5000, 1, False),  # a sender whose clock is ahead
        (None, 1, False),  # unstamped: counted from its arrival
    ],
)
def test_a_wake_that_is_late_on_arrival_is_dropped_in_silence(
    stamped_ms_ago: int | None, ttl_ms: int, late: bool
) -> None:
    world = World()
    alice, bob = world.connect("alice"), world.connect("bob")
    ts_ms = 0 if stamped_ms_ago is None else world.wall_ms - stamped_ms_ago
    raw = alice.wake("bob", ts_ms=ts_ms, ttl_ms=ttl_ms)
    assert alice.read() == []
    assert bob.take() == (b"" if late else raw)
    assert world.hub.counters.wakes_expired == late
    assert world.hub.counters.wakes_routed == (not late)


@pytest.mark.parametrize("to", ["nobody", "#other", "#", "#team", "absent"])
def test_a_late_wake_is_no_error_whereever_it_goes(to: str) -> None:
    world = World()
    alice = world.connect("alice")
    world.connect("absent").finish()
    alice.session.bucket = TokenBucket(1, 1, world.now_us)
    for name in ("bob", "carol"):
        world.connect(name, b"#team")
    alice.wake(to, ts_ms=1, ttl_ms=1)
    assert alice.read() == []
    assert world.hub.counters.wakes_expired == 1
    assert world.hub.counters.pending_coalesced == 0


def test_a_destination_is_asked_for_before_the_lifetime() -> None:
    world = World()
    alice = world.connect("alice")
    alice.wake("", ts_ms=1, ttl_ms=1)
    assert alice.read() == [NO_DESTINATION]


@pytest.mark.parametrize(("waits_ms", "written"), [(99, True), (100, False), (5000, False)])
@pytest.mark.parametrize("stamped", [False, True])
def test_a_wake_that_is_late_when_it_leaves_the_queue_is_dropped(waits_ms: int, written: bool, stamped: bool) -> None:
    world = World()
    alice, bob = world.connect("alice"), world.connect("bob")
    raw = alice.wake("bob", ts_ms=world.wall_ms if stamped else 0, ttl_ms=100)
    world.pass_ms(waits_ms)
    assert bob.take() == (raw if written else b"")
    assert world.hub.counters.wakes_expired == (not written)
    assert world.hub.counters.wakes_written == written
    assert world.egress == 0


def test_only_the_late_ones_are_dropped_from_a_queue() -> None:
    world = World()
    alice, bob = world.connect("alice"), world.connect("bob")
    for row_id, ttl_ms in ((b"a", 10), (b"b", 0), (b"c", 10), (b"d", 10), (b"e", 1000)):
        alice.wake("bob", row_id, ttl_ms=ttl_ms)
    world.pass_ms(10)
    assert ids(bob.read()) == [b"b", b"e"]
    assert world.hub.counters.wakes_expired == 3


def test_a_wake_that_has_begun_to_leave_is_finished() -> None:
    world = World()
    alice, bob = world.connect("alice"), world.connect("bob")
    raw = alice.wake("bob", ttl_ms=10)
    head = bob.take(7)
    world.pass_ms(50)
    assert head + bob.take() == raw
    assert world.hub.counters.wakes_expired == 0


def test_one_recipient_may_be_in_time_and_another_late() -> None:
    world = World()
    alice = world.connect("alice")
    bob, carol = world.connect("bob", b"#team"), world.connect("carol", b"#team")
    raw = alice.wake("#team", ttl_ms=10)
    assert bob.take() == raw
    world.pass_ms(10)
    assert carol.take() == b""


# --- how long it took ---------------------------------------------------------------------------------------------


def test_latency_is_the_hubs_clock_less_the_stamp() -> None:
    world = World()
    alice, bob = world.connect("alice"), world.connect("bob")
    alice.wake("bob", ts_ms=world.wall_ms)
    alice.wake("bob", ts_ms=world.wall_ms + 60_000)  # from the future: 0
    alice.wake("bob")  # unstamped: not measured
    world.pass_ms(3)
    bob.read()
    histogram = world.hub.counters.wake_latency_us
    assert sum(histogram.buckets) == 2
    assert histogram.total_us == 3000


def test_the_hubs_own_wakes_are_not_measured() -> None:
    world = World()
    alice = world.connect("alice")
    world.connect("bob").finish()
    alice.wake("bob", ts_ms=world.wall_ms)
    world.connect("bob")
    assert sum(world.hub.counters.wake_latency_us.buckets) == 0
    assert world.hub.counters.wakes_written == 1


# --- what the hub does for a wake, counted ----------------------------------------------------------------------------


@pytest.mark.parametrize(("to", "parses"), [("bob", 0), ("#team", 1)])
def test_a_wake_is_parsed_once_at_most_however_many_it_reaches_and_never_made_anew(
    monkeypatch: pytest.MonkeyPatch, to: str, parses: int
) -> None:
    """A direct one is judged in place; one to a topic is decoded once for all."""
    world = World()
    alice = world.connect("alice")
    others = [world.connect(name, b"#team") for name in ("bob", *(f"b{number}" for number in range(20)))]
    raw = encode(Frame(Kind.WAKE, b"alice", to.encode(), Wake(b"m_1").encode()))
    calls: Counter[str] = Counter()

    def counting(name: str, real: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def counted(argument: Any) -> Any:
            calls[name] += 1
            return real(argument)

        return counted

    for module in (hub_module, delivery_module):
        for name in ("decode", "encode"):
            monkeypatch.setattr(module, name, counting(name, getattr(module, name)))
    alice.raw_frame(raw)
    reached = [other.take() for other in others]
    assert reached == ([raw] * 21 if to == "#team" else [raw] + [b""] * 20)
    assert (calls["decode"], calls["encode"]) == (parses, 0)


def test_a_topic_that_is_also_an_agents_name_stays_a_topic() -> None:
    world = World()
    alice, odd, bob = world.connect("alice"), world.connect("#team"), world.connect("bob", b"#team")
    alice.wake("#team")
    assert (ids(odd.read()), ids(bob.read())) == ([], [b"m_1"])
