"""Cases of awh1.md §5.3 to §5.5 and §5.9: one session by itself, and two of the same agent."""

import time
from collections.abc import Callable
from typing import Final

from wakehub.errors import ErrorCode
from wakehub.limits import (
    CONFORMANCE_FLOOD_FRAMES,
    DIGEST_BYTES,
    FRAME_BURST,
    FRAME_RATE_PER_SECOND,
    MAX_PING_BYTES,
    MAX_TOPICS_PER_LIST,
    MAX_TOPICS_PER_SESSION,
    RATE_LIMITED_ANSWER_INTERVAL_MS,
)
from wakehub.ops.conformance.case import Book
from wakehub.ops.conformance.greeting import expect_unauthorized
from wakehub.ops.conformance.guest import topic_list
from wakehub.ops.conformance.lab import Lab
from wakehub.ops.conformance.outcome import Mismatch
from wakehub.ops.conformance.peer import Peer, body, prefixed
from wakehub.wire.fields import lp
from wakehub.wire.frames import Kind
from wakehub.wire.payloads import Wake

BOOK = Book()
_WATERMARK: Final = bytes(8)
_CHUNK: Final = 500


def _session_case(name: str, section: str, expects: str, act: Callable[[Lab, Peer], object]) -> None:
    """`act` with a session of the first agent."""

    @BOOK.case(name, section, expects, agents=1)
    def attempt(lab: Lab) -> None:
        act(lab, lab.session(lab.guests[0]))


# --- ping -----------------------------------------------------------------------------------------------------


@BOOK.case("ping", "2", "a pong without payload, from the hub to the agent", agents=1)
def _ping(lab: Lab) -> None:
    peer = lab.session(lab.guests[0])
    for payload in (b"", b"p", bytes(MAX_PING_BYTES)):
        peer.send_frame(Kind.PING, payload=payload)
        pong = peer.expect(Kind.PONG)
        peer.expect_from_hub(pong)
        if pong.frame.payload:
            raise Mismatch(f"a pong with {len(pong.frame.payload)} B")


@BOOK.case("pong-is-ignored", "2", "no answer to a pong", agents=1)
def _pong(lab: Lab) -> None:
    peer = lab.session(lab.guests[0])
    peer.send_frame(Kind.PONG)
    peer.send_frame(Kind.PONG, payload=bytes(MAX_PING_BYTES))
    peer.expect_quiet()


@BOOK.case("many-frames-in-one-write", "1", "each of 100 frames that came at once is answered", agents=1)
def _many(lab: Lab) -> None:
    peer = lab.session(lab.guests[0])
    peer.send(prefixed(body(Kind.PING, peer.agent)) * 100)
    for _ in range(100):
        peer.expect(Kind.PONG)
    peer.expect_quiet()


# --- refusals that leave the session open (§5.4) --------------------------------------------------------------


def _stays_open(
    name: str, code: ErrorCode, kind: Kind, to_id: Callable[[Lab, Peer], bytes], payload: bytes = b""
) -> None:
    @BOOK.case(name, "5.4", f"{code.value}, and the session goes on", agents=1)
    def attempt(lab: Lab) -> None:
        peer = lab.session(lab.guests[0])
        peer.send_frame(kind, to_id(lab, peer), payload)
        peer.expect_only_error(code)


_NOBODY: Final = b""
_HINT: Final = Wake(b"m").encode()


@BOOK.case("from-of-somebody-else", "5.4", "403 for each kind, and the session goes on", agents=1)
def _forged(lab: Lab) -> None:
    peer = lab.session(lab.guests[0])
    for kind in (Kind.WAKE, Kind.PING, Kind.SUBSCRIBE, Kind.DEPART):
        peer.send(prefixed(body(kind, lab.nobody(), peer.agent, _HINT if kind is Kind.WAKE else b"")))
        peer.expect_only_error(ErrorCode.FORBIDDEN)


for _kind in (Kind.HELLO, Kind.WELCOME, Kind.ERROR):
    _stays_open(f"{_kind.name.lower()}-in-session", ErrorCode.FORBIDDEN, _kind, lambda lab, peer: _NOBODY)
_stays_open("wake-without-destination", ErrorCode.UNKNOWN, Kind.WAKE, lambda lab, peer: _NOBODY, _HINT)
_stays_open("wake-to-nobody", ErrorCode.UNKNOWN, Kind.WAKE, lambda lab, peer: lab.nobody(), _HINT)
_stays_open(
    "wake-to-another-inbox-topic", ErrorCode.FORBIDDEN, Kind.WAKE, lambda lab, peer: b"#_inbox/" + lab.nobody(), _HINT
)
_stays_open("wake-to-a-foreign-topic", ErrorCode.FORBIDDEN, Kind.WAKE, lambda lab, peer: b"#" + lab.nobody(), _HINT)
_stays_open(
    "wake-to-a-substrate-topic", ErrorCode.FORBIDDEN, Kind.WAKE, lambda lab, peer: b"#_messages/" + lab.nobody(), _HINT
)
_stays_open("wake-to-bare-hash", ErrorCode.FORBIDDEN, Kind.WAKE, lambda lab, peer: b"#", _HINT)
_stays_open("wake-to-a-long-topic", ErrorCode.FORBIDDEN, Kind.WAKE, lambda lab, peer: b"#" + b"t" * 64, _HINT)
_stays_open(
    "wake-to-half-a-segment", ErrorCode.FORBIDDEN, Kind.WAKE,
    lambda lab, peer: f"#{lab.namespace(1)}x-{lab.token}".encode(), _HINT,
)  # fmt: skip


@BOOK.case("error-before-pong", "5.4", "the error for a wake comes before the pong of a later ping", agents=1)
def _proof(lab: Lab) -> None:
    peer = lab.session(lab.guests[0])
    wake, ping = body(Kind.WAKE, peer.agent, lab.nobody(), _HINT), body(Kind.PING, peer.agent)
    peer.send((prefixed(wake) + prefixed(ping)) * 10)
    for _ in range(10):
        peer.expect_error(ErrorCode.UNKNOWN)
        peer.expect(Kind.PONG)


# --- refusals that end the session (§5.4) ---------------------------------------------------------------------


def _ends(name: str, section: str, kind: Kind, *payloads: bytes) -> None:
    @BOOK.case(name, section, "400, and the end", agents=1)
    def attempt(lab: Lab) -> None:
        for payload in payloads:
            peer = lab.session(lab.guests[0])
            peer.send_frame(kind, peer.agent if kind is Kind.WAKE else b"", payload)
            peer.expect_refusal(ErrorCode.MALFORMED)


def _hint(row_id: bytes = b"m", namespace: bytes = b"", sender: bytes = b"", digest: bytes = b"") -> bytes:
    """A wake's metadata, right or wrong, with a watermark."""
    return lp(row_id) + lp(namespace) + lp(sender) + lp(digest) + _WATERMARK


_ends("wake-without-metadata", "5.4", Kind.WAKE, b"")
_ends("wake-metadata-cut-short", "5.4", Kind.WAKE, _hint()[:-1], _hint()[: -len(_WATERMARK)], b"\5abc")
_ends("wake-with-bytes-behind", "5.4", Kind.WAKE, _hint() + b"\0")
_ends(
    "wake-with-a-bad-digest", "5.4", Kind.WAKE,
    _hint(digest=bytes(DIGEST_BYTES - 1)), _hint(digest=bytes(DIGEST_BYTES + 1)), _hint(digest=b"\0"),
)  # fmt: skip
_ends(
    "wake-metadata-not-utf8", "5.4", Kind.WAKE,
    _hint(b"\xff"), _hint(namespace=b"\xc0\x80"), _hint(sender=b"\xed\xa0\x80"),
)  # fmt: skip
for _kind in (Kind.SUBSCRIBE, Kind.UNSUBSCRIBE):
    _ends(f"{_kind.name.lower()}-without-a-list", "5.4", _kind, b"")
_ends("subscribe-nine-topics", "5.4", Kind.SUBSCRIBE, topic_list([b"#a"] * (MAX_TOPICS_PER_LIST + 1)))
_ends("subscribe-cut-short", "5.4", Kind.SUBSCRIBE, b"\1", b"\1\3#a")
_ends("subscribe-with-bytes-behind", "5.4", Kind.SUBSCRIBE, b"\0\0", topic_list([b"#a"]) + b"\0")
_ends("subscribe-no-topic", "5.4", Kind.SUBSCRIBE, *(topic_list([bad]) for bad in (b"", b"#", b"a", b"#\n", b"#\xff")))


@BOOK.case("malformed-in-session", "5.4", "400 or 413 to the agent, and the end", agents=1)
def _malformed(lab: Lab) -> None:
    for data, code in (
        (prefixed(body(Kind.PING, flags=1)), ErrorCode.MALFORMED),
        (prefixed(body(Kind.PING, payload=bytes(MAX_PING_BYTES + 1))), ErrorCode.TOO_LARGE),
        (b"\xff\xff\xff\xff", ErrorCode.TOO_LARGE),
    ):
        peer = lab.session(lab.guests[0])
        peer.send(data)
        peer.expect_refusal(code)


# --- two faults: the order decides (§5.4) ---------------------------------------------------------------------


@BOOK.case("order-decoding-before-from", "5.4", "400 for a malformed frame of somebody else", agents=1)
def _decoding_before_from(lab: Lab) -> None:
    peer = lab.session(lab.guests[0])
    peer.send(prefixed(body(Kind.PING, lab.nobody(), reserved=1)))
    peer.expect_refusal(ErrorCode.MALFORMED)


@BOOK.case("order-from-before-metadata", "5.4", "403 for a malformed wake of somebody else", agents=1)
def _from_before_metadata(lab: Lab) -> None:
    peer = lab.session(lab.guests[0])
    peer.send(prefixed(body(Kind.WAKE, lab.nobody(), b"x", b"\xff")))
    peer.expect_only_error(ErrorCode.FORBIDDEN)


@BOOK.case("order-metadata-before-destination", "5.4", "400 for a malformed wake to nobody", agents=1)
def _metadata_before_destination(lab: Lab) -> None:
    for to_id in (b"", lab.nobody(), b"#" + lab.nobody()):
        peer = lab.session(lab.guests[0])
        peer.send_frame(Kind.WAKE, to_id, b"\xff")
        peer.expect_refusal(ErrorCode.MALFORMED)


# --- topics ---------------------------------------------------------------------------------------------------


def _acknowledged(peer: Peer, kind: Kind, payload: bytes) -> None:
    peer.send_frame(kind, payload=payload)
    found = peer.expect(kind)
    peer.expect_from_hub(found)
    if found.frame.payload != payload:
        raise Mismatch(f"{found} with other bytes than the request's")


@BOOK.case("subscribe-is-acknowledged", "2", "the same kind and the request's own bytes, once", agents=1)
def _subscribe(lab: Lab) -> None:
    peer = lab.session(lab.guests[0])
    own = topic_list([lab.own_topic(lab.guests[0])])
    for kind in (Kind.SUBSCRIBE, Kind.SUBSCRIBE, Kind.UNSUBSCRIBE, Kind.UNSUBSCRIBE):
        _acknowledged(peer, kind, own)
    peer.expect_quiet()


@BOOK.case("empty-list-is-acknowledged", "2", "the same kind and the request's own bytes, once", agents=1)
def _empty_list(lab: Lab) -> None:
    peer = lab.session(lab.guests[0])
    _acknowledged(peer, Kind.SUBSCRIBE, topic_list([]))
    _acknowledged(peer, Kind.UNSUBSCRIBE, topic_list([]))
    peer.expect_quiet()


@BOOK.case(
    "subscribe-out-of-scope", "4.5", "401 unauthorized and the end, for one bad topic in a list as well", agents=1
)
def _out_of_scope(lab: Lab) -> None:
    guest = lab.guests[0]
    for bad in (b"#_inbox/" + lab.nobody(), b"#" + lab.nobody(), b"#_messages/x", b"#_standard:x"):
        peer = lab.session(guest)
        peer.send_frame(Kind.SUBSCRIBE, payload=topic_list([lab.own_topic(guest), bad]))
        expect_unauthorized(peer)


@BOOK.case("33rd-topic", "5.4", "403, nothing changed, and the session goes on", agents=1)
def _too_many_topics(lab: Lab) -> None:
    peer = lab.session(lab.guests[0])
    topics = [lab.topic(1, number) for number in range(MAX_TOPICS_PER_SESSION + 1)]
    for at in range(0, MAX_TOPICS_PER_SESSION, MAX_TOPICS_PER_LIST):
        _acknowledged(peer, Kind.SUBSCRIBE, topic_list(topics[at : at + MAX_TOPICS_PER_LIST]))
    peer.send_frame(Kind.SUBSCRIBE, payload=topic_list(topics[-1:]))
    peer.expect_only_error(ErrorCode.FORBIDDEN)
    _acknowledged(peer, Kind.UNSUBSCRIBE, topic_list(topics[:1]))
    _acknowledged(peer, Kind.SUBSCRIBE, topic_list(topics[-1:]))


@BOOK.case("held-topics-count-once", "5.4", "topics that are held already may be subscribed again", agents=1, ours=True)
def _held_again(lab: Lab) -> None:
    peer = lab.session(lab.guests[0])
    topics = [lab.topic(1, number) for number in range(MAX_TOPICS_PER_SESSION)]
    for at in (*range(0, MAX_TOPICS_PER_SESSION, MAX_TOPICS_PER_LIST), 0):
        _acknowledged(peer, Kind.SUBSCRIBE, topic_list(topics[at : at + MAX_TOPICS_PER_LIST]))


# --- two sessions of one agent (§5.3) -------------------------------------------------------------------------


@BOOK.case("replaced", "5.3", "409 for the older session, and the end", agents=1)
def _replaced(lab: Lab) -> None:
    older = lab.session(lab.guests[0])
    lab.session(lab.guests[0])
    older.expect_refusal(ErrorCode.REPLACED)


@BOOK.case("newer-session-stays", "5.3", "the end of a replaced session does not take the newer one's wakes", agents=1)
def _newer_stays(lab: Lab) -> None:
    guest = lab.guests[0]
    older, newer = lab.session(guest), lab.session(guest)
    older.expect_refusal(ErrorCode.REPLACED)
    older.close()
    newer.send_wake(guest.agent, lab.row(1))
    newer.expect_wake(lab.row(1))
    newer.expect_quiet()


@BOOK.case("refused-hello-replaces-nobody", "5.3", "a hello that is refused leaves the agent's session alone", agents=1)
def _refused_replaces_nobody(lab: Lab) -> None:
    guest = lab.guests[0]
    session, other = lab.session(guest), lab.open()
    lab.greet(other, guest, guest.hello(other.hub_id, other.nonce, malleate=True))
    expect_unauthorized(other)
    session.send_wake(guest.agent, lab.row(1))
    session.expect_wake(lab.row(1))


@BOOK.case("end-flushes", "5.10", "what was queued comes before the end that follows ours", agents=1)
def _flushes(lab: Lab) -> None:
    guest = lab.guests[0]
    peer = lab.session(guest)
    peer.send(
        b"".join(prefixed(body(Kind.WAKE, guest.agent, guest.agent, Wake(lab.row(n)).encode())) for n in range(50))
    )
    peer.send_end()
    for number in range(50):
        peer.expect_wake(lab.row(number))
    peer.expect_end()


# --- the bucket (§5.5) ----------------------------------------------------------------------------------------


@BOOK.case("burst-is-taken", "5.5", "no 429 for 1,900 frames at once", agents=1)
def _burst(lab: Lab) -> None:
    peer = lab.session(lab.guests[0])
    peer.send(prefixed(body(Kind.PONG, peer.agent)) * (FRAME_BURST - FRAME_BURST // 20))
    peer.expect_quiet()


@BOOK.case("over-budget", "5.5", "429 some time behind 2,000 frames at once, and the session goes on", agents=1)
def _over_budget(lab: Lab) -> None:
    peer = lab.session(lab.guests[0])
    _flood(lab, peer)
    peer.expect_error(ErrorCode.RATE_LIMITED)
    _recover(peer)


@BOOK.case(
    "429-is-said-rarely", "5.4", "at most one 429 per 100 ms, and a held back one before the pong", agents=1, ours=True
)
def _rarely(lab: Lab) -> None:
    peer = lab.session(lab.guests[0])
    began = time.monotonic()
    _flood(lab, peer)
    said = _recover(peer)
    most = (time.monotonic() - began) * 1000 / RATE_LIMITED_ANSWER_INTERVAL_MS + 2
    if not 0 < said <= most:
        raise Mismatch(f"{said} errors 429 within {most - 2:.0f} × {RATE_LIMITED_ANSWER_INTERVAL_MS} ms")


def _flood(lab: Lab, peer: Peer) -> None:
    """Frames that nobody answers, until there is an answer: the bucket is empty then."""
    chunk = prefixed(body(Kind.PONG, peer.agent)) * _CHUNK
    for _ in range(0, CONFORMANCE_FLOOD_FRAMES, _CHUNK):
        peer.send(chunk)
        if peer.has_more():
            return
    raise Mismatch(f"no 429 for {CONFORMANCE_FLOOD_FRAMES} frames")


def _recover(peer: Peer) -> int:
    """Ping until a pong says that there is a token again; gives the number of errors, all of them 429, before it."""
    errors = 0
    while True:
        peer.send_frame(Kind.PING)
        while peer.has_more(1 / FRAME_RATE_PER_SECOND):
            found = peer.read()
            if found.frame.kind is Kind.PONG:
                return errors
            if not found.is_error(ErrorCode.RATE_LIMITED):
                raise Mismatch(str(found))
            errors += 1
        peer.check_time()
