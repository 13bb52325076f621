"""The hub's process: ceiling, revalidation, path watch, supervisor, drain, logs (awh1.md §5.1, §5.9, §5.10, §6, §7)."""

import os
import shutil
import signal
import socket
import time
from typing import Any

import pytest
import trio
from independent_client import Agent, hello_payload, write_allowlist

from wakehub.config import Config
from wakehub.errors import CannotCreate, Exit, Held, Unsafe, WakehubError
from wakehub.identity.allowlist import AllowlistFile
from wakehub.identity.keys import KeyPair, b64
from wakehub.identity.verifier import DelegationVerifier, DenyAllVerifier
from wakehub.limits import DRAIN_MS, HANDSHAKE_DEADLINE_MS, SOCKET_CHECK_SECONDS, STALE_GRACE_SECONDS, HubLimits
from wakehub.locks import Lock
from wakehub.paths import Paths
from wakehub.server.serve import find_verifier
from wakehub.wire.fields import encode_topics
from wakehub.wire.frames import Kind

CEILING = (507, "hub at its connection ceiling")


# --- the ceiling ------------------------------------------------------------------------------------------------------


async def test_each_surplus_connection_reads_a_507_and_the_end(serve):
    world = await serve(ceiling=8)
    sessions = [await world.session(f"a{number}") for number in range(8)]
    surplus = [await world.connect() for _ in range(40)]
    for peer in surplus:
        frame = await peer.frame()
        assert (frame.kind, frame.from_id, frame.to_id) == (Kind.ERROR, b"wakehub", b"")
        assert frame.payload == (507).to_bytes(2, "big") + CEILING[1].encode()
        assert await peer.rest() == []
    assert world.refused("ceiling") == 40
    assert [(entry["limit"], entry["times"]) for entry in world.events("refused", cause="ceiling")] == [(8, 1)]
    assert [await session.ping() for session in sessions] == [[]] * 8


async def test_a_slot_comes_back_however_its_connection_ended(serve, autojump_clock):
    world = await serve(ceiling=8)
    peers = [await world.session(f"a{number}") for number in range(6)]
    silent, garbage = await world.connect(), await world.connect()
    assert await (await world.connect()).error() == CEILING
    peers[0].close()
    peers[1].sock.shutdown(socket.SHUT_WR)
    await peers[2].send_bytes(b"\xff\xff\xff\xff")
    await world.until(lambda: len(world.server.connections) == 5)
    await world.session("a3")
    world.verifier.denied["a4"] = "unknown_agent"
    await garbage.send_bytes(bytes(100))
    await trio.sleep(HANDSHAKE_DEADLINE_MS / 1000 + 1)
    assert {connection.agent for connection in world.server.connections} == {b"a3", b"a5"}
    for number in range(10, 16):
        await world.session(f"a{number}")
    assert await (await world.connect()).error() == CEILING
    silent.close()


async def test_a_refused_peer_takes_no_slot(serve):
    class OnlyOnce:
        let_in = 1 + 2  # the hub's own look, and two sessions

        def allows(self, _credentials: object) -> bool:
            self.let_in -= 1
            return self.let_in >= 0

    world = await serve(ceiling=2, authorizer=OnlyOnce())
    await world.session("alice")
    bob = await world.session("bob")
    for _ in range(5):
        assert await (await world.connect()).rest() == []
    assert (world.refused("credential"), world.refused("ceiling")) == (5, 0)
    assert await bob.ping() == []


# --- once a second ----------------------------------------------------------------------------------------------------


async def test_an_identity_that_no_longer_holds_is_closed_silently_within_a_second(serve, autojump_clock):
    world = await serve()
    alice, bob = await world.session("alice"), await world.session("bob")
    world.verifier.denied["alice"] = "revoked_key"
    began = trio.current_time()
    assert await alice.rest() == []
    assert trio.current_time() - began <= 1.01
    assert world.refused("revalidation", "revoked_key") == 1
    assert await bob.ping() == []
    assert world.events("agent disconnected", agent=b"alice", why="revalidation")


async def test_a_stale_allowlist_refuses_hellos_at_once_and_closes_sessions_after_the_grace(serve, autojump_clock):
    world = await serve()
    alice = await world.session("alice")
    world.verifier.stale = True
    began = trio.current_time()
    stranger = await world.connect()
    await stranger.frame()
    await stranger.send_bytes(stranger.hello_bytes("bob"))
    assert await stranger.error() == (401, "unauthorized")
    assert trio.current_time() == began
    assert await alice.rest() == []
    assert trio.current_time() - began == pytest.approx(STALE_GRACE_SECONDS + 1, abs=1)
    assert world.refused("hello", "allowlist_stale") == 1


async def test_an_allowlist_that_is_fresh_again_within_the_grace_costs_no_session(serve, autojump_clock):
    world = await serve()
    alice = await world.session("alice")
    for _ in range(3):
        world.verifier.stale = True
        await trio.sleep(STALE_GRACE_SECONDS - 1)
        world.verifier.stale = False
        await trio.sleep(2)
    assert await alice.ping() == []


async def test_a_topic_that_lost_its_proof_is_dropped_and_the_session_stays(serve, autojump_clock):
    world = await serve()
    alice, bob = await world.session("alice"), await world.session("bob", b"#team")
    await alice.wake(b"#team", b"m_1")
    assert await bob.wake_id() == b"m_1"
    world.verifier.prefixes = ("other",)
    await trio.sleep(1.1)
    await bob.send(Kind.SUBSCRIBE, payload=encode_topics([b"#other/x"]))
    assert (await bob.frame()).kind is Kind.SUBSCRIBE
    await alice.wake(b"#team", b"m_2")
    assert await alice.error() == (403, "topic outside the sender's read scope")
    await alice.wake(b"#other/x", b"m_3")
    assert await bob.wake_id() == b"m_3"


async def test_a_hub_without_an_owner_key_begins_to_verify_once_there_is_one(serve, autojump_clock, run_directory):
    found: list[object] = [None, Unsafe("owner.pub has mode 0644"), Unsafe("owner.pub has mode 0644")]

    def look() -> object:
        answer = found.pop(0) if found else world.verifier
        if isinstance(answer, Exception):
            raise answer
        return answer

    world = await serve(verifier=DenyAllVerifier(), find_verifier=look)
    early = await world.connect()
    await early.frame()
    await early.send_bytes(early.hello_bytes("alice"))
    assert await early.error() == (401, "unauthorized")
    assert world.refused("hello", "no_owner_key") == 1
    await trio.sleep(5)
    assert [entry["error"] for entry in world.events("owner key cannot be used")] == ["owner.pub has mode 0644"]
    assert len(world.events("owner key found")) == 1
    assert await (await world.session("alice")).ping() == []


async def test_a_wall_clock_that_jumps_ends_what_it_ended_and_nothing_else(serve, autojump_clock, run_directory):
    """Credentials are looked at again at once; deadlines and sessions that still hold do not notice (F74, F75)."""
    owner = KeyPair.generate()
    agents = {name: Agent(name) for name in ("brief", "long")}
    bundles = {
        "brief": agents["brief"].bundle("wakehub", ttl_s=3600),
        "long": agents["long"].bundle("wakehub", ttl_s=43_200),
    }
    allowlist = run_directory / "allowlist.jws"
    write_allowlist(allowlist, owner.seed, [agent.entry() for agent in agents.values()], valid_for_secs=43_200)
    step_s = 0.0

    def clock() -> tuple[int, int]:
        now = trio.current_time()
        return int(now * 1e6) + 1, int((time.time() + now + step_s) * 1e3)

    verifier = DelegationVerifier("wakehub", AllowlistFile(allowlist, owner.public))
    world = await serve(verifier=verifier, clock=clock)

    async def admitted(name: str) -> Any:
        peer = await world.connect()
        nonce = (await peer.frame()).payload
        bundle = bundles[name]
        payload = hello_payload(bundle.delegate_seed, "wakehub", nonce, name, bundle.certificate)
        peer.name = name.encode()
        await peer.send(Kind.HELLO, payload=payload)
        assert (await peer.frame()).kind is Kind.WELCOME
        return peer

    brief, long = await admitted("brief"), await admitted("long")
    step_s = -2
    await trio.sleep(3)
    assert (await brief.ping(), await long.ping()) == ([], [])
    step_s = 8 * 3600
    began = trio.current_time()
    assert await brief.rest() == []
    assert trio.current_time() - began <= 1.01
    assert world.refused("revalidation", "window_expired") == 1
    assert await long.ping() == []


def _config(root) -> Config:
    return Config.at(Paths(root / "run", root / "state", root / "keys", root / "config.toml"))


def test_the_owner_key_decides_which_verifier_there_is(run_directory):
    config = _config(run_directory)
    assert find_verifier(config) is None
    config.owner_pub.parent.mkdir()
    config.owner_pub.write_text(b64(KeyPair.generate().public) + "\n")
    config.owner_pub.chmod(0o644)
    with pytest.raises(Unsafe, match="0644"):
        find_verifier(config)
    config.owner_pub.chmod(0o600)
    assert isinstance(find_verifier(config), DelegationVerifier)
    config.owner_pub.write_text("no key\n")
    with pytest.raises(Unsafe, match="not a public key"):
        find_verifier(config)
    config.owner_pub.unlink()
    config.owner_pub.mkdir(mode=0o600)
    with pytest.raises(Unsafe):
        find_verifier(config)


# --- every 15 s -------------------------------------------------------------------------------------------------------


async def test_deleted_sockets_are_back_at_the_next_look_and_sessions_do_not_notice(serve, autojump_clock):
    world = await serve()
    alice = await world.session("alice")
    shutil.rmtree(world.directory / "run")
    await trio.sleep(SOCKET_CHECK_SECONDS + 0.1)
    assert await alice.ping() == []
    bob = await world.session("bob")
    await bob.wake(b"alice", b"m_1")
    assert await alice.wake_id() == b"m_1"
    stats = await world.connect(world.sockets.stats.path)
    assert (await stats.sock.recv(65536)).startswith(b"# TYPE")
    assert [entry["found"] for entry in world.events("socket bound anew")] == ["absent", "absent"]
    await trio.sleep(60)
    assert len(world.events("socket bound anew")) == 2


@pytest.mark.parametrize("trouble", ["foreign", "no state", "held"])
async def test_what_cannot_be_mended_ends_the_hub_for_its_supervisor(serve, autojump_clock, trouble):
    world = await serve()
    alice = await world.session("alice")
    path = world.sockets.hub.path
    path.unlink()
    if trouble == "foreign":
        path.write_text("mine")
    elif trouble == "no state":
        shutil.rmtree(world.directory / "state")
    else:
        world.sockets.lock.path.unlink()
        other = Lock.acquire(world.sockets.lock.path, what="a hub")
    await world.ended.wait()
    (error,) = world.outcome
    assert isinstance(error, Held if trouble == "held" else CannotCreate)
    assert error.exit == (Exit.HELD if trouble == "held" else Exit.CANNOT_CREATE)
    assert len(world.events("hub cannot go on")) == 1
    assert await alice.rest() == []
    if trouble == "foreign":
        world.sockets.close()
        assert path.read_text() == "mine"
    elif trouble == "held":
        other.release()


# --- the supervisor ---------------------------------------------------------------------------------------------------


@pytest.fixture
def supervisor(run_directory):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(os.fspath(run_directory / "notify"))
        sock.setblocking(False)
        yield sock


def _received(supervisor: socket.socket) -> list[str]:
    messages = []
    try:
        while True:
            messages.append(supervisor.recv(1000).decode())
    except BlockingIOError:
        return messages


async def test_the_supervisor_hears_ready_status_watchdog_and_stopping(serve, autojump_clock, supervisor):
    world = await serve(environ={"NOTIFY_SOCKET": supervisor.getsockname(), "WATCHDOG_USEC": "4000000"})
    assert "READY=1" in _received(supervisor)
    await world.session("alice")
    await trio.sleep(10.5)
    later = _received(supervisor)
    assert later.count("WATCHDOG=1") == 5
    assert [message for message in later if message.startswith("STATUS")][-1] == "STATUS=1 agents connected"
    signal.raise_signal(signal.SIGTERM)
    await world.ended.wait()
    assert _received(supervisor)[-1] == "STOPPING=1"


async def test_ready_is_said_only_once_the_socket_answers(serve, autojump_clock, supervisor, nursery):
    class NotYet:
        lets_in = False

        def allows(self, _credentials: object) -> bool:
            return self.lets_in

    gate = NotYet()
    environ = {"NOTIFY_SOCKET": supervisor.getsockname()}
    worlds: list[object] = []

    async def start() -> None:
        worlds.append(await serve(authorizer=gate, environ=environ))

    nursery.start_soon(start)
    await trio.sleep(5)
    assert (worlds, [message for message in _received(supervisor) if message == "READY=1"]) == ([], [])
    gate.lets_in = True
    await trio.sleep(1)
    assert _received(supervisor) == ["READY=1"]
    assert len(worlds) == 1


# --- the drain --------------------------------------------------------------------------------------------------------


def _deafen(world, agent: bytes) -> socket.socket:
    """Fill what the kernel takes for this agent, so that what comes next has to wait in its queue."""
    (sock,) = (connection.sock for connection in world.server.connections if connection.agent == agent)
    for size in (4096, 1):
        try:
            while True:
                sock.send(bytes(size))
        except BlockingIOError:
            pass
    return sock


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_intake_unlinks_flushes_and_ends_well(serve, autojump_clock, number):
    world = await serve()
    alice, silent = await world.session("alice"), await world.connect()
    await silent.frame()
    _deafen(world, b"alice")
    await alice.wake(b"alice", b"m_1")
    await trio.testing.wait_all_tasks_blocked()
    signal.raise_signal(number)
    await trio.testing.wait_all_tasks_blocked()
    assert os.listdir(world.directory / "run") == []
    assert await silent.rest() == []
    assert not world.outcome
    data = b""
    while received := await alice.sock.recv(65536):
        data += received
    assert data.endswith(b"\x03m_1" + bytes(3) + bytes(8))
    await world.ended.wait()
    assert world.outcome == [None]
    assert [entry["event"] for entry in world.logs if "stop" in entry["event"]] == ["hub stopping", "hub stopped"]


async def test_who_waits_to_be_accepted_at_the_drain_is_not_left_waiting(serve, autojump_clock):
    world = await serve()
    alice = await world.session("alice")
    _deafen(world, b"alice")
    await alice.wake(b"alice", b"m_1")
    await trio.testing.wait_all_tasks_blocked()
    signal.raise_signal(signal.SIGTERM)
    late = await world.connect()
    began = trio.current_time()
    await late.rest()
    assert trio.current_time() == began
    assert not world.outcome


async def test_a_deaf_peer_holds_the_drain_for_five_seconds_at_most(serve, autojump_clock):
    world = await serve()
    alice = await world.session("alice")
    _deafen(world, b"alice")
    await alice.wake(b"alice", b"m_1")
    await trio.testing.wait_all_tasks_blocked()
    signal.raise_signal(signal.SIGTERM)
    began = trio.current_time()
    await world.ended.wait()
    assert trio.current_time() - began == pytest.approx(DRAIN_MS / 1000, abs=0.05)
    assert world.outcome == [None]


async def test_a_second_signal_ends_it_at_once(serve, autojump_clock):
    world = await serve()
    alice = await world.session("alice")
    _deafen(world, b"alice")
    await alice.wake(b"alice", b"m_1")
    await trio.testing.wait_all_tasks_blocked()
    began = trio.current_time()
    signal.raise_signal(signal.SIGTERM)
    await trio.testing.wait_all_tasks_blocked()
    signal.raise_signal(signal.SIGINT)
    await world.ended.wait()
    assert trio.current_time() == began
    assert isinstance(world.outcome[0], WakehubError)
    assert len(world.events("hub ends at once")) == 1


async def test_the_drain_leaves_the_socket_of_a_successor(serve, autojump_clock):
    world = await serve()
    path = world.sockets.hub.path
    path.unlink()
    with socket.socket(socket.AF_UNIX) as successor:
        successor.bind(os.fspath(path))
        signal.raise_signal(signal.SIGTERM)
        await world.ended.wait()
        assert path.is_socket()


# --- what is counted and told -----------------------------------------------------------------------------------------


async def test_one_line_for_each_change_and_one_for_a_cause_that_repeats(serve, autojump_clock):
    world = await serve(ceiling=64)
    world.verifier.denied["mallory"] = "unknown_agent"
    for _ in range(30):
        peer = await world.connect()
        await peer.frame()
        await peer.send_bytes(peer.hello_bytes("mallory"))
        assert await peer.error() == (401, "unauthorized")
    assert [entry["times"] for entry in world.events("refused")] == [1]
    await trio.sleep(11)
    peer = await world.connect()
    await peer.frame()
    await peer.send_bytes(peer.hello_bytes("mallory"))
    assert await peer.error() == (401, "unauthorized")
    assert [entry["times"] for entry in world.events("refused", label="unknown_agent")] == [1, 30]
    alice = await world.session("alice")
    alice.close()
    await world.until(lambda: world.events("agent disconnected"))
    assert [entry["event"] for entry in world.logs if entry.get("agent") == b"alice"] == [
        "agent connected",
        "agent disconnected",
    ]


async def test_an_overflow_that_comes_and_goes_is_not_told_each_time(serve, autojump_clock):
    world = await serve(limits=HubLimits(queued_frames=2))
    alice, bob = await world.session("alice"), await world.session("bob")
    for _ in range(20):
        _deafen(world, b"bob")
        for number in range(4):
            await alice.wake(b"bob", b"m%d" % number)
        await alice.ping()
        with trio.move_on_after(1):
            while True:
                await bob.sock.recv(1 << 20)
    assert world.hub.counters.overflow["recipient_frames"] >= 20
    assert 1 <= len(world.events("recipient overflow", agent=b"bob")) <= 3


async def test_fan_outs_and_wake_latency_are_timed_once_each(serve):
    world = await serve()
    alice = await world.session("alice")
    others = [await world.session(f"b{number}", b"#team") for number in range(3)]
    counters = world.hub.counters
    now_ms = world.server.clock()[1]
    await alice.wake(b"b0", b"m_1", ts_ms=now_ms)
    await alice.wake(b"#team", b"m_2", ts_ms=now_ms)
    for other in others:
        await other.frame()
    assert sum(counters.fanout_us.buckets) == 1
    assert sum(counters.wake_latency_us.buckets) == 4
    assert (counters.wakes_routed, counters.fanout_deliveries, counters.wakes_written) == (2, 3, 4)


async def test_when_everybody_has_gone_every_gauge_is_zero(serve, autojump_clock):
    world = await serve()
    alice = await world.session("alice", b"#team")
    bob = await world.session("bob", b"#team")
    _deafen(world, b"bob")
    for number in range(400):
        await alice.wake(b"bob", b"m%d" % number)
    await alice.ping()
    await world.session("bob", b"#team")
    for peer in world.peers:
        peer.close()
    await world.until(lambda: world.server.connections == ())
    gauges = world.hub.gauges()
    assert (gauges.connections, gauges.recipients, gauges.queued_bytes, gauges.queued_frames) == (0, 0, 0, 0)
    assert (gauges.egress_bytes, gauges.slow_consumers) == (0, 0)
    assert bob is not None
