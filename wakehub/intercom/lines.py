"""The lines of an inbox: read from its file, and looked for in it (intercom.md §3, §4; fault F21)."""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from typing import BinaryIO

from wakehub.intercom import ndjson
from wakehub.intercom.ndjson import Envelope
from wakehub.limits import MAX_MESH_LINE_BYTES


def ended(file: BinaryIO) -> Iterator[tuple[bytes | None, int]]:
    """Every ended line and its length in bytes, None in the place of one that is too long; not the unended tail."""
    while line := file.readline(MAX_MESH_LINE_BYTES + 1):
        length = len(line)
        part = line
        while len(part) > MAX_MESH_LINE_BYTES and not part.endswith(b"\n"):
            part = file.readline(MAX_MESH_LINE_BYTES + 1)
            length += len(part)
        if not part.endswith(b"\n"):
            return
        yield (line if length <= MAX_MESH_LINE_BYTES else None), length


def lies_in(data: bytes, line: bytes) -> bool:
    """Whether the message that `line` says lies among the lines of `data`, in whatever form it was written."""
    envelope = ndjson.parse(line)
    wanted = json.dumps(envelope.id).encode()  # as it is written, so that most lines need no parsing
    at = data.find(wanted)
    while at >= 0:
        begin, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
        with contextlib.suppress(ndjson.Refusal):
            if end >= 0 and digest(ndjson.parse(data[begin:end])) == digest(envelope):
                return True
        at = data.find(wanted, end) if end >= 0 else -1
    return False


def digest(envelope: Envelope) -> str:
    """What makes two lines the same message: not the id alone, which a careless sender may use for all of them."""
    parts = [envelope.id, envelope.from_session, envelope.timestamp, envelope.payload]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
