"""Who is at the other end: the checks at hello, and again once a second (awh1.md §4.4, §5.9).

The wire answer to any failure is the same; the label is for the operator's log and counters. Labels are stable, and
the first check that fails, in this order, gives it:

| label | what failed |
|---|---|
| no_owner_key | no owner key is configured: nobody is admitted |
| bad_id | the claimed id is not 1..128 bytes of UTF-8 without control characters |
| bad_certificate | the certificate does not decode |
| principal_mismatch | the certificate is for another agent |
| hub_mismatch | the certificate is for another hub |
| key_mismatch | the certificate is for another session key |
| allowlist_absent, …unreadable, …unsafe, …unsigned, …bad_signature, …malformed, …stale, …future | see `allowlist` |
| unknown_agent | the agent is not in the allowlist |
| revoked_key | the session key is revoked |
| before_binding | the certificate begins before the agent's key was enrolled |
| topic | a topic outside the agent's scope |
| bind_authority | the agent's binding may not delegate |
| certificate_signature | the certificate is not signed by the enrolled key |
| window_empty, window_too_long | the window ends before it begins, or lasts over 12 h |
| window_not_yet, window_expired | now is outside the window |
| transcript_signature | the hello is not signed by the session key |

No oracle: a refusal costs exactly two Ed25519 verifications, whatever its reason. Where the real key is missing, the
same bytes are verified against a dummy key; where a certificate was proven before, the saved one is made up for. What
the peer can vary, the bytes it sends, it knows anyway.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from wakehub.identity import keys
from wakehub.identity.allowlist import Allowlist, AllowlistFile, Entry, Unusable
from wakehub.identity.delegation import Certificate
from wakehub.identity.scope import may_hold
from wakehub.identity.stamps import NS
from wakehub.limits import CERTIFICATE_CACHE_ENTRIES, CLOCK_LEEWAY_SECONDS, MAX_DELEGATION_SECONDS, MAX_ID_BYTES
from wakehub.wire import transcript
from wakehub.wire.fields import has_control


@dataclass(frozen=True, slots=True)
class Claim:
    """What a peer says in its hello: id, session key (32 B), signature (64 B), certificate (0..390 B), topics; and the
    nonce (32 B) that this connection was challenged with."""

    agent_id: str
    key: bytes
    signature: bytes = field(repr=False)
    certificate: bytes = field(repr=False)
    topics: tuple[bytes, ...]
    nonce: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Identity:
    """A proven agent: its session key, the certificate (wire form), and the readable prefixes as signed now."""

    agent_id: str
    key: bytes
    certificate: bytes = field(repr=False)
    prefixes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Denied:
    """Refused, for the reason that `label` names in the table above."""

    label: str


@dataclass(frozen=True, slots=True)
class Stale:
    """Nothing speaks against the identity but the age of the allowlist (awh1.md §5.9 grants it a few seconds)."""


class HelloVerifier(Protocol):
    """Decides who is admitted, and who may stay."""

    def verify(self, claim: Claim, now_s: float) -> Identity | Denied:
        """Judge a hello at `now_s` (seconds since the epoch)."""

    def revalidate(self, identity: Identity, now_s: float) -> Identity | Denied | Stale:
        """Judge again whether `identity` still holds; the answer carries the prefixes of now."""


class DenyAllVerifier:
    """The verifier of a hub without an owner key: everybody is refused."""

    def verify(self, claim: Claim, now_s: float) -> Identity | Denied:
        return Denied("no_owner_key")

    def revalidate(self, identity: Identity, now_s: float) -> Identity | Denied | Stale:
        return Denied("no_owner_key")


class DelegationVerifier:
    """Admits whom a certificate and the signed allowlist prove, at the hub `hub_id`."""

    def __init__(self, hub_id: str, allowlist: AllowlistFile, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._hub_id = hub_id
        self._allowlist = allowlist
        self._monotonic = monotonic
        self._proven: OrderedDict[tuple[bytes, bytes], None] = OrderedDict()
        dummy = keys.KeyPair.generate()  # its private half is forgotten here: nobody can sign for it
        self._dummy = (dummy.public, b"", dummy.sign(b""))

    def verify(self, claim: Claim, now_s: float) -> Identity | Denied:
        certificate = _decoded(claim.certificate)
        allowlist = self._allowlist.current(now_s, self._monotonic())
        bound = self._bound(claim.agent_id, claim.key, certificate, allowlist, claim.topics)
        if isinstance(bound, Denied):
            self._verify_in_vain(certificate)
            keys.verify(claim.key, self._transcript(claim), claim.signature)
            return bound
        proven = (claim.certificate, bound.entry.public) in self._proven
        certified = self._is_certified(claim.certificate, bound)
        signed = keys.verify(claim.key, self._transcript(claim), claim.signature)
        if not certified:
            return Denied("certificate_signature")
        fault = window_fault(bound.certificate, now_s) or ("" if signed else "transcript_signature")
        if not fault:
            return Identity(claim.agent_id, claim.key, claim.certificate, bound.entry.prefixes)
        if proven:
            self._verify_in_vain(certificate)
        return Denied(fault)

    def revalidate(self, identity: Identity, now_s: float) -> Identity | Denied | Stale:
        found = self._allowlist.current(now_s, self._monotonic())
        is_stale = isinstance(found, Unusable) and found.stale is not None
        allowlist = found.stale or found if isinstance(found, Unusable) else found
        bound = self._bound(identity.agent_id, identity.key, _decoded(identity.certificate), allowlist, ())
        if isinstance(bound, Denied):
            return bound
        if not self._is_certified(identity.certificate, bound):
            return Denied("certificate_signature")
        if fault := window_fault(bound.certificate, now_s):
            return Denied(fault)
        if is_stale:
            return Stale()
        return Identity(identity.agent_id, identity.key, identity.certificate, bound.entry.prefixes)

    def _bound(
        self,
        agent_id: str,
        key: bytes,
        certificate: Certificate | None,
        allowlist: Allowlist | Unusable,
        topics: tuple[bytes, ...],
    ) -> "_Bound | Denied":
        """Everything that is decided without a signature, in the order of the table."""
        if not _is_id(agent_id):
            return Denied("bad_id")
        if certificate is None:
            return Denied("bad_certificate")
        if certificate.principal != agent_id:
            return Denied("principal_mismatch")
        if certificate.hub_id != self._hub_id:
            return Denied("hub_mismatch")
        if certificate.delegate_key != key:
            return Denied("key_mismatch")
        if isinstance(allowlist, Unusable):
            return Denied(f"allowlist_{allowlist.label}")
        entry = allowlist.agents.get(agent_id)
        if entry is None:
            return Denied("unknown_agent")
        if key in entry.revoked_keys:
            return Denied("revoked_key")
        if certificate.window()[0] // NS < entry.bound_at // NS:
            return Denied("before_binding")
        if not all(may_hold(agent_id, entry.prefixes, topic) for topic in topics):
            return Denied("topic")
        if not entry.may_delegate():
            return Denied("bind_authority")
        return _Bound(certificate, entry)

    def _is_certified(self, wire: bytes, bound: "_Bound") -> bool:
        """Whether the enrolled key signed the certificate; successes are remembered by certificate and key."""
        proof = (wire, bound.entry.public)
        if proof in self._proven:
            self._proven.move_to_end(proof)
            return True
        certificate = bound.certificate
        if not keys.verify(bound.entry.public, certificate.signed_bytes(), certificate.signature):
            return False
        self._proven[proof] = None
        if len(self._proven) > CERTIFICATE_CACHE_ENTRIES:
            self._proven.popitem(last=False)
        return True

    def _verify_in_vain(self, certificate: Certificate | None) -> None:
        """Spend the time of one verification, over the peer's own bytes where it sent a certificate."""
        if certificate is None:
            keys.verify(*self._dummy)
        else:
            keys.verify(self._dummy[0], certificate.signed_bytes(), certificate.signature)

    def _transcript(self, claim: Claim) -> bytes:
        agent_id = claim.agent_id.encode() if _is_id(claim.agent_id) else b""
        return transcript.hello(self._hub_id.encode(), claim.nonce, agent_id, claim.topics)


@dataclass(frozen=True, slots=True)
class _Bound:
    """A certificate and the enrolment that it rests on."""

    certificate: Certificate
    entry: Entry


def window_fault(certificate: Certificate, now_s: float) -> str:
    """The label of what is wrong with the certificate's window at `now_s`, empty when nothing is (§4.2).

    The window is half-open; it may begin up to 30 s in the future and ends without leeway.
    """
    begin, end = certificate.window()
    now = math.floor(now_s) * NS
    if end <= begin:
        return "window_empty"
    if end - begin > MAX_DELEGATION_SECONDS * NS:
        return "window_too_long"
    if begin > now + CLOCK_LEEWAY_SECONDS * NS:
        return "window_not_yet"
    if now >= end:
        return "window_expired"
    return ""


def _decoded(wire: bytes) -> Certificate | None:
    try:
        return Certificate.decode(wire)
    except ValueError:
        return None


def _is_id(agent_id: str) -> bool:
    try:
        return 1 <= len(agent_id.encode()) <= MAX_ID_BYTES and not has_control(agent_id)
    except UnicodeEncodeError:
        return False
