"""The sender's signature over a row (formats.md, Row signature).

It covers everything that the sender fixes: who, to whom, in answer to what, when, and what by digest. It says that a
key of this user's registry signed, which separates agents only where a sandbox keeps them from each other's key files.
"""

import hashlib
from collections.abc import Collection, Sequence
from typing import Final, Literal

from wakehub.identity.keys import KeyPair, verify
from wakehub.inbox.rows import Attachment, Row, Signer

Verified = Literal["yes", "no", "at_the_time", "unsigned"]

_DOMAIN: Final = b"wakehub/row/v1"
_KEY_ID_DIGITS: Final = 16


def row_signing_bytes(
    *,
    id: str,
    sender: str,
    recipient: str,
    re: str | None,
    group: str | None,
    class_: str,
    hops: int,
    created_ms: int,
    expires_ms: int,
    media_type: str,
    digest: bytes,
    attachments: Sequence[Attachment] = (),
) -> bytes:
    """The bytes that a row's signature covers. `digest` is the body's SHA-256 (32 bytes); times are milliseconds.

    Raises `OverflowError` for a number that does not fit its field, `UnicodeEncodeError` for text that is not Unicode.
    """
    parts = [_DOMAIN]
    parts += [_lp4(text) for text in (id, sender, recipient, re or "", group or "", class_)]
    parts += [hops.to_bytes(1, "big"), created_ms.to_bytes(8, "big"), expires_ms.to_bytes(8, "big")]
    parts += [_lp4(media_type), digest, len(attachments).to_bytes(2, "big")]
    parts += [attachment.digest + attachment.size.to_bytes(8, "big") for attachment in attachments]
    return b"".join(parts)


def key_id(public: bytes) -> str:
    """A short name for a public key: the first 16 hexadecimal digits of its SHA-256. A hint; it proves nothing."""
    return hashlib.sha256(public).hexdigest()[:_KEY_ID_DIGITS]


def signer(pair: KeyPair) -> Signer:
    """What `Inbox.append` needs to sign new rows with `pair`."""
    return Signer(key_id(pair.public), pair.sign)


def verify_row(row: Row, current: bytes | None, past: Collection[bytes] = ()) -> Verified:
    """Whether the row is what its sender signed.

    `current` is the sender's enrolled public key now, `past` the keys it had before: `yes` is by the current key,
    `at_the_time` by a former one, `no` a signature that no such key made, or a body that is not what was signed.
    """
    if row.signature is None:
        return "unsigned"
    if row.body is not None and hashlib.sha256(row.body).digest() != row.digest:
        return "no"
    message = _signed_bytes(row)
    if current is not None and verify(current, message, row.signature):
        return "yes"
    return "at_the_time" if any(verify(key, message, row.signature) for key in past) else "no"


def _signed_bytes(row: Row) -> bytes:
    return row_signing_bytes(
        id=row.id,
        sender=row.sender,
        recipient=row.recipient,
        re=row.re,
        group=row.group,
        class_=row.class_,
        hops=row.signed_hops,
        created_ms=row.created_ms,
        expires_ms=row.expires_ms,
        media_type=row.media_type,
        digest=row.digest,
        attachments=row.attachments,
    )


def _lp4(text: str) -> bytes:
    encoded = text.encode()
    return len(encoded).to_bytes(4, "big") + encoded
