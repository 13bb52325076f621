"""The whole hub as a machine that an input drives: bytes in, a sequence of operations on one `Hub` out of them.

An input is a program: a byte that chooses an operation, then what that operation needs, again and again. There are
connections that come and go, stream bytes in pieces and in nonsense, hellos that are verified later, wakes in bursts,
writes that the kernel cuts short, ends of every kind, two clocks (one of which steps back), revalidations with another
verdict. The machine does to the hub what the server does, and reads what the hub writes as a client would.

After each operation must hold, with limits small enough to be reached:
- a queue is within its frames and bytes; the hub-wide charge is the sum of the queues, and within its limit;
- an agent's pending ids are ≤ 64; known agents are within their limit, those connected aside; topics are ≤ 32;
- a route leads to the open session of that very agent, which is known; the topic table says what the sessions say;
- ids that wait for a connected agent are owed to it, and what is owed has something that will bring it: a queue that
  will drain, or a place in the line for hub-wide space while others hold that space.
What the hub writes is a client's idea of AWH1 (`ClientProtocol` accepts it), and no wake comes from anybody but the
hub or an agent that was admitted. When every connection is gone, nothing is charged, routed or subscribed.
"""

from collections.abc import Callable
from functools import cache

from fuzz_seeds import hexes, prefixed
from fuzz_target import Target

from wakehub.errors import Violation
from wakehub.hub.hub import Hub
from wakehub.hub.session import Session
from wakehub.identity.keys import KeyPair
from wakehub.identity.verifier import Claim, Denied, Identity, Judge, Stale
from wakehub.limits import MAX_FRAME_BYTES, MAX_PENDING_IDS, MAX_TOPICS_PER_SESSION, PREFIX_BYTES, HubLimits
from wakehub.wire.fields import lp
from wakehub.wire.frames import Frame, Kind, encode
from wakehub.wire.payloads import Hello, Wake
from wakehub.wire.protocol import ClientProtocol, ClientState, HubState, Woken
from wakehub.wire.reader import FrameReader
from wakehub.wire.transcript import membership

HUB_ID = b"wakehub"
LIMITS = HubLimits(
    max_connections=8, frame_rate_per_second=20, frame_burst=60, queued_frames=9, queued_bytes=1500,
    egress_bytes=4000, known_agents=3,
)  # fmt: skip
AGENTS = (b"team/a", b"team/b", b"team/c", b"d", b"team/" + b"e" * 60, "é/f".encode())
TOPICS = (b"#team", b"#team/x", b"#_inbox/team/a", b"#_inbox/d", b"#other", b"#")
ROW_IDS = (b"m_1", b"m_2", b"", b"r" * 128, b"r" * 129)
MAX_CONNECTIONS = 8
MAX_OPERATIONS = 80
KEY = KeyPair(bytes([5]) * 32)


class Program:
    """The input, taken apart from the front; behind its end there are only zeros."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_over(self) -> bool:
        return self._at >= len(self._data)

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def take(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]


class Moody:
    """A verifier that an input commands: it believes every id, unless its mood says otherwise."""

    def __init__(self) -> None:
        self.mood = 0

    def verify(self, claim: Claim, now_s: float) -> Identity | Denied:
        if self.mood == 1 or not claim.agent_id:
            return Denied("unknown_agent")
        return Identity(claim.agent_id, KEY.public, b"", ("team",))

    def revalidation(self, now_s: float) -> Judge:
        return self._judge

    def _judge(self, identity: Identity) -> Identity | Denied | Stale:
        if self.mood == 1:
            return Denied("revoked_key")
        if self.mood == 2:
            return Stale()
        prefixes = () if self.mood == 3 else ("team",)
        return Identity(identity.agent_id, identity.key, identity.certificate, prefixes)


class Connection:
    """One connection as the server holds it, and the client that reads it."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.reader = FrameReader()
        self.claim: Claim | None = None
        self.client = ClientProtocol(b"reads only")


class Machine:
    """Runs one program; `make_hub` makes the hub, so that a broken one can be tried."""

    def __init__(self, make_hub: Callable[[bytes, HubLimits, Moody], Hub] = Hub) -> None:
        self.verifier = Moody()
        self.hub = make_hub(HUB_ID, LIMITS, self.verifier)
        self.connections: list[Connection] = []
        self.admitted: set[bytes] = {HUB_ID}
        self.now_us = 1_000_000
        self.wall_ms = 1_800_000_000_000
        self._nonces = 0
        self._operations = (
            self.open, self.hello, self.hello, self.admit, self.wake, self.wake, self.wakes, self.wakes, self.topics,
            self.ping, self.member, self.stray, self.stream, self.frame, self.write, self.drain, self.drain_all,
            self.pass_time, self.turn_clock, self.revalidate, self.end, self.finish, self.fail, self.newcomer,
        )  # fmt: skip

    def run(self, data: bytes) -> str:
        program = Program(data)
        for _ in range(MAX_OPERATIONS):
            if program.is_over:
                break
            self._operations[program.byte() % len(self._operations)](program)
            self._settle()
            self.check()
        self._end_all()
        return self._outcome()

    # --- operations: who comes --------------------------------------------------------------------------------

    def open(self, program: Program) -> None:
        if len(self.connections) < MAX_CONNECTIONS:
            self._nonces += 1
            self.connections.append(Connection(self.hub.open(self._nonces.to_bytes(32, "big"), self.now_us)))

    def hello(self, program: Program) -> None:
        connection = self._one(program)
        if connection is not None:
            agent, count = AGENTS[program.byte() % len(AGENTS)], program.byte() % 3
            topics = tuple(TOPICS[program.byte() % 4] for _ in range(count))
            payload = Hello(bytes(32), bytes(64), b"", topics).encode()
            self._receive(connection, encode(Frame(Kind.HELLO, agent, payload=payload)))

    def admit(self, program: Program) -> None:
        waiting = [connection for connection in self.connections if connection.claim is not None]
        if waiting:
            connection = waiting[program.byte() % len(waiting)]
            claim, connection.claim = connection.claim, None
            assert claim is not None
            self._admit(connection, claim)

    def _admit(self, connection: Connection, claim: Claim) -> None:
        verdict = self.verifier.verify(claim, self.wall_ms / 1000)
        self.hub.admit(connection.session, claim, verdict, self.now_us)
        if connection.session.state is HubState.IN_SESSION:
            self.admitted.add(connection.session.agent)
        self._receive(connection, b"")  # what came behind the hello

    def newcomer(self, program: Program) -> None:
        """All three steps in one."""
        before = len(self.connections)
        self.open(program)
        if len(self.connections) > before:
            last = self.connections[-1]
            agent = AGENTS[program.byte() % len(AGENTS)]
            hello = Hello(bytes(32), bytes(64), b"", (b"#team",) if program.byte() & 1 else ())
            self._receive(last, encode(Frame(Kind.HELLO, agent, payload=hello.encode())))
            if last.claim is not None:
                claim, last.claim = last.claim, None
                self._admit(last, claim)

    # --- operations: what comes in ----------------------------------------------------------------------------

    def wake(self, program: Program) -> None:
        connection = self._one(program)
        if connection is not None:
            self._receive(connection, self._wake(connection, program, ROW_IDS[program.byte() % len(ROW_IDS)]))

    def wakes(self, program: Program) -> None:
        """Up to 80 in one piece: more than a queue, a bucket or a pending set holds."""
        connection = self._one(program)
        if connection is not None:
            first, count = program.byte(), program.byte() % 80
            sender, to, namespace = connection.session.agent or b"x", self._destination(program), b"n" * program.byte()
            namespace = namespace[:200]
            payloads = [Wake(b"m_%d" % (first + number), namespace).encode() for number in range(count)]
            self._receive(connection, b"".join(encode(Frame(Kind.WAKE, sender, to, payload)) for payload in payloads))

    def topics(self, program: Program) -> None:
        connection = self._one(program)
        if connection is not None:
            kind = Kind.UNSUBSCRIBE if program.byte() & 1 else Kind.SUBSCRIBE
            names = [self._topic(program) for _ in range(program.byte() % 9)]
            payload = bytes([len(names)]) + b"".join(map(lp, names))
            self._receive(connection, encode(Frame(kind, connection.session.agent or b"x", payload=payload)))

    def _topic(self, program: Program) -> bytes:
        """Mostly one of many under a prefix that may be held, so that 32 are reached; sometimes one that may not be."""
        choice = program.byte()
        return TOPICS[choice % len(TOPICS)] if choice < 40 else b"#team/%d" % choice

    def ping(self, program: Program) -> None:
        connection = self._one(program)
        if connection is not None:
            kind = Kind.PONG if program.byte() & 3 == 3 else Kind.PING
            self._receive(connection, encode(Frame(kind, connection.session.agent or b"x")))

    def member(self, program: Program) -> None:
        connection = self._one(program)
        if connection is not None:
            choice = program.byte()
            kind = Kind.DEPART if choice & 1 else Kind.JOIN
            session = connection.session
            payload = _signed(kind, session.nonce, session.agent) if choice & 6 else program.take(64)
            self._receive(connection, encode(Frame(kind, session.agent or b"x", payload=payload)))

    def stray(self, program: Program) -> None:
        """A frame from somebody else, or of a kind that no client sends."""
        connection = self._one(program)
        if connection is not None:
            sender = AGENTS[program.byte() % len(AGENTS)]
            kind = (Kind.WELCOME, Kind.ERROR, Kind.HELLO, Kind.PING)[program.byte() % 4]
            self._receive(connection, encode(Frame(kind, sender, payload=program.take(program.byte() % 33))))

    def stream(self, program: Program) -> None:
        """Raw bytes of the input."""
        connection = self._one(program)
        if connection is not None:
            self._receive(connection, program.take(program.byte() * 4))

    def frame(self, program: Program) -> None:
        """One of the vectors' frames, as it is or as the session's own."""
        connection = self._one(program)
        if connection is not None:
            bodies = _bodies()
            body = bodies[(program.byte() << 8 | program.byte()) % len(bodies)]
            if program.byte() & 1 and len(body) >= 24:
                own = connection.session.agent or b"x"
                body = body[:7] + bytes([len(own)]) + body[8:24] + own + body[24 + body[7] :]
            self._receive(connection, prefixed(body))

    # --- operations: what goes out, and the end ---------------------------------------------------------------

    def write(self, program: Program) -> None:
        """The kernel takes a part of what is next."""
        connection = self._one(program)
        if connection is not None:
            self._write(connection, program.byte() * 4 + 1)

    def drain(self, program: Program) -> None:
        connection = self._one(program)
        if connection is not None:
            while self._write(connection, 1 << 20):
                pass

    def drain_all(self, program: Program) -> None:
        for connection in self.connections:
            while self._write(connection, 1 << 20):
                pass

    def end(self, program: Program) -> None:
        """The peer ends its stream, or its deadline passes."""
        connection = self._one(program)
        if connection is not None and connection.session.is_open:
            if program.byte() & 3 == 3:
                self.hub.drop(connection.session, "deadline")
            else:
                self.hub.eof(connection.session, inside_frame=not connection.reader.at_boundary)

    def finish(self, program: Program) -> None:
        connection = self._one(program)
        if connection is not None:
            self.connections.remove(connection)
            self.hub.finish(connection.session, self.wall_ms)

    def fail(self, program: Program) -> None:
        connection = self._one(program)
        if connection is not None and connection.session.is_open:
            self.hub.failed(connection.session)

    # --- operations: time -------------------------------------------------------------------------------------

    def pass_time(self, program: Program) -> None:
        step_us = program.byte() ** 3
        self.now_us += step_us
        self.wall_ms += step_us // 1000

    def turn_clock(self, program: Program) -> None:
        """The wall clock is set, by up to two minutes in either direction."""
        self.wall_ms += (program.byte() - 128) * 1000

    def revalidate(self, program: Program) -> None:
        self.verifier.mood = program.byte() % 8
        self.hub.revalidate(self.now_us, self.wall_ms / 1000)

    # --- what the server does ---------------------------------------------------------------------------------

    def _one(self, program: Program) -> Connection | None:
        return self.connections[program.byte() % len(self.connections)] if self.connections else None

    def _receive(self, connection: Connection, data: bytes) -> None:
        """As the server: nothing is read behind a hello until it is verified, nor from a connection that is closed."""
        session = connection.session
        if session.is_open and connection.claim is None:
            connection.reader.feed(data)
        while session.is_open and connection.claim is None:
            try:
                raw = connection.reader.next_frame()
            except Violation:
                self.hub.refuse_prefix(session)
                break
            if raw is None:
                break
            connection.claim = self.hub.receive(session, raw, self.now_us, self.wall_ms)
            self._settle()

    def _settle(self) -> None:
        """What the server does behind each frame, where the kernel takes nothing."""
        self.hub.delivery.dirty.clear()
        for entry in self.hub.delivery.journal:
            assert all(isinstance(value, str | int) for value in entry.detail.values())
        self.hub.delivery.journal.clear()

    def _write(self, connection: Connection, most: int) -> bool:
        data = self.hub.delivery.output(connection.session, self.wall_ms)
        if data is None:
            return False
        part = bytes(data[:most])
        assert part, "an empty write"
        self._read(connection, part)
        self.hub.delivery.sent(connection.session, len(part), self.wall_ms)
        return True

    def _read(self, connection: Connection, part: bytes) -> None:
        assert connection.client.state is not ClientState.CLOSED, "bytes behind an error that ends the session"
        for event in connection.client.receive_data(part):
            if isinstance(event, Woken):
                assert event.from_id in self.admitted, "a wake from nobody"
                assert event.to_id == connection.session.agent or event.to_id.startswith(b"#"), "somebody else's wake"

    def _wake(self, connection: Connection, program: Program, row_id: bytes) -> bytes:
        """A wake with stamps and a lifetime around now."""
        when = program.byte()
        ts_ms = self.wall_ms + (when % 16 - 8) * 100 if when & 0x80 else 0
        ttl_ms = (0, 0, 300, 60_000)[when >> 4 & 3]
        payload = Wake(row_id, b"n" * (when & 1)).encode()
        sender = connection.session.agent or b"x"
        return encode(Frame(Kind.WAKE, sender, self._destination(program), payload, ts_ms, ttl_ms))

    def _destination(self, program: Program) -> bytes:
        choice = program.byte()
        return (*AGENTS, *TOPICS, b"", b"nobody")[choice % (len(AGENTS) + len(TOPICS) + 2)]

    # --- what must hold ---------------------------------------------------------------------------------------

    def check(self) -> None:
        hub, sessions = self.hub, [connection.session for connection in self.connections]
        assert {*hub.sessions} == {*sessions}
        for connection in self.connections:
            queue, reader = connection.session.queue, connection.reader
            assert len(queue) <= LIMITS.queued_frames, "too many frames wait"
            assert queue.size <= LIMITS.queued_bytes, "too many bytes wait"
            assert queue.size == sum(len(raw) - PREFIX_BYTES for raw, _ in queue.waiting), "a wrong size"
            if connection.session.is_open and connection.claim is None:
                assert len(reader._data) - reader._at < PREFIX_BYTES + MAX_FRAME_BYTES, "more than a frame is kept"
        assert hub.delivery.egress.used == sum(session.queue.size for session in sessions), "charged is not what waits"
        assert hub.delivery.egress.used <= LIMITS.egress_bytes, "over the hub-wide limit"
        self._check_routes(sessions)
        self._check_topics(sessions)
        self._check_known(sessions)

    def _check_routes(self, sessions: list[Session]) -> None:
        starved = self.hub.delivery._starved
        routes = {
            agent: session for shard in self.hub.delivery.router._shards for agent, session in shard.routes.items()
        }
        assert routes == {session.agent: session for session in sessions if session.state is HubState.IN_SESSION}
        for agent, session in routes.items():
            assert agent in self.hub.delivery.known, "an agent is connected and not known"
            pending = self.hub.delivery.known.pending(agent)
            assert pending is not None
            assert session.owed or not pending.waiting(), "ids wait for a connected agent, and nothing will bring them"
        for session in sessions:
            if session.owed and not session.queue:
                assert session in starved, "owed, and nothing will bring it"
        if any(session.owed and not session.queue for session in starved):
            assert self.hub.delivery.egress.used, "sessions wait for space that nobody holds"
        assert {*starved} <= {*sessions}, "connections that are gone stand in the line for space"

    def _check_topics(self, sessions: list[Session]) -> None:
        table = [
            (topic, id(session))
            for shard in self.hub.delivery.router._shards
            for topic, subscribers in shard.topics.items()
            for session in subscribers
        ]
        held = [(topic, id(session)) for session in sessions for topic in session.topics]
        assert sorted(table) == sorted(held), "the topic table is not what the sessions hold"
        assert all(len(session.topics) <= MAX_TOPICS_PER_SESSION for session in sessions), "too many topics"

    def _check_known(self, sessions: list[Session]) -> None:
        known = self.hub.delivery.known
        connected = {session.agent for session in sessions if session.state is HubState.IN_SESSION}
        assert len(known) <= max(LIMITS.known_agents, len(connected)), "too many agents are known"
        for entry in known._agents.values():
            ids = entry.pending.ids
            assert len(ids) <= MAX_PENDING_IDS, "too many ids are kept"
            assert entry.pending.count >= len(ids)

    def _end_all(self) -> None:
        while self.connections:
            self.hub.finish(self.connections.pop().session, self.wall_ms)
            self._settle()
            self.check()
        assert self.hub.delivery.egress.used == 0
        gauges = self.hub.gauges()
        assert gauges == type(gauges)(0, 0, 0, 0, 0, 0), gauges
        assert not self.hub.delivery._starved
        assert not any(shard.routes or shard.topics for shard in self.hub.delivery.router._shards)

    def _outcome(self) -> str:
        """Which of the hub's counters moved, and roughly how far."""
        counters = self.hub.counters
        moved = [f"{cause} {label}" for cause, label in sorted(counters.refused)] + sorted(counters.overflow)
        for name in ("wakes_routed", "wakes_written", "wakes_expired", "fanout_deliveries", "pending_coalesced",
                     "pending_evicted", "sessions_replaced"):  # fmt: skip
            moved.append(name + "+" * getattr(counters, name).bit_length())
        return ", ".join(moved)


@cache
def _signed(kind: Kind, nonce: bytes, agent: bytes) -> bytes:
    return KEY.sign(membership(kind, HUB_ID, nonce, agent))


@cache
def _bodies() -> tuple[bytes, ...]:
    return tuple(hexes("frame", "body") + hexes("handshake", "body"))


# --- programs to begin with -----------------------------------------------------------------------------------


def program(*steps: tuple[object, ...]) -> bytes:
    """The input that does these steps: the name of an operation, then the bytes that it takes."""
    names = [operation.__name__ for operation in Machine()._operations]
    return b"".join(bytes([names.index(str(name)), *rest]) for name, *rest in steps)  # type: ignore[list-item]


@cache
def machine() -> Target:
    """The hub target. Its seeds are stories, and every frame of the vectors, before a hello and in session."""
    a, b, c = (("newcomer", which, 1) for which in range(3))
    everybody = [*(("newcomer", which, 1) for which in range(6)), ("drain_all",)]
    fat = [step for which in (1, 2, 3, 4, 5) for step in (("wakes", 0, 1, 8, which, 170), ("drain", 0))]
    full = [step for which in (3, 3, 4, 5) for step in (("wakes", 0, 1, 4, which, 0), ("drain", 0))]
    stories = [
        program(a, b, ("wake", 0, 0, 0, 1), ("drain_all",), ("ping", 0, 0), ("drain", 0)),
        program(a, b, ("wakes", 0, 1, 70, 1, 0), ("write", 1, 3), ("drain", 1), ("drain", 1), ("drain_all",)),
        program(a, b, c, ("wakes", 0, 1, 30, 6, 0), ("wakes", 1, 1, 30, 6, 0), ("drain_all",), ("pass_time", 200)),
        program(a, b, ("end", 1, 0), ("finish", 1), ("wakes", 0, 1, 70, 1, 0), b, ("drain_all",), ("drain", 1)),
        program(a, b, c, ("finish", 2), ("wakes", 0, 1, 50, 2, 0), ("wakes", 1, 101, 50, 2, 0), c, ("drain_all",)),
        program(a, b, b, ("wakes", 0, 1, 9, 1, 90), ("finish", 1), ("drain_all",), ("revalidate", 3), ("drain_all",)),
        program(a, b, ("member", 1, 3), ("wake", 0, 0, 0, 1), ("finish", 1), ("drain_all",), ("revalidate", 1)),
        program(a, *(("topics", 0, 0, 8, *range(40 + at, 48 + at)) for at in range(0, 48, 8)), ("drain_all",)),
        program(("open",), ("hello", 0, 3, 2, 1, 1), ("revalidate", 1), ("admit", 0), ("drain_all",), ("finish", 0)),
        program(*(("newcomer", which % 6, 0) for which in range(8)), *(("finish", 0),) * 7, a, b, c),
        program(a, b, ("wake", 0, 1, 0xA8, 1), ("turn_clock", 255), ("drain_all",), ("turn_clock", 0), ("fail", 0)),
        program(*everybody, *fat, ("wakes", 0, 1, 9, 6, 9), ("drain", 1), ("finish", 3), ("drain_all",)),
        program(*everybody, *fat, *(("drain", which) for which in range(6)), ("finish", 0), ("finish", 0)),
        program(*everybody, *fat[:6], *full, ("finish", 5), ("finish", 4), *full[4:], ("drain_all",), ("drain_all",)),
        program(a, b, c, ("wakes", 0, 1, 79, 7, 0), ("pass_time", 40), ("ping", 0, 0), ("drain", 0)),
        program(a, b, c, ("wakes", 0, 1, 58, 7, 0), ("wake", 0, 0, 0, 6), ("wake", 0, 0, 0, 6), ("drain_all",)),
        program(a, b, ("revalidate", 2), ("pass_time", 255), ("revalidate", 2), ("drain_all",)),
    ]  # fmt: skip
    count = len(_bodies())
    frames = [
        program(who, ("frame", 0, which >> 8, which & 0xFF, own), ("drain", 0))
        for which in range(count)
        for who, own in ((("open",), 0), (a, 1))
    ]
    streams = [program(a, ("stream", 0, len(raw) // 4)) + raw for raw in hexes("stream", "bytes") if len(raw) < 1000]
    return Target("hub", [*stories, *frames, *streams], lambda data: Machine().run(data), share=8)
