"""One AWH1 frame: prefix, header, ids, payload (awh1.md §1).

`decode` checks in the specification's order, which fixes the code of a frame with several faults. `encode` sends what
it made through `decode`, so the hub cannot emit what it would refuse. Both work on the whole frame, its four prefix
bytes included: a frame that is forwarded is the very bytes that came in.
"""

import struct
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

from wakehub.errors import ErrorCode, Violation
from wakehub.limits import (
    HEADER_BYTES,
    MAGIC,
    MAX_ERROR_PAYLOAD_BYTES,
    MAX_FRAME_BYTES,
    MAX_ID_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_PING_BYTES,
    MAX_WAKE_PAYLOAD_BYTES,
    MAX_WELCOME_PAYLOAD_BYTES,
    PREFIX_BYTES,
    PROVEN_IDS,
    VERSION,
)
from wakehub.wire.fields import check_number, has_control, malformed, text


class Kind(IntEnum):
    """The kinds of a frame (§2)."""

    HELLO = 1
    WELCOME = 2
    JOIN = 3
    DEPART = 4
    SUBSCRIBE = 5
    UNSUBSCRIBE = 6
    WAKE = 7
    PING = 8
    PONG = 9
    ERROR = 10


PAYLOAD_CEILING: Final = {
    Kind.HELLO: MAX_PAYLOAD_BYTES,
    Kind.WELCOME: MAX_WELCOME_PAYLOAD_BYTES,
    Kind.JOIN: MAX_PAYLOAD_BYTES,
    Kind.DEPART: MAX_PAYLOAD_BYTES,
    Kind.SUBSCRIBE: MAX_PAYLOAD_BYTES,
    Kind.UNSUBSCRIBE: MAX_PAYLOAD_BYTES,
    Kind.WAKE: MAX_WAKE_PAYLOAD_BYTES,
    Kind.PING: MAX_PING_BYTES,
    Kind.PONG: MAX_PING_BYTES,
    Kind.ERROR: MAX_ERROR_PAYLOAD_BYTES,
}
"""Payload ceilings in bytes by kind (§2)."""

# Reserved for ever: they carried a body, and no version of AWH1 will again.
_RESERVED_KINDS: Final = {11: "request", 12: "reply", 13: "notify"}
_HELLO: Final = Kind.HELLO  # an enum looks its members up anew each time
_WAKE: Final = Kind.WAKE
_KINDS: Final = {int(kind): kind for kind in Kind}

PREFIX: Final = struct.Struct(">I")
_HEADER: Final = struct.Struct(">4sBBBBBBHQI")
_TS: Final = struct.Struct(">Q")
_BODY: Final = PREFIX_BYTES
_KIND_AT: Final = _BODY + 5
_TS_AT: Final = _BODY + 12
_IDS: Final = PREFIX_BYTES + HEADER_BYTES


class Frame(NamedTuple):
    """One frame, decoded.

    `from_id` and `to_id` are UTF-8 ids of 0..128 bytes, `payload` is within the ceiling of its kind, `ts_ms` is the
    sender's clock in ms since the epoch (0: unstamped), `ttl_ms` its lifetime in ms (0: no expiry).
    """

    kind: Kind
    from_id: bytes
    to_id: bytes = b""
    payload: bytes = b""
    ts_ms: int = 0
    ttl_ms: int = 0


def encode(frame: Frame) -> bytes:
    """The frame's bytes, prefix included: at most 4 + 1,304. Raises `Violation` for what `decode` would refuse, and
    for a ts_ms or ttl_ms that its field cannot hold."""
    from_len, to_len = len(frame.from_id), len(frame.to_id)
    if from_len > MAX_ID_BYTES:
        raise malformed(f"from of {from_len} B exceeds {MAX_ID_BYTES} B")
    if to_len > MAX_ID_BYTES:
        raise malformed(f"to of {to_len} B exceeds {MAX_ID_BYTES} B")
    check_number(frame.ts_ms, 64, "ts_ms")
    check_number(frame.ttl_ms, 32, "ttl_ms")
    length = HEADER_BYTES + from_len + to_len + len(frame.payload)
    if length > MAX_FRAME_BYTES:
        raise Violation(ErrorCode.TOO_LARGE, f"frame of {length} B exceeds {MAX_FRAME_BYTES} B")
    header = _HEADER.pack(
        MAGIC, VERSION, frame.kind, 0, from_len, to_len, 0, len(frame.payload), frame.ts_ms, frame.ttl_ms
    )
    raw = PREFIX.pack(length) + header + frame.from_id + frame.to_id + frame.payload
    decode(raw)
    return raw


def decode(raw: bytes) -> Frame:
    """Decode one whole frame (prefix included, as `reader.FrameReader` delimits it).

    Raises `Violation` 400, or 413 for a payload over the ceiling of its kind; its reason names the defect (§1).
    """
    length = len(raw) - PREFIX_BYTES
    if length < HEADER_BYTES:
        raise malformed(f"frame of {length} B is shorter than its header")
    magic, version, kind_byte, flags, from_len, to_len, reserved, payload_len, ts_ms, ttl_ms = _HEADER.unpack_from(
        raw, _BODY
    )
    if magic != MAGIC:
        raise malformed("bad magic")
    if version != VERSION:
        raise malformed(f"version {version} is not {VERSION}")
    kind = _KINDS.get(kind_byte)
    if kind is None:
        raise malformed(_unknown_kind(kind_byte))
    if flags or reserved:
        raise malformed("flags are not zero" if flags else "reserved byte is not zero")
    if HEADER_BYTES + from_len + to_len + payload_len != length:
        raise malformed("field lengths do not add up to the frame's length")
    if payload_len > PAYLOAD_CEILING[kind]:
        raise Violation(
            ErrorCode.TOO_LARGE, f"{kind.name.lower()} payload {payload_len} B exceeds {PAYLOAD_CEILING[kind]} B"
        )
    to_at = _IDS + from_len
    payload_at = to_at + to_len
    from_id = raw[_IDS:to_at]
    to_id = raw[to_at:payload_at]
    _check_ids(from_id, to_id, kind is _HELLO)
    return Frame(kind, from_id, to_id, raw[payload_at:], ts_ms, ttl_ms)


def kind_of(raw: bytes) -> int:
    """The kind byte of a frame that is known to be well formed."""
    return raw[_KIND_AT]


def wake_timestamp_ms(raw: bytes) -> int | None:
    """ts_ms of a frame that is known to be well formed; None unless it is a wake."""
    if raw[_KIND_AT] != _WAKE:
        return None
    ts_ms: int = _TS.unpack_from(raw, _TS_AT)[0]
    return ts_ms


@lru_cache(PROVEN_IDS)  # the same few pairs over and over; what is refused is not remembered
def _check_ids(from_id: bytes, to_id: bytes, is_hello: bool) -> None:
    from_text = text(from_id, "from")
    to_text = text(to_id, "to")
    if len(from_id) > MAX_ID_BYTES:
        raise malformed(f"from of {len(from_id)} B exceeds {MAX_ID_BYTES} B")
    if not from_id and not is_hello:
        raise malformed("from is empty")
    if has_control(from_text):
        raise malformed("from holds a control character")
    if len(to_id) > MAX_ID_BYTES:
        raise malformed(f"to of {len(to_id)} B exceeds {MAX_ID_BYTES} B")
    if has_control(to_text):
        raise malformed("to holds a control character")


def _unknown_kind(kind: int) -> str:
    name = _RESERVED_KINDS.get(kind)
    if name is None:
        return f"unknown kind {kind}"
    return f"reserved kind {kind} ({name}) carries a body and was removed in v1"
