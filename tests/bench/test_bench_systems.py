"""Systems: each served and driven for real, stopped and continued, and a failure that says whose it was."""

import pytest

from wakehub.bench.systems import Epoll, Failed, Places, Socketpair, System, Wakehub, turn, turns
from wakehub.limits import DEFAULT_MAX_CONNECTIONS

KINDS = [Socketpair(), Epoll(), Wakehub()]


@pytest.fixture
def make(stage):
    def build(kind, agents, **options):
        return System(kind, stage, agents, server=(), client=(), **options)

    return build


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_wake_arrives(make, kind):
    system = make(kind, 4)
    found = system.measure("one_way", count=9, pace_ms=0)
    assert len(found["ns"]) == 9
    assert all(took > 0 for took in found["ns"])
    assert found["client_ns"] > 0
    assert (found["server_ns"] > 0) == bool(system.served.pids)
    assert system.measure("hot", seconds=0.05, most=500)["wakes"] >= 2
    steady = system.measure("steady", rate=200, seconds=0.1)
    assert len(steady["ns"]) == len(steady["late_ns"]) == 20


@pytest.mark.parametrize("kind", KINDS[1:], ids=lambda kind: kind.name)
def test_a_broadcast_reaches_all_of_the_crowd(make, kind):
    found = make(kind, 6, crowd=True).measure("fan_out", count=7, pace_ms=0)
    assert found["listeners"] == 5
    assert len(found["first_ns"]) == len(found["last_ns"]) == 7
    assert all(first <= last for first, last in zip(found["first_ns"], found["last_ns"], strict=True))


def test_more_agents_than_the_default_ceiling_get_a_hub_that_takes_them(make):
    system = make(Wakehub(), 2, enrolled=DEFAULT_MAX_CONNECTIONS + 4)
    system.grow(DEFAULT_MAX_CONNECTIONS + 4)
    assert len(system.measure("one_way", count=3, pace_ms=0)["ns"]) == 3


def test_all_rejoin_a_hub_that_was_killed(make):
    system = make(Wakehub(), 12)
    hub = system.served.hub
    before = hub.process.pid
    hub.kill()
    hub.start(())
    assert hub.process.pid != before
    found = system.order("rejoin", base_ms=1, jitter_ms=20, seed=7, pids=[hub.process.pid])
    assert len(found["welcomed_ns"]) == 12
    assert found["lost"] == 0
    assert len(system.measure("one_way", count=12, pace_ms=0)["ns"]) == 12


def test_an_agent_that_is_not_enrolled_is_reported(make):
    system = make(Wakehub(), 2)
    hub = system.served.hub
    hub.paths.allowlist.unlink()
    hub.kill()
    hub.start(())
    system.order("close")
    with pytest.raises(Failed, match=r"wakehub: connect went wrong.*the hub refused 401"):
        system.grow(2)


def test_a_server_that_died_is_reported(make):
    system = make(Epoll(), 2)
    system.served.process.kill()
    system.served.process.wait()
    with pytest.raises(Failed, match="epoll: one_way went wrong"):
        system.measure("one_way", count=1, pace_ms=0)


def test_a_load_client_that_died_is_reported(make):
    system = make(Epoll(), 2)
    system._load.kill()
    system._load.wait()
    with pytest.raises(Failed, match="the load client for epoll ended"):
        system.measure("one_way", count=1, pace_ms=0)


def test_who_has_its_turn_runs_and_is_stopped_behind_it(make):
    system, other = make(Epoll(), 2), make(Wakehub(), 2)
    with turns([system, other]):
        with turn(other):
            assert len(other.measure("one_way", count=2, pace_ms=0)["ns"]) == 2
        with turn(system):
            assert len(system.measure("one_way", count=2, pace_ms=0)["ns"]) == 2
    assert len(other.measure("one_way", count=2, pace_ms=0)["ns"]) == 2


def test_cpus_are_chosen_for_each():
    assert Places.anywhere() == Places((), ())
    together = Places.together()
    assert together.server == together.client
