"""A crowd of senders and listeners on one record, of which one each is killed (faults F6, F17, F61).

Everything is real: `wakehub up`, listeners as processes with a pipe that is read, senders as processes. Each message is
handed off at least once, in its sender's order, and twice only where a listener was killed between handing it off and
acknowledging it, with the mark then.

The whole of it, 64 senders with 50 messages each for 8 listeners, runs with WAKEHUB_CROWD=full and takes minutes; a run
prints what it chose to kill, and WAKEHUB_CROWD_SEED chooses the same again.
"""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from daemon_process import Daemon, environment

from wakehub import config as configuration
from wakehub.client.home import ensure_agent, ensure_home
from wakehub.inbox.sqlite import SqliteInbox


@dataclass(frozen=True)
class Row:
    id: str
    sender: str
    recipient: str
    body: bytes
    state: str
    redelivery: int


@dataclass(frozen=True)
class Size:
    senders: int
    messages: int
    listeners: int
    patience_s: float


SIZE = Size(64, 50, 8, 900) if os.environ.get("WAKEHUB_CROWD") == "full" else Size(8, 20, 4, 120)
SEED = int(os.environ.get("WAKEHUB_CROWD_SEED", random.randrange(1 << 30)))


class Spoken:
    """A process whose lines are read as they come; it is killed when it has said so many as `kill_behind`."""

    def __init__(self, words: list[str], home: Path, kill_behind: int | None = None) -> None:
        self.lines: list[bytes] = []
        self.news = threading.Condition()
        self.kill_behind = kill_behind
        self.process = subprocess.Popen(
            words, env=environment(home), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self.news:
                self.lines.append(line)
                self.news.notify_all()
            if len(self.lines) == self.kill_behind:
                self.process.kill()

    def wait_for(self, count: int, patience_s: float) -> None:
        with self.news:
            said = self.news.wait_for(lambda: len(self.lines) >= count, patience_s)
        assert said, (self.lines, self.process.poll())

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def ended(self, patience_s: float) -> int:
        status = self.process.wait(patience_s)
        self._reader.join()
        return status

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


class Crowd:
    """The instance, and who works in it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.config = configuration.load(environment(home))
        ensure_home(self.config)
        self.senders = [f"sender-{number}" for number in range(SIZE.senders)]
        self.listeners = [f"listener-{number}" for number in range(SIZE.listeners)]
        for name in (*self.senders, *self.listeners):
            ensure_agent(self.config, name)
        self.inbox = SqliteInbox.open(self.config.paths.record)
        self._running: list[Spoken] = []

    def reader_of(self, sender: str) -> str:
        return self.listeners[self.senders.index(sender) % len(self.listeners)]

    def listen(self, name: str, kill_behind: int | None = None) -> Spoken:
        words = [sys.executable, "-P", "-m", "wakehub", "listen", "--as", name, "--format", "json"]
        self._running.append(Spoken(words, self.home, kill_behind))
        return self._running[-1]

    def send(self, name: str, first: int = 0, kill_behind: int | None = None) -> Spoken:
        script = Path(__file__).with_name("crowd_sender.py")
        words = [sys.executable, str(script), name, self.reader_of(name), str(first), str(SIZE.messages)]
        self._running.append(Spoken(words, self.home, None if kill_behind is None else kill_behind + 1))
        return self._running[-1]

    def rows(self) -> list[Row]:
        """Every message of a sender, in the order of storing."""
        query = "SELECT id, sender, recipient, body, state, redelivery FROM message WHERE recipient LIKE 'listener-%'"
        with closing(sqlite3.connect(self.config.paths.record)) as raw:
            return [Row(*values) for values in raw.execute(f"{query} ORDER BY seq")]

    def close(self) -> None:
        for spoken in self._running:
            spoken.close()
        self.inbox.close()


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    with tempfile.TemporaryDirectory(prefix="wh") as name:
        made = Crowd(Path(name))
        with Daemon(made.home, "up") as up:
            try:
                up.says("ready:")
                yield made
            finally:
                made.close()  # ahead of `up`, which a sender would start again in the background


def test_a_crowd_of_which_one_each_is_killed(crowd: Crowd) -> None:
    rng = random.Random(SEED)
    doomed_sender, doomed_listener = rng.choice(crowd.senders), rng.choice(crowd.listeners)
    dies_behind = rng.randrange(1, SIZE.messages - 1)
    for_one = SIZE.senders // SIZE.listeners * SIZE.messages
    stops_behind = rng.randrange(1, for_one - 1)
    print(
        f"seed {SEED}: {doomed_sender} dies behind {dies_behind}, {doomed_listener} behind {stops_behind} of {for_one}"
    )

    heard = {name: [crowd.listen(name, stops_behind if name == doomed_listener else None)] for name in crowd.listeners}
    senders = {
        name: crowd.send(name, kill_behind=dies_behind if name == doomed_sender else None) for name in crowd.senders
    }
    for sender in senders.values():
        sender.wait_for(1, SIZE.patience_s)
    for sender in senders.values():
        sender.go()

    # Whoever died is replaced: the sender by one that goes on where the record ends, the listener by its like.
    assert senders[doomed_sender].ended(SIZE.patience_s) == -signal.SIGKILL
    said = len(senders[doomed_sender].lines) - 1
    stored = sum(row.sender == doomed_sender for row in crowd.rows())
    assert said <= stored <= said + 1, "what was said to be stored is stored"
    senders[doomed_sender] = crowd.send(doomed_sender, first=stored)
    senders[doomed_sender].go()
    assert heard[doomed_listener][0].ended(SIZE.patience_s) == -signal.SIGKILL
    heard[doomed_listener].append(crowd.listen(doomed_listener))

    for name, sender in senders.items():
        status = sender.ended(SIZE.patience_s)
        assert sender.process.stderr is not None
        assert status == 0, (name, len(sender.lines), sender.process.stderr.read().decode())
    until_all_handed_off(crowd)
    for listeners in heard.values():
        listeners[-1].process.terminate()
        assert listeners[-1].ended(SIZE.patience_s) == 0
    check(crowd, heard, doomed_listener)


def until_all_handed_off(crowd: Crowd) -> None:
    deadline = time.monotonic() + SIZE.patience_s
    while any(crowd.inbox.count_unread(name) for name in crowd.listeners):
        assert time.monotonic() < deadline, {name: crowd.inbox.count_unread(name) for name in crowd.listeners}
        time.sleep(0.05)  # the listeners tell nobody


def check(crowd: Crowd, heard: dict[str, list[Spoken]], doomed: str) -> None:
    rows = crowd.rows()
    assert len(rows) == SIZE.senders * SIZE.messages
    assert {row.state for row in rows} == {"handed_off"}
    for sender in crowd.senders:  # each number once, in order: nothing lost, doubled or overwritten
        bodies = [row.body.decode() for row in rows if row.sender == sender]
        assert bodies == [f"{sender} {number}" for number in range(SIZE.messages)]

    for name, listeners in heard.items():
        # The last line of one that was killed may be half of one.
        lines = [line for each in listeners for line in each.lines if line.endswith(b"\n")]
        messages = [json.loads(line) for line in lines]
        assert {message["id"] for message in messages} == {row.id for row in rows if row.recipient == name}
        assert all(message["verified"] == "yes" for message in messages)
        again = {id for id, times in Counter(message["id"] for message in messages).items() if times > 1}
        assert len(again) <= (name == doomed), "twice, where nobody was killed"
        marked = [message for message in messages if message["redelivery"]]
        assert len(marked) <= (name == doomed)
        assert again <= {message["id"] for message in marked}, "twice, without the mark"
        in_order = list(dict.fromkeys(message["text"] for message in messages))
        for sender in crowd.senders:
            own = [text for text in in_order if text.startswith(f"{sender} ")]
            assert own == sorted(own, key=lambda text: int(text.split()[1])), sender

    claims = Counter({row.id: 0 for row in rows})
    for row in rows:
        kinds = [event.kind for event in crowd.inbox.events(row.id)]
        assert (kinds.count("stored"), kinds.count("handed_off")) == (1, 1)
        claims[row.id] = kinds.count("claimed")
    assert sum(claims.values()) <= len(rows) + 1, "only what was in hand when one was killed was claimed again"
