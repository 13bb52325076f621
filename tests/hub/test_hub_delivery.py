"""Full queues and a full hub: loud, bounded, healing (awh1.md §5.6, §5.7), with small numbers."""

import pytest
from hub_world import FULL, HUB, NO_AGENT, RATE, Peer, World, ids

from wakehub.hub.delivery import Entry
from wakehub.wire.fields import lp
from wakehub.wire.frames import Frame, Kind, encode
from wakehub.wire.payloads import Wake, Welcome
from wakehub.wire.protocol import Ponged, Woken


def body(*parts: bytes) -> int:
    """The size of a frame body with these ids and payload."""
    return 24 + sum(map(len, parts))


def made_wake(agent: bytes, row_id: bytes) -> Frame:
    """The wake that the hub makes itself."""
    return Frame(Kind.WAKE, HUB, agent, Wake(row_id, b"_inbox/" + agent).encode())


def fill(sender: Peer, to: str, count: int, first: int = 0) -> list[bytes]:
    """Wake `to` with `count` different ids, none of which may be refused."""
    sent = [b"m_%02d" % number for number in range(first, first + count)]
    for row_id in sent:
        sender.wake(to, row_id)
    assert sender.read() == []
    return sent


# --- one recipient's queue ----------------------------------------------------------------------------------------


def test_a_full_queue_of_frames_is_told_to_the_sender_and_heals_when_it_drains() -> None:
    world = World(queued_frames=3)
    alice, bob = world.connect("alice"), world.connect("bob")
    sent = fill(alice, "bob", 3)
    alice.wake("bob", b"m_98")
    alice.wake("bob", b"m_99")
    assert alice.read() == [FULL, FULL]
    assert bob.queued == 3
    assert world.hub.counters.overflow == {"recipient_frames": 2}
    assert world.hub.counters.pending_coalesced == 2
    assert ids(bob.read()) == [*sent, b"m_98", b"m_99"]


def test_a_full_queue_of_bytes() -> None:
    world = World(queued_bytes=200)
    alice, bob = world.connect("alice"), world.connect("bob")
    size = body(b"alice", b"bob", Wake(b"m_00").encode())
    fits = 200 // size
    sent = fill(alice, "bob", fits)
    alice.wake("bob", b"m_99")
    assert alice.read() == [FULL]
    assert world.hub.counters.overflow == {"recipient_bytes": 1}
    assert ids(bob.read()) == [*sent, b"m_99"]


def test_a_healing_wake_is_the_hubs_own() -> None:
    world = World(queued_frames=1)
    alice, bob = world.connect("alice"), world.connect("bob")
    alice.wake("bob", b"m_0")
    alice.wake("bob", b"m_1", ts_ms=world.wall_ms, ttl_ms=60_000)
    assert bob.read_raw() == [
        Frame(Kind.WAKE, b"alice", b"bob", Wake(b"m_0").encode()),
        made_wake(b"bob", b"m_1"),
    ]


def test_healing_waits_until_the_queue_is_drained() -> None:
    world = World(queued_frames=2)
    alice, bob = world.connect("alice"), world.connect("bob")
    raw = alice.wake("bob", b"m_0")
    alice.wake("bob", b"m_1")
    alice.wake("bob", b"m_2")
    assert ids(bob.see(bob.take(len(raw)))) == [b"m_0"]
    assert bob.queued == 1
    assert ids(bob.read()) == [b"m_1", b"m_2"]


def test_more_than_a_queue_heals_in_rounds() -> None:
    world = World(queued_frames=4)
    alice, bob = world.connect("alice"), world.connect("bob")
    fill(alice, "bob", 4)
    for number in range(10, 30):
        alice.wake("bob", b"m_%02d" % number)
        assert alice.read() == [FULL]
    healed = ids(bob.read())[4:]
    assert healed == [b"m_%02d" % number for number in range(10, 30)]
    assert bob.queued == 0


def test_the_same_id_heals_once() -> None:
    world = World(queued_frames=1)
    alice, bob = world.connect("alice"), world.connect("bob")
    for row_id in (b"m_0", b"m_1", b"m_1", b"m_1"):
        alice.wake("bob", row_id)
        assert alice.read() == [FULL] * (row_id == b"m_1")
    assert ids(bob.read()) == [b"m_0", b"m_1"]


def test_a_new_wake_fits_again_before_healing_is_through() -> None:
    """What was refused is one thing, what comes now another: room is room."""
    world = World(queued_frames=2)
    alice, bob = world.connect("alice"), world.connect("bob")
    raw = alice.wake("bob", b"m_0")
    alice.wake("bob", b"m_1")
    alice.wake("bob", b"m_2")
    bob.take(len(raw))
    alice.read()
    alice.wake("bob", b"m_3")
    assert alice.read() == []
    assert ids(bob.see(bob.take())) == [b"m_1", b"m_3", b"m_2"]


@pytest.mark.parametrize("row_id", [b"", b"x" * 129, b"x" * 244])
def test_an_id_that_cannot_be_retained_heals_as_one_without_id(row_id: bytes) -> None:
    world = World(queued_frames=1)
    alice, bob = world.connect("alice"), world.connect("bob")
    alice.wake("bob", b"m_0")
    alice.wake("bob", row_id)
    assert ids(bob.read()) == [b"m_0", b""]


def test_more_than_64_ids_heal_as_64_and_one_without_id() -> None:
    """The one without id says that there is more; it is retained like the others if it cannot be written either."""
    world = World(queued_frames=2)
    alice, bob = world.connect("alice"), world.connect("bob")
    fill(alice, "bob", 2)
    refused = [b"r_%02d" % number for number in range(70)]
    for row_id in refused:
        alice.wake("bob", row_id)
        assert alice.read() == [FULL]
    assert ids(bob.read())[2:] == [*refused[:64], b""]


def test_overflow_is_noted_once_until_it_heals() -> None:
    world = World(queued_frames=1)
    alice, bob = world.connect("alice"), world.connect("bob")
    noted = Entry("recipient overflow", b"bob", {"cause": "recipient_frames"})
    for _ in range(2):
        world.hub.delivery.journal.clear()
        for number in range(4):
            alice.wake("bob", b"m_%d" % number)
            alice.read()
        assert world.hub.delivery.journal == [noted]
        bob.read()


def test_a_healed_agent_owes_nothing_any_more() -> None:
    world = World(queued_frames=1)
    alice, bob = world.connect("alice"), world.connect("bob")
    alice.wake("bob", b"m_0")
    alice.wake("bob", b"m_1")
    bob.read()
    bob.finish()
    assert world.connect("bob").first == [Welcome(3, 0, 0, False, 250, 750)]


def test_a_queue_that_empties_by_expiry_heals_too() -> None:
    world = World(queued_frames=1)
    alice, bob = world.connect("alice"), world.connect("bob")
    alice.wake("bob", b"m_0", ttl_ms=10)
    alice.wake("bob", b"m_1")
    world.pass_ms(10)
    assert ids(bob.read()) == [b"m_1"]


def test_who_leaves_before_healing_finds_it_at_its_return() -> None:
    world = World(queued_frames=2)
    alice, bob = world.connect("alice"), world.connect("bob")
    fill(alice, "bob", 2)
    alice.wake("bob", b"m_9")
    bob.finish()
    back = world.connect("bob")
    assert back.first[0] == Welcome(3, 3, 3, False, 250, 750)
    assert sorted(ids(back.first)) == [b"m_00", b"m_01", b"m_9"]


def test_overflow_of_one_subscriber_does_not_touch_the_others() -> None:
    world = World(queued_frames=1)
    alice = world.connect("alice")
    bob, carol = world.connect("bob", b"#team"), world.connect("carol", b"#team")
    alice.wake("bob", b"m_0")
    raw = alice.wake(b"#team", b"m_1")
    assert alice.read() == [FULL]
    assert carol.take() == raw
    assert ids(bob.read()) == [b"m_0", b"m_1"]


def test_a_fan_out_that_overflows_everywhere_is_one_error() -> None:
    world = World(queued_frames=1)
    alice = world.connect("alice")
    for name in ("bob", "carol", "dave"):
        world.connect(name, b"#team")
        alice.wake(name, b"m_0")
    alice.wake(b"#team", b"m_1")
    assert alice.read() == [FULL]
    assert world.hub.counters.overflow == {"recipient_frames": 3}
    assert world.hub.counters.fanout_deliveries == 0


# --- the hub-wide budget ------------------------------------------------------------------------------------------


def starve(world: World, alice: Peer, hog: Peer) -> int:
    """Fill the hub's budget with wakes that `hog` does not read; returns how many fitted."""
    count = 0
    while True:
        alice.wake(hog.agent, b"h_%03d" % count)
        answer = alice.read()
        if answer:
            assert answer == [FULL]
            return count
        count += 1


def test_a_full_hub_is_told_to_the_sender_and_heals_when_space_comes_back() -> None:
    world = World(egress_bytes=2000)
    alice, bob, hog = world.connect("alice"), world.connect("bob"), world.connect("hog")
    starve(world, alice, hog)
    alice.wake("bob", b"m_1")
    assert alice.read() == [FULL]
    assert world.hub.counters.overflow == {"egress": 2}
    assert bob.read() == []
    world.hub.delivery.dirty.clear()
    hog.take()
    assert bob.session in world.hub.delivery.dirty  # else nobody would write it
    assert ids(bob.read()) == [b"m_1"]


def test_space_that_comes_back_by_a_connections_end_heals_too() -> None:
    world = World(egress_bytes=2000)
    alice, bob, hog = world.connect("alice"), world.connect("bob"), world.connect("hog")
    starve(world, alice, hog)
    alice.wake("bob", b"m_1")
    alice.read()
    hog.finish()
    assert ids(bob.read()) == [b"m_1"]


def test_space_that_comes_back_by_expiry_heals_too() -> None:
    world = World(egress_bytes=2000)
    alice, bob, hog = world.connect("alice"), world.connect("bob"), world.connect("hog")
    while not alice.read():
        alice.wake("hog", b"h", ttl_ms=10)
    alice.wake("bob", b"m_1")
    alice.read()
    world.pass_ms(10)
    hog.take()
    assert ids(bob.read()) == [b"m_1"]


def test_several_starved_agents_all_heal() -> None:
    world = World(egress_bytes=2000)
    alice, hog = world.connect("alice"), world.connect("hog")
    others = [world.connect(name) for name in ("bob", "carol", "dave")]
    starve(world, alice, hog)
    for number, peer in enumerate(others):
        alice.wake(peer.agent, b"m_%d" % number)
        assert alice.read() == [FULL]
    hog.take()
    assert [ids(peer.read()) for peer in others] == [[b"m_0"], [b"m_1"], [b"m_2"]]
    assert world.egress == 0


def test_a_little_space_heals_one_and_the_next_space_another() -> None:
    world = World(egress_bytes=2000)
    alice, hog = world.connect("alice"), world.connect("hog")
    bob, carol = world.connect("bob"), world.connect("carol")
    starve(world, alice, hog)
    for name in ("bob", "carol"):
        alice.wake(name, b"m_" + name.encode())
        alice.read()
    sizes = []
    while not (bob.queued and carol.queued):
        raw = hog.hub.delivery.output(hog.session, world.wall_ms)
        assert raw is not None
        hog.hub.delivery.sent(hog.session, len(raw), world.wall_ms)
        sizes.append((bob.queued, carol.queued))
    assert (1, 0) in sizes
    assert ids(bob.read()) == [b"m_bob"]
    assert ids(carol.read()) == [b"m_carol"]


def test_who_comes_and_goes_while_the_hub_is_full_leaves_the_line_for_space() -> None:
    world = World(egress_bytes=2000)
    alice, hog, first = world.connect("alice"), world.connect("hog"), world.connect("first")
    starve(world, alice, hog)
    alice.wake("first", b"m_1")
    for _ in range(20):
        guest = world.connect("guest")
        alice.wake("guest", b"m_2")
        assert alice.read()[-1] == FULL
        guest.finish()
    assert list(world.hub.delivery._starved) == [first.session]
    hog.take()
    assert ids(first.read()) == [b"m_1"]


def test_an_attempt_to_heal_that_fails_is_no_overflow() -> None:
    """Counters and journal tell of wakes that were refused, not of how often the hub looked for room."""
    world = World(egress_bytes=3000)
    alice, bob, hog = world.connect("alice"), world.connect("bob"), world.connect("hog")
    starve(world, alice, hog)
    for number in range(3):
        alice.wake("bob", b"m_%d" % number + b"x" * 100)
        assert alice.read() == [FULL]
    counted = (world.hub.counters.overflow.copy(), world.hub.counters.pending_coalesced)
    world.hub.delivery.journal.clear()
    raw = hog.hub.delivery.output(hog.session, world.wall_ms)
    assert raw is not None
    hog.hub.delivery.sent(hog.session, len(raw), world.wall_ms)
    assert bob.queued == 0
    assert (world.hub.counters.overflow, world.hub.counters.pending_coalesced) == counted
    assert world.hub.delivery.journal == []
    bob.finish()
    assert world.hub.gauges().recipients == 2
    hog.finish()
    back = world.connect("bob")
    assert back.first[0] == Welcome(4, 3, 3, False, 250, 750)


def test_a_lagged_agent_that_starves_is_still_lagged_at_its_return() -> None:
    world = World(egress_bytes=2000)
    alice, bob, hog = world.connect("alice"), world.connect("bob"), world.connect("hog")
    starve(world, alice, hog)
    alice.wake("bob", b"m_1")
    alice.wake("bob", b"")
    alice.read()
    raw = hog.hub.delivery.output(hog.session, world.wall_ms)
    assert raw is not None
    hog.hub.delivery.sent(hog.session, len(raw), world.wall_ms)
    bob.finish()
    hog.finish()
    welcome = world.connect("bob").first[0]
    assert isinstance(welcome, Welcome)
    assert welcome.lagged
    assert welcome.pending_ids == 1


def test_a_full_hub_still_answers() -> None:
    """507 leaves the session open (§5.4), so there must be room to say it: wakes leave some of it to answers."""
    world = World(egress_bytes=4000)
    alice, bob = world.connect("alice"), world.connect("bob")
    world.connect("hog")
    for size in range(100, 0, -1):
        alice.wake("hog", b"x" * size)
        alice.read()
    assert alice.is_open
    alice.wake("bob", b"m_1")
    alice.wake("nobody")
    alice.ping()
    assert alice.read() == [FULL, NO_AGENT, Ponged()]
    assert world.connect("carol").is_open
    assert bob.is_open


def test_the_budget_is_never_exceeded_by_answers_either() -> None:
    world = World(egress_bytes=1000)
    peers = [world.connect(f"agent-{number}") for number in range(20)]
    for _ in range(20):
        for peer in peers:
            if peer.is_open:
                peer.ping()
                assert world.egress <= 1000
    closed = [peer for peer in peers if not peer.is_open]
    assert closed
    assert world.refused == {("own_queue", ""): len(closed)}
    for peer in peers:
        peer.finish()
    assert world.egress == 0


# --- the own queue and control frames -----------------------------------------------------------------------------


def test_who_does_not_read_its_pongs_is_closed() -> None:
    world = World(queued_frames=3)
    alice = world.connect("alice")
    for _ in range(3):
        alice.ping()
    assert alice.is_open
    alice.ping()
    assert not alice.is_open
    assert world.refused == {("own_queue", ""): 1}
    assert alice.read() == [Ponged()] * 3


@pytest.mark.parametrize("spoil", ["forged", "unknown", "subscribe", "fan-out"])
def test_an_answer_that_does_not_fit_closes_in_silence(spoil: str) -> None:
    world = World(queued_frames=2)
    alice, bob = world.connect("alice"), world.connect("bob")
    fill(bob, "alice", 2)
    match spoil:
        case "forged":
            alice.send(Frame(Kind.PING, b"bob"))
        case "unknown":
            alice.wake("nobody")
        case "subscribe":
            alice.subscribe(b"#team")
        case "fan-out":
            alice.wake("alice", b"m_9")  # to itself, whose queue is full: the 507 does not fit either
    assert not alice.is_open
    assert ids(alice.read()) == [b"m_00", b"m_01"]
    assert world.refused["own_queue", ""] == 1


def test_a_held_back_429_that_does_not_fit_closes() -> None:
    world = World(queued_frames=1, frame_burst=2, frame_rate_per_second=1000)
    alice = world.connect("alice")
    for _ in range(4):
        alice.wake("alice", b"m_0")
        alice.take()
    assert alice.session.owed_429 == RATE.reason
    world.pass_ms(2)
    alice.wake("alice", b"m_1")
    alice.ping()
    assert not alice.is_open


# --- what one frame costs -----------------------------------------------------------------------------------------


def test_queued_bytes_are_frame_bodies() -> None:
    world = World()
    alice, bob = world.connect("alice"), world.connect("bob")
    raw = alice.wake("bob", b"m_1")
    gauges = world.hub.gauges()
    assert (gauges.queued_frames, gauges.queued_bytes, gauges.egress_bytes) == (1, len(raw) - 4, len(raw) - 4)
    bob.take(10)
    assert world.egress == len(raw) - 4
    bob.take(1)
    assert world.hub.gauges().queued_frames == 1
    bob.take()
    assert world.egress == 0


def test_slow_consumers_are_counted() -> None:
    world = World(queued_bytes=400)
    alice, bob = world.connect("alice"), world.connect("bob")
    while world.hub.gauges().queued_bytes < 200:
        assert world.hub.gauges().slow_consumers == 0
        alice.wake("bob")
    assert world.hub.gauges().slow_consumers == 1
    bob.take()
    assert world.hub.gauges().slow_consumers == 0


def test_the_biggest_wake_is_an_ordinary_one() -> None:
    world = World()
    alice, bob = world.connect("alice"), world.connect("bob")
    payload = lp(b"x" * 244) + bytes(11)
    raw = encode(Frame(Kind.WAKE, b"alice", b"bob", payload, 1, 0))
    alice.raw_frame(raw)
    event = bob.read()[0]
    assert isinstance(event, Woken)
    assert event.wake == Wake(b"x" * 244)
    assert alice.read() == []


def test_an_error_is_never_cut_from_the_pair_it_belongs_to() -> None:
    """507 for one wake, 404 for the next, in the order of the wakes, and the pong behind them."""
    world = World(queued_frames=1)
    alice, bob, carol = world.connect("alice"), world.connect("bob"), world.connect("carol")
    carol.wake("bob")
    alice.wake("bob")
    assert alice.read() == [FULL]
    alice.wake("nobody")
    assert alice.read() == [NO_AGENT]
    alice.ping()
    assert alice.read() == [Ponged()]
    assert ids(bob.read()) == [b"m_1", b"m_1"]


# --- at once, past the queue ------------------------------------------------------------------------------------------


class Kernel:
    """Takes so many bytes of what it is offered, in turn; all of it when there is no further number."""

    def __init__(self, *takes: int) -> None:
        self.takes = list(takes)
        self.taken = b""

    def __call__(self, raw: bytes) -> int:
        count = min(self.takes.pop(0), len(raw)) if self.takes else len(raw)
        self.taken += raw[:count]
        return count


def test_what_the_kernel_takes_at_once_is_written_and_never_charged() -> None:
    world = World()
    alice, bob = world.connect("alice"), world.connect("bob")
    bob.session.transmit = kernel = Kernel()
    world.hub.delivery.dirty.clear()
    raw = alice.wake("bob", ts_ms=world.wall_ms - 3)
    counters = world.hub.counters
    assert kernel.taken == raw
    assert (bob.queued, world.egress, world.hub.delivery.dirty) == (0, 0, [])
    assert (counters.wakes_written, counters.wakes_routed, counters.wake_latency_us.total_us) == (1, 1, 3000)


@pytest.mark.parametrize("part", [0, 1, 4, 30])
def test_the_rest_of_what_the_kernel_took_in_part_waits_before_all_else(part: int) -> None:
    world = World()
    alice, bob = world.connect("alice"), world.connect("bob", b"#team")
    bob.session.transmit = kernel = Kernel(part)
    first = alice.wake("bob", b"m_1", ts_ms=world.wall_ms, ttl_ms=5)
    assert world.egress == len(first) - 4, "charged whole"
    second = alice.wake("#team", b"m_2")
    assert kernel.taken == first[:part], "nothing is written past what waits"
    world.wall_ms += 10 if part else 0  # a frame that has begun does not expire
    assert kernel.taken + bob.take() == first + second
    assert world.egress == 0
    assert alice.wake("bob", b"m_3") == kernel.taken[part:], "and then again at once"


def test_a_wake_to_many_goes_to_each_as_its_kernel_takes_it() -> None:
    world = World()
    alice = world.connect("alice")
    others = [world.connect(f"b{number}", b"#team") for number in range(4)]
    kernels = [Kernel(), Kernel(0), Kernel(10), Kernel()]
    for other, kernel in zip(others, kernels, strict=True):
        other.session.transmit = kernel
    raw = alice.wake("#team")
    assert world.hub.delivery.dirty[-2:] == [others[1].session, others[2].session]
    assert [kernel.taken + other.take() for kernel, other in zip(kernels, others, strict=True)] == [raw] * 4
    assert (world.hub.counters.fanout_deliveries, world.hub.counters.wakes_written) == (4, 4)


def test_a_frame_over_the_recipients_limits_is_not_even_offered() -> None:
    """Else the rest of it might not fit, and nothing could follow what had begun."""
    world = World(queued_bytes=280)
    alice, bob = world.connect("alice"), world.connect("bob")
    bob.session.transmit = kernel = Kernel()
    alice.wake("bob", b"m" * 240)
    assert kernel.taken == b""
    assert alice.read() == [FULL]
