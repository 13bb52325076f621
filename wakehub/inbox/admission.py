"""What may be stored: the limits of a row, checked before a store is asked (receive.md §1, §5).

Over a limit means refused at once, with the limit; nothing is ever cut. Every store uses these checks, so that no two
of them differ in what they take.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from wakehub.errors import BadData, NoRecipient
from wakehub.inbox.clock import Now
from wakehub.inbox.ids import is_row_id
from wakehub.inbox.refusals import LoopGuard, TooFast
from wakehub.inbox.rows import BYTES, Arrival, NewRow, Seal
from wakehub.inbox.tenure import is_namespace
from wakehub.limits import (
    CLOCK_LEEWAY_SECONDS,
    DIGEST_BYTES,
    MAX_ATTACHMENTS,
    MAX_BODY_BYTES,
    MAX_HOPS,
    MAX_ID_BYTES,
    MAX_MEDIA_TYPE_BYTES,
    MAX_PAIR_PER_MINUTE,
    MAX_TTL_SECONDS,
    SIGNATURE_BYTES,
)
from wakehub.visible import visible

_RESEND = "have it sent again"


@dataclass(frozen=True, slots=True)
class Guard:
    """The loop guard: the longest `re` chain, and how many rows a minute one sender may store for one recipient."""

    max_hops: int = MAX_HOPS
    pair_per_minute: int = MAX_PAIR_PER_MINUTE


def check(new: NewRow, now: Now) -> None:
    """Raise `BadData` (65) unless `new` keeps every limit that can be judged without the record."""
    check_name(new.sender, "the sender")
    check_name(new.recipient, "the recipient")
    if is_namespace(new.recipient):
        raise BadData(
            f"{visible(new.recipient)} is a namespace",
            why="a row goes to one agent",
            remedy="store one row for each agent under it",
        )
    _check_body(new)
    if new.re is not None and not is_row_id(new.re):
        raise BadData(f"{visible(new.re)} is not the id of a message", remedy="give the whole id, m_ and 26 characters")
    if new.group is not None:
        check_name(new.group, "the group")
    if new.arrival is not None:
        _check_arrival(new.arrival)
    if isinstance(new.signed, Seal):
        _check_seal(new.signed, now)
    elif not 1 <= new.ttl_s <= MAX_TTL_SECONDS:
        raise BadData(
            f"a message cannot be kept for {new.ttl_s} s",
            why=f"it must be 1 s to {MAX_TTL_SECONDS} s (7 days)",
            remedy="choose another ttl",
        )


def check_name(name: str, what: str) -> None:
    """Raise `BadData` unless `name` is 1..128 bytes of UTF-8; `what` names it."""
    size = _size(name, what)
    if not 1 <= size <= MAX_ID_BYTES:
        raise BadData(
            f"{what} has {size} bytes",
            why=f"it must be 1 to {MAX_ID_BYTES}",
            remedy="use a shorter name" if size else "",
        )


def check_chain(hops: int, guard: Guard) -> None:
    """Raise `LoopGuard` when a row would be the answer too many in one chain of `re`."""
    if hops > guard.max_hops:
        raise LoopGuard(
            f"not stored: it would be answer {hops} in one chain",
            why=f"429: two agents that answer each other without end are stopped after {guard.max_hops}",
            remedy="send without --re if this begins something new",
        )


def check_rate(stored: int, new: NewRow, guard: Guard) -> None:
    """Raise `TooFast` when `stored` rows of this pair within the last minute leave no room for `new`."""
    if stored >= guard.pair_per_minute:
        raise TooFast(
            f"not stored: {visible(new.sender)} sent {visible(new.recipient)} {stored} messages within a minute",
            why=f"429: the limit for one pair is {guard.pair_per_minute} a minute",
            remedy="wait a minute, and send fewer, longer messages",
        )


def check_generation(new: NewRow, generation: int) -> None:
    """Raise `NoRecipient` (67) when the recipient's name was enrolled anew since the sender looked."""
    if max(1, new.generation) < generation:
        raise NoRecipient(
            f"not stored: {visible(new.recipient)} is another agent now",
            why="the name was removed and enrolled anew",
            remedy="send again if the new one is meant",
        )


def check_file_names(names: Sequence[str]) -> None:
    """Raise `BadData` unless `names`, of the files of one message, can be those of files in one directory.

    At most `MAX_ATTACHMENTS`; each a base name of 1..128 bytes in which everything is visible; none equal to another
    but for case or composition, which some file systems do not tell apart.
    """
    if len(names) > MAX_ATTACHMENTS:
        raise BadData(
            f"{len(names)} files are attached",
            why=f"the limit is {MAX_ATTACHMENTS}",
            remedy="send the rest with another message",
        )
    seen: set[str] = set()
    for name in names:
        check_name(name, "the name of a file")
        if "/" in name or name in (".", "..") or visible(name) != name:
            raise BadData(f"{visible(name)} is not the name of a file", remedy="give a base name that can be shown")
        folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
        if folded in seen:
            raise BadData(
                f"two of the files are called {visible(name)}",
                why="they are handed over in one directory",
                remedy="rename one of them",
            )
        seen.add(folded)


def is_text(media_type: str) -> bool:
    """Whether a body of this media type is UTF-8 text."""
    return media_type.startswith("text/")


def _check_body(new: NewRow) -> None:
    if len(new.body) > MAX_BODY_BYTES:
        raise BadData(
            f"the message has {len(new.body)} bytes",
            why=f"the limit is {MAX_BODY_BYTES}, and nothing is ever cut",
            remedy="put the text in a file and send that: --attach FILE",
        )
    size = _size(new.media_type, "the media type")
    if not (1 <= size <= MAX_MEDIA_TYPE_BYTES and new.media_type.isascii() and new.media_type.isprintable()):
        raise BadData(f"{visible(new.media_type[:80])} is not a media type", remedy="use one such as text/plain")
    if is_text(new.media_type) and not _is_utf8(new.body):
        raise BadData(
            "the message is not UTF-8",
            why=f"its media type is {new.media_type}",
            remedy=f"send it as {BYTES}",
        )
    _check_attachments(new)


def _check_attachments(new: NewRow) -> None:
    check_file_names([attachment.name for attachment in new.attachments])
    for attachment in new.attachments:
        if len(attachment.digest) != DIGEST_BYTES or attachment.size < 0:
            raise BadData(f"{visible(attachment.name)} has no digest or size", remedy=_RESEND)


def _check_seal(seal: Seal, now: Now) -> None:
    problems = (
        (not is_row_id(seal.id), "its id is malformed"),
        (seal.signature is not None and len(seal.signature) != SIGNATURE_BYTES, "its signature is malformed"),
        (not 0 <= seal.hops < 256, "its hops are malformed"),
        (not 0 <= seal.created_ms < 1 << 63, "its time is malformed"),
        (not seal.created_ms < seal.expires_ms <= seal.created_ms + MAX_TTL_SECONDS * 1000, "it is kept too long"),
        (seal.created_ms > now.ms + CLOCK_LEEWAY_SECONDS * 1000, "it was made in the future"),
        (seal.expires_ms <= now.ms, "its time is over"),
    )
    for is_so, reason in problems:
        if is_so:
            raise BadData(f"envelope {visible(seal.id)} is refused", why=reason, remedy=_RESEND)


def _check_arrival(arrival: Arrival) -> None:
    check_name(arrival.key, "the key of an arrival")
    if is_row_id(arrival.key) or not 0 <= arrival.created_ms < 1 << 63:
        raise BadData(
            f"arrival {visible(arrival.key)} is refused", why="its key or its time is malformed", remedy=_RESEND
        )


def _size(text: str, what: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise BadData(f"{what} is not Unicode text: {visible(text)}", remedy="use another name") from None


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True
