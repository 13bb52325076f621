"""One session's inbox: the truth of the mesh, of which a live line is only a copy (intercom.md §3, §4).

    inbox_<id>.ndjson        lines, appended by whoever sends; only what ends in a newline is there
    offset_<id>.json         how far the session has read (`place`)
    offset_<id>@<name>.json  the same for a second reader with a place of its own
    inbox_<id>.bad           lines that were no envelope, kept aside
    offset_<id>.lock         held by a reader from its reading until its offset stands
    offset_<id>@<name>.live  locked while a process is that second reader

Two locks, because they are held for different times. The inbox's own is held only while bytes move, so that no slow
reader keeps a sender out; a reader's is held while what was read is handed over, so that no two readers take the same
mail. Whoever needs both takes the reader's first.

A second reader that is away keeps what it has not read: no compaction, no removal takes that from it. One that will not
come back is forgotten by a person (`forget`), who is told of it by `cleanup`.

An offset beyond the end of the file, or inside a line, goes back to the start of a line; one in a file that was begun
anew, to its start. What was read twice then is known by its digest; what was passed over is lost.
"""

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from wakehub import files
from wakehub.errors import CannotCreate, Held, WakehubError
from wakehub.intercom import lines, ndjson
from wakehub.intercom.channels import Channel, locked
from wakehub.intercom.ndjson import Envelope
from wakehub.intercom.place import Mark, Place, offset_in
from wakehub.limits import (
    COPY_BYTES,
    MAX_MESH_LINE_BYTES,
    MESH_BATCH_LINES,
    MESH_COMPACT_BYTES,
    MESH_LOCK_MS,
    MESH_SEEN,
)

_APPEND: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT
_OFFSET: Final = re.compile(r"offset_([^@]*)(?:@(.*))?\.json")
_TRACE: Final = re.compile(r"(?:inbox_(?=.*\.ndjson$)|offset_(?=.*\.json$))([^@]*)\.(?:nd)?json")


@dataclass(slots=True)
class Batch:
    """What was read at once: the envelopes in order; where lines begin and end that were none; how many came twice."""

    envelopes: list[Envelope] = field(default_factory=list)
    spoiled: list[tuple[int, int]] = field(default_factory=list)
    doubled: int = 0
    start: int = 0
    end: int = 0
    is_last: bool = True
    """Nothing whole was behind it."""
    _seen: tuple[str, ...] = ()


class Inbox:
    """The inbox of `session` in an open channel, read as `reader` (empty: the session itself).

    Every method blocks, at most `patience_ms` for each lock. Raises `Refusal` (INVALID_SESSION) for an id that is
    none, before any file is touched (F43).
    """

    def __init__(self, channel: Channel, session: str, reader: str = "", *, patience_ms: int = MESH_LOCK_MS) -> None:
        ndjson.check_session(session)
        if reader:
            ndjson.check_session(reader)
        self.session = session
        self.reader = reader
        self._channel = channel
        self._patience_ms = patience_ms
        self._name = f"inbox_{session}.ndjson"
        self.path = channel.path / self._name
        self.bad_name = f"inbox_{session}.bad"
        self._stem = f"offset_{session}@{reader}" if reader else f"offset_{session}"
        self._place = Place(channel, self._stem)

    @property
    def is_ahead(self) -> bool:
        """Whether more was handed over than the offset could be made to say."""
        return self._place.is_ahead

    # --- writing ---

    def append(self, new: Sequence[bytes], once: Collection[bytes] = ()) -> None:
        """Append whole lines, each with its newline, in one write: all of them or none.

        Those of `once` are left out where the same message lies in the last MiB already: a sender whom nobody answered
        puts it there by itself, and whoever was only slow finds it done.

        Raises `WakehubError` when that cannot be (disk full, lock not released in time, no file of ours); nothing
        half-written is left then.
        """
        assert all(line.endswith(b"\n") for line in new), "a line without its end"
        with self._locked(_APPEND) as fd:
            size = os.fstat(fd).st_size
            start = b"" if not size or os.pread(fd, 1, size - 1) == b"\n" else b"\n"
            if once:
                tail = os.pread(fd, MESH_COMPACT_BYTES, max(0, size - MESH_COMPACT_BYTES))
                new = [line for line in new if line not in once or not lines.lies_in(tail, line)]
            try:
                files.write_all(fd, start + b"".join(new) if new else b"")
            except OSError as error:
                os.ftruncate(fd, size)
                raise CannotCreate(
                    f"cannot append to the inbox of {self.session}",
                    why=files.why(error),
                    remedy="free space, then send it again",
                ) from error

    # --- reading ---

    @contextlib.contextmanager
    def taking(self, most: int = MESH_BATCH_LINES) -> Iterator[Batch]:
        """Read up to `most` envelopes; they are taken when the block ends, and stay unread when it raises.

        Inside the block no other reader of the same name gets anything, and senders go on. Raises `Held` (75) while
        another reader hands over what it took; `CannotCreate` (73), `Held` or `Unsafe` when the offset cannot be moved:
        this `Inbox` gives nothing twice all the same, and tries again with the next call.
        """
        with self._reading():
            with self._locked(os.O_RDWR | os.O_CREAT) as fd:
                batch = self._read(fd, self._place.mark(), most)
                end = Mark.at(fd, batch.end, batch._seen)
            yield batch
            if batch.end != batch.start or self.is_ahead:
                self._note(batch, end)

    def peek(self, most: int = MESH_BATCH_LINES) -> Batch:
        """Up to `most` envelopes that are unread; they stay so."""
        with self._locked(os.O_RDWR | os.O_CREAT) as fd:
            return self._read(fd, self._place.mark(), most)

    def find(self, message_id: str) -> Envelope | None:
        """The envelope of that id, if it lies in the inbox, read or unread."""
        wanted = json.dumps(message_id).encode()  # as it is written, so that most lines need no parsing
        with self._locked(os.O_RDWR | os.O_CREAT) as fd, os.fdopen(os.dup(fd), "rb") as file:
            file.seek(0)
            for line, _ in lines.ended(file):
                if line is not None and wanted in line:
                    with contextlib.suppress(ndjson.Refusal):
                        found = ndjson.parse(line)
                        if found.id == message_id:
                            return found
        return None

    def stamp(self) -> files.Stamp | None:
        """What tells one state of the inbox from the next; None where there is none."""
        try:
            return files.Stamp.of(os.stat(self._name, dir_fd=self._channel.fd, follow_symlinks=False))
        except FileNotFoundError:
            return None

    def count_unread(self) -> int:
        """How many envelopes are unread."""
        with self._locked(os.O_RDWR | os.O_CREAT) as fd:
            return self._unread(fd)[0]

    def reset(self) -> int:
        """Drop what the inbox holds, and set the offset, under both locks; how many unread envelopes were dropped."""
        with self._reading(), self._locked(os.O_RDWR | os.O_CREAT) as fd:
            dropped, mark = self._unread(fd)
            os.ftruncate(fd, 0)
            self._place.put(Mark(0, "", mark.seen))
        return dropped

    def remove(self) -> int:
        """Remove the inbox with all that belongs to it, unless something in it is unread by any of its readers.

        How many envelopes are unread: 0 says that it is gone. Raises `Held` (75) while somebody reads.
        """
        with self._reading(), self._locked(os.O_RDWR | os.O_CREAT) as fd:
            if unread := max(each._unread(fd)[0] for each in (self, *self.others())):
                return unread
            readers = self._readers() | {self._place.name}
            spoiled = {f"{name.removesuffix('.json')}.bad" for name in readers} | {self.bad_name}
            for name in readers | spoiled | {self._name}:
                self._channel.remove(name)
        return 0

    # --- readers with a place of their own ---

    def others(self) -> list["Inbox"]:
        """This inbox as each named reader sees it that has a place in it."""
        names = sorted(name.partition("@")[2].removesuffix(".json") for name in self._readers())
        return [Inbox(self._channel, self.session, name, patience_ms=self._patience_ms) for name in names if name]

    @contextlib.contextmanager
    def attended(self) -> Iterator[None]:
        """Be this reader while the block lasts: its place is not forgotten meanwhile."""
        with self._living(fcntl.LOCK_SH, self._patience_ms):
            yield

    def is_attended(self) -> bool:
        """Whether a process is this reader."""
        try:
            with self._living(fcntl.LOCK_EX, patience_ms=0):
                return False
        except Held:
            return True

    def forget(self) -> int:
        """Take this reader's place away, so that the inbox waits for it no more; how many envelopes it had not read.

        Raises `Held` (75) while a process is that reader.
        """
        with (
            self._living(fcntl.LOCK_EX, self._patience_ms),
            self._reading(),
            self._locked(os.O_RDWR | os.O_CREAT) as fd,
        ):
            unread = self._unread(fd)[0]
            for name in (self._place.name, self._place.bad_name):
                self._channel.remove(name)
        return unread

    @contextlib.contextmanager
    def _living(self, kind: int, patience_ms: int) -> Iterator[None]:
        what = f"the place of {self.reader} in the inbox of {self.session}"
        with self._channel.opened(f"{self._stem}.live", os.O_RDWR | os.O_CREAT) as fd:
            with locked(fd, what, patience_ms, kind=kind):
                yield

    def _unread(self, fd: int) -> tuple[int, Mark]:
        mark = self._place.mark()
        unread, batch = 0, Batch(is_last=False)
        while not batch.is_last:
            batch = self._read(fd, mark, MESH_BATCH_LINES)
            mark = Mark.at(fd, batch.end, batch._seen)
            unread += len(batch.envelopes)
        return unread, mark

    def _read(self, fd: int, mark: Mark, most: int) -> Batch:
        start = _start(fd, mark)
        batch = Batch(start=start, end=start)
        seen = dict.fromkeys(mark.seen)
        size = 0
        with os.fdopen(os.dup(fd), "rb") as file:
            file.seek(start)
            for line, length in lines.ended(file):
                if len(batch.envelopes) >= most or size > MAX_MESH_LINE_BYTES:
                    batch.is_last = False
                    break
                begin, batch.end = batch.end, batch.end + length
                size += length
                if line is not None and not line.strip():
                    continue
                try:
                    if line is None:
                        raise ndjson.Refusal(ndjson.Code.LINE_TOO_LONG, "longer than a line may be")
                    envelope = ndjson.parse(line)
                except ndjson.Refusal:
                    batch.spoiled.append((begin, batch.end))
                    continue
                key = lines.digest(envelope)
                if key in seen:
                    batch.doubled += 1
                    continue
                seen[key] = None
                batch.envelopes.append(envelope)
        batch._seen = tuple(seen)[-MESH_SEEN:]
        return batch

    def _note(self, batch: Batch, end: Mark) -> None:
        self._place.expect(end)
        try:
            self._advance(batch, end)
        except WakehubError as error:
            raise type(error)(
                f"what was handed over from the inbox of {self.session} is not noted as read",
                why=f"{error.what}: {error.why}",
                remedy=f"{error.remedy}; the next process that reads it gets that once more, until it can be noted",
            ) from error

    def _advance(self, batch: Batch, mark: Mark) -> None:
        """Set the offset behind a batch, unless the inbox was begun anew or read on meanwhile by other tools."""
        with self._locked(os.O_RDWR | os.O_CREAT) as fd:
            self._keep_aside(fd, batch.spoiled)
            there = _start(fd, self._place.mark())
            if not mark.fits(fd) or there < batch.start:
                self._place.put(Mark.at(fd, there, batch._seen))
                return
            end = max(there, batch.end)
            if end == os.fstat(fd).st_size and end > MESH_COMPACT_BYTES and self._is_read_by_others(end):
                os.ftruncate(fd, 0)
                end = 0
            self._place.put(Mark.at(fd, end, batch._seen))

    def _is_read_by_others(self, end: int) -> bool:
        """Whether every other reader of this inbox is at its end too; what only one has read is not compacted."""
        others = self._readers() - {self._place.name}
        return all(offset_in(self._channel, name) >= end for name in others)

    def _readers(self) -> set[str]:
        """The offsets of all who read this inbox, as far as they have one."""
        found = (_OFFSET.fullmatch(name) for name in os.listdir(self._channel.fd))
        return {
            match[0]
            for match in found
            if match and match[1] == self.session and (match[2] is None or ndjson.is_session(match[2]))
        }

    def _keep_aside(self, fd: int, spoiled: Sequence[tuple[int, int]]) -> None:
        if not spoiled:
            return
        with contextlib.suppress(OSError, CannotCreate):  # a full disk must not stop the reading
            with self._channel.opened(self.bad_name, _APPEND) as bad:
                if os.fstat(bad).st_size > MESH_COMPACT_BYTES:
                    os.ftruncate(bad, 0)  # a writer that is broken must not fill the disk
                for begin, end in spoiled:
                    files.write_all(bad, os.pread(fd, min(end - begin, MAX_MESH_LINE_BYTES), begin))

    # --- the offset ---

    def document(self) -> dict[str, Any]:
        """What the offset's file says, the keys of others included; empty when it says nothing."""
        return self._place.document()

    def claim(self, extra: Mapping[str, Any]) -> bool:
        """Make the offset's file, at 0, with `extra` keys; False when it is there already, which is then untouched."""
        return self._place.create(dict(extra) | {"offset": 0})

    def begin_like(self, other: "Inbox") -> bool:
        """Make the offset's file, where `other` has come to; False when it is there already."""
        return self._place.begin_like(other._place)

    def annotate(self, extra: Mapping[str, Any]) -> None:
        """Set `extra` keys in the offset's file; a value of None takes its key out. The offset stays."""
        with self._reading(), self._locked(os.O_RDWR | os.O_CREAT):
            self._place.annotate(extra)

    # --- locks ---

    @contextlib.contextmanager
    def _locked(self, flags: int) -> Iterator[int]:
        """The inbox, made where it is missing, under its own lock."""
        is_held = False
        while not is_held:
            with self._channel.opened(self._name, flags) as fd:
                with locked(fd, f"the inbox of {self.session}", self._patience_ms):
                    if is_held := self._is_in_place(fd):  # else it was removed between opening and locking it
                        yield fd

    def _is_in_place(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), os.stat(self._name, dir_fd=self._channel.fd, follow_symlinks=False))
        except FileNotFoundError:
            return False

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        with self._channel.opened(f"{self._stem}.lock", os.O_RDWR | os.O_CREAT) as fd:
            with locked(fd, f"the reading of the inbox of {self.session}", self._patience_ms):
                yield


def _start(fd: int, mark: Mark) -> int:
    """Where to read on: the offset if it still is one, else the start of a line before it."""
    place = mark.offset if mark.fits(fd) else 0
    while place > 0:
        first = max(0, place - COPY_BYTES)
        found = os.pread(fd, place - first, first).rfind(b"\n")
        if found >= 0:
            return first + found + 1
        place = first
    return 0


def sessions(channel: Channel) -> list[str]:
    """Every id that has a mailbox or an offset on the channel, sorted."""
    found = (_TRACE.fullmatch(name) for name in os.listdir(channel.fd))
    return sorted({match[1] for match in found if match and ndjson.is_session(match[1])})
