"""What is signed: the hello, join and depart transcripts (awh1.md §3).

The nonce is the connection's own, one for all three; the domain strings keep them apart.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

from wakehub.wire.fields import lp
from wakehub.wire.frames import Kind

_HELLO: Final = b"a2a/v1/hello"
_MEMBERSHIP: Final = {Kind.JOIN: b"a2a/v1/join", Kind.DEPART: b"a2a/v1/depart"}


def topics_hash(topics: Sequence[bytes]) -> bytes:
    """SHA-256 (32 bytes) over ``LP(topic)`` of each topic in wire order, without a count."""
    return hashlib.sha256(b"".join(lp(topic) for topic in topics)).digest()


def hello(hub_id: bytes, nonce: bytes, agent_id: bytes, topics: Sequence[bytes]) -> bytes:
    """The hello transcript; `nonce` is the 32 bytes of the hub's challenge."""
    return _HELLO + lp(hub_id) + nonce + lp(agent_id) + topics_hash(topics)


def membership(kind: Kind, hub_id: bytes, nonce: bytes, agent_id: bytes) -> bytes:
    """The transcript of `Kind.JOIN` or `Kind.DEPART`."""
    return _MEMBERSHIP[kind] + lp(hub_id) + nonce + lp(agent_id)
