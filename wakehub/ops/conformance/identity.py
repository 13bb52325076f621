"""Cases of awh1.md §2 (welcome), §3 and §4: who is admitted, with which proof, and to which topics."""

from collections.abc import Callable, Sequence
from typing import Final

from wakehub.identity.delegation import Certificate
from wakehub.identity.keys import KeyPair
from wakehub.limits import SIGNATURE_BYTES
from wakehub.ops.conformance.case import Book
from wakehub.ops.conformance.greeting import expect_unauthorized
from wakehub.ops.conformance.guest import Guest, malleated
from wakehub.ops.conformance.lab import Lab
from wakehub.ops.conformance.outcome import Mismatch, NotApplicable
from wakehub.ops.conformance.peer import Peer, body, prefixed
from wakehub.wire.fields import lp
from wakehub.wire.frames import Kind
from wakehub.wire.transcript import membership

BOOK = Book()
_REFUSED: Final = "401 unauthorized, and the end"


def _refused_hello(
    name: str, section: str, make: Callable[[Lab, Guest, Peer], bytes], *, expects: str = _REFUSED
) -> None:
    """The first agent's hello, made wrong by `make`, is refused."""

    @BOOK.case(name, section, expects, agents=1)
    def attempt(lab: Lab) -> None:
        guest, peer = lab.guests[0], lab.open()
        lab.greet(peer, guest, make(lab, guest, peer))
        expect_unauthorized(peer)


def _admitted(name: str, section: str, topics: Callable[[Lab], Sequence[bytes]], expects: str) -> None:
    @BOOK.case(name, section, expects, agents=1)
    def attempt(lab: Lab) -> None:
        lab.session(lab.guests[0], topics(lab))


# --- the welcome ----------------------------------------------------------------------------------------------


@BOOK.case(
    "hello-is-welcomed", "2", "a welcome of 25 B from the hub to the agent, with a session of at least 1", agents=1
)
def _welcomed(lab: Lab) -> None:
    lab.session(lab.guests[0])


@BOOK.case("welcome-is-first", "5.3", "the welcome before anything that came in the same write as the hello", agents=1)
def _first(lab: Lab) -> None:
    guest, peer = lab.guests[0], lab.open()
    hello = body(Kind.HELLO, guest.agent, payload=guest.hello(peer.hub_id, peer.nonce))
    peer.send(prefixed(hello) + prefixed(body(Kind.PING, guest.agent)) * 3)
    lab.await_welcome(peer, guest)
    pongs = 0
    while pongs < 3:
        pongs += peer.read().frame.kind is Kind.PONG


@BOOK.case("sessions-have-numbers", "2", "another session number in each of two welcomes", agents=1)
def _numbers(lab: Lab) -> None:
    first, second = lab.welcomed(lab.guests[0]).welcome, lab.welcomed(lab.guests[0]).welcome
    if first is not None and second is not None and first.session == second.session:
        raise Mismatch(f"session {first.session} twice")


# --- the transcript (§3) --------------------------------------------------------------------------------------

_refused_hello(
    "hello-for-another-challenge", "3",
    lambda lab, guest, peer: guest.hello(peer.hub_id, lab.open().nonce),
)  # fmt: skip
_refused_hello(
    "hello-for-another-hub", "3",
    lambda lab, guest, peer: guest.hello(peer.hub_id + b"2", peer.nonce),
)  # fmt: skip
_refused_hello(
    "hello-signed-for-another-agent", "3",
    lambda lab, guest, peer: guest.hello(peer.hub_id, peer.nonce, agent=lab.nobody()),
)  # fmt: skip
_refused_hello(
    "hello-with-unsigned-topics", "3",
    lambda lab, guest, peer: guest.hello(peer.hub_id, peer.nonce, (lab.own_topic(guest),), signed_topics=()),
)  # fmt: skip
_refused_hello(
    "hello-with-topics-left-out", "3",
    lambda lab, guest, peer: guest.hello(peer.hub_id, peer.nonce, (), signed_topics=(lab.own_topic(guest),)),
)  # fmt: skip
_refused_hello(
    "hello-signature-with-s-plus-l", "3",
    lambda lab, guest, peer: guest.hello(peer.hub_id, peer.nonce, malleate=True),
)  # fmt: skip


@BOOK.case("hello-is-good-once", "3", "401 for a hello of an earlier connection, sent again", agents=1)
def _replayed(lab: Lab) -> None:
    guest, first = lab.guests[0], lab.open()
    payload = guest.hello(first.hub_id, first.nonce)
    lab.greet(first, guest, payload)
    lab.await_welcome(first, guest)
    second = lab.open()
    lab.greet(second, guest, payload)
    expect_unauthorized(second)


# --- the certificate (§4.2, §4.4) -----------------------------------------------------------------------------


@BOOK.case("hello-from-another-id", "4.4", "401 when from is not the certificate's principal", agents=1)
def _other_id(lab: Lab) -> None:
    guest, peer = lab.guests[0], lab.open()
    other = lab.nobody()
    lab.greet(peer, guest, guest.hello(peer.hub_id, peer.nonce, agent=other), agent=other)
    expect_unauthorized(peer)


@BOOK.case("ids-are-not-folded", "1", "401 for the agent's id in other case", agents=1)
def _not_folded(lab: Lab) -> None:
    guest, peer = lab.guests[0], lab.open()
    other = guest.bundle.agent_id.swapcase().encode()
    if other == guest.agent:
        raise NotApplicable("the agent's id has no letters of either case")
    lab.greet(peer, guest, guest.hello(peer.hub_id, peer.nonce, agent=other), agent=other)
    expect_unauthorized(peer)


_refused_hello(
    "hello-with-another-session-key", "4.4",
    lambda lab, guest, peer: guest.hello(peer.hub_id, peer.nonce, delegate=KeyPair.generate()),
)  # fmt: skip


def _certificate_case(name: str, alter: Callable[[bytes], bytes]) -> None:
    _refused_hello(
        f"certificate-{name}", "4.2",
        lambda lab, guest, peer: guest.hello(peer.hub_id, peer.nonce, certificate=alter(guest.bundle.certificate)),
    )  # fmt: skip


def _resized(index: int, change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Alter one of the certificate's length-prefixed fields: principal, scope, hub id, not_before, not_after."""

    def alter(wire: bytes) -> bytes:
        parts = _parts(wire)
        parts[index] = change(parts[index])
        principal, scope, key, hub_id, not_before, not_after, signature = parts
        fields = (lp(principal), lp(scope), key, lp(hub_id), lp(not_before), lp(not_after), signature)
        return wire[:1] + b"".join(fields)

    return alter


def _half_a_second_later(stamp: bytes) -> bytes:
    """Still a good window, but not the one that was signed; with a stamp that is less plain, at least another one."""
    if len(stamp) == len("2026-01-01T00:00:00Z"):
        return stamp.replace(b"Z", b".5Z")
    return str(int(stamp[:4]) + 1).encode() + stamp[4:]


def _parts(wire: bytes) -> list[bytes]:
    found = Certificate.decode(wire)
    texts = (found.principal, found.scope, found.hub_id, found.not_before, found.not_after)
    principal, scope, hub_id, not_before, not_after = (text.encode() for text in texts)
    return [principal, scope, found.delegate_key, hub_id, not_before, not_after, found.signature]


_certificate_case("of-another-version", lambda wire: b"\2" + wire[1:])
_certificate_case("principal-altered", _resized(0, lambda text: text + b"x"))
_certificate_case("scope-altered", _resized(1, lambda text: text[:-1]))
_certificate_case("hub-id-altered", _resized(3, lambda text: text + b"x"))
_certificate_case("begins-later", _resized(4, _half_a_second_later))
_certificate_case("ends-later", _resized(5, _half_a_second_later))
_certificate_case("signature-altered", lambda wire: wire[:-1] + bytes((wire[-1] ^ 1,)))
_certificate_case("signature-with-s-plus-l", lambda wire: wire[:-SIGNATURE_BYTES] + malleated(wire[-SIGNATURE_BYTES:]))
_certificate_case("with-a-byte-behind", lambda wire: wire + b"\0")
_certificate_case("cut-short", lambda wire: wire[:-1])


# --- topics (§4.5) --------------------------------------------------------------------------------------------

_admitted("hello-with-own-inbox-topic", "4.5", lambda lab: (lab.own_topic(lab.guests[0]),), "a welcome")
_admitted("hello-with-a-topic-under-its-path", "4.5", lambda lab: (lab.topic(1),), "a welcome")


def _refused_topic(name: str, topics: Callable[[Lab], Sequence[bytes]]) -> None:
    _refused_hello(
        name, "4.5",
        lambda lab, guest, peer: guest.hello(peer.hub_id, peer.nonce, topics(lab)),
    )  # fmt: skip


_refused_topic("hello-with-another-inbox", lambda lab: (b"#_inbox/" + lab.nobody(),))
_refused_topic("hello-with-a-substrate-topic", lambda lab: (b"#_agents",))
_refused_topic("hello-with-a-foreign-namespace", lambda lab: (b"#" + lab.nobody(),))
_refused_topic("hello-with-one-bad-topic", lambda lab: (lab.own_topic(lab.guests[0]), b"#" + lab.nobody()))
_refused_topic("hello-with-half-a-segment", lambda lab: (f"#{lab.namespace(1)}x".encode(),))


# --- join (§5.9) ----------------------------------------------------------------------------------------------


@BOOK.case("join", "5.9", "no answer to a good join", agents=1)
def _join(lab: Lab) -> None:
    peer = lab.session(lab.guests[0])
    peer.send_frame(Kind.JOIN, payload=lab.guests[0].membership(Kind.JOIN, peer.hub_id, peer.nonce))
    peer.expect_quiet()


def _refused_membership(name: str, kind: Kind, make: Callable[[Guest, Peer], bytes]) -> None:
    @BOOK.case(name, "5.9", _REFUSED, agents=1)
    def attempt(lab: Lab) -> None:
        guest = lab.guests[0]
        peer = lab.session(guest)
        peer.send_frame(kind, payload=make(guest, peer))
        expect_unauthorized(peer)


def _signed(act: Kind, *, nonce: bytes | None = None) -> Callable[[Guest, Peer], bytes]:
    return lambda guest, peer: guest.membership(act, peer.hub_id, peer.nonce if nonce is None else nonce)


_refused_membership("join-signed-as-depart", Kind.JOIN, _signed(Kind.DEPART))
_refused_membership("join-of-no-bytes", Kind.JOIN, lambda guest, peer: b"")
_refused_membership("join-of-65-bytes", Kind.JOIN, lambda guest, peer: _signed(Kind.JOIN)(guest, peer) + b"\0")
_refused_membership("join-by-another-key", Kind.JOIN, lambda guest, peer: KeyPair.generate().sign(
    membership(Kind.JOIN, peer.hub_id, peer.nonce, guest.agent)
))  # fmt: skip
_refused_membership("depart-signed-as-join", Kind.DEPART, _signed(Kind.JOIN))
_refused_membership("depart-of-another-connection", Kind.DEPART, _signed(Kind.DEPART, nonce=bytes(32)))
