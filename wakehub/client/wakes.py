"""What the hub is told about a row (formats.md, Poke).

A wake carries no content: id and watermark tell the recipient what to look for; sender, namespace and digest only save
it a look. They are what gives way, in the order sender, namespace, digest, when all of it exceeds 256 bytes.
"""

from wakehub.errors import Violation
from wakehub.inbox.rows import Header
from wakehub.wire.payloads import Wake


def wake_for(row: Header) -> Wake:
    """The wake for `row`, within 256 bytes; an id alone always fits."""
    full = Wake(row.id.encode(), f"_inbox/{row.recipient}".encode(), row.sender.encode(), row.digest, row.rseq)
    without_sender = full._replace(sender=b"")
    without_namespace = without_sender._replace(namespace=b"")
    bare = without_namespace._replace(digest=b"")
    return next((wake for wake in (full, without_sender, without_namespace) if _fits(wake)), bare)


def _fits(wake: Wake) -> bool:
    try:
        wake.encode()
    except (Violation, ValueError):  # over 256 bytes in all, or over 255 in one field
        return False
    return True
