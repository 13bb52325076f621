"""The delegation certificate and the bundle that carries one (awh1.md §4.2; receive.md §6).

An agent's enrolled key signs a certificate for a session key made for the purpose. A program that holds only the
bundle, certificate and session key, can say hello as the agent until the window ends, and can sign no row. A
certificate has one encoding: what decodes encodes back to the same bytes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from wakehub import files
from wakehub.errors import Unsafe, Violation
from wakehub.identity import stamps, strict_json
from wakehub.identity.keys import KeyPair, b64, unb64
from wakehub.limits import (
    KEY_BYTES,
    MAX_BUNDLE_BYTES,
    MAX_CERTIFICATE_BYTES,
    MAX_DELEGATION_SECONDS,
    MAX_HUB_ID_BYTES,
    MAX_PRINCIPAL_BYTES,
    MAX_STAMP_BYTES,
    SIGNATURE_BYTES,
)
from wakehub.visible import visible
from wakehub.wire.fields import lp, take_lp

SCOPE: Final = "a2a-hub"
_VERSION: Final = b"\x01"
_DOMAIN: Final = "ai-memory/a2a-hub-join/v1"
_BUNDLE_FIELDS: Final = frozenset(
    {"version", "agent_id", "hub_id", "delegation_b64", "delegate_private_b64", "not_before", "not_after"}
)
BUNDLE_VARIABLE: Final = "WAKEHUB_BUNDLE"


@dataclass(frozen=True, slots=True)
class Certificate:
    """`principal` (1..128 bytes of UTF-8) lets `delegate_key` (32 bytes) join hub `hub_id` (1..64 bytes) in its name.

    `not_before` and `not_after` are the stamps as signed, 1..32 bytes each; the window is half-open. Making one raises
    `ValueError` when a field is not within its bounds; whether the window makes sense is the verifier's to judge.
    """

    principal: str
    scope: str
    delegate_key: bytes
    hub_id: str
    not_before: str
    not_after: str
    signature: bytes
    _window: tuple[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_size("principal", self.principal, MAX_PRINCIPAL_BYTES)
        _check_size("hub id", self.hub_id, MAX_HUB_ID_BYTES)
        _check_size("not_before", self.not_before, MAX_STAMP_BYTES)
        _check_size("not_after", self.not_after, MAX_STAMP_BYTES)
        if self.scope != SCOPE:
            raise ValueError(f"scope is not {SCOPE}")
        if len(self.delegate_key) != KEY_BYTES or len(self.signature) != SIGNATURE_BYTES:
            raise ValueError("key or signature has the wrong size")
        object.__setattr__(self, "_window", (stamps.parse(self.not_before), stamps.parse(self.not_after)))

    def window(self) -> tuple[int, int]:
        """`not_before` and `not_after` in nanoseconds since the epoch."""
        return self._window

    def encode(self) -> bytes:
        """The wire form, at most 390 bytes."""
        return b"".join(
            (
                _VERSION,
                lp(self.principal.encode()),
                lp(self.scope.encode()),
                self.delegate_key,
                lp(self.hub_id.encode()),
                lp(self.not_before.encode()),
                lp(self.not_after.encode()),
                self.signature,
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> "Certificate":
        """Read a wire form to its last byte; raises `ValueError` for anything that is not exactly one."""
        if len(data) > MAX_CERTIFICATE_BYTES:
            raise ValueError("certificate is too long")
        if data[:1] != _VERSION:
            raise ValueError("unknown certificate version")
        try:
            principal, at = take_lp(data, 1, "principal")
            scope, at = take_lp(data, at, "scope")
            delegate_key, at = data[at : at + KEY_BYTES], at + KEY_BYTES
            hub_id, at = take_lp(data, at, "hub id")
            not_before, at = take_lp(data, at, "not_before")
            not_after, at = take_lp(data, at, "not_after")
        except Violation as violation:
            raise ValueError(violation.reason) from None
        return cls(
            principal.decode(),
            scope.decode(),
            delegate_key,
            hub_id.decode(),
            not_before.decode(),
            not_after.decode(),
            data[at:],
        )

    def signed_bytes(self) -> bytes:
        """What the signature is over: a shortest-form CBOR array of seven."""
        return signed_bytes(self.principal, self.scope, self.delegate_key, self.hub_id, self.not_before, self.not_after)


def signed_bytes(
    principal: str, scope: str, delegate_key: bytes, hub_id: str, not_before: str, not_after: str
) -> bytes:
    """The CBOR array ``[domain, principal, scope, delegate key, hub id, not before, not after]``."""
    return b"".join(
        (
            b"\x87",
            _cbor_text(_DOMAIN),
            _cbor_text(principal),
            _cbor_text(scope),
            _cbor(0x40, delegate_key),
            _cbor_text(hub_id),
            _cbor_text(not_before),
            _cbor_text(not_after),
        )
    )


def _cbor_text(text: str) -> bytes:
    return _cbor(0x60, text.encode())


def _cbor(major: int, value: bytes) -> bytes:
    """A CBOR string shorter than 256 bytes (all of ours are), its length in the shortest form."""
    size = len(value)
    return (bytes((major | size,)) if size < 24 else bytes((major | 24, size))) + value


def _check_size(what: str, text: str, most: int) -> None:
    if not 1 <= len(text.encode()) <= most:
        raise ValueError(f"{what} is not within 1..{most} bytes")


def mint(
    agent_id: str, agent_key: KeyPair, delegate_public: bytes, hub_id: str, now_s: float, ttl_s: int
) -> Certificate:
    """A certificate signed by the agent's enrolled key, from the whole second of `now_s` for `ttl_s` (1..43,200) s.

    Raises `ValueError` when a field is not within its bounds.
    """
    if not 1 <= ttl_s <= MAX_DELEGATION_SECONDS:
        raise ValueError(f"a delegation lasts 1..{MAX_DELEGATION_SECONDS} s")
    begin = math.floor(now_s)
    not_before, not_after = stamps.mint(begin), stamps.mint(begin + ttl_s)
    message = signed_bytes(agent_id, SCOPE, delegate_public, hub_id, not_before, not_after)
    return Certificate(
        agent_id, SCOPE, delegate_public, hub_id, not_before, not_after, signature=agent_key.sign(message)
    )


@dataclass(frozen=True, slots=True)
class Bundle:
    """All that a program needs to say hello as `agent_id` at hub `hub_id`, and nothing that outlives `not_after`.

    `certificate` is the wire form (≤ 390 bytes), `delegate` the session key it names; the stamps are the certificate's.
    """

    agent_id: str
    hub_id: str
    certificate: bytes = field(repr=False)
    delegate: KeyPair
    not_before: str
    not_after: str

    @classmethod
    def make(cls, agent_id: str, agent_key: KeyPair, hub_id: str, now_s: float, ttl_s: int) -> "Bundle":
        """A bundle with a new session key; raises `ValueError` as `mint` does."""
        delegate = KeyPair.generate()
        certificate = mint(agent_id, agent_key, delegate.public, hub_id, now_s, ttl_s)
        return cls(agent_id, hub_id, certificate.encode(), delegate, certificate.not_before, certificate.not_after)

    def window(self) -> tuple[int, int]:
        """`not_before` and `not_after` in nanoseconds since the epoch."""
        return stamps.parse(self.not_before), stamps.parse(self.not_after)

    def to_json(self) -> bytes:
        """The bundle's file content; it holds the session key's seed."""
        return strict_json.dump(
            {
                "version": 1,
                "agent_id": self.agent_id,
                "hub_id": self.hub_id,
                "delegation_b64": b64(self.certificate),
                "delegate_private_b64": b64(self.delegate.seed),
                "not_before": self.not_before,
                "not_after": self.not_after,
            }
        )

    @classmethod
    def from_json(cls, data: bytes | str) -> "Bundle":
        """Read a bundle; raises `ValueError` unless its parts agree with the certificate inside."""
        found = strict_json.parse(data, _BUNDLE_FIELDS)
        strict_json.integer(found, "version", 1, 1)
        encoded = unb64(strict_json.text(found, "delegation_b64"))
        certificate = Certificate.decode(encoded)
        delegate = KeyPair(unb64(strict_json.text(found, "delegate_private_b64")))
        for key, signed in (
            ("agent_id", certificate.principal),
            ("hub_id", certificate.hub_id),
            ("not_before", certificate.not_before),
            ("not_after", certificate.not_after),
        ):
            if strict_json.text(found, key) != signed:
                raise ValueError(f"{key} is not the certificate's")
        if delegate.public != certificate.delegate_key:
            raise ValueError("the private key is not the certificate's")
        return cls(
            certificate.principal,
            certificate.hub_id,
            encoded,
            delegate,
            certificate.not_before,
            certificate.not_after,
        )

    def write(self, path: Path) -> None:
        """Put the bundle at `path` (0600) in the place of an older one; raises `CannotCreate`, `Unsafe`."""
        files.private_directory(path.parent)
        files.replace(path, self.to_json() + b"\n")

    @classmethod
    def load(cls, path: Path) -> "Bundle":
        """The bundle in `path`; raises `FileNotFoundError`, `PermissionError`, `Unsafe`."""
        data = files.read_owned(path, MAX_BUNDLE_BYTES)
        try:
            return cls.from_json(data)
        except ValueError as error:
            raise _refused(visible(str(path)), error) from None  # the cause may quote the key

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Bundle | None":
        """The bundle in ``$WAKEHUB_BUNDLE`` (base64url of its JSON), None when unset or empty; raises `Unsafe`."""
        value = environ.get(BUNDLE_VARIABLE)
        if not value:
            return None
        try:
            return cls.from_json(unb64(value))
        except ValueError as error:
            raise _refused(f"${BUNDLE_VARIABLE}", error) from None


def _refused(where: str, error: ValueError) -> Unsafe:
    return Unsafe(
        f"{where} holds no bundle", why=visible(str(error)), remedy="make a new one: wakehub delegate NAME --ttl 1h"
    )
