"""The numbers as OpenMetrics text, and the stats socket that serves them (awh1.md §7)."""

import os
from dataclasses import fields

import open_metrics
import pytest
import trio
from open_metrics import Labels

from wakehub.hub.counters import Counters, Gauges
from wakehub.limits import HISTOGRAM_BOUNDS_US, MAX_STATS_READERS, STATS_DEADLINE_MS
from wakehub.server.stats import render
from wakehub.wire.frames import Kind

IDLE = Gauges(0, 0, 0, 0, 0, 0)


def _parsed(counters: Counters, gauges: Gauges = IDLE) -> dict[str, open_metrics.Family]:
    return open_metrics.parse(render(counters, gauges, "1.2.3", 256).decode())


def test_a_hub_that_did_nothing_yet_shows_every_name_once():
    families = _parsed(Counters())
    counters = {
        "accepted", "refused", "frames_in", "frames_out", "wakes_routed", "fanout_deliveries", "wakes_written",
        "wakes_expired", "pending_coalesced", "pending_evicted", "overflow", "sessions_replaced",
    }  # fmt: skip
    gauges = {
        "connections", "recipients", "queued_bytes", "queued_frames", "egress_bytes", "slow_consumers",
        "connection_ceiling",
    }  # fmt: skip
    kinds = {name.removeprefix("wakehub_"): family.kind for name, family in families.items()}
    assert all(name.startswith("wakehub_") for name in families)
    assert kinds == (
        dict.fromkeys(counters, "counter")
        | dict.fromkeys(gauges, "gauge")
        | dict.fromkeys(("fanout_us", "wake_latency_us"), "histogram")
        | {"build": "info"}
    )


def test_every_number_of_the_hub_is_shown():
    counters = Counters()
    plain = [each.name for each in fields(Counters) if each.type in (int, "int")]
    for number, name in enumerate(plain, 1):
        setattr(counters, name, number)
    gauges = Gauges(*range(101, 107))
    families = _parsed(counters, gauges)
    assert [families[f"wakehub_{name}"].value() for name in plain] == list(range(1, len(plain) + 1))
    assert [families[f"wakehub_{each.name}"].value() for each in fields(Gauges)] == list(range(101, 107))
    assert families["wakehub_connection_ceiling"].value() == 256


def test_refusals_are_by_cause_and_label_and_overflow_by_cause():
    counters = Counters()
    counters.refused["hello", "unknown_agent"] += 3
    counters.refused["ceiling", ""] += 2
    counters.overflow["egress"] += 1
    families = _parsed(counters)
    assert families["wakehub_refused"].value(cause="hello", label="unknown_agent") == 3
    assert families["wakehub_refused"].value(cause="ceiling", label="") == 2
    assert families["wakehub_overflow"].value(cause="egress") == 1


def _buckets(family: open_metrics.Family) -> dict[Labels, float]:
    return {labels: value for (suffix, labels), value in family.samples.items() if suffix == "_bucket"}


def test_histogram_buckets_are_the_specified_bounds_and_accumulate():
    counters = Counters()
    for us in (0, 50, 51, 5_000_000, 5_000_001, -7):
        counters.wake_latency_us.observe(us)
    family = _parsed(counters)["wakehub_wake_latency_us"]
    buckets = {float(dict(labels)["le"]): value for labels, value in _buckets(family).items()}
    assert list(buckets) == [*HISTOGRAM_BOUNDS_US, float("inf")]
    assert (buckets[50], buckets[100], buckets[1_000_000], buckets[5_000_000]) == (3, 4, 4, 5)
    assert family.samples["_count", ()] == 6
    assert family.samples["_sum", ()] == 50 + 51 + 5_000_000 + 5_000_001


@pytest.mark.parametrize(
    "text",
    [
        "# TYPE a counter\na_total 1\n",
        "# TYPE a counter\na_total 1\n# EOF\n\n",
        "# TYPE a counter\na 1\n# EOF\n",
        "# TYPE a counter\na_total -1\n# EOF\n",
        "# TYPE a counter\na_total 1\na_total 1\n# EOF\n",
        "# TYPE a gauge\n# TYPE a gauge\n# EOF\n",
        '# TYPE a gauge\na{b="x} 1\n# EOF\n',
        '# TYPE a gauge\na{b="x",} 1\n# EOF\n',
        "# TYPE a gauge\na  1\n# EOF\n",
        '# TYPE a histogram\na_bucket{le="100"} 0\na_bucket{le="+Inf"} 0\na_sum 0\na_count 0\n# EOF\n',
        '# TYPE a histogram\na_bucket{le="1.0"} 2\na_bucket{le="+Inf"} 1\na_sum 0\na_count 1\n# EOF\n',
    ],
)
def test_the_reader_of_these_tests_is_strict(text):
    with pytest.raises(ValueError, match=r"."):
        open_metrics.parse(text)


# --- the socket -------------------------------------------------------------------------------------------------------


async def _read(world) -> bytes:
    stream = await trio.open_unix_socket(os.fspath(world.sockets.stats.path))
    async with stream:
        return b"".join([chunk async for chunk in stream])


async def test_it_gives_the_text_to_the_end_and_readers_are_no_connections(serve):
    world = await serve()
    alice = await world.session("alice")
    await alice.wake(b"alice", b"m_1")
    await alice.wake_id()
    families = open_metrics.parse((await _read(world)).decode())
    assert families["wakehub_connections"].value() == 1
    assert families["wakehub_recipients"].value() == 1
    assert families["wakehub_wakes_routed"].value() == 1
    assert families["wakehub_accepted"].value() == world.hub.counters.accepted == 2  # the hub's own look, and alice


async def test_a_hub_at_its_ceiling_can_still_be_read(serve):
    world = await serve(ceiling=1)
    await world.session("alice")
    assert (await _read(world)).endswith(b"# EOF\n")


async def test_four_readers_at_once_the_fifth_is_closed(serve, autojump_clock):
    world = await serve()
    began = trio.current_time()
    holding = [await world.connect(world.sockets.stats.path) for _ in range(MAX_STATS_READERS)]
    await trio.testing.wait_all_tasks_blocked()
    assert await _read(world) == b""
    await trio.sleep(STATS_DEADLINE_MS / 1000 + 0.1)
    assert (await _read(world)).endswith(b"# EOF\n")
    assert trio.current_time() - began < 3
    for reader in holding:
        assert (await reader.sock.recv(65536)).startswith(b"# TYPE")


async def test_a_reader_that_finished_makes_room(serve):
    world = await serve()
    for _ in range(3 * MAX_STATS_READERS):
        assert (await _read(world)).endswith(b"# EOF\n")


async def test_what_a_reader_sends_is_ignored(serve):
    world = await serve()
    reader = await world.connect(world.sockets.stats.path)
    await reader.send_bytes(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert (await reader.sock.recv(65536)).startswith(b"# TYPE")


async def test_a_refused_uid_gets_not_one_byte(serve):
    class NotOnStats:
        def __init__(self) -> None:
            self.lets_in = True

        def allows(self, _credentials: object) -> bool:
            return self.lets_in

    gate = NotOnStats()
    world = await serve(authorizer=gate)
    gate.lets_in = False
    assert await _read(world) == b""
    peer = await world.connect()
    assert await peer.rest() == []
    assert world.refused("credential") == 2
    (entry,) = world.events("refused", cause="credential")
    assert entry["uid"] == os.geteuid()
    gate.lets_in = True
    assert (await (await world.connect()).frame()).kind is Kind.HELLO
