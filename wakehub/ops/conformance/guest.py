"""An agent of a bundle, and the proofs that it can give: right ones, and wrong ones on purpose (awh1.md §3, §4).

Only the session key is here, not the agent's own, so a certificate can be altered but not signed. Nothing here is
shown or written.
"""

import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wakehub.errors import Exit, Unsafe, WakehubError
from wakehub.identity.delegation import Bundle, mint
from wakehub.identity.keys import KeyPair
from wakehub.identity.scope import prefixes_of
from wakehub.identity.stamps import NS
from wakehub.limits import MAX_DELEGATION_SECONDS
from wakehub.visible import visible
from wakehub.wire import transcript
from wakehub.wire.fields import lp
from wakehub.wire.frames import Kind

_GROUP_ORDER: Final = (1 << 252) + 27742317777372353535851937790883648493
_HALF: Final = 32


def topic_list(topics: Sequence[bytes]) -> bytes:
    """A topic list, right or wrong, as far as its lengths fit their bytes."""
    return bytes((len(topics),)) + b"".join(map(lp, topics))


def hello_payload(
    key: bytes, signature: bytes, certificate: bytes, topics: bytes = b"\0", *, announced: int | None = None
) -> bytes:
    """A hello's payload from its parts; `announced` is another length of the certificate than it has."""
    size = len(certificate) if announced is None else announced
    return key + signature + struct.pack(">H", size) + certificate + topics


def malleated(signature: bytes) -> bytes:
    """The same signature with S + L in the place of S: a careless verifier accepts it, a strict one does not (§3)."""
    scalar = int.from_bytes(signature[_HALF:], "little") + _GROUP_ORDER
    return signature[:_HALF] + scalar.to_bytes(_HALF, "little")


@dataclass(frozen=True, slots=True)
class Guest:
    """`agent` is its id; `prefixes` are the namespaces that it may read: its nearest three parents (§4.5)."""

    bundle: Bundle

    @classmethod
    def stranger(cls, agent_id: str, hub_id: str) -> "Guest":
        """An agent that no hub can know, with a certificate that is in order but for that."""
        agent_key, delegate = KeyPair.generate(), KeyPair.generate()
        certificate = mint(agent_id, agent_key, delegate.public, hub_id, time.time(), MAX_DELEGATION_SECONDS)
        return cls(
            Bundle(agent_id, hub_id, certificate.encode(), delegate, certificate.not_before, certificate.not_after)
        )

    @property
    def agent(self) -> bytes:
        return self.bundle.agent_id.encode()

    @property
    def prefixes(self) -> tuple[str, ...]:
        return prefixes_of(self.bundle.agent_id)

    def hello(
        self,
        hub_id: bytes,
        nonce: bytes,
        topics: Sequence[bytes] = (),
        *,
        agent: bytes | None = None,
        signed_topics: Sequence[bytes] | None = None,
        certificate: bytes | None = None,
        delegate: KeyPair | None = None,
        malleate: bool = False,
    ) -> bytes:
        """The payload of a hello in answer to that challenge. What is given by name differs from what is right:
        another id in the transcript, other topics there, another certificate, another session key, S + L for S."""
        key = delegate or self.bundle.delegate
        signed = transcript.hello(
            hub_id, nonce, self.agent if agent is None else agent, topics if signed_topics is None else signed_topics
        )
        signature = malleated(key.sign(signed)) if malleate else key.sign(signed)
        wire = self.bundle.certificate if certificate is None else certificate
        return hello_payload(key.public, signature, wire, topic_list(topics))

    def membership(self, kind: Kind, hub_id: bytes, nonce: bytes) -> bytes:
        """The payload of a join or depart."""
        return self.bundle.delegate.sign(transcript.membership(kind, hub_id, nonce, self.agent))


def load_guests(paths: Sequence[Path], hub_id: str | None = None) -> tuple[Guest, ...]:
    """The agents of these bundle files, which must differ and be for one hub, this one if it is given.

    Raises `WakehubError` (exit 2, or 77 for a file that is not safe) for what cannot be used.
    """
    guests = tuple(Guest(_load(path)) for path in paths)
    if len({guest.agent for guest in guests}) != len(guests):
        raise _unusable(
            "two bundles are of one agent", "make one for each of up to three agents: wakehub delegate NAME"
        )
    hubs = {guest.bundle.hub_id for guest in guests} | ({hub_id} if hub_id else set())
    if len(hubs) > 1:
        named = ", ".join(visible(hub) for hub in sorted(hubs))
        raise _unusable(f"several hubs are meant: {named}", "give bundles that were made for the hub at that socket")
    return guests


def _load(path: Path) -> Bundle:
    where = visible(str(path))
    try:
        bundle = Bundle.load(path)
    except Unsafe:
        raise
    except OSError as error:
        raise _unusable(f"{where} cannot be read: {error.strerror}", "wakehub delegate NAME --ttl 1h") from error
    if bundle.window()[1] <= time.time_ns() // NS * NS:
        raise _unusable(f"{where} expired at {visible(bundle.not_after)}", "wakehub delegate NAME --ttl 1h")
    return bundle


def _unusable(what: str, remedy: str) -> WakehubError:
    return WakehubError(what, remedy=remedy, exit=Exit.USAGE)
