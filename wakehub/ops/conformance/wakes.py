"""Cases of awh1.md §5.5 to §5.9: what becomes of a wake, for an agent that is there, one that is not, and many."""

import time
from collections.abc import Iterable
from typing import Final, NoReturn

from wakehub.errors import ErrorCode
from wakehub.limits import (
    DIGEST_BYTES,
    FRAME_BURST,
    FRAME_RATE_PER_SECOND,
    MAX_ID_BYTES,
    MAX_PENDING_IDS,
    MAX_WAKE_PAYLOAD_BYTES,
)
from wakehub.ops.conformance.case import Book, Mismatch, NotApplicable
from wakehub.ops.conformance.guest import Guest, topic_list
from wakehub.ops.conformance.lab import Lab
from wakehub.ops.conformance.peer import Peer, Received
from wakehub.wire.frames import Kind
from wakehub.wire.payloads import Wake, Welcome

BOOK = Book()
_HOUR_MS: Final = 3_600_000
_CHUNK: Final = 50


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _expect_bytes(found: Received, sent: bytes) -> None:
    if found.raw != sent:
        raise Mismatch(f"{found}, of other bytes than were sent")


# --- to oneself -----------------------------------------------------------------------------------------------


@BOOK.case("wake-oneself", "5.5", "the very bytes that were sent", agents=1)
def _oneself(lab: Lab) -> None:
    guest = lab.guests[0]
    peer = lab.session(guest)
    sent = peer.send_wake(guest.agent, lab.row(1), ts_ms=_now_ms())
    _expect_bytes(peer.expect(Kind.WAKE), sent)
    peer.expect_quiet()


@BOOK.case("fullest-and-emptiest-wake", "2", "the very bytes, of 256 B metadata and of empty fields", agents=1)
def _extremes(lab: Lab) -> None:
    guest = lab.guests[0]
    peer = lab.session(guest)
    taken = len(Wake(b"", b"", b"", bytes(DIGEST_BYTES)).encode())
    for wake in (
        Wake(
            b"r" * 128,
            "é".encode() * ((MAX_WAKE_PAYLOAD_BYTES - taken - 128) // 2),
            b"",
            bytes(DIGEST_BYTES),
            2**64 - 1,
        ),
        Wake(b""),
    ):
        sent = peer.send_frame(Kind.WAKE, guest.agent, wake.encode(), ts_ms=2**64 - 1)
        _expect_bytes(peer.expect(Kind.WAKE), sent)


@BOOK.case("ttl-passes-unchanged", "5.6", "a wake that is not over arrives with its stamps as sent", agents=1)
def _ttl_unchanged(lab: Lab) -> None:
    guest = lab.guests[0]
    peer = lab.session(guest)
    for ts_ms, ttl_ms in ((_now_ms(), _HOUR_MS), (0, _HOUR_MS), (1, 0), (_now_ms() + _HOUR_MS, 1)):
        sent = peer.send_wake(guest.agent, lab.row(1), ts_ms=ts_ms, ttl_ms=ttl_ms)
        _expect_bytes(peer.expect(Kind.WAKE), sent)


@BOOK.case("expired-wake-is-dropped", "5.6", "neither a wake nor an error", agents=1, ours=True)
def _expired(lab: Lab) -> None:
    guest = lab.guests[0]
    peer = lab.session(guest)
    peer.send_wake(guest.agent, lab.row(1), ts_ms=_now_ms() - _HOUR_MS, ttl_ms=1000)
    peer.expect_quiet()


@BOOK.case(
    "expired-wake-is-dropped-first", "5.6", "no error either for one to nobody, or out of scope", agents=1, ours=True
)
def _expired_first(lab: Lab) -> None:
    peer = lab.session(lab.guests[0])
    for to_id in (lab.nobody(), b"#" + lab.nobody()):
        peer.send_wake(to_id, lab.row(1), ts_ms=_now_ms() - _HOUR_MS, ttl_ms=1000)
    peer.expect_quiet()


@BOOK.case("sender-is-no-recipient", "5.5", "a topic wake does not come back to its sender", agents=1)
def _not_back(lab: Lab) -> None:
    guest = lab.guests[0]
    own = lab.own_topic(guest)
    peer = lab.session(guest, (own,))
    peer.send_wake(own, lab.row("topic"))
    peer.send_wake(guest.agent, lab.row("direct"))
    peer.expect_wake(lab.row("direct"))
    peer.expect_quiet()


# --- to another -----------------------------------------------------------------------------------------------


@BOOK.case("wake-is-forwarded", "5.6", "the very bytes that were sent, and no answer to the sender", agents=2)
def _forwarded(lab: Lab) -> None:
    sender, recipient = (lab.session(guest) for guest in lab.guests[:2])
    wake = Wake(lab.row(1), b"some/namespace", "zoë".encode(), bytes(range(DIGEST_BYTES)), 42)
    sent = sender.send_frame(Kind.WAKE, recipient.agent, wake.encode(), ts_ms=_now_ms(), ttl_ms=_HOUR_MS)
    _expect_bytes(recipient.expect(Kind.WAKE), sent)
    sender.expect_quiet()


@BOOK.case("wakes-stay-in-order", "5.6", "300 wakes arrive in the order in which they were sent", agents=2)
def _in_order(lab: Lab) -> None:
    sender, recipient = (lab.session(guest) for guest in lab.guests[:2])
    for at in range(0, 300, _CHUNK):
        rows = [lab.row(number) for number in range(at, at + _CHUNK)]
        for row in rows:
            sender.send_wake(recipient.agent, row)
        for row in rows:
            recipient.expect_wake(row)
    sender.expect_quiet()


@BOOK.case("ids-are-exact", "1", "404 for an id that only looks like the recipient's", agents=2)
def _exact(lab: Lab) -> None:
    sender, recipient = (lab.session(guest) for guest in lab.guests[:2])
    for suffix in ("\u200e", " ", "\u0301"):
        other = recipient.agent + suffix.encode()
        if len(other) > MAX_ID_BYTES:
            raise NotApplicable("the second agent's id is too long to be lengthened")
        sender.send_wake(other, lab.row(1))
        sender.expect_only_error(ErrorCode.UNKNOWN)
    recipient.expect_quiet()


# --- to one that is not there (§5.8) --------------------------------------------------------------------------


def _waited_for(lab: Lab, rows: Iterable[bytes]) -> tuple[Peer, Welcome]:
    """Wake the second agent while it is away; its next session, of which nothing but the welcome was read."""
    sender, guest = lab.session(lab.guests[0]), lab.guests[1]
    lab.absent(guest)
    for row in rows:
        sender.send_wake(guest.agent, row)
    sender.expect_quiet()
    peer = lab.welcomed(guest)
    assert peer.welcome is not None
    return peer, peer.welcome


def _expect_counts(welcome: Welcome, count: int, ids: int, *, lagged: bool) -> None:
    found = (welcome.pending_count, welcome.pending_ids, welcome.lagged)
    if found != (count, ids, lagged):
        raise Mismatch(f"a welcome with count {found[0]}, ids {found[1]}, lagged {found[2]:d}")


@BOOK.case("absent-is-no-error", "5.6", "no answer for a wake to a known agent that is away", agents=2)
def _absent(lab: Lab) -> None:
    _waited_for(lab, (lab.row(1),))


@BOOK.case("pending-is-replayed", "5.8", "one wake for each id, made by the hub, behind the welcome", agents=2)
def _replayed(lab: Lab) -> None:
    rows = [lab.row(number) for number in range(5)]
    peer, welcome = _waited_for(lab, rows)
    _expect_counts(welcome, 5, 5, lagged=False)
    found = peer.before_pong()
    if sorted(one.wake.row_id for one in found if one.frame.kind is Kind.WAKE) != rows:
        raise Mismatch(f"{len(found)} frames: {', '.join(map(str, found[:6]))}")
    for one in found:
        _expect_made(one, peer)


def _expect_made(found: Received, peer: Peer) -> None:
    """A wake of the hub's own making (§5.6)."""
    peer.expect_from_hub(found)
    wake, inbox = found.wake, b"_inbox/" + peer.agent
    if wake.sender or wake.digest or wake.watermark or wake.namespace not in (inbox, b""):
        raise Mismatch(f"{found} that says more than the hub knows")


@BOOK.case("pending-is-coalesced", "5.8", "an id that came three times counts three, and is one id", agents=2)
def _coalesced(lab: Lab) -> None:
    peer, welcome = _waited_for(lab, [lab.row(1)] * 3)
    _expect_counts(welcome, 3, 1, lagged=False)
    peer.expect_wake(lab.row(1))
    peer.expect_quiet()


@BOOK.case("65th-pending-id", "5.8", "64 ids, and lagged", agents=2)
def _sixty_fifth(lab: Lab) -> None:
    count = MAX_PENDING_IDS + 1
    _, welcome = _waited_for(lab, [lab.row(number) for number in range(count)])
    _expect_counts(welcome, count, MAX_PENDING_IDS, lagged=True)


@BOOK.case("64-pending-ids", "5.8", "64 ids, and not lagged", agents=2)
def _sixty_four(lab: Lab) -> None:
    _, welcome = _waited_for(lab, [lab.row(number) for number in range(MAX_PENDING_IDS)])
    _expect_counts(welcome, MAX_PENDING_IDS, MAX_PENDING_IDS, lagged=False)


@BOOK.case("unkeepable-ids-lag", "5.8", "an empty id and one over 128 B are counted, not kept: lagged", agents=2)
def _unkeepable(lab: Lab) -> None:
    for row in (b"", b"r" * (MAX_ID_BYTES + 1)):
        _, welcome = _waited_for(lab, (row,))
        _expect_counts(welcome, 1, 0, lagged=True)


@BOOK.case("pending-is-cleared", "5.8", "nothing waits any more at the second hello", agents=2)
def _cleared(lab: Lab) -> None:
    peer, _ = _waited_for(lab, (lab.row(1),))
    peer.expect_wake(lab.row(1))
    peer.expect_quiet()
    peer.leave()
    again = lab.welcomed(lab.guests[1])
    assert again.welcome is not None
    _expect_counts(again.welcome, 0, 0, lagged=False)
    again.expect_quiet()


@BOOK.case("live-wakes-do-not-wait", "5.8", "what was delivered is not replayed", agents=2)
def _not_kept(lab: Lab) -> None:
    sender, recipient = (lab.session(guest) for guest in lab.guests[:2])
    sender.send_wake(recipient.agent, lab.row(1))
    recipient.expect_wake(lab.row(1))
    recipient.leave()
    again = lab.welcomed(lab.guests[1])
    assert again.welcome is not None
    _expect_counts(again.welcome, 0, 0, lagged=False)


# --- depart (§5.9) --------------------------------------------------------------------------------------------


def depart(peer: Peer, guest: Guest) -> None:
    """Have the hub forget the agent of a session; it must close without an answer."""
    peer.send_frame(Kind.DEPART, payload=guest.membership(Kind.DEPART, peer.hub_id, peer.nonce))
    peer.expect_end()


@BOOK.case("depart", "5.9", "the end, without an answer", agents=1, departs=True)
def _depart(lab: Lab) -> None:
    depart(lab.session(lab.guests[0]), lab.guests[0])


@BOOK.case("departed-is-unknown", "5.9", "404 for a wake to an agent that departed", agents=2, departs=True)
def _unknown(lab: Lab) -> None:
    sender, guest = lab.session(lab.guests[0]), lab.guests[1]
    depart(lab.session(guest), guest)
    sender.send_wake(guest.agent, lab.row(1))
    sender.expect_only_error(ErrorCode.UNKNOWN)


@BOOK.case("departed-may-return", "5.9", "a welcome with nothing pending, and wakes arrive", agents=2, departs=True)
def _return(lab: Lab) -> None:
    sender, guest = lab.session(lab.guests[0]), lab.guests[1]
    depart(lab.session(guest), guest)
    again = lab.welcomed(guest)
    assert again.welcome is not None
    _expect_counts(again.welcome, 0, 0, lagged=False)
    sender.send_wake(guest.agent, lab.row(1))
    again.expect_wake(lab.row(1))


@BOOK.case(
    "departed-holds-no-topic", "5.9", "no wake for a topic of the time before", agents=2, shared=True, departs=True
)
def _no_topic(lab: Lab) -> None:
    sender, guest, topic = lab.session(lab.guests[0]), lab.guests[1], lab.topic(2)
    depart(lab.session(guest, (topic,)), guest)
    again = lab.session(guest)
    sender.send_wake(topic, lab.row("topic"))
    sender.send_wake(guest.agent, lab.row("direct"))
    again.expect_wake(lab.row("direct"))


# --- topics (§5.6) --------------------------------------------------------------------------------------------


def _subscribe(peer: Peer, kind: Kind, topic: bytes) -> None:
    peer.send_frame(kind, payload=topic_list([topic]))
    peer.expect(kind)


@BOOK.case("topic-wake", "5.6", "the very bytes, to the subscriber", agents=2, shared=True)
def _topic_wake(lab: Lab) -> None:
    sender, recipient, topic = lab.session(lab.guests[0]), lab.session(lab.guests[1]), lab.topic(2)
    _subscribe(recipient, Kind.SUBSCRIBE, topic)
    sent = sender.send_wake(topic, lab.row(1), ts_ms=_now_ms())
    _expect_bytes(recipient.expect(Kind.WAKE), sent)
    recipient.expect_quiet()
    sender.expect_quiet()


@BOOK.case("topic-of-the-hello", "5.3", "a topic of the hello is held from the welcome on", agents=2, shared=True)
def _hello_topic(lab: Lab) -> None:
    sender, topic = lab.session(lab.guests[0]), lab.topic(2)
    recipient = lab.welcomed(lab.guests[1], (topic,))
    sender.send_wake(topic, lab.row(1))
    recipient.expect_wake(lab.row(1))


@BOOK.case("unsubscribed", "5.6", "no wake for a topic once its unsubscribe was acknowledged", agents=2, shared=True)
def _unsubscribed(lab: Lab) -> None:
    sender, topic = lab.session(lab.guests[0]), lab.topic(2)
    recipient = lab.session(lab.guests[1], (topic,))
    _subscribe(recipient, Kind.UNSUBSCRIBE, topic)
    sender.send_wake(topic, lab.row("topic"))
    sender.send_wake(recipient.agent, lab.row("direct"))
    recipient.expect_wake(lab.row("direct"))


@BOOK.case("topics-are-exact", "1", "no wake for a topic that differs in case", agents=2, shared=True)
def _exact_topic(lab: Lab) -> None:
    sender, topic = lab.session(lab.guests[0]), lab.topic(2)
    namespace, last = topic.rsplit(b"/", 1)
    recipient = lab.session(lab.guests[1], (topic,))
    sender.send_wake(namespace + b"/" + last.upper(), lab.row("topic"))
    sender.send_wake(recipient.agent, lab.row("direct"))
    recipient.expect_wake(lab.row("direct"))


@BOOK.case("topic-without-subscribers", "5.6", "no error", agents=1)
def _no_subscribers(lab: Lab) -> None:
    peer = lab.session(lab.guests[0])
    peer.send_wake(lab.topic(1), lab.row(1))
    peer.expect_quiet()


@BOOK.case("topic-wakes-do-not-wait", "5.6", "an absent subscriber gets no pending entry", agents=2, shared=True)
def _topic_not_kept(lab: Lab) -> None:
    sender, guest, topic = lab.session(lab.guests[0]), lab.guests[1], lab.topic(2)
    lab.session(guest, (topic,)).leave()
    sender.send_wake(topic, lab.row(1))
    sender.expect_quiet()
    again = lab.welcomed(guest)
    assert again.welcome is not None
    _expect_counts(again.welcome, 0, 0, lagged=False)


@BOOK.case(
    "subscriptions-belong-to-the-session", "5.3", "a replacement inherits no topic", agents=2, shared=True, ours=True
)
def _not_inherited(lab: Lab) -> None:
    sender, guest, topic = lab.session(lab.guests[0]), lab.guests[1], lab.topic(2)
    lab.session(guest, (topic,))
    newer = lab.session(guest)
    sender.send_wake(topic, lab.row("topic"))
    sender.send_wake(guest.agent, lab.row("direct"))
    newer.expect_wake(lab.row("direct"))


@BOOK.case("fan-out", "5.6", "the very bytes, to each of two subscribers", agents=3, shared=True)
def _fan_out(lab: Lab) -> None:
    sender, topic = lab.session(lab.guests[0]), lab.topic(3)
    recipients = [lab.session(guest, (topic,)) for guest in lab.guests[1:3]]
    sent = sender.send_wake(topic, lab.row(1), ts_ms=_now_ms())
    for recipient in recipients:
        _expect_bytes(recipient.expect(Kind.WAKE), sent)
        recipient.expect_quiet()


@BOOK.case(
    "fan-out-is-charged", "5.5", "429 for about 1,000 topic wakes to two recipients at once", agents=3, shared=True
)
def _charged(lab: Lab) -> None:
    sender, topic = lab.session(lab.guests[0]), lab.topic(3)
    recipients = [lab.session(guest, (topic,)) for guest in lab.guests[1:3]]
    most = FRAME_BURST * 3 // 4  # one token each would leave a quarter of the burst
    began = time.monotonic()
    for at in range(0, most, _CHUNK):
        for number in range(at, at + _CHUNK):
            sender.send_wake(topic, lab.row(number))
        before = sender.before_pong() if at + _CHUNK < FRAME_BURST // 2 else _answers(sender)
        if before:
            if not before[0].is_error(ErrorCode.RATE_LIMITED):
                raise Mismatch(str(before[0]))
            return
        for recipient in recipients:
            for number in range(at, at + _CHUNK):
                recipient.expect_wake(lab.row(number))
    if (time.monotonic() - began) * FRAME_RATE_PER_SECOND > FRAME_BURST // 4:
        raise NotApplicable("this machine is too slow to tell")
    raise Mismatch(f"no 429 for {most} wakes to two recipients")


def _answers(sender: Peer) -> list[Received]:
    """What answers the wakes that were sent; where the ping itself may be refused, its refusal is an answer as well."""
    sender.send_frame(Kind.PING)
    found = sender.read()
    return [] if found.frame.kind is Kind.PONG else [found]


# --- a recipient that does not read (§5.6, §5.7) --------------------------------------------------------------


class Deaf:
    """The second agent does not read, and the first wakes it until the hub says 507.

    `rows` are all that were sent; at most one chunk of them got 507.
    """

    def __init__(self, lab: Lab) -> None:
        self.sender, self.recipient = (lab.session(guest) for guest in lab.guests[:2])
        self.rows: list[bytes] = []
        self.refused = 0
        fill = "x" * (MAX_ID_BYTES - len(lab.row("0000-")))
        while not self.refused:
            if len(self.rows) + _CHUNK > FRAME_BURST - FRAME_BURST // 10:
                self._give_up()
            chunk = [lab.row(f"{len(self.rows) + number:04}-{fill}") for number in range(_CHUNK)]
            for row in chunk:
                self.sender.send_frame(
                    Kind.WAKE, self.recipient.agent, Wake(row, b"n" * 80, b"", bytes(DIGEST_BYTES)).encode()
                )
            self.rows += chunk
            answers = self.sender.before_pong()
            for answer in answers:
                if not answer.is_error(ErrorCode.OVERFLOW):
                    raise Mismatch(str(answer))
            self.refused = len(answers)

    def _give_up(self) -> NoReturn:
        """There was no 507 for as much as may be sent: because the kernel took it all, or because some went lost."""
        found = [came for came in self.recipient.before_pong() if came.frame.from_id == self.sender.agent]
        if len(found) < len(self.rows):
            raise Mismatch(f"no error, and {len(self.rows) - len(found)} of {len(self.rows)} wakes did not arrive")
        raise NotApplicable("the kernel takes more for a peer that does not read than a sender may send")

    def read_what_was_taken(self) -> set[bytes]:
        """The recipient reads as many wakes as got no 507; in order, without a gap in front of a 507."""
        found = []
        for _ in range(len(self.rows) - self.refused):
            came = self.recipient.expect(Kind.WAKE)
            if came.frame.from_id == self.sender.agent:
                found.append(came.wake.row_id)
        if found != sorted(found) or not set(found) <= set(self.rows):
            raise Mismatch("wakes out of order, or that nobody sent")
        return set(found)


@BOOK.case("deaf-recipient", "5.4", "507 for wakes to an agent that does not read, and the session goes on", agents=2)
def _deaf(lab: Lab) -> None:
    deaf = Deaf(lab)
    deaf.sender.expect_quiet()


@BOOK.case("deaf-recipient-catches-up", "5.7", "what was taken arrives in order, and new wakes behind it", agents=2)
def _catches_up(lab: Lab) -> None:
    deaf = Deaf(lab)
    deaf.read_what_was_taken()
    deaf.sender.send_wake(deaf.recipient.agent, lab.row("new"))
    while (came := deaf.recipient.expect(Kind.WAKE)).wake.row_id != lab.row("new"):
        _expect_made(came, deaf.recipient)


@BOOK.case(
    "overflow-heals", "5.6", "ids that got 507 are sent by the hub once the recipient reads", agents=2, ours=True
)
def _heals(lab: Lab) -> None:
    deaf = Deaf(lab)
    missing = set(deaf.rows) - deaf.read_what_was_taken()
    while missing:
        came = deaf.recipient.expect(Kind.WAKE)
        _expect_made(came, deaf.recipient)
        missing.discard(came.wake.row_id)


@BOOK.case("deaf-recipient-holds-up-nobody", "5.7", "a third agent gets its wakes meanwhile", agents=3)
def _holds_up_nobody(lab: Lab) -> None:
    deaf, other = Deaf(lab), lab.session(lab.guests[2])
    for number in range(20):
        deaf.sender.send_wake(other.agent, lab.row(number))
    for number in range(20):
        other.expect_wake(lab.row(number))
    other.send_wake(deaf.sender.agent, lab.row("back"))
    deaf.sender.expect_wake(lab.row("back"))
