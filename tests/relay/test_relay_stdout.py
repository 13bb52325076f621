"""What proves that a message is out, on real descriptors of every kind (faults F1, F7)."""

import errno
import os
import pty
import resource
import select
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing
from relay_world import message

from wakehub.errors import Exit
from wakehub.relay.backends import HandedOff, NotNow, OutputGone
from wakehub.relay.backends.stdout import Kind, Output, kind_of
from wakehub.relay.message import Message
from wakehub.relay.options import Format
from wakehub.relay.render import TORN_END, render

PROVEN = "read" if sys.platform == "linux" else "buffered"
BIG = message("x" * 200_000)


class Pair:
    """A reading and a writing end."""

    def __init__(self, read: int, write: int) -> None:
        self.read, self.write = read, write

    def take(self, size: int = 1 << 20) -> bytes:
        return os.read(self.read, size)

    def close(self) -> None:
        for name in ("read", "write"):
            self.close_end(name)

    def close_end(self, name: str) -> None:
        fd = getattr(self, name)
        if fd >= 0:
            os.close(fd)
            setattr(self, name, -1)


def a_pipe() -> Pair:
    return Pair(*os.pipe())


def a_socket() -> Pair:
    reader, writer = socket.socketpair()
    return Pair(reader.detach(), writer.detach())


@pytest.fixture(params=[a_pipe, a_socket], ids=["pipe", "socket"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    make: Callable[[], Pair] = request.param
    made = make()
    yield made
    made.close()


async def test_a_message_counts_once_the_kernel_holds_none_of_it(pair: Pair) -> None:
    output = Output(pair.write, "agent")
    done: list[object] = []

    async def deliver(one: Message) -> None:
        done.append(await output.deliver(one))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(deliver, message("hello"))
        await trio.lowlevel.wait_readable(pair.read)
        if PROVEN == "read":
            for _ in range(20):  # it has every chance to end too early
                await trio.sleep(0.001)
            assert done == []
            assert pair.take(5) == b"[wake"
            await trio.sleep(0.01)
            assert done == []
        assert pair.take().endswith(b"---\n")
    assert done == [HandedOff(PROVEN)]


async def test_a_reader_that_stops_leaves_the_message_unproven_for_as_long_as_it_takes(
    pair: Pair, autojump_clock: trio.testing.MockClock
) -> None:
    if PROVEN == "buffered":
        return
    output = Output(pair.write, "json")
    with trio.move_on_after(60) as waited:
        os.write(pair.write, b"other bytes")
        await output._until_read()
    assert waited.cancelled_caught


@pytest.mark.parametrize("blocking", [True, False])
async def test_a_message_larger_than_the_kernel_takes_goes_out_in_pieces(pair: Pair, blocking: bool) -> None:
    os.set_blocking(pair.write, blocking)  # a parent process may have made it non-blocking
    output = Output(pair.write, "agent")
    got = bytearray()

    async def read() -> None:
        while len(got) < len(render(BIG, "agent")):
            await trio.lowlevel.wait_readable(pair.read)
            got.extend(pair.take(65536))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        assert await output.deliver(BIG) == HandedOff(PROVEN)
    assert bytes(got) == render(BIG, "agent")


async def test_a_full_output_blocks_neither_the_loop_nor_being_stopped(pair: Pair) -> None:
    output = Output(pair.write, "agent")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(output.deliver, BIG)
        while select.select([], [pair.write], [], 0)[1]:  # noqa: ASYNC110  # until it is full
            await trio.sleep(0.001)
        for _ in range(10):
            await trio.sleep(0.001)
        nursery.cancel_scope.cancel()


async def test_a_reader_that_is_gone_before_is_no_doubt(pair: Pair) -> None:
    output = Output(pair.write, "agent")
    output.check()
    pair.close_end("read")
    with pytest.raises(OutputGone):
        output.check()
    with pytest.raises(OutputGone) as caught:
        await output.deliver(message())
    assert caught.value.exit == Exit.OUTPUT_GONE
    assert not caught.value.in_doubt


@pytest.mark.parametrize("reads_it", [False, True])
async def test_a_reader_that_goes_with_the_message_in_hand_leaves_it_in_doubt(pair: Pair, reads_it: bool) -> None:
    if PROVEN == "buffered":
        return
    output = Output(pair.write, "agent")

    async def read_and_go() -> None:
        await trio.lowlevel.wait_readable(pair.read)
        if reads_it:
            pair.take(10)
        pair.close_end("read")

    async def deliver() -> None:
        with pytest.raises(OutputGone) as caught:
            await output.deliver(message("hello"))
        assert caught.value.in_doubt

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_and_go)
        nursery.start_soon(deliver)


async def test_a_file_is_written_and_synced(tmp_path: Path) -> None:
    path = tmp_path / "out"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        output = Output(fd, "agent")
        assert not output.dies_with_parent
        output.check()
        assert await output.deliver(BIG) == HandedOff("synced")
    finally:
        os.close(fd)
    assert path.read_bytes() == render(BIG, "agent")


async def test_a_file_that_cannot_grow_is_not_now_and_in_doubt(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    fd = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        outcome = await Output(fd, "agent").deliver(BIG)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        os.close(fd)
    assert isinstance(outcome, NotNow)
    assert outcome.in_doubt
    assert "too large" in outcome.reason


class Growing:
    """A regular file as output that may only grow to `limit` bytes for now; `flags` as the shell opens it."""

    def __init__(self, path: Path, flags: int, there: bytes = b"") -> None:
        self.path = path
        path.write_bytes(there)
        self.fd = os.open(path, os.O_WRONLY | flags)
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def deliver(self, output: Output, one: Message, limit: int | None = None) -> object:
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._before[0] if limit is None else limit, self._before[1]))
        try:
            return await output.deliver(one)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, self._before)


@pytest.fixture(params=[0, os.O_APPEND, os.O_TRUNC], ids=["<>", ">>", ">"])
def growing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Growing]:
    there = b"" if request.param == os.O_TRUNC else b"what was there\n"
    made = Growing(tmp_path / "out", request.param, there)
    os.lseek(made.fd, 0, os.SEEK_END)
    yield made
    os.close(made.fd)


@pytest.mark.parametrize("form", ["agent", "line", "json"])
async def test_half_a_message_in_a_file_is_taken_back_and_the_next_try_is_whole(growing: Growing, form: Format) -> None:
    before = growing.path.read_bytes()
    output = Output(growing.fd, form)
    for limit in (1000, 5000):
        assert isinstance(await growing.deliver(output, BIG, limit), NotNow)
        assert growing.path.read_bytes() == before
    assert await growing.deliver(output, BIG) == HandedOff("synced")
    assert growing.path.read_bytes() == before + render(BIG, form)


@pytest.mark.parametrize("form", ["agent", "line", "json"])
async def test_what_another_wrote_behind_half_a_message_stays_and_the_next_try_begins_a_line(
    tmp_path: Path, form: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing = Growing(tmp_path / "out", os.O_APPEND)
    output, write = Output(growing.fd, form), os.write

    def half_and_then_full(fd: int, data: bytes) -> int:
        if not growing.path.stat().st_size:
            return write(fd, data[:1000])
        with growing.path.open("ab") as other:
            other.write(b"foreign")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half_and_then_full)
        assert isinstance(await output.deliver(BIG), NotNow)
    assert await output.deliver(BIG) == HandedOff("synced")
    assert await output.deliver(BIG) == HandedOff("synced")
    os.close(growing.fd)
    whole = render(BIG, form)
    assert growing.path.read_bytes() == whole[:1000] + b"foreign" + TORN_END[form].encode() + whole * 2


@pytest.mark.skipif(sys.platform != "linux", reason="there is no such device")
async def test_a_full_device_is_tried_again_and_without_patience_is_gone() -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    try:
        outcome = await Output(fd, "agent").deliver(message())
        assert isinstance(outcome, NotNow)
        assert not outcome.in_doubt  # nothing of it came out
        with pytest.raises(OutputGone, match="cannot be written") as caught:
            await Output(fd, "agent", patient=False).deliver(message())
        assert caught.value.exit == Exit.OUTPUT_GONE
    finally:
        os.close(fd)


async def test_a_stream_with_half_a_message_takes_no_other(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """What can be taken back from no reader must have nothing behind it."""
    output, real = Output(pair.write, "json"), os.write
    told: list[int] = []

    def fails_then(fd: int, data: bytes) -> int:
        told.append(fd)
        if len(told) > 1:
            raise OSError(errno.ENOBUFS, "No buffer space available")
        return real(fd, data[:100])

    monkeypatch.setattr(os, "write", fails_then)
    with pytest.raises(OutputGone, match="cannot be written") as caught:
        await output.deliver(message("hello"))
    assert caught.value.in_doubt


async def test_a_terminal_is_written_and_its_end_is_seen() -> None:
    controller, terminal = pty.openpty()
    try:
        output = Output(terminal, "line")
        assert kind_of(terminal) is Kind.TERMINAL
        assert output.dies_with_parent
        assert await output.deliver(message("hello")) == HandedOff("written")
        assert b"hello" in os.read(controller, 4096)
        output.check()
        os.close(controller)
        controller = -1
        with pytest.raises(OutputGone):
            output.check()
    finally:
        for fd in (controller, terminal):
            if fd >= 0:
                os.close(fd)


async def test_a_network_socket_tells_nothing_of_its_reader() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as writer:
            reader, _ = server.accept()
            with reader:
                assert await Output(writer.fileno(), "agent").deliver(message("hello")) == HandedOff("buffered")


def test_a_closed_descriptor_is_gone() -> None:
    read, write = os.pipe()
    os.close(read)
    os.close(write)
    with pytest.raises(OutputGone):
        Output(write, "agent")


@pytest.mark.parametrize(("make", "kind"), [(a_pipe, Kind.PIPE), (a_socket, Kind.SOCKET)])
def test_the_kinds(make: Callable[[], Pair], kind: Kind) -> None:
    made = make()
    try:
        assert kind_of(made.write) is kind
        assert Output(made.write, "agent").dies_with_parent
    finally:
        made.close()
    with open(os.devnull, "wb") as null:
        assert kind_of(null.fileno()) is Kind.DEVICE
        Output(null.fileno(), "agent").check()
