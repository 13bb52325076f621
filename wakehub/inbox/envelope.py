"""A message on its way into the record: what its sender fixed and signed, as one file (formats.md, Spool).

It is written where the record cannot be, by a process in a sandbox, and taken in by the publisher. Everything the
signature covers is in it; how far the message has come and where it came from is not: that is not the sender's to say.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Any, Final, Self, get_args

from wakehub.errors import BadData
from wakehub.identity import strict_json
from wakehub.identity.keys import b64, unb64
from wakehub.inbox import admission
from wakehub.inbox.clock import Now
from wakehub.inbox.ids import new_id
from wakehub.inbox.rows import NewRow, RowClass, Seal, Signer
from wakehub.inbox.signing import row_signing_bytes
from wakehub.limits import MAX_ID_BYTES, MAX_MEDIA_TYPE_BYTES

ORIGIN: Final = "spool"
_MAX_MS: Final = (1 << 63) - 1
_FIELDS: Final = frozenset({
    "id", "sender", "recipient", "re", "group", "class", "hops", "created", "expires", "media_type", "digest",
    "attachments", "body_b64", "sig_b64", "key_id",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Envelope:
    """One signed message. Times are milliseconds since the epoch, `signature` has 64 bytes.

    `hops` is what the signature covers. Files cannot travel in an envelope.
    """

    id: str
    sender: str
    recipient: str
    re: str | None
    group: str | None
    class_: RowClass
    hops: int
    created_ms: int
    expires_ms: int
    media_type: str
    body: bytes = field(repr=False)
    key_id: str
    signature: bytes = field(repr=False)

    @classmethod
    def seal(cls, new: NewRow, signer: Signer, now: Now) -> Self:
        """The envelope of `new`, with an id of its own; raises `BadData` as `Inbox.append` does, and for files."""
        admission.check(new, now)
        if new.attachments:
            raise BadData("files cannot travel in an envelope", remedy="send from where the record can be written")
        fixed: dict[str, Any] = {
            "id": new_id(now.ms),
            "sender": new.sender,
            "recipient": new.recipient,
            "re": new.re,
            "group": new.group,
            "class_": new.class_,
            "hops": 0,
            "created_ms": now.ms,
            "expires_ms": now.ms + new.ttl_s * 1000,
            "media_type": new.media_type,
        }
        signed = row_signing_bytes(**fixed, digest=hashlib.sha256(new.body).digest())
        return cls(**fixed, body=new.body, key_id=signer.key_id, signature=signer.sign(signed))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The envelope that `data` is; raises `ValueError` for anything else. The signature is not judged here."""
        found = strict_json.parse(data, _FIELDS)
        body = unb64(strict_json.text(found, "body_b64"))
        if strict_json.text(found, "digest") != hashlib.sha256(body).hexdigest():
            raise ValueError("the digest is not the body's")
        if strict_json.array(found, "attachments"):
            raise ValueError("files cannot travel in an envelope")
        class_ = strict_json.text(found, "class")
        if class_ not in get_args(RowClass):
            raise ValueError("unknown class")
        return cls(
            id=_short(found, "id", MAX_ID_BYTES),
            sender=_short(found, "sender", MAX_ID_BYTES),
            recipient=_short(found, "recipient", MAX_ID_BYTES),
            re=_optional(found, "re"),
            group=_optional(found, "group"),
            class_="fyi" if class_ == "fyi" else "normal",
            hops=strict_json.integer(found, "hops", 0, 255),
            created_ms=strict_json.integer(found, "created", 0, _MAX_MS),
            expires_ms=strict_json.integer(found, "expires", 0, _MAX_MS),
            media_type=_short(found, "media_type", MAX_MEDIA_TYPE_BYTES),
            body=body,
            key_id=_short(found, "key_id", MAX_ID_BYTES),
            signature=unb64(strict_json.text(found, "sig_b64")),
        )

    def encode(self) -> bytes:
        """The content of the file, at most `MAX_ENVELOPE_BYTES`."""
        return strict_json.dump({
            "id": self.id,
            "sender": self.sender,
            "recipient": self.recipient,
            "re": self.re,
            "group": self.group,
            "class": self.class_,
            "hops": self.hops,
            "created": self.created_ms,
            "expires": self.expires_ms,
            "media_type": self.media_type,
            "digest": hashlib.sha256(self.body).hexdigest(),
            "attachments": [],
            "body_b64": b64(self.body),
            "sig_b64": b64(self.signature),
            "key_id": self.key_id,
        })  # fmt: skip

    def signed_bytes(self) -> bytes:
        """What `signature` covers."""
        return row_signing_bytes(
            id=self.id,
            sender=self.sender,
            recipient=self.recipient,
            re=self.re,
            group=self.group,
            class_=self.class_,
            hops=self.hops,
            created_ms=self.created_ms,
            expires_ms=self.expires_ms,
            media_type=self.media_type,
            digest=hashlib.sha256(self.body).digest(),
        )

    def row(self, generation: int) -> NewRow:
        """The row to store, for the recipient's enrolment `generation`."""
        return NewRow(
            self.sender,
            self.recipient,
            self.body,
            media_type=self.media_type,
            re=self.re,
            group=self.group,
            class_=self.class_,
            signed=Seal(self.id, self.created_ms, self.expires_ms, self.hops, self.key_id, self.signature),
            origin=ORIGIN,
            generation=generation,
        )


def _short(found: dict[str, Any], key: str, most: int) -> str:
    value = strict_json.text(found, key)
    if len(value.encode()) > most:
        raise ValueError(f"{key} is longer than {most} bytes")
    return value


def _optional(found: dict[str, Any], key: str) -> str | None:
    return None if found[key] is None else _short(found, key, MAX_ID_BYTES)
