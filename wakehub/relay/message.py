"""A row as it is handed to an agent: with its age, its verdict and what to answer, ready for any backend.

`document` is the one JSON form, for `--format json` and for hooks (formats.md, exec hook stdin).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wakehub.errors import BadData
from wakehub.identity.addresses import PUBLISHER, check_address
from wakehub.identity.keys import b64
from wakehub.inbox.admission import is_text
from wakehub.inbox.rows import Attachment, Row
from wakehub.inbox.signing import Verified
from wakehub.invocation import SHORT
from wakehub.limits import STALE_AFTER_SECONDS

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Message:
    """`row` with its body, what its signature proves, and when it is handed over (milliseconds since the epoch).

    `reason` is what made the listener look (`client.doorbell.Reason`). `files` are the copies of the row's attachments
    that are handed over with it, None in the place of one that is lost; None for a message that is only looked at.
    `call` is how the command that answers names wakehub.
    """

    row: Row
    verified: Verified
    now_ms: int
    reason: str = ""
    files: tuple[Path | None, ...] | None = None
    call: str = SHORT

    @property
    def age_s(self) -> int:
        """Whole seconds since it was created, never negative: a clock may have been set back since."""
        return max(0, (self.now_ms - self.row.created_ms) // 1000)

    @property
    def is_stale(self) -> bool:
        return self.age_s > STALE_AFTER_SECONDS

    @property
    def is_from_outside(self) -> bool:
        """Whether sender and recipient are of different workspaces; plain names have one in common."""
        return workspace(self.row.sender) != workspace(self.row.recipient)

    @property
    def body(self) -> bytes:
        assert self.row.body is not None  # an expired row is never claimed
        return self.row.body

    @property
    def text(self) -> str | None:
        """The body if it is text: by its media type, and by its bytes."""
        if not is_text(self.row.media_type):
            return None
        try:
            return self.body.decode()
        except UnicodeDecodeError:
            return None

    @property
    def attached(self) -> list[tuple[Attachment, Path | None]]:
        """Each file of the message with its copy for the agent, None where there is none."""
        paths = self.files if self.files is not None else (None,) * len(self.row.attachments)
        return list(zip(self.row.attachments, paths, strict=True))

    @property
    def reply(self) -> str | None:
        """The command that answers it.

        None when there is nobody to answer: a notice of the publisher, or a sender whose id is no address, which must
        not get into a command line either.
        """
        row = self.row
        if row.sender == PUBLISHER or not (is_address(row.sender) and is_address(row.recipient)):
            return None
        return f"{self.call} send --as {row.recipient} --to {row.sender} --re {row.id} --stdin"


def is_address(name: str) -> bool:
    """Whether `name` is an address that messages can go to, and thus holds nothing but plain characters."""
    try:
        check_address(name)
    except BadData:
        return False
    return True


def workspace(address: str) -> str:
    """The first segment of an address that has more than one; empty for a plain name."""
    first, separator, _ = address.partition("/")
    return first if separator else ""


def after_workspace(address: str) -> str:
    """An address without its workspace; a plain name as it is."""
    above = workspace(address)
    return address.removeprefix(f"{above}/") if above else address


def document(message: Message) -> dict[str, Any]:
    """Every field of a message; exact, nothing made visible: who prints it must escape it as JSON does.

    Times are milliseconds since the epoch, `digest` is hexadecimal, `body_b64` is there when the body is no text, the
    `path` of an attachment is null when it is lost or the message is only looked at.
    """
    row, text = message.row, message.text
    body = {"body_b64": b64(message.body)} if text is None else {"text": text}
    return {
        "v": _VERSION,
        "id": row.id,
        "rseq": row.rseq,
        "from": row.sender,
        "to": row.recipient,
        "re": row.re,
        "group": row.group,
        "class": row.class_,
        "hops": row.hops,
        "created": row.created_ms,
        "expires": row.expires_ms,
        "age_s": message.age_s,
        "stale": message.is_stale,
        "media_type": row.media_type,
        **body,
        "digest": row.digest.hex(),
        "verified": message.verified,
        "origin": row.origin,
        "workspace": "outside" if message.is_from_outside else "same",
        "redelivery": row.redelivery,
        "attachments": [
            {
                "name": attachment.name,
                "path": None if path is None else str(path),
                "size": attachment.size,
                "sha256": attachment.digest.hex(),
            }
            for attachment, path in message.attached
        ],
        "reply": message.reply,
    }
