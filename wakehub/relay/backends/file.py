"""Each message at the end of a file, for an agent that reads it in its own time (receive.md §4; F58).

Opened anew for each message (0600, O_NOFOLLOW, under the file's lock), appended as one `agent` block, fsynced. It
counts as handed off when the path, looked at after that, still leads to the file that was written: whoever takes the
file by renaming it and reads it then finds every message that was acknowledged. One that was written while the file
was being taken is in doubt and comes again.

No half of a block stays: what could not be written whole is cut off again, and behind a crash the next block begins on
a line of its own.
"""

import os
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio

from wakehub import files
from wakehub.errors import CannotCreate, Unsafe
from wakehub.relay.backends import Backend, HandedOff, NotNow, Outcome
from wakehub.relay.message import Message
from wakehub.relay.options import Format
from wakehub.relay.render import TORN_END, render
from wakehub.visible import visible


class Mailbox(Backend):
    """Appends to the file at `path` (absolute) in one format."""

    def __init__(self, path: Path, form: Format) -> None:
        """Makes the file. Raises `Unsafe` (77) for one that is not ours alone, `CannotCreate` (73)."""
        self._path = path
        self._form = form
        self.mode = f"each message to the end of {visible(str(path))}, acknowledged once it is on disk; format {form}"
        with suppress(BlockingIOError), files.appendable(path, wait=False):
            pass
        files.sync_directory(path.parent)

    def check(self) -> None:
        """It is opened anew each time, so there is nothing that could be gone."""

    async def deliver(self, message: Message) -> Outcome:
        append = partial(self._append, render(message, self._form))
        return await trio.to_thread.run_sync(append)  # not abandoned when cancelled: no half of it may stay

    def _append(self, data: bytes) -> Outcome:
        try:
            with files.appendable(self._path, wait=False) as fd:
                return self._write(fd, data)
        except BlockingIOError:
            return NotNow(f"another process has {visible(str(self._path))} locked", busy=True)
        except (Unsafe, CannotCreate) as error:
            return NotNow(f"{error.what}: {error.why}")

    def _write(self, fd: int, data: bytes) -> Outcome:
        size = os.fstat(fd).st_size
        try:
            files.write_all(fd, self._end_of_torn(fd, size) + data)
            os.fsync(fd)
            if not size:
                files.sync_directory(self._path.parent)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(fd, size)
            return NotNow(f"cannot write {visible(str(self._path))}: {error.strerror}", in_doubt=True)
        if not self._leads_to(fd):
            return NotNow(f"{visible(str(self._path))} was taken away while it was written", in_doubt=True)
        return HandedOff("synced")

    def _end_of_torn(self, fd: int, size: int) -> bytes:
        is_torn = size and os.pread(fd, 1, size - 1) != b"\n"
        return TORN_END[self._form].encode() if is_torn else b""

    def _leads_to(self, fd: int) -> bool:
        try:
            there = os.stat(self._path, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(fd))
