"""F79: the hub is killed and started again under 255 listeners, which all come back by the ladder."""

import os
import sys
import time
from pathlib import Path

import trio

from wakehub.client.credentials import Credentials
from wakehub.client.doorbell import Doorbell
from wakehub.client.subscriber import Subscriber
from wakehub.config import Config
from wakehub.identity.keys import KeyPair
from wakehub.paths import choose

AGENTS = 255


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used, as Linux tells them; elsewhere not a number."""
    if sys.platform != "linux":
        return float("nan")
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_255_listeners_rejoin_a_hub_that_was_killed(hub):
    names = [f"agent-{number}" for number in range(AGENTS)]
    hub.home.enroll(*names)
    hub.start()
    config = Config.at(choose({"WAKEHUB_HOME": str(hub.home.path)}))

    async def all_connected() -> None:
        await trio.to_thread.run_sync(hub.until, lambda: hub.stats()["recipients"] == AGENTS, "all are connected")

    subscribers = [
        Subscriber(
            config,
            Credentials(name, hub.home.hub_id, KeyPair(hub.home.agents[name].seed), Path("/nowhere")),
            Doorbell(),
            still_ours=lambda: True,
            tell=lambda _: None,
        )
        for name in names
    ]
    async with trio.open_nursery() as nursery:
        for subscriber in subscribers:
            nursery.start_soon(subscriber.run)
        await all_connected()
        await trio.to_thread.run_sync(hub.restart)
        began, used = time.monotonic(), cpu_s(hub.pid)
        await all_connected()
        print(
            f"{AGENTS} listeners were back {time.monotonic() - began:.2f} s after the hub was ready,"
            f" for {cpu_s(hub.pid) - used:.2f} s of its CPU"
        )
        assert hub.stats()["accepted_total"] <= AGENTS + 1 + 8, "no herd: hardly one came twice"
        nursery.cancel_scope.cancel()
