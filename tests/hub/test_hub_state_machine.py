"""The hub under everything at once: agents come, are replaced, depart, wake, stop reading, are revoked (awh1.md §5).

Small limits, so that queues and the hub-wide budget bind all the time. The kernel is a number of bytes it still takes
for each connection. What the machine does after each step is what the server does: write whatever is listed as dirty.

What must hold, whatever happens:
- budgets are what the queues hold, never over their limits, and zero when the last connection is gone
- challenge, then welcome, then the rest (the client's protocol refuses anything else)
- forwarded wakes of one sender reach one recipient in order, and no wake reaches an agent twice
- nothing reaches anybody but its addressee or who was subscribed when it was sent
- no wake is lost in silence: it is delivered, too late, retained, told as lost (lagged), or refused to its sender
- each answer comes, in order; a 429 that was held back before the pong; no error that is not declared
- nothing that could be written is left lying, and nothing retained when there is room
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from hub_world import HUB, Peer, World
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from wakehub.identity.scope import may_hold
from wakehub.identity.verifier import Claim
from wakehub.limits import HubLimits
from wakehub.wire.frames import Frame, Kind
from wakehub.wire.payloads import Error, Wake, Welcome
from wakehub.wire.protocol import Acknowledged, Event, Ponged, Woken

AGENTS = ("ann", "bob", "cyd", "dee")
TOPICS = (b"#team", b"#team/a", b"#_inbox/ann")
LIMITS = {
    "queued_frames": 6,
    "queued_bytes": 260,
    "egress_bytes": 800,
    "frame_burst": 20,
    "frame_rate_per_second": 100,
    "known_agents": 3,
}
LARGEST_WAKE = 24 + 3 + 11 + 12 + 5 + 128  # header, ids, an empty payload, and the longest row id
ANSWERS = {
    "malformed": 400,
    "prefix": 413,
    "hello": 401,
    "unauthenticated": 401,
    "subscribe": 401,
    "depart": 401,
    "forged_from": 403,
    "kind": 403,
    "scope": 403,
    "empty_destination": 404,
    "unknown_agent": 404,
    "internal": 500,
    "rate_limited": 429,
    "fanout": 429,
}
DECLARED = {
    400: {"bad magic", "topic list is empty"},
    401: {"unauthorized"},
    403: {
        "from does not match the session identity",
        "kind not accepted from a client",
        "topic outside the sender's read scope",
    },
    404: {"empty destination", "no such agent"},
    409: {"session replaced"},
    413: {"frame exceeds 1304 B"},
    429: {"frame rate exceeded", "fan-out exceeds the frame budget"},
    500: {"internal error"},
    507: {"recipient queue or hub egress budget full"},
}

Answer = int | Ponged | Acknowledged


@dataclass
class Connection:
    """A peer, how many bytes the kernel still takes for it (None: all), and what it has to be told, in order."""

    peer: Peer
    room: int | None = None
    claim: Claim | None = None
    topics: set[bytes] = field(default_factory=set)
    answers: list[Answer] = field(default_factory=list)
    limited: list[int] = field(default_factory=lambda: [0])  # refused with 429, before the first pong, the second ...
    told_limited: int = 0
    finished: bool = False
    forwarded: dict[bytes, int] = field(default_factory=dict)

    @property
    def is_session(self) -> bool:
        return self.peer.is_open and bool(self.peer.session.agent)

    @property
    def reads(self) -> bool:
        """Whether the server would take a frame from it now."""
        return self.peer.is_open and self.claim is None


@dataclass
class Sent:
    """A wake: who sent it, whereto, whom it was for, and when it is too late (0: never)."""

    sender: str
    to: bytes
    agents: set[str]
    deadline_ms: int


picks = st.integers(0, 11)
rooms = st.sampled_from([None, 0, 0, 30])
hello_topics = st.sets(st.sampled_from(TOPICS[:2]))


class HubMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(**LIMITS)
        self.hub = self.world.hub
        self.limits = HubLimits(**LIMITS)
        self.connections: list[Connection] = []
        self.sent: list[Sent] = []
        self.owed: dict[str, set[int]] = {agent: set() for agent in AGENTS}
        self.known: set[str] = set()
        self.reached: Counter[tuple[str, int]] = Counter()
        self.noted = 0

    # --- connections ---

    @initialize(data=st.data())
    def all_are_there(self, data: st.DataObject) -> None:
        for agent in AGENTS:
            self.arrive(agent, data.draw(hello_topics), data.draw(rooms))

    @rule(agent=st.sampled_from(AGENTS), topics=hello_topics, room=rooms)
    def arrive(self, agent: str, topics: set[bytes], room: int | None) -> None:
        """A whole handshake at once; what is behind it the agent reads, or as much as there is room for."""
        if len(self.connections) < 30:
            one = Connection(self.world.open(agent))
            self.connections.append(one)
            self.settle()
            if one.reads:
                self.say_hello(one, topics)
                self.admit(one)
            one.room = room

    @rule(agent=st.sampled_from(AGENTS), room=rooms)
    def accept(self, agent: str, room: int | None) -> None:
        """A connection, and nothing more yet."""
        if len(self.connections) < 30:
            self.connections.append(Connection(self.world.open(agent), room))
            self.settle()

    @precondition(lambda self: self.some(lambda one: one.reads and not one.is_session))
    @rule(pick=picks, topics=hello_topics)
    def hello(self, pick: int, topics: set[bytes]) -> None:
        self.say_hello(self.pick(pick, lambda one: one.reads and not one.is_session), topics)

    def say_hello(self, one: Connection, topics: set[bytes]) -> None:
        with self.answered(one):
            one.claim = one.peer.claim(*sorted(topics))

    @precondition(lambda self: self.some(lambda one: one.claim is not None))
    @rule(pick=picks)
    def verify(self, pick: int) -> None:
        """The verifier's turn comes when it comes; other things may have happened meanwhile."""
        self.admit(self.pick(pick, lambda one: one.claim is not None))

    def admit(self, one: Connection) -> None:
        claim, one.claim = one.claim, None
        if claim is None:
            return
        previous, was_open = self.route(one.peer.agent), one.peer.is_open
        refused = self.refused
        with self.answered(one):
            self.hub.admit(one.peer.session, claim, self.world.verifier.verify(claim, 0), self.world.now_us)
            assert was_open or not one.peer.is_open
            if was_open and one.peer.session.agent:
                silenced = (self.refused - refused)["own_queue", ""]
                self.admitted(one, claim, previous, silenced)

    def admitted(self, one: Connection, claim: Claim, previous: Connection | None, silenced: int) -> None:
        """The welcome and the 409 each came, or closed a connection whose queue could not take it."""
        self.known.add(one.peer.agent)
        if one.peer.is_open:
            one.topics = set(claim.topics)
        else:
            silenced -= 1
        if previous is not None:
            assert not previous.peer.is_open
            if not silenced:
                previous.answers.append(409)
        else:
            assert not silenced

    @precondition(lambda self: self.some(lambda one: not one.finished))
    @rule(pick=picks, room=st.sampled_from([None, None, 0, 0, 0, 1, 30, 120, 300]))
    def kernel(self, pick: int, room: int | None) -> None:
        """The kernel takes so much more, or all: the writer task runs."""
        one = self.pick(pick, lambda one: not one.finished)
        one.room = room
        self.write(one)
        self.settle()

    @precondition(lambda self: self.some(lambda one: one.peer.is_open))
    @rule(pick=picks, inside=st.booleans())
    def end_of_stream(self, pick: int, inside: bool) -> None:
        one = self.pick(pick, lambda one: one.peer.is_open)
        self.hub.eof(one.peer.session, inside_frame=inside)
        self.settle()

    @precondition(lambda self: self.some(lambda one: not one.finished))
    @rule(pick=picks)
    def finish(self, pick: int) -> None:
        """The teardown, whether the connection ended by itself or not."""
        self.tear_down(self.pick(pick, lambda one: not one.finished))
        self.settle()

    @precondition(lambda self: self.some(lambda one: one.is_session))
    @rule(pick=picks, good=st.sampled_from([True, True, True, False]))
    def depart(self, pick: int, good: bool) -> None:
        one = self.pick(pick, lambda one: one.is_session)
        one.peer.nonce = one.peer.session.nonce
        payload = one.peer.signed(Kind.DEPART if good else Kind.JOIN)
        refused = self.refused
        with self.answered(one):
            one.peer.send(Frame(Kind.DEPART, one.peer.id, payload=payload))
        if not one.peer.is_open and self.refused == refused:
            self.owed[one.peer.agent].clear()
            self.known.discard(one.peer.agent)

    # --- frames ---

    @precondition(lambda self: self.some(lambda one: one.is_session))
    @rule(pick=picks, other=picks, times=st.integers(1, 10))
    def wake_somebody(self, pick: int, other: int, times: int) -> None:
        """A burst to one agent that is there."""
        one, to = (self.pick(number, lambda one: one.is_session) for number in (pick, other))
        for _ in range(times):
            if one.peer.is_open:
                self.send_wake(one, to.peer.id, 0, self.world.wall_ms)

    @precondition(lambda self: self.some(lambda one: one.is_session))
    @rule(
        pick=picks,
        to=st.sampled_from([*AGENTS, *AGENTS, "nobody", "", "#team", "#team", "#team/a", "#ops", "#_inbox/bob"]),
        ttl_ms=st.sampled_from([0, 0, 0, 40, 400]),
        age_ms=st.sampled_from([None, 0, 50]),
        times=st.integers(1, 8),
        long=st.sampled_from([False, False, False, True]),
    )
    def wake(self, pick: int, to: str, ttl_ms: int, age_ms: int | None, times: int, long: bool) -> None:
        """Ids that are too long to be retained among them."""
        one = self.pick(pick, lambda one: one.is_session)
        for _ in range(times):
            if one.peer.is_open:
                ts_ms = 0 if age_ms is None else self.world.wall_ms - age_ms
                self.send_wake(one, to.encode(), ttl_ms, ts_ms, b"x" * 128 if long else b"")

    def send_wake(self, one: Connection, to: bytes, ttl_ms: int, ts_ms: int, behind: bytes = b"") -> None:
        number = len(self.sent)
        deadline_ms = (ts_ms or self.world.wall_ms) + ttl_ms if ttl_ms else 0
        sent = Sent(one.peer.agent, to, self.addressees(one, to), deadline_ms)
        self.sent.append(sent)
        refused, expired = self.refused, self.hub.counters.wakes_expired
        with self.answered(one):
            one.peer.wake(to, b"%d" % number + behind, ts_ms=ts_ms, ttl_ms=ttl_ms)
            was_refused = self.refused - refused - Counter({("own_queue", ""): 1})
            is_late = self.hub.counters.wakes_expired > expired
            assert not is_late or 0 < deadline_ms <= self.world.wall_ms
            if not to.startswith(b"#") and not is_late and set(was_refused) <= {("unknown_agent", "")}:
                assert bool(was_refused) == (to.decode() not in self.known)
            if not was_refused and not is_late:
                for agent in sent.agents:
                    self.owed[agent].add(number)

    def addressees(self, sender: Connection, to: bytes) -> set[str]:
        if to.startswith(b"#"):
            return {one.peer.agent for one in self.connections if to in one.topics and one is not sender}
        return {to.decode()} & set(AGENTS)

    @precondition(lambda self: self.some(lambda one: one.is_session))
    @rule(
        pick=picks,
        kind=st.sampled_from([Kind.SUBSCRIBE, Kind.SUBSCRIBE, Kind.UNSUBSCRIBE]),
        topics=st.sets(st.sampled_from(TOPICS)),
    )
    def change_topics(self, pick: int, kind: Kind, topics: set[bytes]) -> None:
        one = self.pick(pick, lambda one: one.is_session)
        refused, listed = self.refused, tuple(sorted(topics))
        with self.answered(one):
            (one.peer.subscribe if kind is Kind.SUBSCRIBE else one.peer.unsubscribe)(*listed)
            if self.refused == refused:
                one.answers.append(Acknowledged(kind, listed))
        if one.peer.is_open and self.refused == refused:
            one.topics = one.topics | topics if kind is Kind.SUBSCRIBE else one.topics - topics

    @precondition(lambda self: self.some(lambda one: one.is_session))
    @rule(pick=picks, times=st.integers(1, 8))
    def ping(self, pick: int, times: int) -> None:
        one = self.pick(pick, lambda one: one.is_session)
        for _ in range(times):
            if one.peer.is_open:
                refused = self.refused
                with self.answered(one):
                    one.peer.ping()
                    if not self.refused - refused:
                        one.answers.append(Ponged())
                        one.limited.append(0)

    @precondition(lambda self: self.some(lambda one: one.reads))
    @rule(
        pick=picks,
        fault=st.sampled_from(
            ["forged", "kind", "internal", "forged", "kind", "internal", "magic", "topics", "prefix"]
        ),
    )
    def misbehave(self, pick: int, fault: str) -> None:
        one = self.pick(pick, lambda one: one.reads)
        with self.answered(one):
            match fault:
                case "forged":
                    one.peer.send(Frame(Kind.PONG, b"mallory"))
                case "kind":
                    one.peer.send(Frame(Kind.ERROR, one.peer.id))
                case "magic":
                    one.peer.raw_frame(b"\0\0\0\x18" + bytes(24))
                case "topics":
                    one.peer.send(Frame(Kind.UNSUBSCRIBE, one.peer.id))
                case "prefix":
                    self.hub.refuse_prefix(one.peer.session)
                case "internal":
                    self.hub.failed(one.peer.session)

    # --- time, and the owner's will ---

    @rule(ms=st.sampled_from([1, 20, 60, 150, 1000]))
    def time_passes(self, ms: int) -> None:
        self.world.pass_ms(ms)

    @rule(who=st.sampled_from([*AGENTS, "", "", "", "", "", ""]), stale=st.sampled_from([False, False, False, True]))
    def owner_decides(self, who: str, stale: bool) -> None:
        """Revoke one agent at most, and let the allowlist grow stale or fresh."""
        self.world.verifier.denied = {who: "revoked_key"}
        self.world.verifier.stale = stale

    @rule(who=st.sampled_from(AGENTS), prefixes=st.sampled_from([("team",), ("team/a",), ()]))
    def scope_changes(self, who: str, prefixes: tuple[str, ...]) -> None:
        self.world.verifier.own[who] = prefixes

    @rule()
    def revalidate(self) -> None:
        verifier = self.world.verifier
        self.world.revalidate()
        for one in self.connections:
            if one.peer.agent in verifier.denied and one.peer.session.agent:
                assert not one.peer.is_open
            elif one.is_session and not verifier.stale:
                prefixes = verifier.own.get(one.peer.agent, verifier.prefixes)
                one.topics = {topic for topic in one.topics if may_hold(one.peer.agent, prefixes, topic)}
        self.settle()

    # --- the server's part ---

    def settle(self) -> None:
        """Write what is listed, until nothing is; then heed what the hub noted."""
        while self.hub.delivery.dirty:
            dirty, self.hub.delivery.dirty = self.hub.delivery.dirty, []
            for one in self.connections:
                if one.peer.session in dirty and not one.finished:
                    self.write(one)
        for entry in self.hub.delivery.journal[self.noted :]:
            if entry.event == "agent evicted":
                self.owed[entry.agent.decode()].clear()
                self.known.discard(entry.agent.decode())
        self.noted = len(self.hub.delivery.journal)
        for one in self.connections:
            if not one.peer.is_open:
                one.topics = set()

    def write(self, one: Connection) -> None:
        data = one.peer.take(one.room)
        if one.room is not None:
            one.room -= len(data)
        for event in one.peer.see(data):
            self.reached_by(one, event)

    def tear_down(self, one: Connection) -> None:
        one.finished, one.claim = True, None
        one.peer.finish()

    # --- what a client sees ---

    def reached_by(self, one: Connection, event: Event) -> None:
        match event:
            case Woken():
                self.woken(one, event)
            case Welcome():
                assert event.session == one.peer.session.number
                if event.lagged:
                    self.owed[one.peer.agent].clear()
            case Error(429, reason):
                assert reason in DECLARED[429]
                one.told_limited += 1
            case Error(code, reason):
                assert reason in DECLARED[code]
                assert one.answers.pop(0) == code
            case Ponged():
                limited = one.limited.pop(0)
                assert bool(one.told_limited) == bool(limited)
                assert one.told_limited <= limited
                one.told_limited = 0
                assert one.answers.pop(0) == event
            case Acknowledged():
                assert one.answers.pop(0) == event

    def woken(self, one: Connection, event: Woken) -> None:
        agent = one.peer.agent
        if not event.wake.row_id:
            assert event.from_id == HUB
            self.owed[agent].clear()
            return
        number = int(event.wake.row_id.rstrip(b"x"))
        sent = self.sent[number]
        assert agent in sent.agents
        self.reached[agent, number] += 1
        assert self.reached[agent, number] == 1
        if event.from_id == HUB:
            assert event == Woken(HUB, one.peer.id, Wake(event.wake.row_id, b"_inbox/" + one.peer.id), 0)
        else:
            assert (event.from_id, event.to_id) == (sent.sender.encode(), sent.to)
            assert number > one.forwarded.get(event.from_id, -1)
            one.forwarded[event.from_id] = number
        self.owed[agent].discard(number)

    @contextmanager
    def answered(self, one: Connection) -> Iterator[None]:
        """Whatever the hub counts against `one` inside, it must be told."""
        refused, overflow, answers = self.refused, self.hub.counters.overflow.total(), len(one.answers)
        yield
        counted = self.refused - refused
        silenced = counted.pop(("own_queue", ""), 0)
        for cause, _ in counted:
            if ANSWERS[cause] == 429:
                one.limited[-1] += 1
            else:
                one.answers.append(ANSWERS[cause])
        if self.hub.counters.overflow.total() > overflow:
            one.answers.append(507)
        if silenced and not one.peer.is_open and len(one.answers) > answers:
            one.answers.pop()  # it is what did not fit
        assert counted.total() <= 1
        self.settle()

    # --- what holds after every step ---

    @invariant()
    def budgets_are_what_the_queues_hold(self) -> None:
        gauges = self.hub.gauges()
        assert gauges.egress_bytes == gauges.queued_bytes <= self.limits.egress_bytes
        for session in self.hub.sessions:
            assert len(session.queue) <= self.limits.queued_frames
            assert session.queue.size <= self.limits.queued_bytes
        assert gauges.connections == sum(not one.finished for one in self.connections)

    @invariant()
    def one_session_per_agent(self) -> None:
        agents = [one.peer.agent for one in self.connections if one.is_session]
        assert len(agents) == len(set(agents)) == self.hub.agents

    @invariant()
    def subscriptions_are_what_was_asked_for(self) -> None:
        for one in self.connections:
            assert set(one.peer.session.topics) == one.topics

    @invariant()
    def nothing_that_could_be_written_is_left(self) -> None:
        for one in self.connections:
            if one.room is None and not one.finished:
                assert one.peer.queued == 0
                assert not one.answers

    @invariant()
    def nothing_is_retained_when_there_is_room(self) -> None:
        """Only who is owed something has anything retained; with an empty queue it waits for hub-wide space only."""
        starving = False
        for one in self.connections:
            if one.is_session:
                retained = self.hub.delivery.pending_of(one.peer.session).waiting()
                assert bool(retained) == one.peer.session.owed
                starving = starving or bool(retained and not one.peer.queued)
        space = self.limits.egress_bytes - self.limits.egress_reserve - self.hub.gauges().egress_bytes
        assert not starving or space < LARGEST_WAKE

    @invariant()
    def the_table_of_known_agents_is_bounded(self) -> None:
        assert len(self.hub.delivery.known) <= max(self.limits.known_agents, self.hub.agents)

    def teardown(self) -> None:
        """All connections end; then every agent comes back, and is told of whatever it has missed."""
        self.tear_down_all()
        self.world.verifier.denied, self.world.verifier.stale = {}, False
        for agent in AGENTS:
            if self.still_owed(agent):
                assert agent.encode() in self.hub.delivery.known
                one = Connection(self.world.open(agent))
                self.connections.append(one)
                self.settle()
                with self.answered(one):
                    one.peer.hello()
        assert {agent: self.still_owed(agent) for agent in AGENTS} == {agent: set() for agent in AGENTS}
        self.tear_down_all()

    def tear_down_all(self) -> None:
        for one in self.connections:
            if not one.finished:
                self.tear_down(one)
                self.settle()
        gauges = self.hub.gauges()
        assert (gauges.connections, gauges.recipients, gauges.queued_frames, gauges.egress_bytes) == (0, 0, 0, 0)

    def still_owed(self, agent: str) -> set[int]:
        """The wakes that `agent` was not told of, but for those that are too late by now."""
        now_ms = self.world.wall_ms
        return {number for number in self.owed[agent] if not 0 < self.sent[number].deadline_ms <= now_ms}

    # --- for the rules ---

    @property
    def refused(self) -> Counter[tuple[str, str]]:
        return self.hub.counters.refused.copy()

    def some(self, wanted) -> bool:  # type: ignore[no-untyped-def]
        return any(map(wanted, self.connections))

    def pick(self, number: int, wanted) -> Connection:  # type: ignore[no-untyped-def]
        found = [one for one in self.connections if wanted(one)]
        return found[number % len(found)]

    def route(self, agent: str) -> Connection | None:
        return next((one for one in self.connections if one.is_session and one.peer.agent == agent), None)


TestHubMachine = HubMachine.TestCase
TestHubMachine.settings = settings(deadline=None, derandomize=True, max_examples=300, stateful_step_count=80)
