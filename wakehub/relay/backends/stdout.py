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

No half of a message stays with another one behind it. On a regular file what could not be written whole is cut off
again, if nothing else was written behind it; if something was, the next message begins on a line of its own. Of a
stream nothing can be taken back: once a part of a message is out and the rest cannot follow, the output is gone.
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
from wakehub.relay.render import TORN_END, render

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

    def __init__(self, fd: int, form: Format, *, patient: bool = True) -> None:
        """`patient`: an output that cannot be written is tried again; otherwise it counts as gone."""
        self._fd = fd
        self._form = form
        self._patient = patient
        self._kind = kind_of(fd)
        self._is_torn = False
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
        except _Unwritten as failed:
            return self._later(failed)
        except OSError as error:
            return self._later(_Unwritten(error, len(data)))

    async def show(self, message: Message) -> None:
        """Write a message without asking for proof, for one that is only looked at; raises `OutputGone`."""
        try:
            await self._write(render(message, self._form))
        except _Unwritten as failed:
            raise OutputGone(f"the output cannot be written ({failed.why})") from failed

    def _later(self, failed: "_Unwritten") -> NotNow:
        """Whether it can be tried again behind this failure; raises `OutputGone` when it cannot."""
        is_out = failed.written > 0
        if failed.code in _GONE:
            raise OutputGone(f"the output is gone ({failed.why})", in_doubt=is_out)
        if not self._patient or (is_out and self._kind is not Kind.FILE):
            raise OutputGone(f"the output cannot be written ({failed.why})", in_doubt=is_out)
        return NotNow(f"the output cannot be written ({failed.why})", in_doubt=is_out)

    async def _write(self, data: bytes) -> None:
        """Write all of it; raises `_Unwritten`."""
        if self._kind is Kind.FILE:  # not abandoned when cancelled: it takes no reader, and leaves no half behind
            await trio.to_thread.run_sync(self._append, data)
            return
        written = 0
        while written < len(data):
            try:
                written += await self._write_some(memoryview(data)[written:])
            except OSError as error:
                raise _Unwritten(error, written) from error

    async def _write_some(self, rest: memoryview) -> int:
        if self._kind is not Kind.DEVICE:
            await trio.lowlevel.wait_writable(self._fd)
            rest = rest[: select.PIPE_BUF]
        try:
            return await trio.to_thread.run_sync(os.write, self._fd, rest, abandon_on_cancel=True)
        except BlockingIOError:  # another process made it non-blocking, and a third one filled it
            return 0

    def _append(self, data: bytes) -> None:
        """Write to a regular file and see it on disk, or leave the file as it was found."""
        rest = memoryview((TORN_END[self._form].encode() if self._is_torn else b"") + data)
        start, written = None, 0
        try:
            start = self._end()
            while written < len(rest):
                written += os.write(self._fd, rest[written:])
            os.fsync(self._fd)
        except OSError as error:
            if written and not self._cut(start, written):
                self._is_torn = written < len(rest)
            raise _Unwritten(error, written) from error
        self._is_torn = False

    def _end(self) -> int | None:
        """Where the file ends, if that is where the next write goes."""
        size = os.fstat(self._fd).st_size
        if fcntl.fcntl(self._fd, fcntl.F_GETFL) & os.O_APPEND:
            return size
        return size if os.lseek(self._fd, 0, os.SEEK_CUR) == size else None

    def _cut(self, start: int | None, written: int) -> bool:
        """Take back `written` bytes from `start` on, unless something else was written behind them."""
        try:
            if start is None or self._end() != start + written:
                return False
            os.ftruncate(self._fd, start)
            os.lseek(self._fd, start, os.SEEK_SET)
        except OSError:
            return False
        return True

    async def _prove(self) -> str:
        match self._kind:
            case Kind.FILE:
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


class _Unwritten(Exception):
    """`written` bytes of a message went out, and then `error` stood in the way."""

    def __init__(self, error: OSError, written: int) -> None:
        super().__init__(str(error))
        self.code = error.errno
        self.why = error.strerror or "the write failed"
        self.written = written


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
