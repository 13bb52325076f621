"""The names that agents and namespaces may have (receive.md §2), those that are kept for the system itself, and those
of files. Standard library only: a hook needs them at every turn of every session (fault F86)."""

import re
from typing import Final

from wakehub.errors import BadData
from wakehub.limits import FILE_STEM_HEAD, MAX_FILE_STEM, MAX_ID_BYTES
from wakehub.visible import visible

OWNER: Final = "owner"
PUBLISHER: Final = "wakehub-publisher"
DOCTOR: Final = "wakehub-doctor"
DAEMONS: Final = frozenset({PUBLISHER, "wake-hub-producer"})
_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789._-")
_SEGMENT: Final = "[A-Za-z0-9][A-Za-z0-9._:-]*"
_ADDRESS: Final = re.compile(f"{_SEGMENT}(?:/{_SEGMENT})*")
_NOT_PLAIN: Final = re.compile(r"[^A-Za-z0-9._:-]")
_GRAMMAR: Final = (
    f"at most {MAX_ID_BYTES} bytes; letters, digits and . _ : - in parts joined by /, each beginning with a letter or "
    "digit"
)


def check_address(text: str) -> str:
    """`text` if it is an address by the grammar of receive.md §2; raises `BadData` otherwise. Nothing is mended."""
    if not _is_address(text):
        raise _refused(text, "an address", _GRAMMAR)
    return text


def check_namespace(text: str) -> str:
    """`text` if it is a namespace, an address and a trailing slash (``acme/``); raises `BadData` otherwise."""
    if not text.endswith("/"):
        raise _refused(text, "a namespace", "a namespace ends in /", "end it with one, as in acme/")
    if not _is_address(text[:-1]):
        raise _refused(text, "a namespace", f"before its last /, {_GRAMMAR}")
    return text


def _is_address(text: str) -> bool:
    return len(text) <= MAX_ID_BYTES and _ADDRESS.fullmatch(text) is not None


def _refused(text: str, what: str, why: str, remedy: str = "choose another name") -> BadData:
    return BadData(f"'{visible(text[:MAX_ID_BYTES])}' is not {what}", why=why, remedy=remedy)


def name_from_directory(basename: str) -> str | None:
    """The default name that a directory gives: bytes outside the grammar become ``-``, stripped at both ends.

    None when nothing is left or it is too long: then the user must choose.
    """
    raw = basename.encode("utf-8", "surrogateescape").decode("latin-1")
    name = _NOT_PLAIN.sub("-", raw).rstrip("-").lstrip("-._:")
    return name if 1 <= len(name) <= MAX_ID_BYTES else None


def is_reserved(name: str) -> bool:
    """Whether `name`, in whatever case, is kept for the system itself."""
    folded = name.casefold()
    return folded == OWNER or folded.startswith("wakehub-") or folded in DAEMONS


def is_kept(name: str, hub_id: str) -> bool:
    """Whether `name` is reserved, or the id of the hub itself, which speaks under it on the wire."""
    return is_reserved(name) or name.casefold() == hub_id.casefold()


def file_stem(agent_id: str) -> str:
    """The file name, without its suffix, under which an agent's files lie: no separator, no capitals, ≤ 120 characters.

    Different ids have different names also where the file system ignores case.
    """
    raw = agent_id.encode()
    stem = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in raw)
    if len(stem) <= MAX_FILE_STEM:
        return stem
    import hashlib

    return f"{stem[:FILE_STEM_HEAD]}~{hashlib.sha256(raw).hexdigest()[:32]}"
