"""The least that anything could cost, measured in the same run with the same frames and the same load client.

- *socketpair*: the load client writes into one end and reads from the other. Nobody is woken, nothing decided: it is
  the price of the load client itself, and so shows that it is not the bottleneck.
- *epoll*: this module as a process: a hub in plain Python that forwards and does nothing else. It learns an agent's id
  from the hello, looks the recipient up, and sends on the bytes that came in. No signature, no check, no limit, no
  queue, no log: what is missing between it and the real hub is what the real hub is for.

    python -m wakehub.bench.floors SOCKET
"""

import os
import select
import socket
import sys
from typing import Final

from wakehub.limits import HEADER_BYTES, LISTEN_BACKLOG, PREFIX_BYTES, RECEIVE_BYTES
from wakehub.wire.frames import PREFIX, Frame, Kind, encode
from wakehub.wire.payloads import Welcome

_KIND_AT: Final = PREFIX_BYTES + 5
_FROM_LEN_AT: Final = PREFIX_BYTES + 7
_IDS_AT: Final = PREFIX_BYTES + HEADER_BYTES
_HUB: Final = b"floor"
_WELCOME: Final = Welcome(1, 0, 0, False, 1, 0).encode()


class ForwardHub:
    """Forwards wakes by recipient, and those for a ``#topic`` to every connected agent but the sender."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._poller = _Poller()
        self._poller.watch(listener.fileno())
        self._sockets: dict[int, socket.socket] = {}
        self._unfinished: dict[int, bytes] = {}
        self._agents: dict[bytes, socket.socket] = {}

    def run(self) -> None:
        """Serve until killed."""
        listening = self._listener.fileno()
        while True:
            for fd in self._poller.ready():
                if fd == listening:
                    self._accept()
                else:
                    self._read(fd)

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        self._sockets[sock.fileno()] = sock
        self._unfinished[sock.fileno()] = b""
        self._poller.watch(sock.fileno())
        sock.sendall(encode(Frame(Kind.HELLO, _HUB, payload=bytes(32))))

    def _read(self, fd: int) -> None:
        sock = self._sockets[fd]
        try:
            data = self._unfinished[fd] + sock.recv(RECEIVE_BYTES)
        except OSError:
            data = b""
        if not data:
            self._forget(fd, sock)
            return
        at = 0
        while len(data) - at >= PREFIX_BYTES:
            end = at + PREFIX_BYTES + PREFIX.unpack_from(data, at)[0]
            if end > len(data):
                break
            self._forward(data[at:end], sock)
            at = end
        self._unfinished[fd] = data[at:]

    def _forward(self, raw: bytes, sock: socket.socket) -> None:
        to_at = _IDS_AT + raw[_FROM_LEN_AT]
        if raw[_KIND_AT] == Kind.HELLO:
            agent = raw[_IDS_AT:to_at]
            self._agents[agent] = sock
            sock.sendall(encode(Frame(Kind.WELCOME, _HUB, agent, _WELCOME)))
            return
        to = raw[to_at : to_at + raw[_FROM_LEN_AT + 1]]
        if to.startswith(b"#"):
            for other in self._agents.values():
                if other is not sock:
                    other.send(raw)
            return
        self._agents[to].send(raw)

    def _forget(self, fd: int, sock: socket.socket) -> None:
        del self._sockets[fd], self._unfinished[fd]
        for agent in [agent for agent, other in self._agents.items() if other is sock]:
            del self._agents[agent]
        sock.close()


if sys.platform == "linux":

    class _Poller:
        """Which descriptors can be read; the kernel forgets one when it is closed."""

        def __init__(self) -> None:
            self._epoll = select.epoll()

        def watch(self, fd: int) -> None:
            self._epoll.register(fd, select.EPOLLIN)

        def ready(self) -> list[int]:
            return [fd for fd, _ in self._epoll.poll()]

else:

    class _Poller:
        """The same with kqueue."""

        def __init__(self) -> None:
            self._queue = select.kqueue()

        def watch(self, fd: int) -> None:
            self._queue.control([select.kevent(fd, select.KQ_FILTER_READ, select.KQ_EV_ADD)], 0)

        def ready(self) -> list[int]:
            return [event.ident for event in self._queue.control(None, 64)]


def main(path: str) -> None:
    """Listen at `path` (bound under another name first, so that whoever finds it finds an answer) and forward."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path + "~")
        listener.listen(LISTEN_BACKLOG)
        os.rename(path + "~", path)
        ForwardHub(listener).run()


if __name__ == "__main__":
    main(sys.argv[1])
