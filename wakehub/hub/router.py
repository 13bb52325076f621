"""Which session a frame goes to: routes by agent id, subscribers by topic, in 16 shards (design.md, Data path).

The shard comes from a stable hash, never `hash()`, so that two runs place the same id alike. No table is ever
iterated across a suspension: everything here is synchronous, and what is handed out is a snapshot.
"""

import zlib

from wakehub.hub.session import Session
from wakehub.limits import ROUTER_SHARDS


class _Shard:
    __slots__ = ("routes", "topics")

    def __init__(self) -> None:
        self.routes: dict[bytes, Session] = {}
        self.topics: dict[bytes, dict[Session, None]] = {}


class Router:
    """At most one session per agent; any number of subscribers per topic."""

    def __init__(self) -> None:
        self._shards = tuple(_Shard() for _ in range(ROUTER_SHARDS))

    def __len__(self) -> int:
        """How many agents have a route."""
        return sum(len(shard.routes) for shard in self._shards)

    def route(self, agent: bytes) -> Session | None:
        """The session of `agent`, if it is connected."""
        return self._shard(agent).routes.get(agent)

    def install(self, agent: bytes, session: Session) -> Session | None:
        """Make `session` the one of `agent`; return the one it replaces."""
        routes = self._shard(agent).routes
        previous = routes.get(agent)
        routes[agent] = session
        return previous

    def remove(self, agent: bytes, session: Session) -> bool:
        """Remove the route of `agent` if it still is `session`; an old session's end never removes a newer route."""
        routes = self._shard(agent).routes
        if routes.get(agent) is not session:
            return False
        del routes[agent]
        return True

    def subscribe(self, topic: bytes, session: Session) -> None:
        self._shard(topic).topics.setdefault(topic, {})[session] = None

    def unsubscribe(self, topic: bytes, session: Session) -> None:
        topics = self._shard(topic).topics
        subscribers = topics.get(topic)
        if subscribers is not None and session in subscribers:
            del subscribers[session]
            if not subscribers:
                del topics[topic]

    def subscribers(self, topic: bytes, but: Session) -> list[Session]:
        """Every subscriber of `topic` but one, in order of subscription."""
        return [session for session in self._shard(topic).topics.get(topic, ()) if session is not but]

    def _shard(self, key: bytes) -> _Shard:
        return self._shards[zlib.crc32(key) % ROUTER_SHARDS]
