"""Each peer that is installed, started for real and driven by the load client; no time is judged."""

import pytest

from wakehub.bench import peers
from wakehub.bench.dialects.awh1 import HINT_BYTES
from wakehub.bench.systems import System

FOUND, MISSING = peers.installed()
NAMES = ("redis", "nats", "mosquitto", "sse")


def installed(name):
    return pytest.mark.skipif(name in MISSING, reason=MISSING.get(name, ""))


@pytest.fixture(params=[pytest.param(name, marks=installed(name)) for name in NAMES])
def peer(request):
    return next(peer for peer in FOUND if peer.name == request.param)


@pytest.fixture
def make(stage, peer):
    def build(agents, **options):
        return System(peer, stage, agents, server=(), client=(), **options)

    return build


def test_all_are_found_or_said_to_be_missing():
    assert {peer.name for peer in FOUND} | set(MISSING) == set(NAMES)
    assert not {peer.name for peer in FOUND} & set(MISSING)
    assert all(why for why in MISSING.values())


def test_every_message_arrives_as_it_was_sent(make):
    """The load client compares each with the bytes that its dialect expects."""
    system = make(6)
    found = system.measure("one_way", count=13, pace_ms=1)
    assert len(found["ns"]) == 13
    assert found["server_ns"] > 0
    assert system.measure("hot", seconds=0.1, most=500)["wakes"] >= 3
    assert len(system.measure("steady", rate=200, seconds=0.1)["ns"]) == 20
    assert system.served.options == {"size": HINT_BYTES}


def test_a_broadcast_reaches_everybody_else_once(make):
    system = make(6, crowd=True)
    found = system.measure("fan_out", count=5, pace_ms=1)
    assert found["listeners"] == 5
    assert len(found["last_ns"]) == 5
    assert len(system.measure("one_way", count=6, pace_ms=1)["ns"]) == 6  # nothing was left over


def test_it_says_which_version_it_is(peer):
    assert any(character.isdigit() for character in peer.told_version())


def test_it_ends_with_the_stage(make):
    system = make(2)
    (process,) = system.served.processes
    system.end()
    assert process.returncode is not None


def test_what_is_not_installed_is_left_out_by_name(monkeypatch):
    monkeypatch.setattr(peers, "_program", lambda name: None)
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    assert peers.installed() == (
        [],
        {
            "redis": "redis-server is not installed",
            "nats": "nats-server is not installed",
            "mosquitto": "mosquitto is not installed",
            "sse": "the package uvicorn is not installed",
        },
    )


def test_ports_are_free():
    assert peers.free_port() > 1023
