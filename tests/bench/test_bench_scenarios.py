"""Each scenario, run once and short, gives every row it promises; no time is judged."""

import math

import pytest

from wakehub.bench import run
from wakehub.bench.scenarios import hot, share, versus
from wakehub.bench.systems import FLOORS, WAKEHUB


def rows(findings, scenario, table):
    return findings.to_json()["scenarios"][scenario][table]["rows"]


@pytest.fixture(scope="module")
def findings():
    said = []
    found = run.run(run.SCENARIOS, rounds=1, quick=True, with_peers=False, tell=said.append)
    assert {line.split(":")[0] for line in said} == set(run.SCENARIOS)
    return found


def test_latency_has_every_pace_and_system(findings):
    for table in findings.to_json()["scenarios"]["latency"]:
        found = {(row["system"], row["pace_ms"]) for row in rows(findings, "latency", table)}
        assert found == {(name, pace) for name in (WAKEHUB, *FLOORS) for pace in (2, 200)}


def test_fan_out_reaches_255(findings):
    found = rows(findings, "fanout", "fanout")
    assert {row["system"]: row["listeners"] for row in found} == {"epoll": 255, WAKEHUB: 255}
    assert all(row["first_us"] <= row["last_us"] <= row["last_p99_us"] for row in found)


def test_hot_says_what_one_core_would_carry(findings):
    for row in rows(findings, "hot", "hot"):
        assert row["wakes_per_s"] > 0
        if row["cpu_us"] is not None:
            assert math.isclose(row["core_wakes_per_s"], 1e6 / row["cpu_us"])


def test_all_256_rejoin(findings):
    found = rows(findings, "rejoin", "rejoin")
    assert [row["advised"] for row in found] == ["as advised", "at once"]
    assert all(row["agents"] == 256 and row["lost"] == 0 and row["cpu_ms"] > 0 for row in found)


def test_memory_is_told_for_each_size_and_behind_many_wakes(findings):
    found = rows(findings, "memory", "memory")
    assert [row["state"] for row in found[:3]] == ["nobody connected", "128 agents", "256 agents"]
    assert "wakes later" in found[3]["state"]
    assert [row["state"] for row in found[4:]] == ["epoll: 256 agents"]
    assert all(row["rss_mib"] > 1 for row in found)


def test_idle_has_both_states(findings):
    assert [row["state"] for row in rows(findings, "idle", "idle")] == ["silent", "one wake per agent and second"]


def test_every_ratio_compares_with_wakehub():
    assert versus({WAKEHUB: [2.0, 4.0, 6.0], "x": [1.0, 1.0, 2.0]}, "x") == 3
    assert versus({WAKEHUB: [2.0], "x": [0.0]}, "x") is None


def test_the_clients_share_is_of_the_whole_time():
    assert share([{"client_ns": 10, "wall_ns": 100}, {"client_ns": 30, "wall_ns": 100}]) == 20


def test_end_to_end_says_what_is_stored(findings):
    found = rows(findings, "endtoend", "endtoend")
    assert [row["stored"] for row in found] == ["yes", "yes", "no"]
    assert [row["ratio"] for row in found if row["path"].startswith(("wakehub send() → listen", "our wake"))] == [
        1,
        1,
    ]


def test_the_record_is_measured_off_and_on(findings):
    off, on = rows(findings, "record", "record")
    assert (off["hub"], off["ratio"], on["hub"]) == ("off", None, "on")
    assert on["ratio"] > 0
    assert off["rows"] == on["rows"]


def test_a_kill_of_the_hub_loses_nothing(findings):
    (row,) = rows(findings, "crash", "crash")
    assert row["lost"] == 0
    assert row["sent"] == 25
    assert row["all_back_ms"] >= row["answers_ms"]


def test_peers_are_measured_beside_it_or_said_to_be_left_out():
    found = run.run(["fanout", "endtoend"], rounds=1, quick=True, with_peers=True, tell=lambda _: None)
    assert set(found.peers) | set(found.left_out) == {"redis", "nats", "mosquitto", "sse"}
    assert {row["system"] for row in rows(found, "fanout", "fanout")} == {WAKEHUB, "epoll", *found.peers}
    (table,) = found.tables["endtoend"]
    told = " ".join(table.notes + [str(row["path"]) for row in table.rows])
    assert all(name in told for name in {"redis", "nats"} & set(found.peers))


def test_the_cost_at_a_load_is_told_only_by_who_carried_it_every_time():
    carried = {"at_60k": {"server_ns": 12_000_000, "ns": [0] * 1_000}}
    assert hot._at_rate([carried, carried]) == 12
    assert hot._at_rate([carried, {}]) is None
