"""The load client: a process of its own that writes prepared bytes, reads them elsewhere, and takes the time.

    python -m wakehub.bench.load

Blocking sockets, no event loop of anybody's, one clock (`perf_counter_ns`) for both ends. It takes one JSON order a
line on standard input and answers each with one line; `ORDERS` has what it can do. CPU time of the servers is read
here, right before the first message and right behind the last. Every message is compared with what it must be.
"""

import gc
import json
import os
import select
import socket
import sys
import time
from typing import Any, Final

from wakehub.bench import cpu, dialects
from wakehub.bench.dialects import Greeting, Wrong
from wakehub.bench.fleet import Fleet, PairFleet, Watch
from wakehub.limits import BENCH_PATIENCE_SECONDS
from wakehub.visible import visible

_NS: Final = 1_000_000_000
_now: Final = time.perf_counter_ns


class Cost:
    """CPU time of the servers `pids` and of this process while the block runs."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self.server_ns = self.client_ns = self.wall_ns = 0

    def __enter__(self) -> "Cost":
        gc.collect()
        gc.disable()
        self._server = sum(map(cpu.cpu_ns, self._pids))
        self._client = time.process_time_ns()
        self._began = _now()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_ns = _now() - self._began
        self.client_ns = time.process_time_ns() - self._client
        self.server_ns = sum(map(cpu.cpu_ns, self._pids)) - self._server
        gc.enable()

    def to_json(self) -> dict[str, int]:
        return {"server_ns": self.server_ns, "client_ns": self.client_ns, "wall_ns": self.wall_ns}


class Load:
    """Carries orders out; `ORDERS` are its methods."""

    def __init__(self) -> None:
        self._fleet: Fleet | None = None
        self._turn = 0

    @property
    def fleet(self) -> Fleet:
        assert self._fleet is not None, "the first order is connect"
        return self._fleet

    def connect(self, dialect: str, options: dict[str, Any], address: Any, agents: int, crowd: bool) -> dict[str, Any]:
        """Connect agents 0..`agents`-1; those that are connected already stay."""
        if self._fleet is None:
            spoken = dialects.load(dialect, options)
            self._fleet = Fleet(spoken, address, crowd=crowd) if address else PairFleet(spoken)
        began = _now()
        self.fleet.grow(agents)
        return {"agents": len(self.fleet), "wall_ns": _now() - began}

    def one_way(self, count: int, pace_ms: float, pids: list[int]) -> dict[str, Any]:
        """`count` wakes, one at a time, `pace_ms` of silence before each; each from and to somebody else."""
        fleet, dialect, agents = self.fleet, self.fleet.dialect, len(self.fleet)
        step = max(1, agents // 2)
        plan = []
        for _ in range(count):
            sender = self._turn % agents
            recipient = fleet.partner(sender, step)
            plan.append(
                (
                    fleet.writers[sender],
                    dialect.wake(sender, recipient),
                    fleet.readers[recipient],
                    dialect.heard(sender, recipient),
                    dialect.answer_bytes(sender, recipient),
                )
            )
            self._turn += 1
        pace_s = pace_ms / 1000
        took = []
        with Cost(pids) as cost:
            for writer, out, reader, expected, answer in plan:
                time.sleep(pace_s)
                began = _now()
                writer.sendall(out)
                data = reader.recv(len(expected))
                if data != expected:
                    fleet.take_rest(reader, data, expected)
                took.append(_now() - began)
                if answer:
                    fleet.drop_answer(writer, answer)
        return {"ns": took, **cost.to_json()}

    def fan_out(self, count: int, pace_ms: float, pids: list[int]) -> dict[str, Any]:
        """`count` broadcasts, one at a time; when the first and when the last of the crowd has read each."""
        fleet, dialect, agents = self.fleet, self.fleet.dialect, len(self.fleet)
        first, last = [], []
        crowd = fleet.readers if dialect.rotates else fleet.readers[1:]
        by_fd = {reader.fileno(): reader for reader in crowd}
        watch = Watch(by_fd)
        pace_s = pace_ms / 1000
        with Cost(pids) as cost:
            for _ in range(count):
                sender = self._turn % agents if dialect.rotates else 0
                self._turn += 1
                out, expected = dialect.broadcast(sender), dialect.heard_broadcast(sender)
                waiting = set(by_fd) - {fleet.readers[sender].fileno()}
                time.sleep(pace_s)
                began = _now()
                fleet.writers[sender].sendall(out)
                heard_at = 0
                while waiting:
                    for fd in watch.ready():
                        if fd not in waiting:  # heard already, or the sender: something that wants an answer
                            fleet.answer_noise(by_fd[fd])
                            continue
                        fleet.take(by_fd[fd], expected)
                        heard_at = heard_at or _now()
                        waiting.discard(fd)
                last.append(_now() - began)
                first.append(heard_at - began)
                fleet.drop_answer(fleet.writers[sender], dialect.broadcast_answer_bytes(sender, agents - 1))
        watch.close()
        return {"first_ns": first, "last_ns": last, "listeners": agents - 1, **cost.to_json()}

    def hot(self, seconds: float, most: int, pids: list[int]) -> dict[str, Any]:
        """Every first-half agent wakes its partner in the second half as soon as that has read the last one."""
        fleet = self.fleet
        pairs = self._pairs()
        watch = Watch(pairs)
        wakes = 0
        for writer, out, *_ in pairs.values():
            writer.sendall(out)
        with Cost(pids) as cost:
            until = _now() + int(seconds * _NS)
            while _now() < until and wakes < most:
                for fd in watch.ready():
                    writer, out, reader, expected, answer = pairs[fd]
                    data = reader.recv(len(expected))
                    if data != expected:
                        fleet.take_rest(reader, data, expected)
                    if answer:
                        fleet.drop_answer(writer, answer)
                    wakes += 1
                    writer.sendall(out)
        for writer, _, reader, expected, answer in pairs.values():
            fleet.take(reader, expected)
            fleet.drop_answer(writer, answer)
        watch.close()
        self._check_silence()
        return {"wakes": wakes, **cost.to_json()}

    def steady(self, rate: float, seconds: float, pids: list[int]) -> dict[str, Any]:
        """`rate` wakes a second over the pairs in turn, whatever is still on its way; how long each took.

        A wake that finds its pair's last one still under way waits for it, and that wait counts.
        """
        fleet = self.fleet
        pairs = self._pairs()
        watch = Watch(pairs)
        ring = list(pairs)
        due_at: dict[int, int] = {}
        late: list[int] = []
        took: list[int] = []
        with Cost(pids) as cost:
            began = _now()
            total = int(rate * seconds)
            sent = 0
            while len(took) < total:
                now = _now()
                while sent < total and began + int(sent * _NS / rate) <= now:
                    fd = ring[sent % len(ring)]
                    if fd in due_at:
                        break
                    due_at[fd] = began + int(sent * _NS / rate)
                    pairs[fd][0].sendall(pairs[fd][1])
                    late.append(_now() - due_at[fd])
                    sent += 1
                for fd in watch.ready_now():
                    writer, _, reader, expected, answer = pairs[fd]
                    if fd not in due_at:  # no wake: something that wants an answer, now
                        fleet.answer_noise(reader)
                        continue
                    fleet.take(reader, expected)
                    took.append(_now() - due_at.pop(fd))
                    if answer:
                        fleet.drop_answer(writer, answer)
                if now - began > (seconds + BENCH_PATIENCE_SECONDS) * _NS:
                    raise Wrong(f"{total - len(took)} of {total} wakes did not come")
        watch.close()
        self._check_silence()
        return {"ns": took, "late_ns": late, **cost.to_json()}

    def rejoin(self, base_ms: int, jitter_ms: int, seed: int, pids: list[int]) -> dict[str, Any]:
        """All agents come back, each `base_ms` and a random part of `jitter_ms` from now; when each was welcomed."""
        import random

        fleet, agents = self.fleet, len(self.fleet)
        fleet.close()
        draw = random.Random(seed).random
        began = _now()
        due = sorted((began + int((base_ms + draw() * jitter_ms) * 1_000_000), number) for number in range(agents))
        poller = select.poll()
        open_talks: dict[int, tuple[socket.socket, Greeting, int]] = {}
        joined: dict[int, socket.socket] = {}
        welcomed: list[int] = []
        lost = 0
        with Cost(pids) as cost:
            while due or open_talks:
                now = _now()
                if now - began > BENCH_PATIENCE_SECONDS * _NS:
                    raise Wrong(f"{agents - len(joined)} of {agents} agents were not welcomed")
                while due and due[0][0] <= now:
                    _, number = due.pop(0)
                    sock = fleet.dial()
                    talk = fleet.greeting(number, 0)
                    next(talk)
                    open_talks[sock.fileno()] = (sock, talk, number)
                    poller.register(sock, select.POLLIN)
                wait_ms = max(0, (due[0][0] - _now()) // 1_000_000) if due else 100
                for fd, _event in poller.poll(wait_ms):
                    sock, talk, number = open_talks[fd]
                    try:
                        data = sock.recv(65_536)
                    except OSError:
                        data = b""
                    try:
                        if data:
                            sock.sendall(talk.send(data))
                            continue
                        lost += 1
                        sock.close()
                        due.append((_now() + base_ms * 1_000_000, number))
                    except StopIteration:
                        welcomed.append(_now() - began)
                        joined[number] = sock
                    del open_talks[fd]
                    poller.unregister(fd)
        fleet.writers = fleet.readers = [joined[number] for number in range(agents)]
        return {"welcomed_ns": welcomed, "lost": lost, **cost.to_json()}

    def quiet(self, seconds: float, pids: list[int]) -> dict[str, Any]:
        """Nothing, for so long: what it costs to have the agents connected."""
        with Cost(pids) as cost:
            time.sleep(seconds)
        return cost.to_json()

    def pulse(self, seconds: float, pids: list[int]) -> dict[str, Any]:
        """One wake per agent and second, evenly spread."""
        agents = len(self.fleet)
        found = self.one_way(int(agents * seconds), 1000 / agents, pids)
        return {name: value for name, value in found.items() if name != "ns"} | {"wakes": int(agents * seconds)}

    def close(self) -> dict[str, Any]:
        """Disconnect everybody."""
        self.fleet.close()
        return {}

    def _pairs(self) -> dict[int, tuple[socket.socket, bytes, socket.socket, bytes, int]]:
        """The pairs by their reader's descriptor."""
        fleet, dialect, half = self.fleet, self.fleet.dialect, len(self.fleet) // 2
        pairs = {}
        for number in range(half):
            mate = fleet.partner(number, half)
            reader = fleet.readers[mate]
            pairs[reader.fileno()] = (
                fleet.writers[number],
                dialect.wake(number, mate),
                reader,
                dialect.heard(number, mate),
                dialect.answer_bytes(number, mate),
            )
        return pairs

    def _check_silence(self) -> None:
        """A sender that was answered more than its due was refused: then nothing was measured."""
        watched = select.poll()
        for sock in self.fleet.writers:
            watched.register(sock, select.POLLIN)
        for fd, _event in watched.poll(0):
            data = os.read(fd, 1024)
            if not any(data.startswith(noise) for noise in self.fleet.dialect.noise):
                raise Wrong(f"a sender was told {visible(data[:120])!r}")


ORDERS: Final = ("connect", "one_way", "fan_out", "hot", "steady", "rejoin", "quiet", "pulse", "close")


def main() -> None:
    """Carry out orders until standard input ends."""
    load = Load()
    for line in sys.stdin:
        order = json.loads(line)
        name = order.pop("do")
        assert name in ORDERS, name
        try:
            answer = getattr(load, name)(**order)
        except BlockingIOError:  # the kernel's patience with a blocking socket is at its end
            answer = {"wrong": f"nothing came for {BENCH_PATIENCE_SECONDS} s"}
        except (Wrong, OSError) as error:
            answer = {"wrong": str(error) or type(error).__name__}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
