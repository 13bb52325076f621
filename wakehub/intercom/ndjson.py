"""The envelope of the mesh, and the lines it travels in (intercom.md §1, §2).

One JSON object per line, eight keys, ASCII, ended by a newline. What others write is read without a second meaning: no
key twice, no NaN, nothing nested deeper than 64, and every refusal is a `Refusal` with the code its writer is told.
Keys that we do not know are carried through. This module touches no file and no socket.
"""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, NoReturn

from wakehub.identity import strict_json
from wakehub.limits import MAX_MESH_DEPTH, MAX_MESH_LINE_BYTES, MAX_MESH_MESSAGE_ID, MAX_MESH_SESSION
from wakehub.visible import visible

HUB: Final = "hub"
"""Who the hub says it is in `from_session`."""
EVERYONE: Final = frozenset({"*", "all"})
"""The addresses that mean every connected id but the sender."""
_SESSION: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_MESH_SESSION - 1}}}")
_RESERVED: Final = EVERYONE | {HUB, "None"}
_MESSAGE_ID: Final = re.compile(r"msg_[0-9a-f]{12}")
_CHANNEL: Final = re.compile(r"[a-z0-9_-]{1,64}")
_KEYS: Final = ("id", "type", "from_session", "to_session", "channel", "reply_to", "payload", "timestamp")
_ADDRESSED_BY_TYPE: Final = ("register", "announce", "welcome", "error", "heartbeat", "receipt")
_SHOWN: Final = 80


class Code(StrEnum):
    """What an `error` envelope says in `payload.code` (§2, §3, §5)."""

    BAD_JSON = "BAD_JSON"
    BAD_ENVELOPE = "BAD_ENVELOPE"
    INVALID_SESSION = "INVALID_SESSION"
    SENDER_MISMATCH = "SENDER_MISMATCH"
    SESSION_COLLISION = "SESSION_COLLISION"
    LINE_TOO_LONG = "LINE_TOO_LONG"
    SPOOL_FAILED = "SPOOL_FAILED"

    @property
    def closes(self) -> bool:
        """Whether the hub closes the connection behind it."""
        return self in (Code.SESSION_COLLISION, Code.LINE_TOO_LONG)


class Refusal(Exception):
    """A line or a name is not taken: `code` and a `message` of one visible line; `about` is the id of the chat."""

    def __init__(self, code: Code, message: str, about: str | None = None) -> None:
        super().__init__(f"{code.value}: {message}")
        self.code = code
        self.message = message
        self.about = about


# --- names ---


def new_id() -> str:
    """A fresh envelope id: ``msg_`` and 12 lower-case hexadecimal digits."""
    return f"msg_{secrets.token_hex(6)}"


def is_message_id(name: str) -> bool:
    """Whether `name` is an envelope's id as §1 has it; what others send may have another one."""
    return _MESSAGE_ID.fullmatch(name) is not None


def timestamp() -> str:
    """Now, ISO 8601 in UTC with ``+00:00`` and microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def check_session(name: str) -> str:
    """`name`, if it can be a session's id (§2); raises `Refusal` (INVALID_SESSION) before any file sees it (F43)."""
    if not is_session(name):
        raise Refusal(
            Code.INVALID_SESSION,
            f"{_shown(name)} is no session id: 1 to 64 of A-Z a-z 0-9 . _ - beginning with a letter or digit, "
            f"and not {', '.join(sorted(_RESERVED))}",
        )
    return name


def is_session(name: str) -> bool:
    """Whether `name` can be a session's id."""
    return _SESSION.fullmatch(name) is not None and name not in _RESERVED


def check_channel(name: str) -> str:
    """`name`, if it is a channel's name as it stands (§2); raises `ValueError` with the one it would collide with."""
    if _CHANNEL.fullmatch(name):
        return name
    cleaned = re.sub(r"[^a-z0-9_-]", "", name.lower())[:64]
    collides = f"; other tools would use {cleaned!r} in its place, which another channel may have" if cleaned else ""
    raise ValueError(f"{_shown(name)} is no channel: 1 to 64 of a-z 0-9 _ -{collides}")


# --- the envelope ---


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message of the mesh; `extra` holds the keys beyond the eight, as they came (§1)."""

    type: str
    from_session: str
    to_session: str = "*"
    channel: str = ""
    payload: Mapping[str, Any] = field(default_factory=dict)
    reply_to: str | None = None
    id: str = field(default_factory=new_id)
    timestamp: str = field(default_factory=timestamp)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str | None:
        """The text of a chat, None when it has none."""
        found = self.payload.get("text")
        return found if isinstance(found, str) else None

    @property
    def wants_receipt(self) -> bool:
        """Whether its sender asked to be told what became of it (§5)."""
        return self.extra.get("receipt") is True

    def document(self) -> dict[str, Any]:
        """The JSON object: the eight keys in their order, then the others in theirs."""
        found = {key: getattr(self, key) for key in _KEYS}
        return found | {key: value for key, value in self.extra.items() if key not in found}

    def line(self) -> bytes:
        """The line that says it: ASCII, one newline at the end. Raises `Refusal` (LINE_TOO_LONG) above 1 MiB."""
        line = json.dumps(self.document(), allow_nan=False).encode("ascii") + b"\n"
        if len(line) > MAX_MESH_LINE_BYTES:
            raise Refusal(Code.LINE_TOO_LONG, f"a line of {len(line)} bytes exceeds {MAX_MESH_LINE_BYTES}", self.id)
        return line

    def within(self, channel: str) -> "Envelope":
        """The same, in `channel` if it names none."""
        return self if self.channel else replace(self, channel=channel)


def parse(line: bytes) -> Envelope:
    """The envelope in one line, with or without its newline.

    `type` and `from_session` must be there; for the other keys what is missing is filled in: a fresh id, everyone as
    the recipient, no channel, no reply, an empty payload, now. Raises `Refusal`: BAD_JSON for what is not one JSON
    object in UTF-8 (NaN, a repeated key, depth above 64 included), BAD_ENVELOPE for a key of the wrong kind,
    LINE_TOO_LONG. Ids of sessions are not judged here: `check_session` does.
    """
    found = decode(line)
    about = found.get("id") if _is_id(found.get("id")) else None
    if found.get("type") in _ADDRESSED_BY_TYPE and not isinstance(found.get("to_session", ""), str):
        del found["to_session"]
    for key, value in found.items():
        if key in _KINDS and not _KINDS[key](value):
            raise Refusal(Code.BAD_ENVELOPE, f"{key} is not {_MEANT[key]}", about)
    for key in ("type", "from_session"):
        if key not in found:
            raise Refusal(Code.BAD_ENVELOPE, f"key {key} is missing", about)
    known = {key: found.pop(key) for key in _KEYS if key in found}
    return Envelope(**known, extra=found)


def decode(line: bytes) -> dict[str, Any]:
    """The JSON object in one line, whatever its keys; raises `Refusal` (BAD_JSON, LINE_TOO_LONG)."""
    if len(line) > MAX_MESH_LINE_BYTES:
        raise Refusal(Code.LINE_TOO_LONG, f"a line exceeds {MAX_MESH_LINE_BYTES} bytes")
    try:
        found = json.loads(
            line.decode("utf-8"),
            object_pairs_hook=strict_json.unique,
            parse_float=_finite,
            parse_constant=_no_number,
        )
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise Refusal(Code.BAD_JSON, visible(str(error))[:200]) from None
    if not isinstance(found, dict):
        raise Refusal(Code.BAD_JSON, "it is not a JSON object")
    # Each level takes a bracket: where there are few, nothing has to be walked through.
    if line.count(b"{") + line.count(b"[") > MAX_MESH_DEPTH and _is_deep(found):
        raise _too_deep()
    return found


def _is_deep(found: object) -> bool:
    level: list[object] = [found]
    for _ in range(MAX_MESH_DEPTH):
        inner: list[object] = []
        for each in level:
            if isinstance(each, dict):
                inner += each.values()
            elif isinstance(each, list):
                inner += each
        level = [each for each in inner if isinstance(each, dict | list)]
        if not level:
            return False
    return True


def _too_deep() -> Refusal:
    return Refusal(Code.BAD_JSON, f"it is nested deeper than {MAX_MESH_DEPTH}")


def _finite(literal: str) -> float:
    number = float(literal)
    if number - number != 0:
        raise ValueError("a number is too large")
    return number


def _no_number(literal: str) -> NoReturn:
    raise ValueError(f"{literal} is not JSON")


def _is_id(value: object) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= MAX_MESH_MESSAGE_ID


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_timestamp(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(datetime.fromisoformat(value))
    except ValueError:
        return False


_KINDS: Final = {
    "id": _is_id,
    "type": _is_text,
    "from_session": _is_text,
    "to_session": _is_text,
    "channel": _is_text,
    "reply_to": lambda value: value is None or _is_id(value),
    "payload": lambda value: isinstance(value, dict),
    "timestamp": _is_timestamp,
}
_MEANT: Final = dict.fromkeys(_KINDS, "text") | {
    "id": f"text of 1 to {MAX_MESH_MESSAGE_ID} characters",
    "to_session": "text (leave it out to reach everyone)",
    "reply_to": "an id or null",
    "payload": "an object",
    "timestamp": "a date and time in ISO 8601",
}


def _shown(name: str) -> str:
    return f"'{visible(name[:_SHOWN])}{'…' if len(name) > _SHOWN else ''}'"


# --- what is sent ---


def chat(
    sender: str,
    to: str,
    text: str,
    channel: str,
    *,
    payload: Mapping[str, Any] | None = None,
    reply_to: str | None = None,
    receipt: bool = False,
) -> Envelope:
    """A chat; `payload` adds keys beside `text`, and `receipt` asks the hub what became of it (§5).

    Raises `Refusal` (INVALID_SESSION) for a sender or recipient that can be none.
    """
    check_session(sender)
    if to not in EVERYONE:
        check_session(to)
    extra = {"receipt": True} if receipt else {}
    return Envelope("chat", sender, to, channel, {"text": text} | dict(payload or {}), reply_to, extra=extra)


def register(session: str, channel: str) -> Envelope:
    """What a client that stays for a moment begins with."""
    return Envelope("register", check_session(session), HUB, channel)


def announce(session: str, channel: str) -> Envelope:
    """What a listener begins with."""
    return Envelope("announce", check_session(session), HUB, channel)


def welcome(session: str, peers: Sequence[str], channel: str) -> Envelope:
    """The hub's answer to both: who is connected, the newcomer included."""
    return Envelope("welcome", HUB, session, channel, {"peers": list(peers), "status": "connected"})


def error(session: str, code: Code, message: str, channel: str, about: str | None = None) -> Envelope:
    """The hub's refusal; `about` is the id of the envelope that is refused, where that is known."""
    return Envelope("error", HUB, session, channel, {"code": code.value, "message": message}, about)


def heartbeat(session: str, channel: str) -> Envelope:
    """A line that every client ignores."""
    return Envelope("heartbeat", HUB, session, channel)


def receipt(session: str, about: str, state: str, channel: str) -> Envelope:
    """What became of the chat `about`: ``spooled`` or ``live`` (spooled, and written to whom it is for)."""
    return Envelope("receipt", HUB, session, channel, {"state": state}, about)


# --- lines out of a stream ---


class LineReader:
    """Cuts a stream of bytes into lines; holds one unfinished line of at most 1 MiB, and what was fed behind it."""

    def __init__(self, limit: int = MAX_MESH_LINE_BYTES) -> None:
        self._limit = limit
        self._data = bytearray()
        self._looked = 0
        self._is_spoiled = False

    def feed(self, data: bytes) -> None:
        """Add what was received; after a line that was too long it is discarded."""
        if not self._is_spoiled:
            self._data += data

    def next_line(self) -> bytes | None:
        """The next whole line without its newline, None when there is none yet.

        Raises `Refusal` (LINE_TOO_LONG) for one that is longer than the limit, newline included, and from then on.
        """
        end = self._data.find(b"\n", self._looked)
        size = len(self._data) if end < 0 else end + 1
        if self._is_spoiled or size > self._limit or (end < 0 and size == self._limit):
            self._is_spoiled = True
            self._data.clear()
            raise Refusal(Code.LINE_TOO_LONG, f"a line exceeds {self._limit} bytes")
        if end < 0:
            self._looked = size
            return None
        line = bytes(self._data[:end])
        del self._data[: end + 1]
        self._looked = 0
        return line
