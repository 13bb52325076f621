"""NATS: its text protocol, without acknowledgements (``verbose`` off), as its clients use it."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from wakehub.bench.dialects import CROWD, Greeting, agent_id, message, until

_CONNECT: Final = {"verbose": False, "pedantic": False, "echo": False, "lang": "python", "version": "1", "protocol": 1}


class Nats:
    """Messages of `size` bytes; a subject per agent. The server pings now and then, and wants an answer."""

    lanes = 1
    rotates = False
    noise: Mapping[bytes, bytes] = MappingProxyType({b"PING\r\n": b"PONG\r\n"})

    def __init__(self, size: int) -> None:
        self._size = size

    def greet(self, agent: int, lane: int, *, crowd: bool) -> Greeting:
        info = yield from until(b"\r\n")
        out = b"CONNECT " + json.dumps(_CONNECT).encode() + b"\r\n" + f"SUB {agent_id(agent)} 1\r\n".encode()
        if crowd:
            out += f"SUB {CROWD} 2\r\n".encode()
        yield from until(b"PONG\r\n", info + (yield out + b"PING\r\n"))

    def wake(self, sender: int, recipient: int) -> bytes:
        return self._publish(agent_id(recipient), message(sender, recipient, self._size))

    def heard(self, sender: int, recipient: int) -> bytes:
        return self._heard(f"{agent_id(recipient)} 1", message(sender, recipient, self._size))

    def answer_bytes(self, sender: int, recipient: int) -> int:
        return 0

    def broadcast(self, sender: int) -> bytes:
        return self._publish(CROWD, message(sender, sender, self._size))

    def heard_broadcast(self, sender: int) -> bytes:
        return self._heard(f"{CROWD} 2", message(sender, sender, self._size))

    def broadcast_answer_bytes(self, sender: int, listeners: int) -> int:
        return 0

    def _publish(self, subject: str, text: bytes) -> bytes:
        return f"PUB {subject} {len(text)}\r\n".encode() + text + b"\r\n"

    def _heard(self, subject: str, text: bytes) -> bytes:
        return f"MSG {subject} {len(text)}\r\n".encode() + text + b"\r\n"


make: Final = Nats
