"""HTTP POST in, server-sent events out: what a web framework offers for waking somebody.

An agent has two connections: one that is kept alive for its POSTs, and one on which its events come.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from wakehub.bench.dialects import CROWD, Greeting, agent_id, message, until
from wakehub.bench.sse import HELLO

_END_OF_HEAD: Final = b"\r\n\r\n"


class Sse:
    """Messages of `size` bytes of text."""

    lanes = 2
    rotates = False
    noise: Mapping[bytes, bytes] = MappingProxyType({})

    def __init__(self, size: int) -> None:
        self._size = size
        self._answer_bytes = 0

    def greet(self, agent: int, lane: int, *, crowd: bool) -> Greeting:
        if lane == 0:  # one POST to nobody, which shows how long an answer is
            answer = yield from until(_END_OF_HEAD, (yield _post("nobody", b"")))
            self._answer_bytes = len(answer)
            return
        where = f"/{agent_id(agent)}" + (f"?{CROWD}" if crowd else "")
        yield from until(chunk(HELLO), (yield f"GET {where} HTTP/1.1\r\nhost: bench\r\n\r\n".encode()))

    def wake(self, sender: int, recipient: int) -> bytes:
        return _post(agent_id(recipient), message(sender, recipient, self._size))

    def heard(self, sender: int, recipient: int) -> bytes:
        return chunk(b"data: " + message(sender, recipient, self._size) + b"\n\n")

    def answer_bytes(self, sender: int, recipient: int) -> int:
        return self._answer_bytes

    def broadcast(self, sender: int) -> bytes:
        return _post(CROWD, message(sender, sender, self._size))

    def heard_broadcast(self, sender: int) -> bytes:
        return chunk(b"data: " + message(sender, sender, self._size) + b"\n\n")

    def broadcast_answer_bytes(self, sender: int, listeners: int) -> int:
        return self._answer_bytes


def chunk(data: bytes) -> bytes:
    """One chunk of a body whose length is not told."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _post(to: str, body: bytes) -> bytes:
    return f"POST /{to} HTTP/1.1\r\nhost: bench\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


make: Final = Sse
