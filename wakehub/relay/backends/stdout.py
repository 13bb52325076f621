"""Messages on standard output, or any descriptor, each proven to have left the kernel (receive.md §4; faults F1, F7).

An unread pipe swallows 64 KiB without a word, so a write that returned proves nothing. On a pipe or a Unix socket a
message counts as handed off when the reader is there and the kernel holds no byte of it; until then no other message
is written, so at most one is in doubt.

| output | proof |
|---|---|
| pipe, Unix socket on Linux | `read`: the kernel holds none of it, and the reader is there |
| pipe or socket where the kernel does not tell | `buffered`: written, and the reader is there |
| terminal, other device | `written` |
| regular file | `synced`: written and fsync returned |

Writing never blocks the listener: in pieces that fit, when the descriptor says so, and in a worker thread, since the
descriptor's flags are shared with other processes and not ours to change.
"""

import errno
import fcntl
import os
import select
import socket
import stat
import struct
import sys
import termios
from enum import Enum, auto
from typing import Final

import trio

from wakehub.limits import PROOF_FIRST_POLL_MS, PROOF_POLL_CAP_MS
from wakehub.relay.backends import Backend, HandedOff, NotNow, Outcome, OutputGone
from wakehub.relay.message import Message
from wakehub.relay.options import Format
from wakehub.relay.render import render

_COUNT: Final = struct.Struct("i")
_GONE: Final = frozenset({errno.EPIPE, errno.EBADF, errno.EIO, errno.ECONNRESET, errno.ENOTCONN, errno.ENXIO})


class Kind(Enum):
    """What a descriptor leads to, as far as proof differs."""

    PIPE = auto()
    SOCKET = auto()
    TERMINAL = auto()
    FILE = auto()
    DEVICE = auto()


def kind_of(fd: int) -> Kind:
    """What `fd` leads to; raises `OutputGone` when it is closed."""
    try:
        mode = os.fstat(fd).st_mode
    except OSError as error:
        raise OutputGone(f"the output is closed ({error.strerror})") from error
    if stat.S_ISFIFO(mode):
        return Kind.PIPE
    if stat.S_ISSOCK(mode):
        return Kind.SOCKET
    if stat.S_ISREG(mode):
        return Kind.FILE
    return Kind.TERMINAL if os.isatty(fd) else Kind.DEVICE


class Output(Backend):
    """Delivers to the descriptor `fd` in one format; see the table above for what proves it."""

    def __init__(self, fd: int, form: Format) -> None:
        self._fd = fd
        self._form = form
        self._kind = kind_of(fd)
        self._kernel_tells = _kernel_tells(fd, self._kind)
        self.mode = f"format {form}; a message is acknowledged once its reader has it"
        self.dies_with_parent = self._kind in (Kind.TERMINAL, Kind.PIPE, Kind.SOCKET)

    def check(self) -> None:
        """Raise `OutputGone` when the reader, or the terminal, is gone."""
        if self._kind in (Kind.FILE, Kind.DEVICE):
            return
        poll = select.poll()
        poll.register(self._fd, 0)  # errors and hang-ups are always reported
        if poll.poll(0):
            raise OutputGone("the reader of the output is gone")

    async def deliver(self, message: Message) -> Outcome:
        data = render(message, self._form)
        try:
            self.check()
            await self._write(data)
            return HandedOff(await self._prove())
        except OSError as error:
            if error.errno in _GONE:
                raise OutputGone(f"the output is gone ({error.strerror})", in_doubt=True) from error
            return NotNow(f"cannot write: {error.strerror}", in_doubt=True)

    async def show(self, message: Message) -> None:
        """Write a message without asking for proof, for one that is only looked at; raises `OutputGone`."""
        try:
            await self._write(render(message, self._form))
        except OSError as error:
            raise OutputGone(f"the output cannot be written ({error.strerror})") from error

    async def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        says_when = self._kind not in (Kind.FILE, Kind.DEVICE)
        while rest:
            piece = rest[: select.PIPE_BUF] if says_when else rest
            if says_when:
                await trio.lowlevel.wait_writable(self._fd)
            try:
                written = await trio.to_thread.run_sync(os.write, self._fd, piece, abandon_on_cancel=True)
            except BlockingIOError:  # another process made it non-blocking, and a third one filled it
                continue
            rest = rest[written:]

    async def _prove(self) -> str:
        match self._kind:
            case Kind.FILE:
                await trio.to_thread.run_sync(os.fsync, self._fd, abandon_on_cancel=True)
                return "synced"
            case Kind.TERMINAL | Kind.DEVICE:
                return "written"
        if self._kernel_tells:
            await self._until_read()
        self._check_in_doubt()
        return "read" if self._kernel_tells else "buffered"

    async def _until_read(self) -> None:
        """Wait, as long as it takes, until the kernel holds no byte; nothing tells of it but asking."""
        pause_ms: float = PROOF_FIRST_POLL_MS
        while _held(self._fd, self._kind):
            self._check_in_doubt()
            await trio.sleep(pause_ms / 1000)
            pause_ms = min(pause_ms * 2, PROOF_POLL_CAP_MS)

    def _check_in_doubt(self) -> None:
        try:
            self.check()
        except OutputGone as gone:
            raise OutputGone(gone.what, in_doubt=True) from None


def _kernel_tells(fd: int, kind: Kind) -> bool:
    """Whether the kernel says how much of what was written is unread.

    macOS counts at the reading end only; a network socket counts what the peer's kernel has not confirmed.
    """
    if sys.platform != "linux":
        return False
    if kind is Kind.SOCKET:
        with socket.socket(fileno=os.dup(fd)) as sock:
            return sock.family == socket.AF_UNIX
    return kind is Kind.PIPE


def _held(fd: int, kind: Kind) -> int:
    """How many bytes the kernel holds unread: FIONREAD of a pipe, SIOCOUTQ (= TIOCOUTQ) of a socket."""
    request = termios.TIOCOUTQ if kind is Kind.SOCKET else termios.FIONREAD
    (count,) = _COUNT.unpack(fcntl.ioctl(fd, request, bytes(_COUNT.size)))
    assert isinstance(count, int)
    return count
