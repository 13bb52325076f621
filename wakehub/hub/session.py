"""One connection as the hub sees it: first a stranger with a nonce, then the session of an agent."""

from collections.abc import Callable

from wakehub.hub.ratelimit import TokenBucket
from wakehub.hub.send_queue import SendQueue
from wakehub.identity.verifier import Identity
from wakehub.wire.protocol import HubState

_CLOSED = HubState.CLOSED  # an enum looks its members up anew each time


def _takes_nothing(raw: bytes) -> int:
    return 0


class Session:
    """State of one connection; compared by identity.

    `agent`, `wake_head` (see `wire.glance`) and `identity` are set at admission. `topics` are the topics held, at most
    32. `owed` is true while row ids wait in the pending set of a connected agent, because its queue or the hub's egress
    budget was full. `owed_429` is the reason of a rate refusal that was held back. `transmit` offers a frame to the
    kernel and says how many of its bytes that took (the server's to set).
    """

    __slots__ = (
        "agent",
        "bucket",
        "identity",
        "last_429_us",
        "nonce",
        "number",
        "owed",
        "owed_429",
        "queue",
        "stale_since_us",
        "state",
        "topics",
        "transmit",
        "wake_head",
    )

    def __init__(self, nonce: bytes, bucket: TokenBucket, queue: SendQueue) -> None:
        self.nonce = nonce
        self.transmit: Callable[[bytes], int] = _takes_nothing
        self.bucket = bucket
        self.queue = queue
        self.state = HubState.AUTHENTICATING
        self.number = 0
        self.agent = b""
        self.wake_head = b""
        self.identity: Identity | None = None
        self.topics: dict[bytes, None] = {}
        self.owed = False
        self.owed_429 = ""
        self.last_429_us: int | None = None
        self.stale_since_us: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether frames from this connection are still looked at."""
        return self.state is not _CLOSED
