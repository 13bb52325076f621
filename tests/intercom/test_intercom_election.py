"""Who is a channel's hub (intercom.md §5): one, however many begin, and whatever others do to its socket."""

import contextlib
import fcntl
import os
import signal
import socket
import stat
from pathlib import Path

import pytest
from daemon_process import until
from mesh_independent_client import Client

from wakehub.errors import Held
from wakehub.intercom import election


def test_the_lock_of_another_tool_is_taken_though_others_may_read_it(channel):
    lock = channel.path / "hub.lock"
    lock.write_text("4711")
    lock.chmod(0o644)
    with election.lead(channel):
        assert stat.S_IMODE(lock.stat().st_mode) == 0o600
    with lock.open() as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        with pytest.raises(Held):
            election.lead(channel)


def test_a_hub_whose_socket_is_unlinked_is_reached_again(hub):
    process = hub.ready()
    os.unlink(hub.socket)
    with Client(hub.socket) as client:
        assert client.greet("ann")["type"] == "welcome"
    hub.directory.rename(hub.base / "away")
    with Client(hub.socket) as client:
        assert client.greet("ann")["type"] == "welcome"
    assert process.poll() is None


def test_of_a_hundred_that_start_beside_a_stale_socket_one_is_the_hub(hub, channel):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stale:
        stale.bind(os.fspath(hub.socket))
    starts = [hub.start() for _ in range(100)]
    clients = [Client(hub.socket) for _ in range(20)]
    with contextlib.ExitStack() as stack:
        for number, client in enumerate(clients):
            stack.enter_context(client)
            assert client.greet(f"c{number}")["type"] == "welcome"
        until(lambda: [start.poll() for start in starts].count(None) == 1, "one is left")
        assert [start.poll() for start in starts].count(0) == 99
        (leader,) = [start for start in starts if start.poll() is None]
        until(lambda: hub.peers()["hub_pid"] == leader.pid, "peers.json says who leads")
        until(lambda: len(hub.peers()["active_sessions"]) == 20, "all are known")


def test_a_hub_in_the_background_belongs_to_nobody(hub, channel):
    """Own session, no parent of ours, /dev/null as its input, the log as its output, cwd /, umask 077."""
    assert election.spawn(channel)
    assert not election.spawn(channel)
    with Client(hub.socket) as client:
        client.greet("ann")
        pid = until(lambda: hub.peers()["hub_pid"], "it says who it is")
        place = Path(f"/proc/{pid}")
        if place.exists():
            assert os.getsid(pid) != os.getsid(0)
            assert os.readlink(place / "cwd") == "/"
            assert os.readlink(place / "fd/0") == "/dev/null"
            assert [os.readlink(place / f"fd/{fd}") for fd in (1, 2)] == [str(channel.log)] * 2
            status = dict(line.split(":\t", 1) for line in (place / "status").read_text().splitlines())
            assert status["PPid"] != str(os.getpid())
            assert status["Umask"] == "0077"
    assert "hub ready" in channel.log.read_text()
    os.kill(pid, signal.SIGTERM)
    until(lambda: election.spawn(channel), "it has ended, and another one is started")
    with Client(hub.socket) as client:
        assert client.greet("ann")["type"] == "welcome"
    until(lambda: hub.peers()["hub_pid"] not in (0, pid), "the next one says who it is")
