"""Our own: AWH1, with the real handshake (awh1.md §2, §3) and the frames that the publisher's hints come in."""

import functools
import hashlib
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

from wakehub.bench.dialects import CROWD, Greeting, Wrong, agent_id
from wakehub.identity.delegation import Bundle
from wakehub.visible import visible
from wakehub.wire import transcript
from wakehub.wire.payloads import Error, Hello, Wake, Welcome
from wakehub.wire.protocol import Challenge, ClientProtocol, Event

TOPIC: Final = f"#{CROWD}".encode()
_Expected = TypeVar("_Expected", Challenge, Welcome)


def hint(sender: int, recipient: str) -> Wake:
    """What the publisher would tell: id, namespace, sender, digest, watermark."""
    row_id = f"m_01jb2c3d4e5f6g7h8j9k{sender:06}".encode()
    return Wake(row_id, f"_inbox/{recipient}".encode(), agent_id(sender).encode(), hashlib.sha256(row_id).digest(), 7)


HINT_BYTES: Final = len(hint(0, agent_id(1)).encode())
"""The payload of one wake; other systems carry as much."""


class Awh1:
    """`bundles` is a file with the agents' bundles, one a line."""

    lanes = 1
    rotates = True
    noise: Mapping[bytes, bytes] = MappingProxyType({})

    def __init__(self, bundles: str) -> None:
        self._bundles = [Bundle.from_json(line) for line in Path(bundles).read_text("utf-8").splitlines()]

    def greet(self, agent: int, lane: int, *, crowd: bool) -> Greeting:
        bundle = self._bundles[agent]
        topics = (TOPIC,) if crowd else ()
        protocol = ClientProtocol(bundle.agent_id.encode())
        challenge = yield from _expect(Challenge, protocol, b"")
        signed = transcript.hello(challenge.hub_id, challenge.nonce, protocol.agent_id, topics)
        delegate = bundle.delegate
        hello = Hello(delegate.public, delegate.sign(signed), bundle.certificate, topics)
        yield from _expect(Welcome, protocol, protocol.hello(hello))

    def wake(self, sender: int, recipient: int) -> bytes:
        name = agent_id(recipient)
        return self._frame(sender, name.encode(), hint(sender, name))

    def heard(self, sender: int, recipient: int) -> bytes:
        return self.wake(sender, recipient)  # a wake is forwarded as the very bytes that came in

    def answer_bytes(self, sender: int, recipient: int) -> int:
        return 0

    def broadcast(self, sender: int) -> bytes:
        return self._frame(sender, TOPIC, hint(sender, "all/all/all"))

    def heard_broadcast(self, sender: int) -> bytes:
        return self.broadcast(sender)

    def broadcast_answer_bytes(self, sender: int, listeners: int) -> int:
        return 0

    @functools.cache  # noqa: B019 - one per process, for as long as that lives
    def _frame(self, sender: int, to: bytes, wake: Wake) -> bytes:
        """Stamped, as the real client does; without expiry, so that it can be sent again and again."""
        return ClientProtocol(agent_id(sender).encode()).wake(to, wake, ts_ms=time.time_ns() // 1_000_000)


def _expect(kind: type[_Expected], protocol: ClientProtocol, out: bytes) -> Generator[bytes, bytes, _Expected]:
    while True:
        events: list[Event] = list(protocol.receive_data((yield out)))
        out = b""
        for event in events:
            if isinstance(event, kind):
                return event
            if isinstance(event, Error):
                raise Wrong(f"the hub refused {event.code} {visible(event.reason)}")


make: Final = Awh1
