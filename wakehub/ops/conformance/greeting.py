"""Cases of awh1.md §2 and §5.2: the hub speaks first, and what it makes of a connection that has said no good hello.
They need no agent, but for what a hub must not tell: each refusal of an identity is the same 401."""

import os
import time
from collections.abc import Iterator

from wakehub.errors import ErrorCode
from wakehub.identity.keys import KeyPair
from wakehub.limits import (
    CONFORMANCE_DEADLINE_SLACK_MS,
    HANDSHAKE_DEADLINE_MS,
    KEY_BYTES,
    MAX_CERTIFICATE_BYTES,
    NONCE_BYTES,
    SIGNATURE_BYTES,
)
from wakehub.ops.conformance.case import Book
from wakehub.ops.conformance.guest import Guest, hello_payload, topic_list
from wakehub.ops.conformance.lab import Lab
from wakehub.ops.conformance.outcome import Mismatch
from wakehub.ops.conformance.peer import Peer, body, prefixed
from wakehub.visible import visible
from wakehub.wire.fields import lp
from wakehub.wire.frames import Kind

BOOK = Book()
_KEY, _SIGNATURE = bytes(KEY_BYTES), bytes(SIGNATURE_BYTES)
_UNAUTHORIZED_REASON = "unauthorized"


def expect_unauthorized(peer: Peer) -> None:
    """The one answer to every refusal of an identity (§4.4)."""
    reason = peer.expect_refusal(ErrorCode.UNAUTHORIZED)
    if reason != _UNAUTHORIZED_REASON:
        raise Mismatch(f"error 401 {visible(reason)!r}, which tells more than it must")


# --- the challenge --------------------------------------------------------------------------------------------


@BOOK.case("hub-speaks-first", "2", "a hello from the hub's id to nobody, with 32 bytes")
def _speaks_first(lab: Lab) -> None:
    peer = lab.connect()
    challenge = peer.expect(Kind.HELLO).frame
    if not challenge.from_id or challenge.to_id or len(challenge.payload) != NONCE_BYTES:
        raise Mismatch(
            f"a hello from {visible(challenge.from_id)!r} to {visible(challenge.to_id)!r} with "
            f"{len(challenge.payload)} B"
        )


@BOOK.case("challenge-is-fresh", "2", "other 32 bytes for every connection")
def _fresh(lab: Lab) -> None:
    nonces = [lab.open().nonce for _ in range(8)]
    if len(set(nonces)) < len(nonces):
        raise Mismatch("the same challenge on two connections")


@BOOK.case("one-hub-id", "2", "every challenge and every error is from the same id")
def _one_hub_id(lab: Lab) -> None:
    first, second = lab.open(), lab.open()
    if first.hub_id != second.hub_id:
        raise Mismatch(f"{visible(first.hub_id)!r} and {visible(second.hub_id)!r}")
    second.send(prefixed(body(Kind.PING)))
    second.expect_refusal(ErrorCode.UNAUTHORIZED)


@BOOK.case("handshake-deadline", "5.2", "a silent and a slow peer are closed after 5 s, without a word")
def _deadline(lab: Lab) -> None:
    began = time.monotonic()
    silent, slow = lab.open(), lab.open()
    hello = prefixed(body(Kind.HELLO, payload=bytes(200)))
    for second in range(1, HANDSHAKE_DEADLINE_MS // 1000):
        slow.send(hello[second - 1 : second])
        silent.expect_silence(began + second)
    until = began + (HANDSHAKE_DEADLINE_MS + CONFORMANCE_DEADLINE_SLACK_MS) / 1000
    for peer in (silent, slow):
        found = peer.receive(max(until - time.monotonic(), 0))
        if found is not None:
            raise Mismatch(str(found))


# --- before a hello -------------------------------------------------------------------------------------------


def _before_hello(kind: Kind) -> None:
    @BOOK.case(f"{kind.name.lower()}-before-hello", "5.4", "401 unauthorized, and the end")
    def attempt(lab: Lab) -> None:
        peer = lab.open()
        peer.send(prefixed(body(kind, b"x", b"y")))
        expect_unauthorized(peer)


for _kind in Kind:
    if _kind is not Kind.HELLO:
        _before_hello(_kind)


@BOOK.case("payload-is-not-looked-at-before-hello", "5.4", "401 for a wake whose metadata is malformed")
def _not_looked_at(lab: Lab) -> None:
    peer = lab.open()
    peer.send(prefixed(body(Kind.WAKE, b"x", b"y", b"\xff")))
    expect_unauthorized(peer)


# --- hellos that are malformed (§2) ---------------------------------------------------------------------------


def _malformed_hello(name: str, *payloads: bytes) -> None:
    @BOOK.case(f"hello-{name}", "2", "400, and the end")
    def attempt(lab: Lab) -> None:
        for payload in payloads:
            peer = lab.open()
            peer.claimed = b"x"
            peer.send(prefixed(body(Kind.HELLO, b"x", payload=payload)))
            peer.expect_refusal(ErrorCode.MALFORMED)


def _with_topics(topics: bytes) -> bytes:
    return hello_payload(_KEY, _SIGNATURE, b"", topics)


_malformed_hello("empty", b"")
_malformed_hello("short", bytes(KEY_BYTES + SIGNATURE_BYTES + 1))
_malformed_hello("certificate-over-390", hello_payload(_KEY, _SIGNATURE, bytes(MAX_CERTIFICATE_BYTES + 1)))
_malformed_hello("certificate-cut-short", hello_payload(_KEY, _SIGNATURE, bytes(9), b"", announced=10))
_malformed_hello("without-topic-list", _with_topics(b""))
_malformed_hello("nine-topics", _with_topics(topic_list([b"#a"] * 9)))
_malformed_hello("topics-cut-short", _with_topics(b"\1"), _with_topics(b"\1\5#abc"))
_malformed_hello("byte-behind-topics", _with_topics(topic_list([b"#a"]) + b"\0"))
_malformed_hello("topic-without-hash", _with_topics(topic_list([b"ab"])))
_malformed_hello("topic-too-short", _with_topics(topic_list([b"#"])), _with_topics(topic_list([b""])))
_malformed_hello("topic-over-64", _with_topics(topic_list([b"#" + b"a" * 64])))
_malformed_hello("topic-not-utf8", _with_topics(topic_list([b"#\xff"])))
_malformed_hello("topic-control", _with_topics(topic_list([b"#a\n"])), _with_topics(topic_list(["#\x85".encode()])))


# --- strangers ------------------------------------------------------------------------------------------------


@BOOK.case("stranger", "4.4", "401 for an agent that nobody enrolled, however good its certificate looks")
def _stranger(lab: Lab) -> None:
    peer = lab.open()
    stranger = Guest.stranger(lab.nobody().decode(), peer.hub_id.decode())
    lab.greet(peer, stranger, stranger.hello(peer.hub_id, peer.nonce))
    expect_unauthorized(peer)


@BOOK.case("hello-without-certificate", "2", "a certificate of no bytes is well formed, and gets 401")
def _no_certificate(lab: Lab) -> None:
    peer = lab.open()
    peer.send(prefixed(body(Kind.HELLO, b"x", payload=hello_payload(_KEY, _SIGNATURE, b""))))
    peer.claimed = b"x"
    expect_unauthorized(peer)


@BOOK.case("hello-with-undecodable-certificate", "2", "well formed, and gets 401")
def _undecodable(lab: Lab) -> None:
    peer = lab.open()
    peer.send(prefixed(body(Kind.HELLO, b"x", payload=hello_payload(_KEY, _SIGNATURE, b"\xff" * 390))))
    peer.claimed = b"x"
    expect_unauthorized(peer)


@BOOK.case("hello-from-nobody", "2", "an empty from is well formed, and gets 401")
def _from_nobody(lab: Lab) -> None:
    peer = lab.open()
    peer.send(prefixed(body(Kind.HELLO, b"", payload=hello_payload(_KEY, _SIGNATURE, b""))))
    expect_unauthorized(peer)


@BOOK.case("refusals-are-uniform", "4.4", "the same error, byte for byte, whatever was wrong with an identity")
def _uniform(lab: Lab) -> None:
    answers = set()
    for payload in _bad_identities(lab):
        peer = lab.open()
        peer.claimed = lab.nobody()
        peer.send(prefixed(body(Kind.HELLO, peer.claimed, payload=payload)))
        answers.add(peer.expect(Kind.ERROR).frame.payload)
        peer.expect_end()
    if len(answers) > 1:
        raise Mismatch(f"{len(answers)} different errors: {', '.join(visible(answer[2:]) for answer in answers)}")


def _bad_identities(lab: Lab) -> Iterator[bytes]:
    """Hellos in the name of nobody that fail at different checks."""
    hub_id = lab.open().hub_id
    stranger = Guest.stranger(lab.nobody().decode(), hub_id.decode())
    other = Guest.stranger("other", hub_id.decode())
    elsewhere = Guest.stranger(lab.nobody().decode(), "another-hub")
    nonce, certificate = os.urandom(NONCE_BYTES), stranger.bundle.certificate
    yield hello_payload(_KEY, _SIGNATURE, b"")
    yield hello_payload(_KEY, _SIGNATURE, b"\1" + lp(b"x"))
    yield stranger.hello(hub_id, nonce)
    yield stranger.hello(hub_id, nonce, (b"#_agents",))
    yield stranger.hello(hub_id, nonce, delegate=KeyPair.generate())
    yield stranger.hello(hub_id, nonce, certificate=certificate[:-1] + bytes((certificate[-1] ^ 1,)))
    yield stranger.hello(hub_id, nonce, certificate=other.bundle.certificate)
    yield elsewhere.hello(hub_id, nonce)
