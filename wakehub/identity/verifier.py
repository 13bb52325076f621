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

No oracle: a refusal costs exactly two Ed25519 verifications, whatever its reason. An agent that is not there is judged
like one that is, by an entry that nobody can satisfy; a certificate that was proven before is made up for. What the
peer can vary, the bytes it sends, it knows anyway.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from wakehub.identity import delegation, keys
from wakehub.identity.allowlist import POSSESSION_PROOF, Allowlist, AllowlistFile, Entry, Unusable
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
    """A proven agent: its session key, the certificate (wire form), and the readable prefixes as signed now.

    `judged_by` is the allowlist that spoke for it, and `window` the certificate's, in ns since the epoch.
    """

    agent_id: str
    key: bytes
    certificate: bytes = field(repr=False)
    prefixes: tuple[str, ...]
    judged_by: Allowlist | None = field(default=None, repr=False, compare=False)
    window: tuple[int, int] = field(default=(0, 0), repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Denied:
    """Refused, for the reason that `label` names in the table above."""

    label: str


@dataclass(frozen=True, slots=True)
class Stale:
    """Nothing speaks against the identity but the age of the allowlist (awh1.md §5.9 grants it a few seconds)."""


Judge = Callable[[Identity], Identity | Denied | Stale]
"""Judges again whether an identity still holds; the answer carries the prefixes of now."""


class HelloVerifier(Protocol):
    """Decides who is admitted, and who may stay."""

    def verify(self, claim: Claim, now_s: float) -> Identity | Denied:
        """Judge a hello at `now_s` (seconds since the epoch)."""

    def revalidation(self, now_s: float) -> Judge:
        """Look at what identities rest on, once, and give what judges any number of them at `now_s`."""


class DenyAllVerifier:
    """The verifier of a hub without an owner key: everybody is refused."""

    def verify(self, claim: Claim, now_s: float) -> Identity | Denied:
        return Denied("no_owner_key")

    def revalidation(self, now_s: float) -> Judge:
        return lambda identity: Denied("no_owner_key")


class DelegationVerifier:
    """Admits whom a certificate and the signed allowlist prove, at the hub `hub_id`."""

    def __init__(self, hub_id: str, allowlist: AllowlistFile, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._hub_id = hub_id
        self._allowlist = allowlist
        self._monotonic = monotonic
        self._proven: OrderedDict[tuple[bytes, bytes], None] = OrderedDict()
        # What stands in for an agent and a certificate that are not there. Nobody holds the key that would prove it.
        self._nobody = Entry("", keys.KeyPair.generate().public, POSSESSION_PROOF, 0)
        self._nothing = delegation.mint("nobody", keys.KeyPair.generate(), self._nobody.public, hub_id, 0, 1)

    def verify(self, claim: Claim, now_s: float) -> Identity | Denied:
        certificate = _decoded(claim.certificate)
        allowlist = self._allowlist.current(now_s, self._monotonic())
        entry = self._entry(claim.agent_id, allowlist)
        fault = self._binding_fault(claim.agent_id, claim.key, certificate, allowlist, entry, claim.topics)
        certificate = certificate or self._nothing
        window = certificate.window()
        was_proven = (claim.certificate, entry.public) in self._proven
        certified = self._is_certified(claim.certificate, certificate, entry.public)
        signed = keys.verify(claim.key, self._transcript(claim), claim.signature)
        label = (
            fault
            or ("" if certified else "certificate_signature")
            or window_fault(window, now_s)
            or ("" if signed else "transcript_signature")
        )
        if not label and isinstance(allowlist, Allowlist):
            return Identity(claim.agent_id, claim.key, claim.certificate, entry.prefixes, allowlist, window)
        if was_proven:
            keys.verify(self._nobody.public, certificate.signed_bytes(), certificate.signature)
        return Denied(label)

    def revalidation(self, now_s: float) -> Judge:
        found = self._allowlist.current(now_s, self._monotonic())
        allowlist = (found.stale or found) if isinstance(found, Unusable) else found

        def judge(identity: Identity) -> Identity | Denied | Stale:
            if identity.judged_by is not allowlist:  # else every check but that of the time would say the same again
                verdict = self._judge_anew(identity, allowlist)
                if isinstance(verdict, Denied):
                    return verdict
                identity = verdict
            if fault := window_fault(identity.window, now_s):
                return Denied(fault)
            return identity if allowlist is found else Stale()

        return judge

    def _judge_anew(self, identity: Identity, allowlist: Allowlist | Unusable) -> Identity | Denied:
        certificate = _decoded(identity.certificate)
        entry = self._entry(identity.agent_id, allowlist)
        fault = self._binding_fault(identity.agent_id, identity.key, certificate, allowlist, entry, ())
        if fault or certificate is None or isinstance(allowlist, Unusable):
            return Denied(fault)
        if not self._is_certified(identity.certificate, certificate, entry.public):
            return Denied("certificate_signature")
        return replace(identity, prefixes=entry.prefixes, judged_by=allowlist, window=certificate.window())

    def _entry(self, agent_id: str, allowlist: Allowlist | Unusable) -> Entry:
        return self._nobody if isinstance(allowlist, Unusable) else allowlist.agents.get(agent_id, self._nobody)

    def _binding_fault(
        self,
        agent_id: str,
        key: bytes,
        certificate: Certificate | None,
        allowlist: Allowlist | Unusable,
        entry: Entry,
        topics: tuple[bytes, ...],
    ) -> str:
        """The label of the first check without a signature that fails, in the order of the table; empty if none does.

        What depends on the allowlist is looked at in full, whether or not the agent is in it.
        """
        if not _is_id(agent_id):
            return "bad_id"
        if certificate is None:
            return "bad_certificate"
        if certificate.principal != agent_id:
            return "principal_mismatch"
        if certificate.hub_id != self._hub_id:
            return "hub_mismatch"
        if certificate.delegate_key != key:
            return "key_mismatch"
        if isinstance(allowlist, Unusable):
            return f"allowlist_{allowlist.label}"
        checks = (
            ("unknown_agent", entry is not self._nobody),
            ("revoked_key", key not in entry.revoked_keys),
            ("before_binding", certificate.window()[0] // NS >= entry.bound_at // NS),
            ("topic", {may_hold(agent_id, entry.prefixes, topic) for topic in topics} <= {True}),
            ("bind_authority", entry.may_delegate()),
        )
        return next((label for label, holds in checks if not holds), "")

    def _is_certified(self, wire: bytes, certificate: Certificate, public: bytes) -> bool:
        """Whether `public` signed the certificate; successes are remembered by certificate and key."""
        proof = (wire, public)
        if proof in self._proven:
            self._proven.move_to_end(proof)
            return True
        if not keys.verify(public, certificate.signed_bytes(), certificate.signature):
            return False
        self._proven[proof] = None
        if len(self._proven) > CERTIFICATE_CACHE_ENTRIES:
            self._proven.popitem(last=False)
        return True

    def _transcript(self, claim: Claim) -> bytes:
        agent_id = claim.agent_id.encode() if _is_id(claim.agent_id) else b""
        return transcript.hello(self._hub_id.encode(), claim.nonce, agent_id, claim.topics)


def window_fault(window: tuple[int, int], now_s: float) -> str:
    """The label of what is wrong with a certificate's window (ns) at `now_s`, empty when nothing is (§4.2).

    The window is half-open; it may begin up to 30 s in the future and ends without leeway.
    """
    begin, end = window
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
