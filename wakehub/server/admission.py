"""Who gets a connection at all: the kernel's word on the peer, the ceiling, and the accept loop (awh1.md §4.1, §5.1).

A refused uid gets not one byte and takes no slot. When accept() fails, for want of descriptors or memory, that is
logged once per change, the loop pauses and goes on: it never spins and never ends.
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
from wakehub.server.listener import Listener

_REMEDIES = {
    "EMFILE": "raise this process's limit of open files (ulimit -n, LimitNOFILE=)",
    "ENFILE": "raise the system's limit of open files (fs.file-max)",
}
_BATCH = 64


async def accept_forever(
    listener: Listener,
    authorizer: peercred.Authorizer,
    take: Callable[[socket.socket, PeerCredentials], None],
    refused: Callable[[PeerCredentials | None], None],
    log: Any,
) -> None:
    """Accept until cancelled, from whichever socket `listener` has; hand each authorized one (non-blocking) to `take`.

    `take` owns the socket from then on; `refused` is told of a peer whose credentials were not accepted.
    """
    failing = ""
    while True:
        with contextlib.suppress(trio.ClosedResourceError):  # bound anew: the next turn waits for the new one
            await trio.lowlevel.wait_readable(listener.sock)
        for _ in range(_BATCH):
            try:
                sock, _address = listener.sock.accept()
            except (BlockingIOError, ConnectionAbortedError):  # nobody any more
                break
            except OSError as error:
                name = errno.errorcode.get(error.errno or 0, str(error))
                if name != failing:
                    log.error("accept fails", error=name, remedy=_REMEDIES.get(name, "it is tried again"))
                    failing = name
                await trio.sleep(ACCEPT_PAUSE_MS / 1000)
                break
            if failing:
                log.info("accept works again")
                failing = ""
            gate(sock, authorizer, take, refused)


def gate(
    sock: socket.socket,
    authorizer: peercred.Authorizer,
    take: Callable[[socket.socket, PeerCredentials], None],
    refused: Callable[[PeerCredentials | None], None],
) -> None:
    """Hand an accepted socket to `take`, non-blocking, if its peer is authorized; else close it and tell `refused`."""
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


def turn_away(sock: socket.socket, answer: bytes) -> None:
    """Write a frame to a fresh non-blocking socket and close it.

    The buffer of a socket that was just accepted holds a frame, and the peer can read it after the close. So a refusal
    takes no task, no time and no descriptor beyond this call: none can pile up, and each surplus peer is answered.
    """
    with contextlib.suppress(OSError):  # gone already
        sock.send(answer)
    sock.close()


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
