"""Cases of awh1.md §5.8 and §5.9: wakes to an agent that is not there, and one that the hub was told to forget."""

from collections.abc import Iterable

from wakehub.errors import ErrorCode
from wakehub.limits import (
    MAX_ID_BYTES,
    MAX_PENDING_IDS,
)
from wakehub.ops.conformance.case import Book
from wakehub.ops.conformance.lab import Lab
from wakehub.ops.conformance.outcome import Mismatch
from wakehub.ops.conformance.peer import Peer
from wakehub.wire.frames import Kind

BOOK = Book()


# --- away (§5.8) ----------------------------------------------------------------------------------------------


def _waited_for(lab: Lab, rows: Iterable[bytes]) -> Peer:
    """Wake the second agent while it is away; its next session, of which nothing but the welcome was read."""
    sender, guest = lab.session(lab.guests[0]), lab.guests[1]
    lab.absent(guest)
    for row in rows:
        sender.send_wake(guest.agent, row)
    sender.expect_quiet()
    return lab.welcomed(guest)


@BOOK.case("absent-is-no-error", "5.6", "no answer for a wake to a known agent that is away", agents=2)
def _absent(lab: Lab) -> None:
    _waited_for(lab, (lab.row(1),))


@BOOK.case("pending-is-replayed", "5.8", "one wake for each id, made by the hub, behind the welcome", agents=2)
def _replayed(lab: Lab) -> None:
    rows = [lab.row(number) for number in range(5)]
    peer = _waited_for(lab, rows)
    peer.expect_pending(5, 5, lagged=False)
    found = peer.before_pong()
    if sorted(one.wake.row_id for one in found if one.frame.kind is Kind.WAKE) != rows:
        raise Mismatch(f"{len(found)} frames: {', '.join(map(str, found[:6]))}")
    for one in found:
        peer.expect_made(one)


@BOOK.case("pending-is-coalesced", "5.8", "an id that came three times counts three, and is one id", agents=2)
def _coalesced(lab: Lab) -> None:
    peer = _waited_for(lab, [lab.row(1)] * 3)
    peer.expect_pending(3, 1, lagged=False)
    peer.expect_wake(lab.row(1))
    peer.expect_quiet()


@BOOK.case("65th-pending-id", "5.8", "64 ids, and lagged", agents=2)
def _sixty_fifth(lab: Lab) -> None:
    count = MAX_PENDING_IDS + 1
    peer = _waited_for(lab, [lab.row(number) for number in range(count)])
    peer.expect_pending(count, MAX_PENDING_IDS, lagged=True)


@BOOK.case("64-pending-ids", "5.8", "64 ids, and not lagged", agents=2)
def _sixty_four(lab: Lab) -> None:
    peer = _waited_for(lab, [lab.row(number) for number in range(MAX_PENDING_IDS)])
    peer.expect_pending(MAX_PENDING_IDS, MAX_PENDING_IDS, lagged=False)


@BOOK.case("unkeepable-ids-lag", "5.8", "an empty id and one over 128 B are counted, not kept: lagged", agents=2)
def _unkeepable(lab: Lab) -> None:
    for row in (b"", b"r" * (MAX_ID_BYTES + 1)):
        peer = _waited_for(lab, (row,))
        peer.expect_pending(1, 0, lagged=True)


@BOOK.case("pending-is-cleared", "5.8", "nothing waits any more at the second hello", agents=2)
def _cleared(lab: Lab) -> None:
    peer = _waited_for(lab, (lab.row(1),))
    peer.expect_wake(lab.row(1))
    peer.expect_quiet()
    peer.leave()
    again = lab.welcomed(lab.guests[1])
    again.expect_pending(0, 0, lagged=False)
    again.expect_quiet()


@BOOK.case("live-wakes-do-not-wait", "5.8", "what was delivered is not replayed", agents=2)
def _not_kept(lab: Lab) -> None:
    sender, recipient = (lab.session(guest) for guest in lab.guests[:2])
    sender.send_wake(recipient.agent, lab.row(1))
    recipient.expect_wake(lab.row(1))
    recipient.leave()
    again = lab.welcomed(lab.guests[1])
    again.expect_pending(0, 0, lagged=False)


# --- departed (§5.9) ------------------------------------------------------------------------------------------


@BOOK.case("depart", "5.9", "the end, without an answer", agents=1, departs=True)
def _depart(lab: Lab) -> None:
    lab.depart(lab.session(lab.guests[0]), lab.guests[0])


@BOOK.case("departed-is-unknown", "5.9", "404 for a wake to an agent that departed", agents=2, departs=True)
def _unknown(lab: Lab) -> None:
    sender, guest = lab.session(lab.guests[0]), lab.guests[1]
    lab.depart(lab.session(guest), guest)
    sender.send_wake(guest.agent, lab.row(1))
    sender.expect_only_error(ErrorCode.UNKNOWN)


@BOOK.case("departed-may-return", "5.9", "a welcome with nothing pending, and wakes arrive", agents=2, departs=True)
def _return(lab: Lab) -> None:
    sender, guest = lab.session(lab.guests[0]), lab.guests[1]
    lab.depart(lab.session(guest), guest)
    again = lab.welcomed(guest)
    again.expect_pending(0, 0, lagged=False)
    sender.send_wake(guest.agent, lab.row(1))
    again.expect_wake(lab.row(1))


@BOOK.case(
    "departed-holds-no-topic", "5.9", "no wake for a topic of the time before", agents=2, shared=True, departs=True
)
def _no_topic(lab: Lab) -> None:
    sender, guest, topic = lab.session(lab.guests[0]), lab.guests[1], lab.topic(2)
    lab.depart(lab.session(guest, (topic,)), guest)
    again = lab.session(guest)
    sender.send_wake(topic, lab.row("topic"))
    sender.send_wake(guest.agent, lab.row("direct"))
    again.expect_wake(lab.row("direct"))
