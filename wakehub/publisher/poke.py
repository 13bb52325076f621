"""The socket on which a sender says "these rows are new" (formats.md, Poke): `run/publish.sock`.

One line in, one line per id out, closed by us within 2 s. A line that is not as it must be, or a record that cannot be
read, gets one line ``{"error":…}``. An empty list of ids is a good question too: it makes the publisher look at the
registry at once, and is answered by the close alone. A row whose turn has not come in time is answered as ``refused``
with code 429: the wake follows, and the receipt in the record says when.

Whoever may connect is decided by the kernel's word on the peer, before a byte is read. At most 32 clients are served
at once; the rest wait in the kernel's backlog, for 2 s at most per client ahead of them. The socket is replaced when
its path is no longer it (the runtime directory was wiped), and removed at the end only while it still is.
"""

import errno
import json
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import structlog
import trio

from wakehub import sockets
from wakehub.errors import WakehubError
from wakehub.identity import peercred, strict_json
from wakehub.identity.peercred import SameUidAuthorizer
from wakehub.limits import (
    ACCEPT_PAUSE_MS,
    LISTEN_BACKLOG,
    MAX_POKE_CLIENTS,
    MAX_POKE_IDS,
    MAX_POKE_LINE_BYTES,
    POKE_DEADLINE_MS,
    SOCKET_CHECK_SECONDS,
)
from wakehub.publisher.hints import Outcome

Submit = Callable[[Sequence[str]], Awaitable[dict[str, Outcome]]]
"""Takes row ids and returns an outcome for each, some time before the poke's deadline; raises `WakehubError`."""

_log = structlog.get_logger(program="publisher")
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_FIELDS: Final = frozenset({"v", "ids"})
_VERSION: Final = 1


def parse_poke(line: bytes) -> list[str]:
    """The row ids that a line asks about (0..256); raises `ValueError` with what is wrong with it."""
    found = strict_json.parse(line, _FIELDS)
    strict_json.integer(found, "v", _VERSION, _VERSION)
    ids = strict_json.array(found, "ids")
    if len(ids) > MAX_POKE_IDS:
        raise ValueError(f"{len(ids)} ids exceed {MAX_POKE_IDS}")
    if not all(isinstance(row_id, str) for row_id in ids):
        raise ValueError("an id is not text")
    return ids


def answer_line(row_id: str, outcome: Outcome) -> bytes:
    """The line that answers for one id."""
    answer = {"id": row_id, "state": outcome.state, "code": outcome.code, "holder": outcome.holder}
    return json.dumps(answer).encode() + b"\n"


class PokeServer:
    """Serves the socket at `path` with what `submit` answers; `authorizer` decides who may ask."""

    def __init__(self, path: Path, submit: Submit, authorizer: SameUidAuthorizer | None = None) -> None:
        self._path = path
        self._submit = submit
        self._authorizer = authorizer or SameUidAuthorizer()
        self._slots = trio.Semaphore(MAX_POKE_CLIENTS)
        self._exhausted = False

    async def run(self, *, task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; started once the socket answers. The caller holds `publish.lock`.

        Raises as `sockets.refuse_live` and `sockets.bind` do.
        """
        sockets.refuse_live(self._path, what="a publisher")
        async with trio.open_nursery() as clients:
            while True:
                listener = sockets.bind(self._path, LISTEN_BACKLOG)
                bound = os.lstat(self._path)
                try:
                    async with trio.open_nursery() as accepting:
                        accepting.start_soon(self._accept, listener, clients)
                        task_status.started()
                        task_status = trio.TASK_STATUS_IGNORED
                        await self._until_displaced(bound)
                        accepting.cancel_scope.cancel()
                finally:
                    listener.close()
                    if self._is_at_path(bound):
                        os.unlink(self._path)

    async def _until_displaced(self, bound: os.stat_result) -> None:
        while self._is_at_path(bound):  # noqa: ASYNC110 - the file system tells nobody
            await trio.sleep(SOCKET_CHECK_SECONDS)
        _log.warning("publish.sock is no longer at its path and is bound again", path=str(self._path))

    def _is_at_path(self, bound: os.stat_result) -> bool:
        try:
            found = os.lstat(self._path)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (bound.st_dev, bound.st_ino)

    async def _accept(self, raw: socket.socket, clients: trio.Nursery) -> None:
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(raw))
        while True:
            await self._slots.acquire()
            try:
                stream = await listener.accept()
            except OSError as error:
                self._slots.release()
                if error.errno not in _EXHAUSTED:
                    raise
                await self._pause(error)
            except BaseException:
                self._slots.release()
                raise
            else:
                self._exhausted = False
                clients.start_soon(self._serve, stream)

    async def _pause(self, error: OSError) -> None:
        if not self._exhausted:
            _log.warning("cannot accept pokes for want of descriptors", why=error.strerror)
        self._exhausted = True
        await trio.sleep(ACCEPT_PAUSE_MS / 1000)

    async def _serve(self, stream: trio.SocketStream) -> None:
        try:
            with trio.move_on_after(POKE_DEADLINE_MS / 1000):
                async with stream:
                    if self._authorizer.allows(peercred.read(stream.socket)):
                        await self._talk(stream)
        except (OSError, trio.BrokenResourceError):
            pass  # the sender is gone; its row is in the record all the same
        finally:
            self._slots.release()

    async def _talk(self, stream: trio.SocketStream) -> None:
        try:
            ids = parse_poke(await _read_line(stream))
            outcomes = await self._submit(ids)
        except (ValueError, WakehubError) as error:
            await stream.send_all(json.dumps({"error": str(error)}).encode() + b"\n")
        else:
            await stream.send_all(b"".join(answer_line(row_id, outcomes[row_id]) for row_id in ids))


async def _read_line(stream: trio.SocketStream) -> bytes:
    """One line without its end; raises `ValueError` when it is too long or never ends."""
    line = b""
    while True:
        part = await stream.receive_some(MAX_POKE_LINE_BYTES)
        line += part
        found, end, _ = line.partition(b"\n")
        if len(found) > MAX_POKE_LINE_BYTES:
            raise ValueError(f"the line exceeds {MAX_POKE_LINE_BYTES} bytes")
        if end:
            return found
        if not part:
            raise ValueError("the line has no end")
