"""What one hub of the mesh decides (intercom.md §2, §3, §5): who is who, what a line does, who gets a copy of it.

Synchronous, and without socket, file, clock or log: the server feeds it lines and writes what it queues. A chat comes
back as a `Post`; the server appends that to the inboxes of its recipients, and only what is stored there is handed to
`deliver` for its live copy. Whoever asks for an id that another connection has comes back as a `Claim`, since only a
look at that connection's socket tells whether somebody is still there.
"""

from dataclasses import dataclass, field

from wakehub.hub.accounting import Budget
from wakehub.hub.send_queue import SendQueue
from wakehub.intercom import ndjson
from wakehub.intercom.ndjson import Code, Envelope, Refusal
from wakehub.limits import MAX_MESH_EGRESS_BYTES, MAX_MESH_QUEUED_BYTES, MAX_MESH_QUEUED_LINES


class Link:
    """One connection: `session` is its registered id, `sender` who it may speak as; both empty at first."""

    def __init__(self, egress: Budget) -> None:
        self.session = ""
        self.sender = ""
        self.queue = SendQueue(MAX_MESH_QUEUED_LINES, MAX_MESH_QUEUED_BYTES, egress, prefix=0)
        self.is_open = True
        self.has_overflowed = False
        """A live copy was dropped, and nothing has left since."""


@dataclass(slots=True, eq=False)
class Post:
    """A chat on its way to the inboxes of `recipients`; `line` is what is stored and shown."""

    envelope: Envelope
    line: bytes
    recipients: tuple[str, ...]
    live: int = 0
    """Recipients that also got a live copy."""
    failures: list[str] = field(default_factory=list)
    """For each recipient whose inbox did not take it, why."""


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """`session` is asked for while `holder` has it."""

    session: str
    holder: Link


class Mesh:
    """All live state of one channel's hub."""

    def __init__(self, channel: str) -> None:
        self._channel = channel
        self._egress = Budget(MAX_MESH_EGRESS_BYTES)
        self._holders: dict[str, Link] = {}
        self._beaten: set[Link] = set()
        self.dirty: list[Link] = []
        """Links with something to write, or to close; whoever writes empties this."""
        self.has_changed = False
        """Who is connected is no longer what was last asked for."""

    def sessions(self) -> list[str]:
        """The ids that are connected, sorted."""
        return sorted(self._holders)

    def open(self) -> Link:
        """A new connection, which is nobody yet."""
        return Link(self._egress)

    def close(self, link: Link) -> None:
        """The connection has ended: its id is free, and what was not written is forgotten (the spool has it)."""
        self._release(link)
        link.is_open = False
        link.queue.clear()
        self._beaten.discard(link)

    # --- lines in ---

    def receive(self, link: Link, line: bytes) -> Post | Claim | None:
        """Take one line; answers are queued, a chat comes back, and a `Claim` where another link has the id.

        A claim is left undecided: once its holder has ended the line may be given again; else `contest` decides.
        """
        try:
            envelope = ndjson.parse(line)
            if envelope.type in ("register", "announce"):
                return self._register(link, ndjson.check_session(envelope.from_session))
            if envelope.type == "chat":
                return self._post(link, envelope.within(self._channel))
            if envelope.type != "heartbeat":
                about = "a client sends register, announce, chat or heartbeat"
                raise Refusal(Code.BAD_ENVELOPE, about, envelope.id)
        except Refusal as refusal:
            self.refuse(link, refusal)
        return None

    def _register(self, link: Link, session: str) -> Claim | None:
        holder = self._holders.get(session)
        if holder is not None and holder is not link:
            return Claim(session, holder)
        if holder is None:
            self._release(link)
            self._holders[session] = link
            self.has_changed = True
        link.session = link.sender = session
        self._say(link, ndjson.welcome(session, self.sessions(), self._channel))
        return None

    def contest(self, link: Link, claim: Claim) -> None:
        """Refuse the id to `link`: its holder keeps it, if that one lives (§2)."""
        if self._is_live(claim.holder):
            why = f"{claim.session} is connected already; its holder keeps it"
            self.refuse(link, Refusal(Code.SESSION_COLLISION, why))
        else:
            self._register(link, claim.session)

    def _is_live(self, holder: Link) -> bool:
        """Whether a heartbeat's write is taken within the queue's bounds; a holder that fails is disconnected (§2)."""
        if not holder.has_overflowed or self._push(holder, ndjson.heartbeat(holder.session, self._channel).line()):
            return True
        self._end(holder)
        return False

    def release(self, link: Link) -> None:
        """The peer of `link` has hung up: its id is free; what it said before is taken all the same."""
        self._release(link)

    def _post(self, link: Link, envelope: Envelope) -> Post:
        about = envelope.id
        try:
            sender = ndjson.check_session(envelope.from_session)
            if link.sender and sender != link.sender:
                raise Refusal(Code.SENDER_MISMATCH, f"this connection speaks as {link.sender}")
            if envelope.to_session not in ndjson.EVERYONE:
                ndjson.check_session(envelope.to_session)
        except Refusal as refusal:
            raise Refusal(refusal.code, refusal.message, about) from None
        line = envelope.line()
        link.sender = sender
        if envelope.to_session in ndjson.EVERYONE:
            return Post(envelope, line, tuple(each for each in self.sessions() if each != sender))
        return Post(envelope, line, (envelope.to_session,))

    def refuse(self, link: Link, refusal: Refusal) -> None:
        """Tell the connection what was refused, and end it where the code says so (§5)."""
        to = link.sender or "*"
        self._say(link, ndjson.error(to, refusal.code, refusal.message, self._channel, refusal.about))
        if refusal.code.closes:
            self._end(link)

    # --- lines out ---

    def deliver(self, post: Post, session: str) -> None:
        """`post` is stored in the inbox of `session`: queue a live copy, if that is connected and has room (§5)."""
        link = self._holders.get(session)
        if link is not None and self._push(link, post.line):
            post.live += 1

    def settle(self, link: Link, post: Post) -> None:
        """`post` of this connection is through with every recipient: answer, where there is something to be said."""
        if post.failures:
            self.refuse(link, Refusal(Code.SPOOL_FAILED, "; ".join(post.failures), post.envelope.id))
        elif post.envelope.wants_receipt:
            state = "live" if post.recipients and post.live == len(post.recipients) else "spooled"
            self._say(link, ndjson.receipt(link.sender, post.envelope.id, state, self._channel))

    def beat(self) -> list[str]:
        """Queue a heartbeat for every connected id; the ids that are disconnected, since nothing left since the last.

        Call it at intervals: who overflowed before the last beat and took nothing since has stopped reading.
        """
        ended = []
        for session, link in list(self._holders.items()):
            if link.has_overflowed and link in self._beaten:
                ended.append(session)
                self._end(link)
            else:
                self._push(link, ndjson.heartbeat(session, self._channel).line())
        self._beaten = {link for link in self._holders.values() if link.has_overflowed}
        return ended

    def sent(self, link: Link, count: int) -> None:
        """`count` bytes of the head of the link's queue have left."""
        link.queue.sent(count)
        link.has_overflowed = False

    def _say(self, link: Link, envelope: Envelope) -> None:
        """An answer; the connection that has no room for it is not reading its answers, and ends."""
        if link.is_open and not self._push(link, envelope.line()):
            self._end(link)

    def _push(self, link: Link, line: bytes) -> bool:
        if link.queue.push(line) is not None:
            link.has_overflowed = True
            return False
        self.dirty.append(link)
        return True

    def _end(self, link: Link) -> None:
        self._release(link)
        link.is_open = False
        self.dirty.append(link)

    def _release(self, link: Link) -> None:
        if self._holders.get(link.session) is link:
            del self._holders[link.session]
            self.has_changed = True
        link.session = ""
