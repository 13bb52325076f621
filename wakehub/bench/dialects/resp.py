"""Redis: RESP3, in which one connection may subscribe and publish. The publisher is told how many heard it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from wakehub.bench.dialects import CROWD, Greeting, Wrong, agent_id, message, until
from wakehub.visible import visible


class Resp:
    """Messages of `size` bytes; a channel per agent."""

    lanes = 1
    rotates = False
    noise: Mapping[bytes, bytes] = MappingProxyType({})

    def __init__(self, size: int) -> None:
        self._size = size

    def greet(self, agent: int, lane: int, *, crowd: bool) -> Greeting:
        channels = [agent_id(agent), *([CROWD] if crowd else [])]
        answer = (
            yield _array(b"*", b"HELLO", b"3") + _array(b"*", b"SUBSCRIBE", *_encoded(channels)) + _array(b"*", b"PING")
        )
        if not answer.startswith(b"%"):
            raise Wrong(f"redis does not speak RESP3: {visible(answer[:80])}")
        yield from until(b"+PONG\r\n", answer)

    def wake(self, sender: int, recipient: int) -> bytes:
        return _publish(agent_id(recipient), message(sender, recipient, self._size))

    def heard(self, sender: int, recipient: int) -> bytes:
        return _pushed(agent_id(recipient), message(sender, recipient, self._size))

    def answer_bytes(self, sender: int, recipient: int) -> int:
        return len(b":1\r\n")

    def broadcast(self, sender: int) -> bytes:
        return _publish(CROWD, message(sender, sender, self._size))

    def heard_broadcast(self, sender: int) -> bytes:
        return _pushed(CROWD, message(sender, sender, self._size))

    def broadcast_answer_bytes(self, sender: int, listeners: int) -> int:
        return len(b":%d\r\n" % listeners)


def _publish(channel: str, text: bytes) -> bytes:
    return _array(b"*", b"PUBLISH", channel.encode(), text)


def _pushed(channel: str, text: bytes) -> bytes:
    return _array(b">", b"message", channel.encode(), text)


def _array(mark: bytes, *words: bytes) -> bytes:
    return mark + b"%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def _encoded(words: list[str]) -> list[bytes]:
    return [word.encode() for word in words]


make: Final = Resp
