"""A message on its way into the record: what its sender fixed and signed, as one file (formats.md, Spool).

It is written where the record cannot be, by a process in a sandbox, and taken in by the publisher. Everything the
signature covers is in it; how far the message has come and where it came from is not: that is not the sender's to say.
Files lie beside it, in a directory of the envelope's own, each under its SHA-256.

Who holds the enrolled key signs with that. Who holds only a bundle signs with its session key and adds the bundle's
certificate: enough to prove to the publisher who wrote it, but no row signature, so that the row is stored unsigned.
"""

import hashlib
import re
from dataclasses import dataclass, field
from typing import Any, Final, Self, get_args

from wakehub.identity import strict_json
from wakehub.identity.keys import b64, unb64
from wakehub.inbox import admission
from wakehub.inbox.clock import Now
from wakehub.inbox.ids import new_id
from wakehub.inbox.rows import Attachment, NewRow, RowClass, Seal, Signer
from wakehub.inbox.signing import row_signing_bytes
from wakehub.limits import MAX_ATTACHED_BYTES, MAX_ID_BYTES, MAX_MEDIA_TYPE_BYTES

ORIGIN: Final = "spool"
FILES_SUFFIX: Final = ".files"  # of the directory beside an envelope, in the place of its .json
_MAX_MS: Final = (1 << 63) - 1
_FIELDS: Final = frozenset({
    "id", "sender", "recipient", "re", "group", "class", "hops", "created", "expires", "media_type", "digest",
    "attachments", "body_b64", "sig_b64", "key_id",
})  # fmt: skip
_DELEGATION: Final = "delegation_b64"
_SHA256: Final = re.compile("[0-9a-f]{64}")
_FILE: Final = frozenset({"name", "size", "sha256"})


@dataclass(frozen=True, slots=True)
class Envelope:
    """One signed message. Times are milliseconds since the epoch, `signature` has 64 bytes.

    `hops` is what the signature covers. `certificate` is the wire form of the one whose key signed; empty: the
    enrolled key did.
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
    attachments: tuple[Attachment, ...] = ()
    certificate: bytes = field(default=b"", repr=False)

    @classmethod
    def seal(cls, new: NewRow, signer: Signer, now: Now, *, certificate: bytes = b"") -> Self:
        """The envelope of `new`, with an id of its own; raises `BadData` as `Inbox.append` does.

        `signer` is of the enrolled key, or of the session key that `certificate` names.
        """
        admission.check(new, now)
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
            "attachments": new.attachments,
        }
        signed = row_signing_bytes(**fixed, digest=hashlib.sha256(new.body).digest())
        return cls(**fixed, body=new.body, key_id=signer.key_id, signature=signer.sign(signed), certificate=certificate)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The envelope that `data` is; raises `ValueError` for anything else. The signature is not judged here."""
        found = strict_json.parse(data, _FIELDS, frozenset({_DELEGATION}))
        body = unb64(strict_json.text(found, "body_b64"))
        if strict_json.text(found, "digest") != hashlib.sha256(body).hexdigest():
            raise ValueError("the digest is not the body's")
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
            attachments=tuple(_file(each) for each in strict_json.array(found, "attachments")),
            certificate=unb64(strict_json.text(found, _DELEGATION)) if _DELEGATION in found else b"",
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
            "attachments": [
                {"name": each.name, "size": each.size, "sha256": each.digest.hex()} for each in self.attachments
            ],
            "body_b64": b64(self.body),
            "sig_b64": b64(self.signature),
            "key_id": self.key_id,
            **({_DELEGATION: b64(self.certificate)} if self.certificate else {}),
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
            attachments=self.attachments,
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
            signed=self._seal(),
            origin=ORIGIN,
            generation=generation,
            attachments=self.attachments,
        )

    def _seal(self) -> Seal:
        key_id, signature = (None, None) if self.certificate else (self.key_id, self.signature)
        return Seal(self.id, self.created_ms, self.expires_ms, self.hops, key_id, signature)


def _file(found: object) -> Attachment:
    found = strict_json.fields(found, _FILE)
    digest = strict_json.text(found, "sha256")
    if not _SHA256.fullmatch(digest):
        raise ValueError("sha256 is not 64 hexadecimal digits")
    size = strict_json.integer(found, "size", 0, MAX_ATTACHED_BYTES)
    return Attachment(strict_json.text(found, "name"), size, bytes.fromhex(digest))


def _short(found: dict[str, Any], key: str, most: int) -> str:
    value = strict_json.text(found, key)
    if len(value.encode()) > most:
        raise ValueError(f"{key} is longer than {most} bytes")
    return value


def _optional(found: dict[str, Any], key: str) -> str | None:
    return None if found[key] is None else _short(found, key, MAX_ID_BYTES)
