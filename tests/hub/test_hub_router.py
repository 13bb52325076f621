"""Where a frame goes: one session per agent, subscribers by topic (design.md, Data path; awh1.md §5.3, §5.6)."""

import gc
import zlib
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from wakehub.hub.accounting import Budget
from wakehub.hub.ratelimit import TokenBucket
from wakehub.hub.router import Router
from wakehub.hub.send_queue import SendQueue
from wakehub.hub.session import Session


def a_session() -> Session:
    return Session(bytes(32), TokenBucket(1, 1, 0), SendQueue(1, 1, Budget(1)))


@pytest.fixture
def router() -> Router:
    return Router()


def test_nobody_has_a_route_at_first(router: Router) -> None:
    assert router.route(b"alice") is None
    assert len(router) == 0


def test_the_newest_session_has_the_route(router: Router) -> None:
    old, new = a_session(), a_session()
    assert router.install(b"alice", old) is None
    assert router.install(b"alice", new) is old
    assert router.route(b"alice") is new
    assert len(router) == 1


def test_an_old_sessions_end_never_removes_a_newer_route(router: Router) -> None:
    old, new = a_session(), a_session()
    router.install(b"alice", old)
    router.install(b"alice", new)
    assert not router.remove(b"alice", old)
    assert router.route(b"alice") is new
    assert router.remove(b"alice", new)
    assert router.route(b"alice") is None
    assert not router.remove(b"alice", new)


def test_ids_are_compared_byte_for_byte(router: Router) -> None:
    names = ["Alice", "alice", "alice ", "é", "e\u0301", "#alice"]
    sessions = {name.encode(): a_session() for name in names}
    for name, session in sessions.items():
        router.install(name, session)
        router.subscribe(name, session)
    assert len(router) == len(names)
    for name, session in sessions.items():
        assert router.route(name) is session
        assert router.subscribers(name, but=a_session()) == [session]


def test_subscribers_come_in_order_without_the_sender_and_once(router: Router) -> None:
    one, two, three = a_session(), a_session(), a_session()
    for session in (two, one, three, two):
        router.subscribe(b"#team", session)
    assert router.subscribers(b"#team", but=one) == [two, three]
    assert router.subscribers(b"#team", but=a_session()) == [two, one, three]
    assert router.subscribers(b"#other", but=one) == []


def test_what_is_handed_out_is_a_snapshot(router: Router) -> None:
    one = a_session()
    router.subscribe(b"#team", one)
    snapshot = router.subscribers(b"#team", but=a_session())
    router.unsubscribe(b"#team", one)
    assert snapshot == [one]


def test_unsubscribing_what_was_not_subscribed_is_nothing(router: Router) -> None:
    one, two = a_session(), a_session()
    router.unsubscribe(b"#team", one)
    router.subscribe(b"#team", one)
    router.unsubscribe(b"#team", two)
    assert router.subscribers(b"#team", but=two) == [one]


def reachable(router: Router) -> set[int]:
    """Every object that the router keeps, down to its keys and sessions."""
    found: set[int] = set()
    waiting: list[Any] = [router]
    while waiting:
        kept = waiting.pop()
        if id(kept) not in found and not isinstance(kept, type):
            found.add(id(kept))
            waiting += gc.get_referents(kept)
    return found


def test_nothing_is_kept_of_who_is_gone(router: Router) -> None:
    session, topic = a_session(), b"#a topic nobody else has"
    router.install(b"alice", session)
    router.subscribe(topic, session)
    assert {id(session), id(topic)} <= reachable(router)
    router.remove(b"alice", session)
    router.unsubscribe(topic, session)
    assert {id(session), id(topic)}.isdisjoint(reachable(router))


def test_sixteen_shards_by_a_hash_that_is_the_same_in_every_run(router: Router) -> None:
    """A key's shard is its CRC-32 modulo 16: agents and topics are found again wherever they were put."""
    names = [b"agent-%d" % number for number in range(200)]
    assert {zlib.crc32(name) % 16 for name in names} == set(range(16))
    sessions = [a_session() for _ in names]
    for name, session in zip(names, sessions, strict=True):
        router.install(name, session)
    assert [router.route(name) for name in names] == sessions
    assert [len(shard.routes) for shard in router._shards] == [
        sum(zlib.crc32(name) % 16 == number for name in names) for number in range(16)
    ]


class RouterMachine(RuleBasedStateMachine):
    """The router beside two plain tables."""

    sessions = Bundle("sessions")
    names = st.sampled_from([b"alice", b"bob", b"#team", b"#other"])

    def __init__(self) -> None:
        super().__init__()
        self.router = Router()
        self.routes: dict[bytes, Session] = {}
        self.topics: dict[bytes, list[Session]] = {}

    @rule(target=sessions)
    def make(self) -> Session:
        return a_session()

    @rule(name=names, session=sessions)
    def install(self, name: bytes, session: Session) -> None:
        assert self.router.install(name, session) is self.routes.get(name)
        self.routes[name] = session

    @rule(name=names, session=sessions)
    def remove(self, name: bytes, session: Session) -> None:
        ours = self.routes.get(name) is session
        assert self.router.remove(name, session) == ours
        if ours:
            del self.routes[name]

    @rule(name=names, session=sessions)
    def subscribe(self, name: bytes, session: Session) -> None:
        self.router.subscribe(name, session)
        listed = self.topics.setdefault(name, [])
        if session not in listed:
            listed.append(session)

    @rule(name=names, session=sessions)
    def unsubscribe(self, name: bytes, session: Session) -> None:
        self.router.unsubscribe(name, session)
        if session in self.topics.get(name, []):
            self.topics[name].remove(session)

    @rule(name=names, but=sessions)
    def look(self, name: bytes, but: Session) -> None:
        assert self.router.subscribers(name, but) == [other for other in self.topics.get(name, []) if other is not but]

    @invariant()
    def agrees(self) -> None:
        assert len(self.router) == len(self.routes)
        for name in (b"alice", b"bob", b"#team", b"#other"):
            assert self.router.route(name) is self.routes.get(name)


TestRouterMachine = RouterMachine.TestCase
TestRouterMachine.settings = settings(deadline=None, derandomize=True, max_examples=50)
