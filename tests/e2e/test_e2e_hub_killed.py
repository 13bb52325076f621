"""kill -9 of the hub under fifty agents that write to each other: no row is lost, all are handed off, all come back."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

AGENTS = [f"agent-{number}" for number in range(50)]
ROUNDS = 6
WRITERS = 4
PATIENCE_S = 60.0

# One process writes for a share of the agents: in each round every one of them to another agent.
WRITER = """
import sys
from wakehub.client.receipts import SendRequest
from wakehub.client.send import send
from wakehub.config import load

config, share, rounds, agents = load(), int(sys.argv[1]), int(sys.argv[2]), sys.argv[4:]
for round in range(rounds):
    for number in range(share, len(agents), int(sys.argv[3])):
        to = agents[(number + 1 + 7 * round) % len(agents)]
        sent = send(config, SendRequest(to=to, body=f"{round}".encode(), sender=agents[number]))
        print(sent.row_ids[0], flush=True)
"""


class World:
    """`wakehub up`, a listener process for every agent with its output in a file, and writers."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="wk", dir="/tmp"))
        self.environment = {**os.environ, "WAKEHUB_HOME": str(self.home)}
        self.processes: list[subprocess.Popen[bytes]] = []
        self.log = self.home / "up.log"

    def run(self, *command: str, out: str = "out") -> subprocess.Popen[bytes]:
        with open(self.home / out, "wb") as file:
            process = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
            )
        self.processes.append(process)
        return process

    def wakehub(self, *arguments: str, out: str) -> subprocess.Popen[bytes]:
        return self.run(sys.executable, "-m", "wakehub", *arguments, out=out)

    def output(self, out: str) -> list[str]:
        return (self.home / out).read_text().splitlines()

    def hub_pid(self) -> int:
        holder = json.loads((self.home / "state/hub.lock").read_text() or "{}")
        return int(holder.get("pid", 0))

    def connected(self) -> int:
        """How many agents the hub says are connected; 0 while there is none to ask."""
        try:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(PATIENCE_S)
                sock.connect(str(self.home / "run/stats.sock"))
                text = b"".join(iter(lambda: sock.recv(1 << 16), b"")).decode()
        except OSError:
            return 0
        found = re.search(r"^wakehub_recipients (\d+)$", text, re.MULTILINE)
        return int(found[1]) if found else 0

    def handed(self) -> Counter[str]:
        """Ids that the listeners printed, with how often."""
        lines = (line for name in AGENTS for line in self.output(f"listen-{name}") if line.startswith("{"))
        return Counter(json.loads(line)["id"] for line in lines)

    def stored(self) -> list[str]:
        return [line for writer in range(WRITERS) for line in self.output(f"write-{writer}")]

    def end(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(PATIENCE_S)
        shutil.rmtree(self.home, ignore_errors=True)  # what ends behind its parent may still write


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    try:
        yield world
    finally:
        world.end()


def until(holds: Callable[[], bool], what: str) -> float:
    """Look until `holds()`; how many seconds that took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < PATIENCE_S, f"it never came to pass: {what}"
        time.sleep(0.02)
    return time.monotonic() - began


def test_the_hub_is_killed_under_fifty_agents(world: World, record_property: Callable[[str, object], None]) -> None:
    world.wakehub("up", out="up.log")
    until(lambda: world.connected() == 1, "the publisher is connected")
    for name in AGENTS:
        world.wakehub("listen", "--as", name, "--format", "json", out=f"listen-{name}")
    until(lambda: world.connected() == len(AGENTS) + 1, "every listener is connected")

    writers = [
        world.run(sys.executable, "-c", WRITER, str(writer), str(ROUNDS), str(WRITERS), *AGENTS, out=f"write-{writer}")
        for writer in range(WRITERS)
    ]
    half = len(AGENTS) * ROUNDS // 2
    until(lambda: len(world.stored()) >= half, "half of the messages are written")
    killed = world.hub_pid()
    os.kill(killed, signal.SIGKILL)
    back_s = until(lambda: world.hub_pid() != killed and world.connected() == len(AGENTS) + 1, "all agents are back")
    record_property("seconds until all were back", round(back_s, 2))
    print(f"all {len(AGENTS)} agents were back {back_s:.2f} s after the kill")

    assert [writer.wait(PATIENCE_S) for writer in writers] == [0] * WRITERS, world.stored()[-3:]
    stored = world.stored()
    assert len(set(stored)) == len(AGENTS) * ROUNDS
    until(lambda: set(stored) <= world.handed().keys(), "every message is handed off")
    assert world.handed() == Counter(stored), "each exactly once: no listener was killed"
