"""Cases of awh1.md §5.5 and §5.6: a wake to oneself, and to another agent that is there."""

from typing import Final

from wakehub.errors import ErrorCode
from wakehub.limits import (
    DIGEST_BYTES,
    MAX_ID_BYTES,
    MAX_WAKE_PAYLOAD_BYTES,
)
from wakehub.ops.conformance.case import Book
from wakehub.ops.conformance.lab import Lab
from wakehub.ops.conformance.outcome import NotApplicable
from wakehub.ops.conformance.peer import now_ms
from wakehub.wire.frames import Kind
from wakehub.wire.payloads import Wake

BOOK = Book()
_HOUR_MS: Final = 3_600_000
_CHUNK: Final = 50


# --- to oneself -----------------------------------------------------------------------------------------------


@BOOK.case("wake-oneself", "5.5", "the very bytes that were sent", agents=1)
def _oneself(lab: Lab) -> None:
    guest = lab.guests[0]
    peer = lab.session(guest)
    sent = peer.send_wake(guest.agent, lab.row(1), ts_ms=now_ms())
    peer.expect_bytes(sent)
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
        peer.expect_bytes(sent)


@BOOK.case("ttl-passes-unchanged", "5.6", "a wake that is not over arrives with its stamps as sent", agents=1)
def _ttl_unchanged(lab: Lab) -> None:
    guest = lab.guests[0]
    peer = lab.session(guest)
    for ts_ms, ttl_ms in ((now_ms(), _HOUR_MS), (0, _HOUR_MS), (1, 0), (now_ms() + _HOUR_MS, 1)):
        sent = peer.send_wake(guest.agent, lab.row(1), ts_ms=ts_ms, ttl_ms=ttl_ms)
        peer.expect_bytes(sent)


@BOOK.case("expired-wake-is-dropped", "5.6", "neither a wake nor an error", agents=1, ours=True)
def _expired(lab: Lab) -> None:
    guest = lab.guests[0]
    peer = lab.session(guest)
    peer.send_wake(guest.agent, lab.row(1), ts_ms=now_ms() - _HOUR_MS, ttl_ms=1000)
    peer.expect_quiet()


@BOOK.case(
    "expired-wake-is-dropped-first", "5.6", "no error either for one to nobody, or out of scope", agents=1, ours=True
)
def _expired_first(lab: Lab) -> None:
    peer = lab.session(lab.guests[0])
    for to_id in (lab.nobody(), b"#" + lab.nobody()):
        peer.send_wake(to_id, lab.row(1), ts_ms=now_ms() - _HOUR_MS, ttl_ms=1000)
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
    sent = sender.send_frame(Kind.WAKE, recipient.agent, wake.encode(), ts_ms=now_ms(), ttl_ms=_HOUR_MS)
    recipient.expect_bytes(sent)
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
