"""Does a hub answer at this socket, right now? (issue: health; awh1.md §5.2: the hub speaks first.)

lstat, connect, read one challenge, close; two seconds in all; blocking sockets, nothing changed, no identity needed.
Connecting alone proves nothing, since the kernel accepts for a stopped process: only a challenge of AWH1 does. What
can be wrong is told apart, for each calls for something else:

| state | what was seen |
|---|---|
| answers | a challenge by the hub id that was expected |
| missing | nothing is at the path |
| not_a_socket | something else is |
| not_ours | a socket of another user: nothing is sent to it |
| denied | EPERM or EACCES: a sandbox, or a directory of another user |
| refused | a socket that no process serves |
| timeout | connected, or waiting in line, and silence: the process is stopped or overloaded, it is not "not running" |
| full | 507: the hub runs at its connection ceiling |
| closed | the connection ended before a challenge |
| unexpected | bytes that are no challenge |
| other_hub | a challenge by another hub id |
"""

import contextlib
import errno
import os
import socket
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from wakehub import ownership, sockets
from wakehub.client import advice
from wakehub.config import Config
from wakehub.errors import ErrorCode, Exit, Unavailable, Violation, WakehubError
from wakehub.identity.addresses import PUBLISHER
from wakehub.identity.registry import Registry
from wakehub.limits import (
    CHECK_DEADLINE_MS,
    CHECK_RETRY_MS,
    MAX_FRAME_BYTES,
    MAX_METRICS_BYTES,
)
from wakehub.visible import visible
from wakehub.wire.payloads import Error
from wakehub.wire.protocol import Challenge, ClientProtocol, Event

_START: Final = "start the hub that is to be there"
JSON_KEYS: Final = ("healthy", "state", "socket", "hub_id", "ms", "why", "remedy")


@dataclass(frozen=True, slots=True)
class Health:
    """What a look at the hub's socket found; `ms` is what it took, `hub_id` the id that answered, if one did."""

    state: str
    socket: Path
    ms: float
    why: str = ""
    remedy: str = ""
    hub_id: str = ""

    @property
    def exit(self) -> Exit:
        return Exit.DONE if self.state == "answers" else Exit.UNREACHABLE

    def to_json(self) -> dict[str, Any]:
        """The report for programs: exactly `JSON_KEYS`."""
        return {
            "healthy": self.state == "answers",
            "state": self.state,
            "socket": os.fsdecode(self.socket),
            "hub_id": self.hub_id,
            "ms": round(self.ms, 3),
            "why": self.why,
            "remedy": self.remedy,
        }

    def to_text(self) -> str:
        """The report for people."""
        where = visible(str(self.socket))
        if self.state == "answers":
            return f"✓ hub {visible(self.hub_id)} answers at {where} in {self.ms:.1f} ms (measured)"
        return f"✗ {self.state}: {where}: {visible(self.why)}\n  next: {visible(self.remedy)}"


class Obstacle(Exception):
    """What keeps us from an answer: a state of the table, why, what to do next, and the hub id that did answer."""

    def __init__(self, state: str, why: str, remedy: str, hub_id: str = "") -> None:
        super().__init__(f"{state}: {why}")
        self.state = state
        self.why = why
        self.remedy = remedy
        self.hub_id = hub_id


def check(path: Path, hub_id: str, deadline_ms: int = CHECK_DEADLINE_MS) -> Health:
    """Look at the socket at `path`, where the hub `hub_id` is expected; at most `deadline_ms`. Never raises."""
    began = time.monotonic()
    deadline = began + deadline_ms / 1000
    try:
        with connected(path, deadline) as sock:
            _read_challenge(sock, deadline, hub_id)
    except Obstacle as found:
        return Health(found.state, path, (time.monotonic() - began) * 1000, found.why, found.remedy, found.hub_id)
    return Health("answers", path, (time.monotonic() - began) * 1000, hub_id=hub_id)


def check_hub(config: Config, deadline_ms: int = CHECK_DEADLINE_MS) -> Health:
    """Look at the hub of the instance that `config` describes, as `check`; the remedy fits what lives there."""
    return _advised(check(config.hub_socket, config.hub_id, deadline_ms), config, advice.HUB)


def check_publisher(config: Config, deadline_ms: int = CHECK_DEADLINE_MS) -> Health:
    """Look at the publisher's socket, as `check_hub`.

    An empty poke is a question too: a publisher answers it by closing (formats.md, Poke).
    """
    path = config.paths.publish_socket
    began = time.monotonic()
    deadline = began + deadline_ms / 1000
    try:
        with connected(path, deadline) as sock:
            _ask_publisher(sock, deadline)
    except Obstacle as found:
        ms = (time.monotonic() - began) * 1000
        return _advised(Health(found.state, path, ms, found.why, found.remedy), config, advice.PUBLISHER)
    return Health("answers", path, (time.monotonic() - began) * 1000)


def revoked_publisher(config: Config, registry: Registry) -> tuple[str, str] | None:
    """What it means that the registry has no key for the publisher, and the remedy; None when it has, or has none yet.

    A publisher makes itself another key when it starts, and ends when it finds that its own does not stand any more.
    """
    agent = registry.agents.get(PUBLISHER)
    if agent is None or agent.key is not None:
        return None
    why = f"the key of {PUBLISHER} was revoked: the hub does not admit it, and nobody is woken"
    return why, advice.to_restart(config.paths, advice.PUBLISHER)


def _advised(found: Health, config: Config, daemon: advice.Daemon) -> Health:
    match found.state:
        case "missing" | "refused":
            try:
                sockets.check_directory(found.socket.parent)
            except WakehubError as error:
                return replace(found, why=f"{error.what}: {error.why}", remedy=error.remedy)
            return replace(found, remedy=advice.to_start(config.paths, daemon))
        case "timeout":
            why, remedy = advice.to_answer(config.paths, daemon)
            return replace(found, why=why, remedy=remedy)
        case "not_a_socket":
            return replace(found, remedy=f"{ownership.to_move_away(found.socket)} (it is never replaced)")
        case _:
            return found


def _ask_publisher(sock: socket.socket, deadline: float) -> None:
    try:
        sock.sendall(b'{"v":1,"ids":[]}\n')
        sock.shutdown(socket.SHUT_WR)
    except OSError as error:
        raise _connect_failure(error) from error
    if _receive(sock, deadline, 1):
        raise Obstacle("unexpected", "it answers as no publisher does", "look who serves that socket")


def read_metrics(config: Config, deadline_ms: int = CHECK_DEADLINE_MS) -> str:
    """The running hub's counters from its stats socket (awh1.md §7); raises `Unavailable` (69) when there are none."""
    path = config.stats_socket
    deadline = time.monotonic() + deadline_ms / 1000
    parts: list[bytes] = []
    try:
        with connected(path, deadline) as sock:
            while part := _receive(sock, deadline, 1 << 16):
                parts.append(part)
                if sum(map(len, parts)) > MAX_METRICS_BYTES:
                    raise Obstacle("unexpected", f"more than {MAX_METRICS_BYTES} bytes", "look who serves that socket")
    except Obstacle as obstacle:
        found = _advised(Health(obstacle.state, path, 0.0, obstacle.why, obstacle.remedy), config, advice.HUB)
        raise Unavailable(
            f"no counters from {visible(str(path))}", why=visible(found.why), remedy=visible(found.remedy)
        ) from None
    text = b"".join(parts).decode("utf-8", "backslashreplace")
    if not text.endswith("# EOF\n"):
        raise Unavailable(
            f"no counters from {visible(str(path))}",
            why="the answer is not whole OpenMetrics text",
            remedy="wakehub --health says whether the hub answers; try again",
        )
    return text


@contextlib.contextmanager
def connected(path: Path, deadline: float) -> Iterator[socket.socket]:
    """A connection to a socket of ours by `deadline` (monotonic seconds); raises `Obstacle` with what hinders it."""
    _judge_path(path)
    with contextlib.ExitStack() as stack:
        try:
            sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            _connect(sock, path, deadline)
        except OSError as error:
            raise _connect_failure(error) from error
        yield sock


def _judge_path(path: Path) -> None:
    try:
        there = os.lstat(path)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            raise _denied(error) from error
        why = "nothing is there" if error.errno == errno.ENOENT else (error.strerror or "it cannot be looked at")
        raise Obstacle("missing", why, _START) from error
    if not stat.S_ISSOCK(there.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(there.st_mode) else "not a socket"
        raise Obstacle("not_a_socket", f"it is {kind}", "move it away; the hub never replaces it")
    if there.st_uid != os.geteuid():
        raise Obstacle(
            "not_ours", f"it belongs to uid {there.st_uid}, we are {os.geteuid()}", "choose another with --socket"
        )


def _connect(sock: socket.socket, path: Path, deadline: float) -> None:
    """Connect, waiting for a place in the line: a full backlog answers EAGAIN at once, whatever the timeout."""
    while True:
        sock.settimeout(_left(deadline))
        try:
            sock.connect(os.fspath(path))
            return
        except BlockingIOError:
            time.sleep(min(CHECK_RETRY_MS / 1000, _left(deadline)))


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _connect_failure(error: OSError) -> Obstacle:
    if isinstance(error, TimeoutError):
        return Obstacle(
            "timeout",
            "no answer in time; the process is there, but stopped or overloaded",
            "look at it with ps; SIGCONT it, or restart it",
        )
    match error.errno:
        case errno.ECONNREFUSED:
            return Obstacle("refused", "no process serves this socket any more", _START)
        case errno.EPERM | errno.EACCES | errno.EAFNOSUPPORT:
            return _denied(error)
        case errno.ENOENT:
            return Obstacle("missing", "it has just gone", _START)
        case errno.EPROTOTYPE:
            return Obstacle("unexpected", "a socket of another type", "look who made it")
        case None:
            return Obstacle("missing", f"no socket can be there: {error}", "choose a shorter directory (≤ 87 bytes)")
        case _:
            return Obstacle("closed", error.strerror or "the connection failed", "try again; see the hub's log")


def _denied(error: OSError) -> Obstacle:
    if error.errno == errno.EACCES:
        why = "the directory is another user's, or a sandbox hides it"
        return Obstacle("denied", f"{error.strerror}: {why}", "run as its owner, or allow this path in the sandbox")
    why = "a sandbox forbids this process to use Unix sockets; the hub may well run"
    return Obstacle("denied", f"{error.strerror}: {why}", "allow this path in the sandbox's settings, or run outside")


def _receive(sock: socket.socket, deadline: float, most: int) -> bytes:
    try:
        sock.settimeout(_left(deadline))
        return sock.recv(most)
    except OSError as error:
        raise _connect_failure(error) from error


def _read_challenge(sock: socket.socket, deadline: float, hub_id: str) -> None:
    """Return once the hub `hub_id` has sent its challenge; raises `Obstacle` for anything else that comes first."""
    protocol = ClientProtocol(b"")
    while True:
        data = _receive(sock, deadline, MAX_FRAME_BYTES)
        if not data:
            raise Obstacle(
                "closed",
                "the connection ended before the hub spoke",
                "it is stopping, or runs as another user; see its log",
            )
        try:
            event = next(protocol.receive_data(data), None)
        except Violation as violation:
            raise Obstacle(
                "unexpected", f"what came is no AWH1 challenge ({violation.reason})", "look who serves that socket"
            ) from violation
        if event is not None:
            return _judge_event(event, hub_id)


def _judge_event(event: Event, hub_id: str) -> None:
    match event:
        case Challenge(found, _) if found == hub_id.encode():
            return
        case Challenge(found, _):
            name = found.decode()
            raise Obstacle(
                "other_hub", f"hub {name} answers, not {hub_id}", f"give --hub-id {name}, or another --socket", name
            )
        case Error(ErrorCode.OVERFLOW, reason):
            raise Obstacle("full", f"507 {reason}", "raise [hub] max_connections, or close connections")
        case _:
            raise Obstacle("unexpected", "the hub did not begin with a challenge", "look who serves that socket")
