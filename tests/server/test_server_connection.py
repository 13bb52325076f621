"""One connection's bytes: handshake, reading, writing, backlog, teardown (awh1.md §1, §5.2, §5.4, §5.6, §5.10)."""

import contextlib
import random
import socket
from typing import Any

import pytest
import trio

from wakehub.limits import (
    HANDSHAKE_DEADLINE_MS,
    MAX_QUEUED_BYTES,
    MAX_QUEUED_FRAMES,
    TEARDOWN_FLUSH_MS,
    HubLimits,
)
from wakehub.server.sockets import Sockets
from wakehub.wire.frames import Frame, Kind, encode
from wakehub.wire.payloads import Wake, Welcome


def fill(sock: socket.socket) -> None:
    """Write into a non-blocking socket until the kernel takes not one byte more."""
    for size in (4096, 1):
        try:
            while True:
                sock.send(bytes(size))
        except BlockingIOError:
            pass


# --- the handshake ----------------------------------------------------------------------------------------------------


async def test_the_hub_speaks_first_with_a_nonce_of_its_own_for_each_connection(serve):
    world = await serve()
    challenges = [await (await world.connect()).frame() for _ in range(3)]
    assert {(frame.kind, frame.from_id, frame.to_id, len(frame.payload)) for frame in challenges} == {
        (Kind.HELLO, b"wakehub", b"", 32)
    }
    assert len({frame.payload for frame in challenges}) == 3


async def test_frames_behind_the_hello_in_the_same_write_are_taken_after_the_welcome(serve):
    world = await serve()
    alice = await world.connect()
    await alice.frame()
    await alice.send_bytes(
        alice.hello_bytes("alice") + alice.wake_bytes(b"alice", b"m_1") + encode(Frame(Kind.PING, b"alice"))
    )
    assert [(await alice.frame()).kind for _ in range(3)] == [Kind.WELCOME, Kind.WAKE, Kind.PONG]


async def test_a_silent_peer_is_closed_at_the_deadline_without_a_word(serve, autojump_clock):
    world = await serve()
    began = trio.current_time()
    peer = await world.connect()
    assert [frame.kind for frame in await peer.rest()] == [Kind.HELLO]
    assert trio.current_time() - began == pytest.approx(HANDSHAKE_DEADLINE_MS / 1000, abs=0.01)
    assert world.refused("deadline") == 1
    assert world.server.connections == ()


async def test_a_peer_that_sends_its_hello_byte_by_byte_is_closed_at_the_deadline(serve, autojump_clock):
    world = await serve()
    peer = await world.connect()
    await peer.frame()
    began = trio.current_time()
    hello = peer.hello_bytes("alice")
    sent = 0
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while True:
            await peer.send_bytes(hello[sent : sent + 1])
            sent += 1
            await trio.sleep(0.1)
    assert sent < len(hello)
    assert trio.current_time() - began == pytest.approx(HANDSHAKE_DEADLINE_MS / 1000, abs=0.2)
    assert world.refused("deadline") == 1


async def test_the_configured_handshake_deadline_rules(serve, autojump_clock):
    world = await serve(limits=HubLimits(handshake_deadline_ms=700))
    began = trio.current_time()
    peer = await world.connect()
    assert [frame.kind for frame in await peer.rest()] == [Kind.HELLO]
    assert trio.current_time() - began == pytest.approx(0.7, abs=0.01)


async def test_the_deadline_ends_with_the_welcome(serve, autojump_clock):
    world = await serve()
    alice = await world.session("alice")
    await trio.sleep(3600)
    assert await alice.ping() == []


async def test_hellos_that_come_together_are_verified_one_at_a_time_and_each_once(serve, monkeypatch):
    """§5.2 allows 32 in verification at once: here each is judged to its end before the next is looked at."""
    world = await serve()
    verify, under_way, judged = world.verifier.verify, [], []

    def verify_alone(claim: Any, now_s: float) -> Any:
        assert under_way == []
        under_way.append(claim.agent_id)
        verdict = verify(claim, now_s)
        judged.append(under_way.pop())
        return verdict

    monkeypatch.setattr(world.verifier, "verify", verify_alone)
    peers = [await world.connect() for _ in range(40)]
    for peer in peers:
        await peer.frame()
    for number, peer in enumerate(peers):
        await peer.send_bytes(peer.hello_bytes(f"a{number}"))
    assert {(await peer.frame()).kind for peer in peers} == {Kind.WELCOME}
    assert sorted(judged) == sorted(f"a{number}" for number in range(40))


# --- what comes in ----------------------------------------------------------------------------------------------------


async def test_a_session_fed_byte_by_byte_is_understood(serve):
    world = await serve()
    alice = await world.connect()
    await alice.frame()
    for byte in alice.hello_bytes("alice") + alice.wake_bytes(b"alice", b"m_1"):
        await alice.send_bytes(bytes([byte]))
    assert (await alice.frame()).kind is Kind.WELCOME
    assert await alice.wake_id() == b"m_1"


async def test_a_prefix_over_the_ceiling_is_refused_from_its_four_bytes_alone(serve):
    world = await serve()
    peer = await world.connect()
    await peer.frame()
    await peer.send_bytes((1305).to_bytes(4, "big"))
    assert await peer.error() == (413, "frame exceeds 1304 B")
    assert await peer.rest() == []
    assert world.refused("prefix") == 1


@pytest.mark.parametrize("seed", range(20))
async def test_garbage_gets_one_refusal_and_the_end(serve, seed):
    world = await serve()
    for peer in (await world.connect(), await world.session("alice")):
        if not peer.name:
            await peer.frame()
        garbage = (4 + seed * 40).to_bytes(4, "big") + random.Random(seed).randbytes(2000)
        await peer.send_bytes(garbage)
        code, reason = await peer.error()
        assert (code, bool(reason)) in {(400, True), (413, True)}
        assert await peer.rest() == []


async def test_an_end_inside_a_frame_is_malformed_and_gets_no_answer(serve):
    world = await serve()
    alice = await world.session("alice")
    await alice.send_bytes(alice.wake_bytes(b"alice", b"m_1")[:-1])
    alice.sock.shutdown(socket.SHUT_WR)
    assert await alice.rest() == []
    assert world.refused("malformed", "eof") == 1


async def test_an_end_between_frames_is_clean_and_what_was_asked_before_is_answered(serve):
    world = await serve()
    alice = await world.session("alice")
    await alice.send_bytes(alice.wake_bytes(b"alice", b"m_1") + encode(Frame(Kind.PING, b"alice")))
    alice.sock.shutdown(socket.SHUT_WR)
    assert [frame.kind for frame in await alice.rest()] == [Kind.WAKE, Kind.PONG]
    assert not world.hub.counters.refused


async def test_a_peer_that_goes_without_reading_leaves_nothing_behind(serve):
    world = await serve()
    peer = await world.connect()  # the challenge stays unread: the hub's next read fails with ECONNRESET
    peer.close()
    alice = await world.session("alice")
    await alice.wake(b"alice", b"m_1")
    alice.close()
    await trio.testing.wait_all_tasks_blocked()
    gauges = world.hub.gauges()
    assert (gauges.connections, gauges.recipients, gauges.queued_bytes, gauges.egress_bytes) == (0, 0, 0, 0)
    assert world.server.connections == ()


async def test_a_bug_costs_one_frame(serve, monkeypatch):
    world = await serve()
    alice, bob = await world.session("alice"), await world.session("bob")
    monkeypatch.setitem(world.hub._handlers, Kind.JOIN, lambda *_: 1 // 0)
    await alice.send(Kind.JOIN, payload=bytes(64))
    assert await alice.error() == (500, "internal error")
    assert await alice.ping() == []
    assert await bob.ping() == []
    (entry,) = world.events("internal error on a frame")
    assert (entry["level"], entry["exc_info"]) == ("error", True)


async def test_a_bug_outside_a_frame_costs_one_connection(serve, monkeypatch):
    world = await serve(ceiling=8)
    bob = await world.session("bob")
    monkeypatch.setattr(world.verifier, "verify", lambda *_: 1 // 0)
    for _ in range(10):
        peer = await world.connect()
        await peer.frame()
        await peer.send_bytes(peer.hello_bytes("alice"))
        assert await peer.rest() == []
    assert len(world.events("connection failed")) == 10
    assert await bob.ping() == []
    assert len(world.server.connections) == 1


# --- what goes out ----------------------------------------------------------------------------------------------------


class Counting(socket.socket):
    """A socket that notes each call of recv and send; accepted ones as well."""

    trace: list[str]

    def accept(self) -> Any:
        fd, address = self._accept()
        sock = Counting(fileno=fd)
        sock.trace = self.trace
        return sock, address

    def recv(self, *args: Any) -> bytes:
        self.trace.append("recv")
        return super().recv(*args)

    def send(self, *args: Any) -> int:
        self.trace.append("send")
        return super().send(*args)


class Steps(trio.abc.Instrument):
    """Notes when a task of a connection begins to run."""

    def __init__(self, trace: list[str]) -> None:
        self._trace = trace

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if "Connection" in task.name or "_serve" in task.name:
            self._trace.append("step")


@pytest.mark.parametrize("subscribers", [1, 20])
async def test_a_wake_costs_one_recv_and_one_send_for_each_recipient_and_no_step_of_any_task(serve, subscribers):
    trace: list[str] = []

    def count(sockets: Sockets) -> None:
        sockets.hub.sock = Counting(fileno=sockets.hub.sock.detach())
        sockets.hub.sock.trace = trace

    world = await serve(prepare=count)
    alice = await world.session("alice")
    others = [await world.session(f"b{number}", b"#team") for number in range(subscribers)]
    await trio.testing.wait_all_tasks_blocked()
    steps = Steps(trace)
    trio.lowlevel.add_instrument(steps)
    for to, recipients in ((b"b0", others[:1]), (b"#team", others)):
        trace.clear()
        await alice.wake(to, b"m_1")
        assert [await other.wake_id() for other in recipients] == [b"m_1"] * len(recipients)
        await trio.testing.wait_all_tasks_blocked()
        assert trace == ["recv"] + ["send"] * len(recipients)
    trio.lowlevel.remove_instrument(steps)


async def test_a_burst_in_one_write_does_not_overflow_a_recipient_that_reads(serve):
    world = await serve()
    alice, bob = await world.session("alice"), await world.session("bob")
    ids = [b"m%d" % number for number in range(300)]
    await alice.send_bytes(b"".join(alice.wake_bytes(b"bob", row_id) for row_id in ids))
    assert [await bob.wake_id() for _ in ids] == ids
    assert await alice.ping() == []
    assert world.hub.counters.overflow == {}


async def test_three_hundred_pings_in_one_write_get_three_hundred_pongs(serve):
    world = await serve()
    alice = await world.session("alice")
    await alice.send_bytes(encode(Frame(Kind.PING, b"alice")) * 300)
    assert {(await alice.frame()).kind for _ in range(300)} == {Kind.PONG}


async def _overflow(world: Any, sender: Any, to: bytes, beyond: int) -> tuple[list[bytes], int]:
    """Wake `to`, which does not read, until `beyond` wakes were refused; the ids sent, and how many frames waited."""
    sent: list[bytes] = []
    refused = 0
    while refused < beyond:
        sent.append(b"m%d" % len(sent))
        await sender.wake(to, sent[-1])
        for frame in await sender.ping():
            assert frame.kind is Kind.ERROR
            assert frame.payload[:2] == (507).to_bytes(2, "big")
            refused += 1
        gauges = world.hub.gauges()
        assert gauges.queued_frames <= MAX_QUEUED_FRAMES
        assert gauges.queued_bytes <= MAX_QUEUED_BYTES
    return sent, world.hub.gauges().queued_frames


async def test_a_deaf_recipient_is_bounded_hurts_nobody_and_catches_up(serve):
    world = await serve()
    alice, bob, carol = [await world.session(name) for name in ("alice", "bob", "carol")]
    sent, waiting = await _overflow(world, alice, b"bob", beyond=10)
    assert waiting == MAX_QUEUED_FRAMES
    assert world.hub.counters.overflow["recipient_frames"] == 10
    await alice.wake(b"carol", b"m_c")
    assert await carol.wake_id() == b"m_c"
    seen: set[bytes] = set()
    while seen != set(sent):
        seen.add(await bob.wake_id())
    assert await bob.ping() == []
    assert await alice.ping() == []
    assert world.hub.gauges().egress_bytes == 0


async def test_a_recipient_that_missed_more_than_sixty_four_is_woken_at_least_once_more(serve):
    world = await serve()
    alice, bob = await world.session("alice"), await world.session("bob")
    sent, _ = await _overflow(world, alice, b"bob", beyond=80)
    taken = len(sent) - 80
    assert [await bob.wake_id() for _ in range(taken)] == sent[:taken]
    healing = await bob.frame()
    assert (healing.from_id, healing.to_id) == (b"wakehub", b"bob")
    assert Wake.decode(healing.payload).watermark == 0


async def test_a_wake_that_expired_while_it_waited_is_not_written(serve, autojump_clock):
    world = await serve()
    alice, bob = await world.session("alice"), await world.session("bob")
    while not world.hub.gauges().queued_frames:
        await alice.wake(b"bob", b"first")
        await alice.ping()
    await alice.wake(b"bob", b"short", ttl_ms=500)
    await alice.wake(b"bob", b"long", ttl_ms=5_000)
    await alice.ping()
    await trio.sleep(1)
    seen = [await bob.wake_id()]
    while seen[-1] != b"long":
        seen.append(await bob.wake_id())
    assert set(seen[:-1]) == {b"first"}
    assert world.hub.counters.wakes_expired == 1
    assert world.hub.gauges().egress_bytes == 0


# --- the end ----------------------------------------------------------------------------------------------------------


async def test_a_closed_session_whose_peer_reads_nothing_is_gone_after_two_seconds(serve, autojump_clock):
    world = await serve()
    await world.session("alice")
    (deaf,) = world.server.connections
    fill(deaf.sock)
    again = await world.session("alice")
    replaced_at = trio.current_time()
    assert deaf in world.server.connections
    await world.until(lambda: deaf not in world.server.connections)
    assert trio.current_time() - replaced_at == pytest.approx(TEARDOWN_FLUSH_MS / 1000, abs=0.05)
    assert await again.ping() == []


async def test_the_replaced_session_reads_all_that_was_queued_and_then_409(serve):
    world = await serve()
    alice, bob = await world.session("alice"), await world.session("bob")
    sent: list[bytes] = []
    while world.hub.gauges().queued_frames < 10:
        sent.append(b"m%d" % len(sent))
        await alice.wake(b"bob", sent[-1])
        assert await alice.ping() == []
    newer = await world.session("bob")
    frames = await bob.rest()
    assert [Wake.decode(frame.payload).row_id for frame in frames[:-1]] == sent
    assert frames[-1].kind is Kind.ERROR
    assert frames[-1].payload == (409).to_bytes(2, "big") + b"session replaced"
    assert await newer.ping() == []


async def test_wakes_that_could_not_be_written_go_to_the_newer_session(serve, autojump_clock):
    world = await serve()
    alice, bob = await world.session("alice"), await world.session("bob")
    fill(next(c for c in world.server.connections if c.agent == b"bob").sock)
    for number in range(5):
        await alice.wake(b"bob", b"m%d" % number)
    assert await alice.ping() == []
    newer = await world.session("bob")
    began = trio.current_time()
    assert [await newer.wake_id() for _ in range(5)] == [b"m%d" % number for number in range(5)]
    assert trio.current_time() - began == pytest.approx(TEARDOWN_FLUSH_MS / 1000, abs=0.05)
    assert world.hub.gauges().egress_bytes == 0
    bob.close()


async def test_wakes_that_could_not_be_written_wait_for_the_agent(serve):
    world = await serve()
    alice, bob = await world.session("alice"), await world.session("bob")
    fill(next(c for c in world.server.connections if c.agent == b"bob").sock)
    for number in range(5):
        await alice.wake(b"bob", b"m%d" % number)
    assert await alice.ping() == []
    bob.close()
    await world.until(lambda: len(world.server.connections) == 1)
    back = await world.connect()
    await back.frame()
    await back.send_bytes(back.hello_bytes("bob"))
    welcome = Welcome.decode((await back.frame()).payload)
    assert (welcome.pending_count, welcome.pending_ids, welcome.lagged) == (5, 5, 0)
    assert [await back.wake_id() for _ in range(5)] == [b"m%d" % number for number in range(5)]


async def test_a_client_that_does_not_read_its_own_answers_is_closed(serve):
    world = await serve()
    alice = await world.session("alice")
    (connection,) = world.server.connections
    fill(connection.sock)
    for _ in range(MAX_QUEUED_FRAMES + 1):
        await alice.send(Kind.PING)
    await world.until(lambda: world.refused("own_queue"))
    alice.close()
    await world.until(lambda: world.server.connections == ())
    assert world.hub.gauges().egress_bytes == 0
