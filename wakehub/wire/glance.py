"""The frame that a hub sees all day, recognised without building anything: a wake of the session's own agent.

What `plain_wake` recognises, `frames.decode` and `payloads.Wake.decode` take as well, with the same fields; of anything
else it says nothing, least of all that it is wrong. Only the destination is not judged here: one that equals the id of
a connected agent was judged when that agent came.
"""

import struct
from typing import Final

from wakehub.limits import (
    DIGEST_BYTES,
    HEADER_BYTES,
    MAGIC,
    MAX_WAKE_PAYLOAD_BYTES,
    PREFIX_BYTES,
    VERSION,
)
from wakehub.wire.frames import Kind

_REST: Final = struct.Struct(">BBHQI")  # to_len, reserved, payload_len, ts_ms, ttl_ms
_REST_AT: Final = PREFIX_BYTES + HEADER_BYTES - _REST.size
_IDS_AT: Final = PREFIX_BYTES + HEADER_BYTES
_WATERMARK_BYTES: Final = 8
_NO_DIGEST: Final = _WATERMARK_BYTES + 1
_DIGEST: Final = _NO_DIGEST + DIGEST_BYTES


def wake_head(from_id: bytes) -> bytes:
    """The first 8 bytes of every wake's body from `from_id`: magic, version, kind, flags, length of the id."""
    return MAGIC + bytes((VERSION, Kind.WAKE, 0, len(from_id)))


def plain_wake(raw: bytes, head: bytes, from_id: bytes) -> tuple[bytes, bytes, int, int] | None:
    """Destination, row id, ts_ms and ttl_ms of a delimited frame, if it is a wake from `from_id` (whose `wake_head` is
    `head`) with texts in ASCII; None for anything that wants a closer look."""
    if raw[PREFIX_BYTES:_REST_AT] != head or len(raw) < _IDS_AT:
        return None
    to_len, reserved, payload_len, ts_ms, ttl_ms = _REST.unpack_from(raw, _REST_AT)
    to_at = _IDS_AT + len(from_id)
    payload_at = to_at + to_len
    if (
        payload_at + payload_len != len(raw)
        or reserved
        or payload_len > MAX_WAKE_PAYLOAD_BYTES
        or raw[_IDS_AT:to_at] != from_id
    ):
        return None
    try:
        namespace_at = payload_at + 1 + raw[payload_at]
        sender_at = namespace_at + 1 + raw[namespace_at]
        digest_at = sender_at + 1 + raw[sender_at]
        rest = len(raw) - digest_at
        if rest != (_DIGEST if raw[digest_at] else _NO_DIGEST) or raw[digest_at] not in (0, DIGEST_BYTES):
            return None
    except IndexError:
        return None
    if not raw[payload_at:digest_at].isascii():
        return None
    return raw[to_at:payload_at], raw[payload_at + 1 : namespace_at], ts_ms, ttl_ms
