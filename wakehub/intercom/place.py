"""How far one reader of an inbox has come, kept in ``offset_<id>.json`` beside it (intercom.md §4).

An offset is a place in a file that anybody may truncate. So it stands with the first bytes' digest (`head`): where
that no longer fits, the file was begun anew. The digests of the last envelopes (`seen`) tell what was read already.
Keys that others put there are kept.

A file that cannot be understood does not say what was read. It is moved to ``offset_<id>.bad``, and said: mail that
comes a second time is no riddle then, and none is lost.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from wakehub import files
from wakehub.errors import CannotCreate
from wakehub.intercom import ndjson
from wakehub.intercom.channels import Channel
from wakehub.limits import MAX_MESH_OFFSET_BYTES, MESH_HEAD_BYTES
from wakehub.visible import visible

_OWN_KEYS: Final = frozenset({"offset", "updated_at", "head", "seen"})


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a reader came: `offset` in bytes, the digest of the file's head, and those of the last envelopes."""

    offset: int = 0
    head: str = ""
    seen: tuple[str, ...] = ()

    @classmethod
    def at(cls, fd: int, offset: int, seen: tuple[str, ...]) -> Self:
        """The mark at `offset` of the open inbox."""
        return cls(offset, _head(fd, offset), seen)

    def fits(self, fd: int) -> bool:
        """Whether the open inbox is the one that was marked, and long enough."""
        size = self.head.partition(":")[0]
        is_head = not size.isdecimal() or _head(fd, int(size[:4])) == self.head
        return is_head and self.offset <= os.fstat(fd).st_size


class Place:
    """The file ``<stem>.json`` of an open channel. Nothing here locks: the inbox's lock is the caller's to hold."""

    def __init__(self, channel: Channel, stem: str) -> None:
        self.name = f"{stem}.json"
        self.bad_name = f"{stem}.bad"
        self._channel = channel
        self._found = Mark()
        self._ahead: tuple[Mark, Mark] | None = None  # what the file says that could not be written, and where we are

    @property
    def is_ahead(self) -> bool:
        """Whether more was read than the file could be made to say."""
        return self._ahead is not None

    def document(self) -> dict[str, Any]:
        """What the file says, the keys of others included; empty when there is none, or it cannot be understood."""
        try:
            return self._understood()
        except ndjson.Refusal:
            return {}

    def mark(self) -> Mark:
        """Where the reader is; where the file cannot be understood at the start, and that is said."""
        self._found = _mark_in(self._document())
        return self._ahead[1] if self._ahead is not None and self._ahead[0] == self._found else self._found

    def expect(self, mark: Mark) -> None:
        """From here on that is what `mark` says, until something is put, or the file says something else."""
        self._ahead = (self._found, mark)

    def put(self, mark: Mark) -> None:
        """Set it; raises `CannotCreate`, and `mark` says it all the same."""
        found = self._document()
        self._found = _mark_in(found)
        self.expect(mark)
        others = {key: value for key, value in found.items() if key not in _OWN_KEYS}
        self._write({"offset": mark.offset, "head": mark.head, "seen": list(mark.seen)} | others)
        self._ahead = None

    def create(self, document: Mapping[str, Any]) -> bool:
        """Make the file; False when it is there already, which is then untouched."""
        try:
            self._channel.create(self.name, dict(document) | {"updated_at": ndjson.timestamp()})
        except FileExistsError:
            return False
        return True

    def begin_like(self, other: "Place") -> bool:
        """Make the file, where `other` has come to; False when it is there already."""
        return self.create({"offset": 0} | {key: value for key, value in other.document().items() if key in _OWN_KEYS})

    def annotate(self, extra: Mapping[str, Any]) -> None:
        """Set `extra` keys; a value of None takes its key out. The offset stays."""
        found = {"offset": 0} | self._document() | dict(extra)
        self._write({key: value for key, value in found.items() if value is not None})

    def _write(self, document: Mapping[str, Any]) -> None:
        self._channel.replace(self.name, dict(document) | {"updated_at": ndjson.timestamp()})

    # --- reading it ---

    def _understood(self) -> dict[str, Any]:
        data = self._channel.read(self.name, MAX_MESH_OFFSET_BYTES)
        if data is None:
            return {}
        found = ndjson.decode(data)
        offset = found.get("offset")
        if type(offset) is not int or offset < 0:
            raise ndjson.Refusal(ndjson.Code.BAD_JSON, "its offset is no whole number")
        return found

    def _document(self) -> dict[str, Any]:
        try:
            return self._understood()
        except ndjson.Refusal as refusal:
            self._put_aside(refusal.message)
            return {}

    def _put_aside(self, why: str) -> None:
        from wakehub.relay.notices import tell  # seldom needed, and every `poll` would load it

        try:
            os.rename(self.name, self.bad_name, src_dir_fd=self._channel.fd, dst_dir_fd=self._channel.fd)
        except OSError as error:
            raise CannotCreate(
                f"{visible(str(self._channel.path / self.name))} cannot be understood, nor moved aside",
                why=f"{why}; {files.why(error)}",
                remedy="mend the mode of its directory, or move the file away",
            ) from error
        tell(
            f"{visible(str(self._channel.path / self.name))} cannot be understood ({why}), so how much was read is not "
            f"known: the inbox is read from its start, and mail may come a second time; the file is {self.bad_name} now"
        )


def offset_in(channel: Channel, name: str) -> int:
    """The offset in the file `name` of some reader; 0 where it does not say."""
    return _mark_in(Place(channel, name.removesuffix(".json")).document()).offset


def _mark_in(found: Mapping[str, Any]) -> Mark:
    offset, head, seen = (found.get(key) for key in ("offset", "head", "seen"))
    return Mark(
        offset if type(offset) is int else 0,
        head if isinstance(head, str) else "",
        tuple(each for each in seen if isinstance(each, str)) if isinstance(seen, list) else (),
    )


def _head(fd: int, offset: int) -> str:
    """How many of the first bytes were read, and their digest: what tells a file from one begun anew."""
    size = min(offset, MESH_HEAD_BYTES)
    return f"{size}:{hashlib.sha256(os.pread(fd, size, 0)).hexdigest()}" if size else ""
