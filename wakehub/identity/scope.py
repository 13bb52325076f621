"""Which topics a session may hold and send to (awh1.md §4.5).

An agent's own inbox topic always; a namespace topic when it lies, segment by segment, under one of the agent's
readable prefixes and is none of the substrate's own namespaces. A topic that is not well formed is held by nobody.
"""

from collections.abc import Iterable
from typing import Final

from wakehub.errors import Violation
from wakehub.limits import MAX_PREFIX_BYTES, MAX_PREFIXES, MAX_TOPIC_BYTES
from wakehub.wire.fields import check_topic

_SUBSTRATE: Final = frozenset({"_agents", "_agent_sessions", "_standards"})
_SUBSTRATE_UNDER: Final = ("_messages/", "_inbox/", "_curator/", "_subscriptions/", "_standard:")


def inbox_topic(agent_id: str) -> bytes | None:
    """``#_inbox/<agent id>``, or None when that does not fit in a topic (64 bytes)."""
    topic = f"#_inbox/{agent_id}".encode()
    return topic if len(topic) <= MAX_TOPIC_BYTES else None


def may_hold(agent_id: str, prefixes: Iterable[str], topic: bytes) -> bool:
    """Whether the agent with these readable prefixes may subscribe and send to `topic` (``#…`` as on the wire)."""
    try:
        check_topic(topic)
    except Violation:
        return False
    if topic == inbox_topic(agent_id):
        return True
    namespace = topic[1:].decode()
    if namespace in _SUBSTRATE or namespace.startswith(_SUBSTRATE_UNDER):
        return False
    return any(namespace == prefix or namespace.startswith(f"{prefix}/") for prefix in prefixes)


def prefixes_of(agent_id: str) -> tuple[str, ...]:
    """The readable prefixes of an enrolled agent: the nearest three parents of its path-like id, nearest first.

    One of those three that is too long for a topic is left out; no farther parent takes its place.
    """
    segments = agent_id.split("/")
    parents = ["/".join(segments[:depth]) for depth in range(len(segments) - 1, 0, -1)]
    return tuple(parent for parent in parents[:MAX_PREFIXES] if len(parent.encode()) <= MAX_PREFIX_BYTES)
