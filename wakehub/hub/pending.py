"""Which agents are known, and which row ids wait for those that are not there (awh1.md §5.8).

Memory only. The record is the truth; this is what makes a returning agent look at it at once.
"""

from dataclasses import dataclass, field

from wakehub.limits import MAX_ID_BYTES, MAX_PENDING_IDS


@dataclass(slots=True)
class PendingSet:
    """`count` wakes were retained and the first 64 distinct row ids kept; `lagged`: some id is not among them."""

    count: int = 0
    ids: dict[bytes, None] = field(default_factory=dict)
    lagged: bool = False

    def record(self, row_id: bytes) -> None:
        """Retain one wake. An empty id, one over 128 bytes, or a 65th distinct one sets `lagged`."""
        self.count += 1
        if row_id in self.ids:
            return
        if not row_id or len(row_id) > MAX_ID_BYTES or len(self.ids) >= MAX_PENDING_IDS:
            self.lagged = True
        else:
            self.ids[row_id] = None

    def welcomed(self) -> None:
        """The agent was told the count and `lagged`; the ids still wait."""
        self.count = len(self.ids)
        self.lagged = False

    def waiting(self) -> list[bytes]:
        """The ids to wake the agent with, in order, and an empty one for those that are lost (`lagged`)."""
        return [*self.ids, b""] if self.lagged else list(self.ids)

    def replayed(self, row_id: bytes) -> None:
        """One of `waiting` waits no more."""
        if row_id:
            del self.ids[row_id]
        else:
            self.lagged = False
        self.count = self.count - 1 if self.ids or self.lagged else 0


@dataclass(slots=True)
class _Known:
    pending: PendingSet = field(default_factory=PendingSet)
    absent_since: int = 0  # order of leaving; 0 while connected


class KnownAgents:
    """Agents that completed a hello since the start and have not departed; at most `limit`.

    When there are more, the absent agent with the least pending goes, among those the one longest absent. Connected
    agents are never displaced: their number has a ceiling of its own, and who is one too many goes when it leaves.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._agents: dict[bytes, _Known] = {}
        self._departures = 0

    def __len__(self) -> int:
        return len(self._agents)

    def __contains__(self, agent: bytes) -> bool:
        return agent in self._agents

    def enter(self, agent: bytes) -> None:
        """Mark `agent` known and connected; see `evict`."""
        self._agents.setdefault(agent, _Known()).absent_since = 0

    def leave(self, agent: bytes) -> None:
        """`agent` is no longer connected; it stays known, but see `evict`."""
        known = self._agents.get(agent)
        if known is not None:
            self._departures += 1
            known.absent_since = self._departures

    def forget(self, agent: bytes) -> None:
        """`agent` departed: neither known nor owed anything."""
        self._agents.pop(agent, None)

    def pending(self, agent: bytes) -> PendingSet | None:
        """What waits for `agent`, None when it is not known."""
        known = self._agents.get(agent)
        return None if known is None else known.pending

    def evict(self) -> bytes | None:
        """Forget one absent agent if there are more than `limit`; return it, None when nobody has to go or can."""
        if len(self._agents) <= self._limit:
            return None
        absent = [
            (known.pending.count, known.absent_since, agent)
            for agent, known in self._agents.items()
            if known.absent_since
        ]
        if not absent:
            return None
        evicted = min(absent)[2]
        del self._agents[evicted]
        return evicted
