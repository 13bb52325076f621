"""What an envelope of the mesh is as a row of the record, and a row as an envelope (intercom.md §1, §7).

    chat msg_… from nova to rowan on channel dev    ⇄    row from intercom:dev/nova to alice, who is rowan there

A chat that holds nothing but a text becomes that text. Anything else an envelope may hold becomes JSON text, exact and
in ASCII, with whatever we do not know in it: nothing is left out. Nobody on the mesh proves who they are: such a row
has no signature, and is shown as unverified.

Both sides find their way back. The row has the envelope's id as its group; an envelope that goes out has an id derived
from the row's, so that a row which is sent once more after a crash is the same message, and names the row. So an answer
answers, in either direction, and the loop guard counts through the mesh.
"""

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from wakehub.errors import BadData
from wakehub.identity.addresses import check_address
from wakehub.inbox.ids import is_row_id
from wakehub.inbox.rows import TEXT, Arrival, NewRow, Row
from wakehub.intercom.ndjson import Envelope, is_session
from wakehub.limits import MAX_BODY_BYTES, MAX_MESH_SESSION
from wakehub.relay.message import Message
from wakehub.visible import visible

ORIGIN: Final = "intercom"
ROW_KEY: Final = "wakehub_row"
"""The key of an envelope that names the row it was; other clients carry it through untouched."""

_JSON: Final = "text/json; charset=utf-8"
_NOBODY: Final = "?"
_ADDRESSING: Final = frozenset({"receipt", ROW_KEY})


@dataclass(frozen=True, slots=True)
class Seat:
    """One agent's place on the mesh: it is `session` on `channel`, and `name` here."""

    channel: str
    session: str
    name: str

    def __str__(self) -> str:
        return f"{self.name} as {self.session} on {self.channel}"


def namespace(channel: str) -> str:
    """The namespace of everyone on `channel`, ``intercom:<channel>/``; `BadData` (65) where none can be."""
    found = f"{ORIGIN}:{channel}/"
    try:
        check_address(found + "x" * MAX_MESH_SESSION)
    except BadData as error:
        raise BadData(
            f"channel {visible(channel)} cannot be bridged",
            why=f"with an id of {MAX_MESH_SESSION} characters {found} must be an address: {error.why}",
            remedy="use a channel with a shorter name of letters, digits, - and _",
        ) from error
    return found


def session_of(channel: str, address: str) -> str | None:
    """The id on `channel` that `address` stands for; None when it stands for none."""
    session = address.removeprefix(namespace(channel))
    return session if session != address and is_session(session) else None


# --- in ---


def arriving(seat: Seat, envelope: Envelope, now_ms: int, *, re: str | None, generation: int) -> NewRow:
    """The row that `envelope` becomes for ``seat.name``, stored once however often it is found.

    `re` is the row that it answers, if that is known. A body over the limit for rows is not cut: the caller must see to
    it (`is_too_large`). `now_ms` is milliseconds since the epoch.
    """
    text = _plain_text(envelope)
    return NewRow(
        sender(seat, envelope),
        seat.name,
        _as_json(envelope) if text is None else text,
        media_type=_JSON if text is None else TEXT,
        re=re,
        group=_group(envelope.id),
        origin=ORIGIN,
        generation=generation,
        arrival=Arrival(_key(seat, envelope), _made_ms(envelope.timestamp, now_ms)),
    )


def is_too_large(row: NewRow) -> bool:
    return len(row.body) > MAX_BODY_BYTES


def sender(seat: Seat, envelope: Envelope) -> str:
    """The address of who sent it; where its id is none, one that nobody can be mistaken for, nor answered."""
    session = envelope.from_session
    return namespace(seat.channel) + (session if is_session(session) else _NOBODY)


def answered_row(sent: Envelope | None) -> str | None:
    """The row that the envelope `sent` was, if it says so."""
    named = sent.extra.get(ROW_KEY) if sent is not None else None
    return named if isinstance(named, str) and is_row_id(named) else None


def _plain_text(envelope: Envelope) -> bytes | None:
    """The text of a chat that holds nothing else."""
    if envelope.type != "chat" or envelope.payload.keys() != {"text"} or envelope.extra.keys() - _ADDRESSING:
        return None
    try:
        return None if envelope.text is None else envelope.text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair: JSON can say it, UTF-8 cannot
        return None


def _as_json(envelope: Envelope) -> bytes:
    others = {key: value for key, value in envelope.extra.items() if key not in _ADDRESSING}
    return json.dumps({"type": envelope.type, "payload": envelope.payload} | others).encode()


def _group(envelope_id: str) -> str | None:
    return envelope_id if envelope_id.isascii() and envelope_id.isprintable() else None


def _key(seat: Seat, envelope: Envelope) -> str:
    """What it is stored once under: its id, for this seat."""
    return hashlib.sha256(json.dumps([ORIGIN, seat.channel, seat.session, envelope.id]).encode()).hexdigest()


def _made_ms(timestamp: str, now_ms: int) -> int:
    """When it was written, as it says; now, if it says what cannot be."""
    try:
        found = datetime.fromisoformat(timestamp)
        made = round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        return now_ms
    return made if 0 <= made <= now_ms else now_ms


# --- out ---


def envelope_id(row_id: str) -> str:
    """The id of the envelope that a row goes out as, however often it is tried."""
    return "msg_" + hashlib.sha256(row_id.encode()).hexdigest()[:12]


def leaving(seat: Seat, to: str, message: Message, answered: Row | None) -> Envelope:
    """The chat that `message`, of ``seat.name``, goes out as; `answered` is the row that it answers.

    Raises `BadData` for what the mesh cannot carry: files, and what is no text.
    """
    row, text = message.row, message.text
    if text is None or row.attachments:
        what = "files" if row.attachments else f"{row.size} bytes of {visible(row.media_type)}"
        raise BadData(f"the mesh carries text, and no {what}", remedy="send its path, or its content as text")
    return Envelope(
        "chat",
        seat.session,
        to,
        seat.channel,
        {"text": text},
        answered.group if answered is not None and answered.origin == ORIGIN else None,
        envelope_id(row.id),
        datetime.fromtimestamp(row.created_ms / 1000, UTC).isoformat(),
        {ROW_KEY: row.id},
    )
