"""A connection's life in the hub: challenge, admission, replacement, departure, revalidation, teardown (awh1.md §5)."""

import pytest
from hub_world import (
    HUB,
    NO_AGENT,
    NO_SCOPE,
    NOON_MS,
    RATE,
    REPLACED,
    UNAUTHORIZED,
    Peer,
    Verifier,
    World,
    ids,
    pair_of,
)

from wakehub.hub.counters import Gauges
from wakehub.hub.delivery import Entry
from wakehub.hub.hub import Hub
from wakehub.identity.verifier import Claim, Denied, DenyAllVerifier, Identity
from wakehub.limits import HubLimits
from wakehub.wire.frames import Frame, Kind, encode
from wakehub.wire.payloads import Hello, Wake, Welcome
from wakehub.wire.protocol import Challenge, Ponged
from wakehub.wire.transcript import membership

EMPTY = Gauges(0, 0, 0, 0, 0, 0)


def welcome_of(peer: Peer) -> Welcome:
    welcome = peer.first[0]
    assert isinstance(welcome, Welcome)
    return welcome


# --- challenge and hello ------------------------------------------------------------------------------------------


def test_the_hub_speaks_first() -> None:
    world = World()
    peer = world.open()
    assert peer.read_raw() == [Frame(Kind.HELLO, HUB, b"", peer.session.nonce)]
    assert world.hub.counters.accepted == 1
    assert world.hub.gauges() == Gauges(1, 0, 0, 0, 0, 0)


def test_each_connection_has_its_own_nonce() -> None:
    world = World()
    one, other = world.open().read(), world.open().read()
    assert isinstance(one[0], Challenge)
    assert one != other


def test_a_hello_becomes_a_claim_and_is_not_answered_before_it_is_verified() -> None:
    world = World()
    peer = world.open("alice")
    peer.read()
    hello = Hello(bytes(range(32)), bytes(range(64)), b"certificate", (b"#team", b"#_inbox/alice"))
    claim = peer.send(Frame(Kind.HELLO, b"alice", payload=hello.encode()))
    assert claim == Claim("alice", hello.key, hello.signature, hello.certificate, hello.topics, peer.session.nonce)
    assert peer.read() == []
    assert world.hub.agents == 0


def test_a_frame_costs_its_count() -> None:
    world = World()
    alice = world.connect("alice")
    alice.ping()
    alice.ping()
    assert world.hub.counters.frames_in == 3
    assert world.hub.counters.frames_out == 2
    alice.read()
    assert world.hub.counters.frames_out == 4


# --- admission ----------------------------------------------------------------------------------------------------


def test_the_welcome_is_the_first_thing_an_agent_hears() -> None:
    world = World(reconnect_base_ms=300, reconnect_jitter_ms=900)
    peer = world.open("alice")
    peer.read()
    peer.hello()
    assert peer.read_raw() == [Frame(Kind.WELCOME, HUB, b"alice", Welcome(1, 0, 0, False, 300, 900).encode())]


def test_sessions_are_numbered_from_one_and_never_zero() -> None:
    world = World()
    assert [welcome_of(world.connect(name)).session for name in ("alice", "bob", "alice")] == [1, 2, 3]
    world.hub._last_number = (1 << 32) - 2
    assert [welcome_of(world.connect(name)).session for name in ("alice", "bob")] == [(1 << 32) - 1, 1]


def test_the_topics_of_the_hello_are_installed() -> None:
    world = World()
    alice, bob = world.connect("alice"), world.connect("bob", b"#team", b"#_inbox/bob")
    alice.wake("#team")
    assert len(bob.read()) == 1


def test_nothing_slips_in_before_the_welcome() -> None:
    """Wakes to the agent and to its topics while its hello is verified: kept, or not for it yet."""
    world = World()
    alice, bob = world.connect("alice"), world.connect("bob")
    bob.finish()
    back = world.open("bob")
    back.read()
    claim = back.claim(b"#team")
    assert claim is not None
    alice.wake("bob", b"m_1")
    alice.wake("#team", b"m_2")
    world.hub.admit(back.session, claim, world.verifier.verify(claim, 0), 0)
    alice.wake("bob", b"m_3")
    alice.wake("#team", b"m_4")
    events = back.read()
    assert events[0] == Welcome(3, 1, 1, False, 250, 750)
    assert ids(events) == [b"m_1", b"m_3", b"m_4"]


def test_a_429_before_the_hello_comes_before_the_welcome() -> None:
    world = World()
    peer = world.open("alice")
    peer.session.bucket.take(8, 0)
    peer.claim()
    world.pass_ms(250)
    peer.hello()
    assert peer.read()[1:] == [RATE, Welcome(1, 0, 0, False, 250, 750)]


def test_who_is_refused_changes_nothing_for_who_is_there() -> None:
    world = World()
    alice = world.connect("alice", b"#team")
    world.connect("bob").finish()
    alice.wake("bob", b"m_1")
    world.verifier.denied = {"alice": "unknown_agent", "bob": "revoked_key"}
    for name in ("alice", "bob"):
        peer = world.open(name)
        peer.read()
        peer.hello(b"#team")
        assert peer.read() == [UNAUTHORIZED]
    assert alice.is_open
    assert world.hub.agents == 1
    world.verifier.denied = {}
    assert ids(world.connect("bob").first) == [b"m_1"]


def test_a_connection_that_closed_while_its_hello_was_verified_is_let_go() -> None:
    world = World()
    alice = world.connect("alice")
    late = world.open("alice")
    claim = late.claim()
    assert claim is not None
    world.hub.eof(late.session, inside_frame=False)
    for verdict in (Identity("alice", claim.key, claim.certificate, ()), Denied("unknown_agent")):
        world.hub.admit(late.session, claim, verdict, 0)
    assert not late.is_open
    assert alice.is_open
    alice.ping()
    assert alice.read() == [Ponged()]
    assert world.refused == {}


def test_a_welcome_that_does_not_fit_closes_and_takes_nothing() -> None:
    """Nothing but the challenge may be before the welcome, so a wake must not be sent in its place."""
    world = World(egress_bytes=300)
    alice, hog = world.connect("alice"), world.connect("hog")
    world.connect("bob").finish()
    alice.wake("bob", b"m_1")
    alice.wake("bob", b"")
    back = world.open("bob")
    back.take()
    while world.egress + 50 <= 300:
        hog.ping()
    back.hello()
    assert not back.is_open
    assert back.take() == b""
    assert world.refused == {("own_queue", ""): 1}
    hog.take()
    back.finish()
    again = world.connect("bob")
    assert again.first[0] == Welcome(5, 2, 1, True, 250, 750)
    assert ids(again.first) == [b"m_1"]


def test_what_does_not_fit_behind_the_welcome_comes_when_the_queue_has_drained() -> None:
    world = World(queued_frames=3)
    alice = world.connect("alice")
    world.connect("bob").finish()
    sent = [b"m_%d" % number for number in range(10)]
    for row_id in sent:
        alice.wake("bob", row_id)
    back = world.open("bob")
    back.read()
    back.hello()
    assert back.queued == 3
    assert ids(back.read()) == sent
    assert alice.read() == []
    assert world.hub.counters.overflow == {}


# --- replacement --------------------------------------------------------------------------------------------------


def test_the_previous_session_is_told_behind_what_is_queued_and_closed() -> None:
    world = World()
    alice, old = world.connect("alice"), world.connect("bob")
    alice.wake("bob", b"m_1")
    new = world.connect("bob")
    alice.wake("bob", b"m_2")
    events = old.read()
    assert ids(events) == [b"m_1"]
    assert events[1:] == [REPLACED]
    assert not old.is_open
    assert ids(new.read()) == [b"m_2"]
    assert world.hub.counters.sessions_replaced == 1
    assert world.hub.agents == 2


def test_a_replacement_inherits_no_subscription() -> None:
    world = World()
    alice, old = world.connect("alice"), world.connect("bob", b"#team")
    new = world.connect("bob", b"#team/new")
    alice.wake("#team", b"m_1")
    alice.wake("#team/new", b"m_2")
    assert old.read() == [REPLACED]
    assert ids(new.read()) == [b"m_2"]


def test_the_end_of_an_old_session_never_removes_the_newer_route() -> None:
    world = World()
    alice, old = world.connect("alice"), world.connect("bob")
    new = world.connect("bob")
    old.finish()
    alice.wake("bob")
    assert len(new.read()) == 1
    assert world.hub.agents == 2


def test_what_the_old_session_did_not_write_goes_to_the_newer_at_once() -> None:
    world = World()
    alice, old = world.connect("alice"), world.connect("bob", b"#team")
    raw = alice.wake("bob", b"m_1")
    alice.wake("bob", b"m_2")
    alice.wake("#team", b"m_3")
    old.take(len(raw) + 5)
    new = world.connect("bob")
    assert new.read() == []
    world.hub.delivery.dirty.clear()
    old.finish()
    assert new.session in world.hub.delivery.dirty
    assert new.read_raw() == [
        Frame(Kind.WAKE, HUB, b"bob", Wake(row_id, b"_inbox/bob").encode()) for row_id in (b"m_2", b"m_3")
    ]


@pytest.mark.parametrize("row_id", [b"", b"x" * 129, b"x" * 244])
def test_an_unwritten_id_that_cannot_be_kept_still_wakes_the_newer_session(row_id: bytes) -> None:
    world = World()
    alice, old = world.connect("alice"), world.connect("bob")
    alice.wake("bob", row_id)
    new = world.connect("bob")
    old.finish()
    assert ids(new.read()) == [b""]


def test_an_old_session_with_a_full_queue_closes_without_a_word() -> None:
    world = World(queued_frames=2)
    alice, old = world.connect("alice"), world.connect("bob")
    for row_id in (b"m_1", b"m_2"):
        alice.wake("bob", row_id)
    new = world.connect("bob")
    assert not old.is_open
    assert ids(old.read()) == [b"m_1", b"m_2"]
    assert world.refused == {("own_queue", ""): 1}
    assert world.hub.counters.sessions_replaced == 1
    assert new.is_open


def test_what_an_old_session_was_owed_goes_to_the_newer() -> None:
    world = World(queued_frames=2)
    alice, old = world.connect("alice"), world.connect("bob")
    for number in range(4):
        alice.wake("bob", b"m_%d" % number)
        alice.read()
    new = world.connect("bob")
    assert ids(new.first) == [b"m_2", b"m_3"]
    old.finish()
    assert ids(new.read()) == [b"m_0", b"m_1"]


def test_a_replaced_session_is_heard_no_more() -> None:
    world = World()
    old = world.connect("bob")
    world.connect("bob")
    with pytest.raises(AssertionError):
        old.ping()


# --- join and depart ----------------------------------------------------------------------------------------------


def test_a_join_is_verified_and_changes_nothing() -> None:
    world = World()
    alice = world.connect("alice")
    alice.send(Frame(Kind.JOIN, b"alice", payload=alice.signed(Kind.JOIN)))
    assert alice.read() == []
    assert alice.is_open
    assert world.refused == {}


@pytest.mark.parametrize("kind", [Kind.JOIN, Kind.DEPART])
@pytest.mark.parametrize(
    "spoil", ["nothing", "short", "long", "other kind", "other nonce", "other agent", "other hub", "other key"]
)
def test_a_join_or_depart_with_a_bad_signature(kind: Kind, spoil: str) -> None:
    world = World()
    alice, pair = world.connect("alice"), pair_of("alice")
    other = Kind.DEPART if kind is Kind.JOIN else Kind.JOIN
    payload = {
        "nothing": b"",
        "short": alice.signed(kind)[:63],
        "long": alice.signed(kind) + b"\0",
        "other kind": alice.signed(other),
        "other nonce": pair.sign(membership(kind, HUB, bytes(32), b"alice")),
        "other agent": pair.sign(membership(kind, HUB, alice.nonce, b"bob")),
        "other hub": pair.sign(membership(kind, b"hub2", alice.nonce, b"alice")),
        "other key": pair_of("mallory").sign(membership(kind, HUB, alice.nonce, b"alice")),
    }[spoil]
    alice.send(Frame(kind, b"alice", payload=payload))
    assert alice.read() == [UNAUTHORIZED]
    assert not alice.is_open
    assert world.refused == {(kind.name.lower(), "signature"): 1}
    assert b"alice" in world.hub.delivery.known


def test_who_departs_is_forgotten_and_gets_no_reply() -> None:
    world = World(queued_frames=1)
    bob, alice = world.connect("bob"), world.connect("alice", b"#team")
    bob.wake("alice", b"m_1")
    bob.wake("alice", b"m_2")
    bob.read()
    alice.depart()
    assert not alice.is_open
    assert ids(alice.read()) == [b"m_1"]
    bob.wake("alice", b"m_3")
    bob.wake("#team", b"m_4")
    assert bob.read() == [NO_AGENT]
    alice.finish()
    assert world.connect("alice").first == [Welcome(3, 0, 0, False, 250, 750)]


def test_what_was_not_written_to_who_departed_is_nobodys() -> None:
    world = World()
    bob, alice = world.connect("bob"), world.connect("alice")
    bob.wake("alice", b"m_1")
    alice.depart()
    alice.finish()
    assert world.connect("alice").first == [Welcome(3, 0, 0, False, 250, 750)]


def test_who_only_disconnects_stays_known() -> None:
    world = World()
    bob, alice = world.connect("bob"), world.connect("alice")
    world.hub.eof(alice.session, inside_frame=False)
    bob.wake("alice", b"m_1")
    assert bob.read() == []
    alice.finish()
    assert ids(world.connect("alice").first) == [b"m_1"]


# --- the table of known agents ------------------------------------------------------------------------------------


def test_a_full_table_forgets_who_is_longest_absent_with_the_least_waiting() -> None:
    world = World(known_agents=3)
    alice = world.connect("alice")
    for name in ("bob", "carol"):
        world.connect(name).finish()
    alice.wake("bob", b"m_1")
    world.connect("dave")
    assert world.hub.counters.pending_evicted == 1
    assert Entry("agent evicted", b"carol") in world.hub.delivery.journal
    alice.wake("carol")
    alice.wake("bob")
    assert alice.read() == [NO_AGENT]


def test_the_connected_are_never_forgotten_and_the_table_shrinks_as_they_leave() -> None:
    world = World(known_agents=2)
    peers = [world.connect(name) for name in ("alice", "bob", "carol", "dave")]
    assert world.hub.counters.pending_evicted == 0
    peers[0].wake("dave")
    assert len(peers[3].read()) == 1
    for peer in peers[1:]:
        peer.finish()
    assert len(world.hub.delivery.known) == 2
    assert world.hub.counters.pending_evicted == 2


def test_who_was_forgotten_while_it_had_unwritten_frames_is_owed_nothing() -> None:
    world = World(known_agents=1)
    alice, bob = world.connect("alice"), world.connect("bob")
    alice.wake("bob")
    bob.finish()
    alice.wake("bob")
    assert alice.read() == [NO_AGENT]
    assert world.egress == 0


# --- revalidation -------------------------------------------------------------------------------------------------


def test_who_still_is_who_it_was_notices_nothing() -> None:
    world = World()
    alice = world.connect("alice", b"#team")
    world.revalidate()
    assert alice.is_open
    assert alice.read() == []
    assert list(alice.session.topics) == [b"#team"]


def test_who_is_revoked_is_closed_in_silence() -> None:
    world = World()
    alice, bob = world.connect("alice"), world.connect("bob", b"#team")
    world.verifier.denied = {"bob": "revoked_key"}
    world.revalidate()
    assert not bob.is_open
    assert bob.read() == []
    assert alice.is_open
    assert world.refused == {("revalidation", "revoked_key"): 1}
    assert Entry("agent disconnected", b"bob", {"session": 2, "why": "revalidation"}) in world.hub.delivery.journal
    alice.wake("#team")
    alice.wake("bob")
    assert alice.read() == []


def test_strangers_and_closed_connections_are_not_looked_at() -> None:
    world = World()
    stranger, closed = world.open("alice"), world.connect("bob")
    world.hub.eof(closed.session, inside_frame=False)
    world.verifier.denied = {"": "x", "alice": "x", "bob": "x"}
    world.revalidate()
    assert stranger.is_open
    assert world.refused == {}


@pytest.mark.parametrize(("stale_ms", "is_open"), [(0, True), (4999, True), (5000, False), (60_000, False)])
def test_a_stale_allowlist_closes_after_five_seconds(stale_ms: int, is_open: bool) -> None:
    world = World()
    alice = world.connect("alice")
    world.verifier.stale = True
    world.revalidate()
    world.pass_ms(stale_ms)
    world.revalidate()
    assert alice.is_open == is_open
    assert alice.read() == []
    assert world.refused == ({} if is_open else {("revalidation", "allowlist_stale"): 1})


def test_a_hello_is_refused_at_once_while_the_allowlist_is_stale() -> None:
    world = World()
    alice = world.connect("alice")
    world.verifier.stale = True
    world.revalidate()
    peer = world.open("bob")
    peer.read()
    peer.hello()
    assert peer.read() == [UNAUTHORIZED]
    assert alice.is_open


def test_the_five_seconds_start_anew_once_it_was_fresh() -> None:
    world = World()
    alice = world.connect("alice")
    for _ in range(3):
        world.verifier.stale = True
        world.revalidate()
        world.pass_ms(4999)
        world.revalidate()
        world.verifier.stale = False
        world.revalidate()
    assert alice.is_open


def test_a_revocation_is_not_granted_the_grace() -> None:
    world = World()
    alice = world.connect("alice")
    world.verifier.stale = True
    world.revalidate()
    world.verifier.denied = {"alice": "revoked_key"}
    world.revalidate()
    assert not alice.is_open


def test_a_topic_that_lost_its_proof_is_dropped_and_the_session_stays() -> None:
    world = World()
    alice = world.connect("alice")
    bob = world.connect("bob", b"#team/hello", b"#_inbox/bob")
    bob.subscribe(b"#team/later")
    bob.read()
    world.verifier.own = {"bob": ("team/later",)}
    world.revalidate()
    assert bob.is_open
    assert bob.read() == []
    assert list(bob.session.topics) == [b"#_inbox/bob", b"#team/later"]
    assert Entry("topic lost", b"bob", {"topic": "#team/hello"}) in world.hub.delivery.journal
    alice.wake("#team/hello", b"m_1")
    alice.wake("#team/later", b"m_2")
    assert ids(bob.read()) == [b"m_2"]


def test_scope_follows_the_revalidated_identity() -> None:
    world = World()
    alice = world.connect("alice")
    world.verifier.own = {"alice": ("ops",)}
    alice.wake("#ops")
    world.revalidate()
    alice.wake("#ops")
    alice.wake("#team")
    assert alice.read() == [NO_SCOPE, NO_SCOPE]
    alice.subscribe(b"#ops")
    assert len(alice.read()) == 1
    alice.subscribe(b"#team")
    assert alice.read() == [UNAUTHORIZED]


def test_while_stale_nothing_is_dropped() -> None:
    world = World()
    alice = world.connect("alice", b"#team")
    world.verifier.stale = True
    world.verifier.prefixes = ()
    world.revalidate()
    assert list(alice.session.topics) == [b"#team"]


def test_a_hub_without_an_owner_key_admits_nobody_and_keeps_nobody() -> None:
    world = World()
    alice = world.connect("alice")
    world.hub.verifier = DenyAllVerifier()
    world.revalidate()
    assert not alice.is_open
    peer = world.open("bob")
    peer.read()
    claim = peer.claim()
    assert claim is not None
    world.hub.admit(peer.session, claim, world.hub.verifier.verify(claim, 0), 0)
    assert peer.read() == [UNAUTHORIZED]
    assert world.refused == {("revalidation", "no_owner_key"): 1, ("hello", "no_owner_key"): 1}


# --- teardown -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", [0, 1, 4, 50, "all"])
def test_what_was_not_written_whole_is_kept_for_the_agents_return(written: int | str) -> None:
    world = World()
    alice, bob = world.connect("alice"), world.connect("bob")
    raw = alice.wake("bob", b"m_1")
    alice.wake("bob", b"m_2")
    bob.take(len(raw) if written == "all" else int(written))
    bob.finish()
    assert world.egress == 0
    expected = [b"m_2"] if written == "all" else [b"m_1", b"m_2"]
    back = world.connect("bob")
    assert welcome_of(back).pending_ids == len(expected)
    assert ids(back.first) == expected


def test_what_expired_unwritten_is_not_kept() -> None:
    world = World()
    alice, bob = world.connect("alice"), world.connect("bob")
    alice.wake("bob", b"m_1", ttl_ms=50)
    alice.wake("bob", b"m_2")
    world.pass_ms(50)
    bob.finish()
    assert ids(world.connect("bob").first) == [b"m_2"]
    assert world.hub.counters.wakes_expired == 1


def test_topic_wakes_that_were_not_written_are_kept_too() -> None:
    """They were in the agent's queue: their sender was told nothing."""
    world = World()
    alice, bob = world.connect("alice"), world.connect("bob", b"#team")
    alice.wake("#team", b"m_1")
    bob.finish()
    assert ids(world.connect("bob").first) == [b"m_1"]


def test_the_hubs_own_wakes_that_were_not_written_are_kept_too() -> None:
    world = World()
    alice = world.connect("alice")
    world.connect("bob").finish()
    alice.wake("bob", b"m_1")
    back = world.open("bob")
    back.take()
    back.hello()
    back.finish()
    assert ids(world.connect("bob").first) == [b"m_1"]


def test_control_frames_that_were_not_written_are_not_kept() -> None:
    world = World()
    alice = world.connect("alice")
    alice.ping()
    alice.wake("nobody")
    alice.subscribe(b"#team")
    alice.finish()
    assert world.connect("alice").first == [Welcome(2, 0, 0, False, 250, 750)]


def test_an_unwritten_welcome_that_told_of_lost_ids_does_not_lose_them() -> None:
    world = World()
    alice = world.connect("alice")
    world.connect("bob").finish()
    alice.wake("bob", b"")
    back = world.open("bob")
    back.take()
    back.hello()
    back.finish()
    assert world.connect("bob").first == [Welcome(4, 1, 0, True, 250, 750)]


def test_an_unwritten_welcome_that_told_of_lost_ids_wakes_the_newer_session() -> None:
    world = World()
    alice = world.connect("alice")
    world.connect("bob").finish()
    alice.wake("bob", b"")
    old = world.open("bob")
    old.take()
    old.hello()
    new = world.connect("bob")
    assert new.first == [Welcome(4, 0, 0, False, 250, 750)]
    old.finish()
    assert ids(new.read()) == [b""]


def test_a_wake_between_the_end_and_the_teardown_is_kept() -> None:
    world = World()
    alice, bob = world.connect("alice"), world.connect("bob")
    alice.wake("bob", b"m_1")
    world.hub.eof(bob.session, inside_frame=False)
    alice.wake("bob", b"m_2")
    bob.finish()
    assert sorted(ids(world.connect("bob").first)) == [b"m_1", b"m_2"]


def test_a_return_before_the_teardown_misses_nothing() -> None:
    world = World()
    alice, bob = world.connect("alice"), world.connect("bob")
    alice.wake("bob", b"m_1")
    world.hub.eof(bob.session, inside_frame=False)
    alice.wake("bob", b"m_2")
    back = world.connect("bob")
    assert ids(back.first) == [b"m_2"]
    bob.finish()
    assert ids(back.read()) == [b"m_1"]


def test_a_stranger_leaves_nothing_behind() -> None:
    world = World()
    peer = world.open()
    peer.finish()
    assert world.hub.gauges() == EMPTY
    assert len(world.hub.delivery.known) == 0


def test_finishing_twice_is_nothing() -> None:
    world = World()
    alice = world.connect("alice")
    world.connect("bob").wake("alice", b"m_1")
    alice.finish()
    alice.finish()
    assert welcome_of(world.connect("alice")).pending_count == 1


@pytest.mark.parametrize("end", ["finish", "eof", "prefix", "decode", "depart", "revoked", "replaced", "own queue"])
def test_every_budget_reads_zero_when_the_last_connection_is_gone_however_it_ended(end: str) -> None:
    world = World(queued_frames=5)
    alice, bob = world.connect("alice", b"#team"), world.connect("bob", b"#team")
    peers = [alice, bob]
    for _ in range(3):
        bob.wake("alice")
        bob.wake("#team")
    alice.take(30)
    bob.read()
    match end:
        case "eof":
            world.hub.eof(alice.session, inside_frame=True)
        case "prefix":
            world.hub.refuse_prefix(alice.session)
        case "decode":
            alice.raw_frame(bytes(4))
        case "depart":
            alice.depart()
        case "revoked":
            world.verifier.denied = {"alice": "revoked_key"}
            world.revalidate()
        case "replaced":
            peers.append(world.connect("alice"))
        case "own queue":
            alice.ping()
            assert not alice.is_open
    for peer in peers:
        peer.finish()
    assert world.hub.gauges() == EMPTY
    assert world.hub.sessions == ()


# --- what the operator reads --------------------------------------------------------------------------------------


def test_comings_and_goings_are_noted() -> None:
    world = World()
    alice = world.connect("alice")
    alice.finish()
    assert world.hub.delivery.journal == [
        Entry("agent connected", b"alice", {"session": 1, "pending": 0}),
        Entry("agent disconnected", b"alice", {"session": 1, "why": "disconnected"}),
    ]


def test_nothing_noted_and_nothing_shown_holds_a_secret() -> None:
    world = World()
    world.verifier.denied = {"bob": "transcript_signature"}
    for name in ("alice", "bob"):
        peer = world.open(name)
        claim = peer.send(Frame(Kind.HELLO, name.encode(), payload=Hello(b"K" * 32, b"S" * 64, b"C" * 99).encode()))
        assert claim is not None
        world.hub.admit(peer.session, claim, world.verifier.verify(claim, 0), 0)
        assert "SSSS" not in repr(claim) + repr(world.hub.delivery.journal) + repr(peer.session)
        assert "CCCC" not in repr(claim) + repr(world.hub.delivery.journal) + repr(peer.session)


def test_the_gauges_count_connections_and_agents() -> None:
    world = World()
    alice = world.connect("alice")
    world.open()
    assert world.hub.gauges() == Gauges(2, 1, 32 + 24 + len(HUB), 1, 32 + 24 + len(HUB), 0)
    assert world.hub.agents == 1
    assert world.hub.sessions[0] is alice.session
    world.hub.eof(alice.session, inside_frame=False)
    assert world.hub.gauges().connections == 2
    assert world.hub.agents == 0


def test_who_has_something_to_write_is_listed() -> None:
    world = World()
    alice, bob = world.connect("alice"), world.connect("bob")
    world.hub.delivery.dirty.clear()
    alice.wake("bob")
    assert world.hub.delivery.dirty == [bob.session]
    world.hub.delivery.dirty.clear()
    alice.wake("nobody")
    assert world.hub.delivery.dirty == [alice.session]
    world.hub.delivery.dirty.clear()
    world.hub.eof(bob.session, inside_frame=False)
    assert world.hub.delivery.dirty == [bob.session]


def test_a_hub_needs_nothing_but_an_id_limits_and_a_verifier() -> None:
    hub = Hub("hüb".encode(), HubLimits(), Verifier())
    session = hub.open(bytes(32), 0)
    assert hub.delivery.output(session, NOON_MS) == encode(Frame(Kind.HELLO, "hüb".encode(), payload=bytes(32)))
