"""Cases of awh1.md §5.3 and §5.6: wakes to whoever holds a topic, and what they cost."""

import time
from typing import Final

from wakehub.errors import ErrorCode
from wakehub.limits import (
    FRAME_BURST,
    FRAME_RATE_PER_SECOND,
)
from wakehub.ops.conformance.case import Book
from wakehub.ops.conformance.guest import topic_list
from wakehub.ops.conformance.lab import Lab
from wakehub.ops.conformance.outcome import Mismatch, NotApplicable
from wakehub.ops.conformance.peer import Peer, Received, now_ms
from wakehub.wire.frames import Kind

BOOK = Book()
_CHUNK: Final = 50


def _subscribe(peer: Peer, kind: Kind, topic: bytes) -> None:
    peer.send_frame(kind, payload=topic_list([topic]))
    peer.expect(kind)


@BOOK.case("topic-wake", "5.6", "the very bytes, to the subscriber", agents=2, shared=True)
def _topic_wake(lab: Lab) -> None:
    sender, recipient, topic = lab.session(lab.guests[0]), lab.session(lab.guests[1]), lab.topic(2)
    _subscribe(recipient, Kind.SUBSCRIBE, topic)
    sent = sender.send_wake(topic, lab.row(1), ts_ms=now_ms())
    recipient.expect_bytes(sent)
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
    again.expect_pending(0, 0, lagged=False)


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
    sent = sender.send_wake(topic, lab.row(1), ts_ms=now_ms())
    for recipient in recipients:
        recipient.expect_bytes(sent)
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
