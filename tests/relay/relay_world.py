"""A home with a record and enrolled agents, rows to put into it, and `listen` as a real process."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from daemon_process import PATIENCE_S, stand_in_for_up, until

from wakehub import config
from wakehub.client.home import AgentKey, ensure_agent, ensure_home
from wakehub.inbox.clock import Now
from wakehub.inbox.rows import Event, NewRow, Row
from wakehub.inbox.signing import signer
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.relay.message import Message

BORN_MS = 1_800_000_000_000

_KILLED = """
import os, sys
from wakehub.inbox.sqlite import SqliteInbox
real = SqliteInbox.{name}
def killed(*arguments, **named):
    {first}
    real(*arguments, **named)
    os.kill(os.getpid(), 9)
SqliteInbox.{name} = killed
from wakehub.cli import run
sys.exit(run(sys.argv[4:]))
"""


def killed_at(point: str) -> tuple[str, ...]:
    """What a listener runs under to be killed with -9 at a named point of its first hand-off.

    `claimed`: the row is its own, nothing is out. `handed over`: the agent has it, nothing is recorded.
    `acknowledged`: that is recorded, the next row is not touched.
    """
    name, first = {
        "claimed": ("claim", "pass"),
        "handed over": ("hand_off", "os.kill(os.getpid(), 9)"),
        "acknowledged": ("hand_off", "pass"),
    }[point]
    return (sys.executable, "-c", _KILLED.format(name=name, first=first))


KILLED_BEFORE_ACKNOWLEDGING = killed_at("handed over")


def row(body: bytes | str = "hello", **fields: Any) -> Row:
    """A claimed row with plain values."""
    data = body.encode() if isinstance(body, str) else body
    values: dict[str, Any] = {
        "seq": 1,
        "id": "m_00000000000000000000000000",
        "sender": "bob",
        "recipient": "alice",
        "rseq": 1,
        "generation": 1,
        "re": None,
        "group": None,
        "class_": "normal",
        "hops": 0,
        "signed_hops": 0,
        "created_ms": BORN_MS,
        "expires_ms": BORN_MS + 86_400_000,
        "stored_ms": BORN_MS,
        "media_type": "text/plain; charset=utf-8",
        "size": len(data),
        "digest": bytes(32),
        "key_id": None,
        "signature": None,
        "origin": "local",
        "state": "claimed",
        "attempts": 0,
        "failures": 0,
        "redelivery": 0,
        "retry_ms": 0,
        "claimed_ms": None,
        "hinted_ms": None,
        "hint_code": None,
        "done_ms": None,
        "body": data,
    }
    return Row(**(values | fields))


def message(body: bytes | str = "hello", *, verified: Any = "yes", after_s: float = 4, **fields: Any) -> Message:
    return Message(row(body, **fields), verified, BORN_MS + round(after_s * 1000))


class World:
    """One instance under a short path; `inbox` is the record as another process sees it.

    `stand_in` keeps `listen` from starting hub and publisher; release it before a real `up` is to run.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environ = {
            name: value for name, value in os.environ.items() if not name.startswith(("WAKEHUB_", "XDG_"))
        } | {"WAKEHUB_HOME": str(directory), "CLAUDE_CONFIG_DIR": str(directory / "no-claude")}
        self.config = config.load(self.environ)
        ensure_home(self.config)
        self.stand_in = stand_in_for_up(self.config.paths)
        self.inbox = SqliteInbox.open(self.config.paths.record)
        self._agents: dict[str, AgentKey] = {}
        self._processes: list[subprocess.Popen[bytes]] = []

    def agent(self, name: str) -> AgentKey:
        if name not in self._agents:
            self._agents[name] = ensure_agent(self.config, name)
        return self._agents[name]

    def store(self, *bodies: str | bytes, sender: str = "bob", to: str = "alice", **fields: Any) -> list[str]:
        """Store one signed row per body; their ids."""
        made = []
        for body in bodies:
            data = body.encode() if isinstance(body, str) else body
            new = NewRow(sender, to, data, signed=signer(self.agent(sender).pair), **fields)
            made += [stored.id for stored in self.inbox.append(new, Now.read())]
        return made

    def states(self, ids: Sequence[str]) -> list[str]:
        return [header.state for header in self.inbox.headers(ids)]

    def until_state(self, row_id: str, state: str) -> None:
        until(lambda: self.states([row_id]) == [state], f"{row_id} is {state}")

    def event(self, row_id: str, kind: str) -> Event:
        return next(event for event in self.inbox.events(row_id) if event.kind == kind)

    def is_held(self, name: str = "alice") -> bool:
        return self.inbox.leases.holder(name, Now.read()) is not None

    def until_held(self, name: str = "alice") -> None:
        until(lambda: self.is_held(name), f"{name} is held")

    def listen(self, *arguments: str, command: Sequence[str] = (), **popen: Any) -> subprocess.Popen[bytes]:
        """`wakehub listen` as a process of its own; without other orders it writes to pipes."""
        return self.start("listen", *arguments, command=command, **popen)

    def start(self, *arguments: str, command: Sequence[str] = (), **popen: Any) -> subprocess.Popen[bytes]:
        """A `wakehub` command as a process; `command` stands before it."""
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        options["env"] = self.environ | popen.pop("environ", {})
        line = [*command, sys.executable, "-m", "wakehub", *arguments]
        process = subprocess.Popen(line, **(options | popen))
        self._processes.append(process)
        return process

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait(PATIENCE_S)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        self.inbox.close()
        self.stand_in.release()


def read_block(process: subprocess.Popen[bytes]) -> str:
    """One `agent` block, to its end mark."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.decode())
        if line == b"---\n":
            break
    return "".join(lines)


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Its exit status and what it said on standard error, once it has ended."""
    status = process.wait(PATIENCE_S)
    assert process.stderr is not None
    return status, process.stderr.read().decode()


def stopped(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> tuple[int, str]:
    process.send_signal(number)
    return ended(process)


@contextlib.contextmanager
def opened_world(directory: Path) -> Iterator[World]:
    world = World(directory)
    try:
        yield world
    finally:
        world.close()
