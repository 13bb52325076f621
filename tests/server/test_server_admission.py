"""Who gets a connection at all: credentials, ceiling, accept under shortage (awh1.md §4.1, §5.1)."""

import errno
import os
import resource
import socket
from typing import Any

import pytest
import structlog
import trio

from wakehub.identity.peercred import PeerCredentials
from wakehub.limits import ACCEPT_PAUSE_MS
from wakehub.server.admission import accept_forever, say_and_close, turn_away
from wakehub.server.listener import Listener


class Gate:
    """Collects what `accept_forever` hands out; lets everybody or nobody in."""

    def __init__(self, lets_in: bool = True) -> None:
        self.taken: list[socket.socket] = []
        self.refused: list[PeerCredentials | None] = []
        self.logs: list[tuple[str, str]] = []
        self.told, self.took = trio.Event(), trio.Event()
        self._lets_in = lets_in

    def allows(self, credentials: PeerCredentials) -> bool:
        return self._lets_in

    def take(self, sock: socket.socket, peer: PeerCredentials) -> None:
        assert peer == PeerCredentials(os.geteuid(), os.getpid())
        self.taken.append(sock)
        self.took.set()

    async def run(self, listener: Listener) -> None:
        def keep(_logger: object, _method: str, event: Any) -> Any:
            self.logs.append((event["event"], event.get("error", "")))
            self.told.set()
            raise structlog.DropEvent

        await accept_forever(
            listener, self, self.take, self.refused.append, structlog.wrap_logger(None, processors=[keep])
        )

    def close(self) -> None:
        for sock in self.taken:
            sock.close()


@pytest.fixture
def listener(run_directory):
    made = Listener.bind(run_directory / "run" / "hub.sock")
    yield made
    made.withdraw()


def _connect(listener: Listener) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(20)
    client.connect(os.fspath(listener.path))
    return client


async def test_an_authorized_peer_is_taken_as_a_non_blocking_socket(listener, nursery):
    gate = Gate()
    nursery.start_soon(gate.run, listener)
    with _connect(listener):
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert [sock.getblocking() for sock in gate.taken] == [False]
    gate.close()


async def test_a_refused_peer_gets_not_one_byte_and_is_not_read(listener, nursery):
    gate = Gate(lets_in=False)
    nursery.start_soon(gate.run, listener)
    with _connect(listener) as client:
        assert await trio.to_thread.run_sync(client.recv, 1) == b""
    assert gate.taken == []
    assert gate.refused == [PeerCredentials(os.geteuid(), os.getpid())]


async def test_a_peer_whose_credentials_the_kernel_does_not_tell_is_refused(listener, nursery, monkeypatch):
    def fail(_sock: object) -> PeerCredentials:
        raise OSError(errno.ENOTCONN, "gone")

    monkeypatch.setattr("wakehub.identity.peercred.read", fail)
    gate = Gate()
    nursery.start_soon(gate.run, listener)
    with _connect(listener) as client:
        assert await trio.to_thread.run_sync(client.recv, 1) == b""
    assert (gate.taken, gate.refused) == ([], [None])


async def test_many_at_once_are_all_taken(listener, nursery):
    gate = Gate()
    nursery.start_soon(gate.run, listener)
    clients = [_connect(listener) for _ in range(200)]
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert len(gate.taken) == 200
    for client in clients:
        client.close()
    gate.close()


class Failing(socket.socket):
    """A listening socket whose accept fails with each of `errors` in turn, then works."""

    errors: list[int]

    def accept(self) -> Any:
        if self.errors:
            number = self.errors.pop(0)
            raise OSError(number, os.strerror(number))
        return super().accept()


def _failing(listener: Listener, *errors: int) -> Listener:
    listener.sock = Failing(fileno=listener.sock.detach())
    listener.sock.errors = list(errors)
    return listener


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EIO])
async def test_a_failing_accept_is_told_once_pauses_each_time_and_goes_on(listener, nursery, autojump_clock, number):
    gate = Gate()
    nursery.start_soon(gate.run, _failing(listener, *[number] * 5))
    began = trio.current_time()
    with _connect(listener):
        await trio.sleep(10)
        assert len(gate.taken) == 1
    name = errno.errorcode[number]
    assert gate.logs == [("accept fails", name), ("accept works again", "")]
    assert trio.current_time() - began == pytest.approx(10, abs=0.1)
    gate.close()


async def test_each_attempt_under_shortage_is_a_pause_apart(listener, nursery, autojump_clock):
    gate = Gate()
    failing = _failing(listener, *[errno.EMFILE] * 1000)
    nursery.start_soon(gate.run, failing)
    with _connect(listener):
        await trio.sleep(1)
        attempts = 1000 - len(failing.sock.errors)
    assert attempts == pytest.approx(1000 / ACCEPT_PAUSE_MS, abs=1)


async def test_each_change_of_the_shortage_is_told(listener, nursery, autojump_clock):
    gate = Gate()
    nursery.start_soon(gate.run, _failing(listener, errno.EMFILE, errno.EMFILE, errno.ENFILE))
    with _connect(listener):
        await trio.sleep(10)
    assert gate.logs == [("accept fails", "EMFILE"), ("accept fails", "ENFILE"), ("accept works again", "")]
    gate.close()


async def test_a_peer_that_went_before_it_was_accepted_is_no_failure(listener, nursery, autojump_clock):
    gate = Gate()
    nursery.start_soon(gate.run, _failing(listener, errno.ECONNABORTED))
    with _connect(listener):
        await trio.sleep(1)
    assert len(gate.taken) == 1
    assert gate.logs == []
    gate.close()


async def test_without_descriptors_those_who_wait_are_taken_once_there_are_some_again(listener, nursery):
    gate = Gate()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with _connect(listener) as client:
        lowest_free = os.dup(client.fileno())
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
        try:
            nursery.start_soon(gate.run, listener)
            with trio.fail_after(20):
                await gate.told.wait()
            assert gate.taken == []
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        with trio.fail_after(20):
            await gate.took.wait()
    assert gate.logs == [("accept fails", "EMFILE"), ("accept works again", "")]
    gate.close()


async def test_it_goes_on_with_the_socket_that_was_bound_anew(listener, nursery):
    gate = Gate()
    nursery.start_soon(gate.run, listener)
    await trio.testing.wait_all_tasks_blocked()
    listener.path.unlink()
    listener.bind_anew()
    with _connect(listener):
        await trio.testing.wait_all_tasks_blocked(0.01)
    assert len(gate.taken) == 1
    gate.close()


async def test_it_goes_on_with_the_socket_that_was_bound_anew_during_a_pause(listener, nursery, autojump_clock):
    gate = Gate()
    nursery.start_soon(gate.run, _failing(listener, errno.EMFILE))
    with _connect(listener):
        await trio.testing.wait_all_tasks_blocked()
        listener.path.unlink()
        listener.bind_anew()
    with _connect(listener):
        await trio.sleep(1)
    assert len(gate.taken) == 1
    gate.close()


# --- words before the close -------------------------------------------------------------------------------------------


def _pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.settimeout(20)
    return ours, theirs


def test_who_is_turned_away_reads_the_answer_and_the_end():
    ours, theirs = _pair()
    turn_away(ours, b"no")
    assert ours.fileno() == -1
    assert (theirs.recv(10), theirs.recv(10)) == (b"no", b"")
    theirs.close()


def test_who_spoke_first_still_reads_why_it_was_turned_away():
    ours, theirs = _pair()
    theirs.send(b"hello")
    turn_away(ours, b"no")
    assert theirs.recv(10) == b"no"
    theirs.close()


def test_turning_away_somebody_who_has_gone_is_no_error():
    ours, theirs = _pair()
    theirs.close()
    turn_away(ours, b"no")
    assert ours.fileno() == -1


async def test_a_long_text_is_written_as_it_is_read_then_the_end(nursery):
    ours, theirs = _pair()
    text = os.urandom(2_000_000)
    done = trio.Event()
    nursery.start_soon(say_and_close, ours, text, 20_000, done.set)

    def read_all() -> bytes:
        return b"".join(iter(lambda: theirs.recv(65536), b""))

    assert await trio.to_thread.run_sync(read_all) == text
    theirs.close()
    await done.wait()
    assert ours.fileno() == -1


@pytest.mark.parametrize("size", [10, 2_000_000])
async def test_a_reader_that_keeps_the_line_is_cut_off_at_the_deadline(nursery, autojump_clock, size):
    ours, theirs = _pair()
    done = trio.Event()
    began = trio.current_time()
    nursery.start_soon(say_and_close, ours, bytes(size), 2_000, done.set)
    await done.wait()
    assert trio.current_time() - began == pytest.approx(2, abs=0.01)
    assert ours.fileno() == -1
    theirs.close()


async def test_a_reader_that_goes_ends_it_at_once(nursery, autojump_clock):
    ours, theirs = _pair()
    done = trio.Event()
    began = trio.current_time()
    nursery.start_soon(say_and_close, ours, bytes(2_000_000), 2_000, done.set)
    await trio.testing.wait_all_tasks_blocked()
    theirs.close()
    await done.wait()
    assert trio.current_time() == began
