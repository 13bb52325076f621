"""systemd's notify protocol against a real datagram socket (awh1.md §6; fault F72)."""

import os
import socket
import sys
from typing import Any

import pytest
import structlog
import trio

from wakehub.server.notify import Notifier


@pytest.fixture
def supervisor(run_directory):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(os.fspath(run_directory / "notify"))
        sock.settimeout(20)
        yield sock


def _notifier(environ: dict[str, str]) -> tuple[Notifier, list[Any]]:
    logs: list[Any] = []

    def keep(_logger: object, method: str, event: Any) -> Any:
        logs.append((method, event["event"]))
        raise structlog.DropEvent

    return Notifier(environ, structlog.wrap_logger(None, processors=[keep])), logs


def test_a_message_is_one_datagram_of_lines(supervisor):
    notifier, _ = _notifier({"NOTIFY_SOCKET": supervisor.getsockname()})
    notifier.send("READY=1", "STATUS=3 agents connected")
    assert supervisor.recv(1000) == b"READY=1\nSTATUS=3 agents connected"


def test_an_abstract_address():
    name = f"wakehub-test-{os.getpid()}"
    notifier, logs = _notifier({"NOTIFY_SOCKET": "@" + name})
    if sys.platform != "linux":  # nobody else has such addresses: unreachable
        notifier.send("READY=1")
        assert logs
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("\0" + name)
        sock.settimeout(20)
        notifier.send("READY=1")
        assert sock.recv(1000) == b"READY=1"


def test_without_a_supervisor_nothing_is_sent_or_said():
    notifier, logs = _notifier({})
    notifier.send("READY=1")
    assert (logs, notifier.watchdog_s) == ([], None)


async def test_the_watchdog_is_fed_until_the_loop_stops(supervisor, autojump_clock):
    environ = {"NOTIFY_SOCKET": supervisor.getsockname(), "WATCHDOG_USEC": "30000000"}
    notifier, _ = _notifier(environ)
    with trio.move_on_after(31):
        await notifier.feed_watchdog()
    assert [supervisor.recv(1000) for _ in range(3)] == [b"WATCHDOG=1"] * 3


async def test_without_a_watchdog_none_is_fed(supervisor):
    await _notifier({"NOTIFY_SOCKET": supervisor.getsockname()})[0].feed_watchdog()
    supervisor.setblocking(False)
    with pytest.raises(BlockingIOError):
        supervisor.recv(1000)


@pytest.mark.parametrize("address", ["/nowhere/notify", "x" * 200, "@"])
def test_an_unreachable_address_is_told_once_and_is_not_fatal(address):
    notifier, logs = _notifier({"NOTIFY_SOCKET": address})
    for _ in range(3):
        notifier.send("READY=1")
    assert logs == [("warning", "supervisor cannot be notified")]


def test_it_is_told_again_when_it_failed_again_after_it_had_worked(run_directory):
    address = os.fspath(run_directory / "notify")
    notifier, logs = _notifier({"NOTIFY_SOCKET": address})
    notifier.send("READY=1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(address)
        notifier.send("READY=1")
    notifier.send("READY=1")
    assert len(logs) == 2


def test_a_supervisor_that_does_not_read_does_not_block_us(supervisor):
    notifier, logs = _notifier({"NOTIFY_SOCKET": supervisor.getsockname()})
    while not logs:
        notifier.send("WATCHDOG=1")
    assert logs == [("warning", "supervisor cannot be notified")]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"WATCHDOG_USEC": "20000000"}, 10.0),
        ({"WATCHDOG_USEC": "20000000", "WATCHDOG_PID": str(os.getpid())}, 10.0),
        ({"WATCHDOG_USEC": "20000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_fed_at_half_of_its_time(environ, expected):
    assert _notifier(environ)[0].watchdog_s == expected
