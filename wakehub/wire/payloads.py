"""What each kind of frame carries (awh1.md §2).

Every class decodes a whole payload or raises `Violation` 400 with the defect, and encodes back to the same bytes; what
would not decode is not encoded.
join, depart (a bare signature), ping and pong (opaque bytes) need no class; topic lists are in `fields`.
"""

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from wakehub.limits import (
    DIGEST_BYTES,
    KEY_BYTES,
    MAX_CERTIFICATE_BYTES,
    MAX_ERROR_PAYLOAD_BYTES,
    MAX_WAKE_PAYLOAD_BYTES,
    SIGNATURE_BYTES,
    WELCOME_BYTES,
)
from wakehub.wire.fields import check_number, decode_topics, encode_topics, lp, malformed, take_lp, text

_CERTIFICATE_LENGTH: Final = struct.Struct(">H")
_CERTIFICATE_AT: Final = KEY_BYTES + SIGNATURE_BYTES + _CERTIFICATE_LENGTH.size
_WELCOME: Final = struct.Struct(">IQIBII")
_WATERMARK: Final = struct.Struct(">Q")
_CODE: Final = struct.Struct(">H")
assert _WELCOME.size == WELCOME_BYTES


@dataclass(frozen=True, slots=True)
class Hello:
    """A client's hello: session key (32 B), signature over the hello transcript (64 B), certificate (0..390 B, opaque
    here), topics (0..8)."""

    key: bytes
    signature: bytes
    certificate: bytes
    topics: tuple[bytes, ...] = ()

    def encode(self) -> bytes:
        if len(self.key) != KEY_BYTES or len(self.signature) != SIGNATURE_BYTES:
            raise malformed("key or signature has a wrong length")
        if len(self.certificate) > MAX_CERTIFICATE_BYTES:
            raise malformed(f"certificate of {len(self.certificate)} B exceeds {MAX_CERTIFICATE_BYTES} B")
        return b"".join(
            (
                self.key,
                self.signature,
                _CERTIFICATE_LENGTH.pack(len(self.certificate)),
                self.certificate,
                encode_topics(self.topics),
            )
        )

    @classmethod
    def decode(cls, payload: bytes) -> "Hello":
        if len(payload) < _CERTIFICATE_AT:
            raise malformed(f"{len(payload)} B is too short")
        (size,) = _CERTIFICATE_LENGTH.unpack_from(payload, KEY_BYTES + SIGNATURE_BYTES)
        if size > MAX_CERTIFICATE_BYTES:
            raise malformed(f"certificate of {size} B exceeds {MAX_CERTIFICATE_BYTES} B")
        topics_at = _CERTIFICATE_AT + size
        if topics_at > len(payload):
            raise malformed("certificate is cut short")
        return cls(
            payload[:KEY_BYTES],
            payload[KEY_BYTES : KEY_BYTES + SIGNATURE_BYTES],
            payload[_CERTIFICATE_AT:topics_at],
            decode_topics(payload[topics_at:]),
        )


@dataclass(frozen=True, slots=True)
class Welcome:
    """The hub's answer to a good hello: session number (≥ 1), what waited for this agent, and how to reconnect (ms)."""

    session: int
    pending_count: int
    pending_ids: int
    lagged: bool
    reconnect_base_ms: int
    reconnect_jitter_ms: int

    def encode(self) -> bytes:
        check_number(self.session, 32, "welcome's session", least=1)
        check_number(self.pending_count, 64, "welcome's pending_count")
        check_number(self.pending_ids, 32, "welcome's pending_ids")
        check_number(self.reconnect_base_ms, 32, "welcome's reconnect_base_ms")
        check_number(self.reconnect_jitter_ms, 32, "welcome's reconnect_jitter_ms")
        return _WELCOME.pack(
            self.session,
            self.pending_count,
            self.pending_ids,
            self.lagged,
            self.reconnect_base_ms,
            self.reconnect_jitter_ms,
        )

    @classmethod
    def decode(cls, payload: bytes) -> "Welcome":
        if len(payload) != WELCOME_BYTES:
            raise malformed(f"welcome of {len(payload)} B is not {WELCOME_BYTES} B")
        session, count, ids, lagged, base_ms, jitter_ms = _WELCOME.unpack(payload)
        if not session:
            raise malformed("welcome's session is 0")
        if lagged > 1:
            raise malformed("welcome's lagged is neither 0 nor 1")
        return cls(session, count, ids, bool(lagged), base_ms, jitter_ms)


class Wake(NamedTuple):
    """The hint: which inbox row to look for. There is no body.

    `row_id`, `namespace` and `sender` are UTF-8, `digest` is empty or the SHA-256 of the row's body, `watermark` the
    recipient's sequence number (0: none). Together at most 256 bytes.
    """

    row_id: bytes
    namespace: bytes = b""
    sender: bytes = b""
    digest: bytes = b""
    watermark: int = 0

    def encode(self) -> bytes:
        size = 4 + len(self.row_id) + len(self.namespace) + len(self.sender) + len(self.digest) + _WATERMARK.size
        if size > MAX_WAKE_PAYLOAD_BYTES:
            raise malformed(f"wake payload {size} B exceeds {MAX_WAKE_PAYLOAD_BYTES} B")
        check_number(self.watermark, 64, "wake's watermark")
        payload = b"".join(
            (lp(self.row_id), lp(self.namespace), lp(self.sender), lp(self.digest), _WATERMARK.pack(self.watermark))
        )
        Wake.decode(payload)
        return payload

    @classmethod
    def decode(cls, payload: bytes) -> "Wake":
        row_id, at = take_lp(payload, 0, "wake's row id")
        namespace, at = take_lp(payload, at, "wake's namespace")
        sender, at = take_lp(payload, at, "wake's sender")
        digest, at = take_lp(payload, at, "wake's digest")
        if len(payload) - at != _WATERMARK.size:
            raise malformed("wake does not end in an 8 B watermark")
        if digest and len(digest) != DIGEST_BYTES:
            raise malformed(f"wake's digest of {len(digest)} B is neither 0 nor {DIGEST_BYTES} B")
        text(row_id, "wake's row id")
        text(namespace, "wake's namespace")
        text(sender, "wake's sender")
        return cls(row_id, namespace, sender, digest, _WATERMARK.unpack_from(payload, at)[0])


@dataclass(frozen=True, slots=True)
class Error:
    """A refusal: a code (u16, see `ErrorCode`; a client must bear codes it does not know) and a reason for a person."""

    code: int
    reason: str

    def encode(self) -> bytes:
        """At most 256 bytes; a longer reason is cut on a character boundary."""
        check_number(self.code, 16, "error's code")
        room = MAX_ERROR_PAYLOAD_BYTES - _CODE.size
        return _CODE.pack(self.code) + self.reason.encode()[:room].decode(errors="ignore").encode()

    @classmethod
    def decode(cls, payload: bytes) -> "Error":
        if len(payload) < _CODE.size:
            raise malformed("error without a code")
        return cls(_CODE.unpack_from(payload)[0], text(payload[_CODE.size :], "error's reason"))
