"""Who gets a connection at all: the kernel's word on the peer, the ceiling, and the accept loop (awh1.md §4.1, §5.1).

A refused uid gets not one byte and takes no slot. At the ceiling a peer gets its 507 off the accept loop, so that one
who does not read holds nobody up. When accept() fails for want of descriptors or memory, that is logged once per
change, the loop pauses and goes on: it never spins and never ends.
"""

import contextlib
import errno
import socket
from collections.abc import Callable
from typing import Any

import trio

from wakehub.identity import peercred
from wakehub.identity.peercred import PeerCredentials
from wakehub.limits import ACCEPT_PAUSE_MS

_SHORTAGE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_BATCH = 64


async def accept_forever(
    listener: socket.socket,
    authorizer: peercred.Authorizer,
    take: Callable[[socket.socket, PeerCredentials], None],
    refused: Callable[[PeerCredentials | None], None],
    log: Any,
) -> None:
    """Accept from a non-blocking `listener` until cancelled; hand each authorized socket (non-blocking) to `take`.

    `take` owns the socket from then on; `refused` is told of a peer whose credentials were not accepted.
    """
    short_of = ""
    while True:
        await trio.lowlevel.wait_readable(listener)
        for _ in range(_BATCH):
            try:
                sock, _address = listener.accept()
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno not in _SHORTAGE:
                    break  # the peer has gone already
                name = errno.errorcode[error.errno]
                if name != short_of:
                    log.error("accept fails", error=name, remedy="raise the limit of open files")
                    short_of = name
                await trio.sleep(ACCEPT_PAUSE_MS / 1000)
                break
            if short_of:
                log.info("accept works again")
                short_of = ""
            _gate(sock, authorizer, take, refused)


def _gate(
    sock: socket.socket,
    authorizer: peercred.Authorizer,
    take: Callable[[socket.socket, PeerCredentials], None],
    refused: Callable[[PeerCredentials | None], None],
) -> None:
    try:
        peer = peercred.read(sock)
    except OSError:
        peer = None
    if peer is None or not authorizer.allows(peer):
        sock.close()
        refused(peer)
        return
    sock.setblocking(False)
    take(sock, peer)


async def say_and_close(sock: socket.socket, data: bytes, deadline_ms: int, done: Callable[[], None]) -> None:
    """Write `data` to a non-blocking socket, let the peer read it, and close, all within `deadline_ms`."""
    try:
        with trio.move_on_after(deadline_ms / 1000), contextlib.suppress(OSError):
            await send_all(sock, data)
            sock.shutdown(socket.SHUT_WR)
            while True:
                await trio.lowlevel.wait_readable(sock)
                with contextlib.suppress(BlockingIOError):
                    if not sock.recv(4096):
                        return
    finally:
        trio.lowlevel.notify_closing(sock)
        sock.close()
        done()


async def send_all(sock: socket.socket, data: bytes) -> None:
    """Write all of `data` to a non-blocking socket; raises `OSError` when the peer has gone."""
    view = memoryview(data)
    while view:
        await trio.lowlevel.wait_writable(sock)
        with contextlib.suppress(BlockingIOError):
            view = view[sock.send(view) :]
