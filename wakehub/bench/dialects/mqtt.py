"""MQTT 3.1.1 with QoS 0, as Mosquitto and others speak it: nothing is acknowledged but the subscription."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from wakehub.bench.dialects import CROWD, Greeting, Wrong, agent_id, message, until

_CONNECT, _CONNACK, _PUBLISH, _SUBSCRIBE, _SUBACK = 0x10, 0x20, 0x30, 0x82, 0x90
_LEVEL: Final = 4
_CLEAN_SESSION: Final = 2
_NO_KEEPALIVE: Final = bytes(2)


class Mqtt:
    """Messages of `size` bytes; a topic per agent."""

    lanes = 1
    rotates = False
    noise: Mapping[bytes, bytes] = MappingProxyType({})

    def __init__(self, size: int) -> None:
        self._size = size

    def greet(self, agent: int, lane: int, *, crowd: bool) -> Greeting:
        body = _text("MQTT") + bytes((_LEVEL, _CLEAN_SESSION)) + _NO_KEEPALIVE + _text(agent_id(agent))
        answer = yield packet(_CONNECT, body)
        if answer != bytes((_CONNACK, 2, 0, 0)):
            raise Wrong(f"the MQTT broker refused: {answer[:8].hex()}")
        topics = [agent_id(agent), *([CROWD] if crowd else [])]
        wanted = b"\0\1" + b"".join(_text(topic) + b"\0" for topic in topics)
        granted = bytes((_SUBACK, 2 + len(topics), 0, 1)) + bytes(len(topics))
        yield from until(granted, (yield packet(_SUBSCRIBE, wanted)))

    def wake(self, sender: int, recipient: int) -> bytes:
        return packet(_PUBLISH, _text(agent_id(recipient)) + message(sender, recipient, self._size))

    def heard(self, sender: int, recipient: int) -> bytes:
        return self.wake(sender, recipient)

    def answer_bytes(self, sender: int, recipient: int) -> int:
        return 0

    def broadcast(self, sender: int) -> bytes:
        return packet(_PUBLISH, _text(CROWD) + message(sender, sender, self._size))

    def heard_broadcast(self, sender: int) -> bytes:
        return self.broadcast(sender)

    def broadcast_answer_bytes(self, sender: int, listeners: int) -> int:
        return 0


def packet(kind: int, body: bytes) -> bytes:
    """A control packet: kind, remaining length in 7-bit groups, body."""
    size, length = len(body), b""
    while True:
        size, group = size >> 7, size & 0x7F
        length += bytes((group | 0x80 if size else group,))
        if not size:
            return bytes((kind,)) + length + body


def _text(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


make: Final = Mqtt
