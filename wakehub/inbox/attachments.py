"""Files that belong to messages: kept once each under their SHA-256, handed over as copies (receive.md §1, §3).

    send ──copy, measured──▶ <state>/blobs/<sha256> ──copy, checked──▶ <state>/files/<row id>/<name> ──path──▶ agent

A file is measured while it is copied in, so that what is stored is what the row's digest says, whatever happens to
the original. What an agent is handed is a copy of its own, checked again: it may do with it what it likes, and what
others were sent stays as it is. Nothing here opens a file to look what is in it.

Rows are the reference counts. Whoever adds a blob holds a shared flock on the directory from before the copy to
behind the commit of the row; whoever collects takes an exclusive one, or leaves it for the next time. So no blob goes
between its copy and its row, and whatever has no row when nobody adds is what a killed sender left.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wakehub import files
from wakehub.errors import BadData, CannotCreate, Exit, WakehubError
from wakehub.inbox.admission import check_file_names
from wakehub.inbox.ids import is_row_id
from wakehub.inbox.refusals import NotStored, RecordUnwritable
from wakehub.inbox.rows import Attachment, Header
from wakehub.inbox.store import Inbox
from wakehub.limits import COPY_BYTES, MAX_ATTACHED_BYTES
from wakehub.paths import Paths
from wakehub.visible import visible

_BLOB: Final = re.compile(r"[0-9a-f]{64}")
_READABLE: Final = "name a file that can be read"
_SOURCE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Lost(WakehubError):
    """The bytes of an attachment are not there any more, or are not those that were sent (exit 65)."""

    exit = Exit.DATA


@dataclass(frozen=True, slots=True)
class Attachments:
    """The attachments of one instance: `blobs` are the contents, `files` the copies that were handed over."""

    blobs: Path
    files: Path

    @classmethod
    def of(cls, paths: Paths) -> "Attachments":
        return cls(paths.blobs, paths.files)

    # --- the sender's side ---

    @contextlib.contextmanager
    def adding(self, sources: Sequence[Path]) -> Iterator[tuple[Attachment, ...]]:
        """Take `sources` in; inside the block they are safe until their row is committed, which must happen there.

        Raises `BadData` (65) for what is no regular file, a name that cannot be handed over, or more than
        `MAX_ATTACHED_BYTES` in all; `NotStored` (73) when it cannot be written, `RecordUnwritable` (77) when this
        process may not. What was copied by then is collected later.
        """
        if not sources:
            yield ()
            return
        check_file_names([source.name for source in sources])
        with contextlib.ExitStack() as held:
            try:
                files.private_directory(self.blobs)
                held.enter_context(_locked(self.blobs, fcntl.LOCK_SH))
                added = tuple(self._add(sources))
            except CannotCreate as error:
                raise _not_stored(error) from error
            yield added

    def _add(self, sources: Sequence[Path]) -> Iterator[Attachment]:
        room = MAX_ATTACHED_BYTES
        for source in sources:
            added = self._copy_in(source, room)
            room -= added.size
            yield added

    @staticmethod
    def measured(sources: Sequence[Path]) -> tuple[Attachment, ...]:
        """Name, size and digest of each of `sources`, which stay where they are; raises `BadData` as `adding` does."""
        check_file_names([source.name for source in sources])
        return tuple(_measured(sources))

    def _copy_in(self, source: Path, room: int) -> Attachment:
        with _opened(source) as fd, files.draft(self.blobs) as blob:
            digest, size = hashlib.sha256(), 0
            while part := _read(fd, source):
                size += len(part)
                if size > room:
                    raise _too_much(source)
                digest.update(part)
                files.write_all(blob.fd, part)
            blob.rename(digest.hexdigest())  # over the same content, if that is there already
        return Attachment(source.name, size, digest.digest())

    # --- the recipient's side ---

    def hand_over(self, row: Header) -> tuple[Path | None, ...]:
        """A fresh copy (0600) of each of the row's files, in the order of `row.attachments`; None for one that is lost.

        Raises `CannotCreate` (73) when a copy cannot be made now, `BadData` for a row whose names could lead elsewhere.
        """
        if not row.attachments:
            return ()
        check_file_names([attachment.name for attachment in row.attachments])
        directory = self._directory_of(row.id)
        files.private_directory(directory)
        return tuple(self._copy_out(attachment, directory) for attachment in row.attachments)

    def _directory_of(self, row_id: str) -> Path:
        if not is_row_id(row_id):  # it becomes the name of a directory
            raise BadData(f"{visible(row_id)} is not the id of a message", remedy="wakehub doctor")
        return self.files / row_id

    def _copy_out(self, attachment: Attachment, directory: Path) -> Path | None:
        try:
            self.copy(attachment, directory / attachment.name)
        except Lost:
            return None
        return directory / attachment.name

    def copy(self, attachment: Attachment, target: Path) -> None:
        """Put the content of `attachment` at `target`, in the place of what is there.

        Raises `Lost` when it is not there, or not what was sent; `CannotCreate`.
        """
        blob = self.blobs / attachment.digest.hex()
        lost = Lost(f"{visible(attachment.name)} is lost", why=f"{visible(str(blob))} is not what was stored")
        with contextlib.ExitStack() as opened:
            try:
                fd, stamp = opened.enter_context(files.opened(blob))
            except (OSError, WakehubError) as error:
                raise lost from error
            if stamp.size != attachment.size:
                raise lost
            copied, digest = opened.enter_context(files.draft(target.parent, target.name)), hashlib.sha256()
            while part := os.read(fd, COPY_BYTES):
                digest.update(part)
                files.write_all(copied.fd, part)
            if digest.digest() != attachment.digest:
                raise lost
            copied.rename(target.name)

    # --- the publisher's side ---

    def collect(self, inbox: Inbox) -> int:
        """Remove every blob and every handed-over copy whose rows are gone or expired; how many went.

        Blobs are left for later while somebody adds. Raises `OSError`, and what reading the record does.
        """
        return self._collect_blobs(inbox) + self._collect_files(inbox)

    def _collect_blobs(self, inbox: Inbox) -> int:
        if not self.blobs.is_dir():
            return 0
        with _locked(self.blobs, fcntl.LOCK_EX | fcntl.LOCK_NB) as where:
            if where is None:
                return 0
            names = os.listdir(where)
            digests = [bytes.fromhex(name) for name in names if _BLOB.fullmatch(name)]
            kept = {digest.hex() for digest in inbox.attached(digests)}
            gone = [name for name in names if name not in kept]
            for name in gone:
                os.unlink(name, dir_fd=where)
            return len(gone)

    def _collect_files(self, inbox: Inbox) -> int:
        if not self.files.is_dir():
            return 0
        names = [name for name in os.listdir(self.files) if is_row_id(name)]
        kept = {row.id for row in inbox.headers(names) if row.state != "expired"}
        gone = [name for name in names if name not in kept]
        for name in gone:
            shutil.rmtree(self.files / name)
        return len(gone)


@contextlib.contextmanager
def _locked(directory: Path, how: int) -> Iterator[int | None]:
    """A descriptor of `directory` under a flock; None when the lock was not to be waited for and is not free."""
    where = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(where, how)
        except BlockingIOError:
            yield None
        else:
            yield where
    finally:
        os.close(where)


@contextlib.contextmanager
def _opened(source: Path) -> Iterator[int]:
    """A descriptor of a regular file to read from; whose it is does not matter, if it can be read."""
    try:
        fd = os.open(source, _SOURCE)
    except OSError as error:
        if not source.is_symlink():
            raise _not_attached(source, _why(error)) from error
        target = os.path.realpath(source)
        remedy = f"name its target: {visible(target)}" if os.path.isfile(target) else _READABLE
        raise _not_attached(source, "links are not followed", remedy) from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _not_attached(source, "it is not a regular file")
        yield fd
    finally:
        os.close(fd)


def _read(fd: int, source: Path) -> bytes:
    try:
        return os.read(fd, COPY_BYTES)
    except OSError as error:
        raise _not_attached(source, _why(error)) from error


def _measured(sources: Sequence[Path]) -> Iterator[Attachment]:
    room = MAX_ATTACHED_BYTES
    for source in sources:
        digest, size = hashlib.sha256(), 0
        with _opened(source) as fd:
            while part := _read(fd, source):
                size += len(part)
                if size > room:
                    raise _too_much(source)
                digest.update(part)
        room -= size
        yield Attachment(source.name, size, digest.digest())


def _too_much(source: Path) -> BadData:
    return BadData(
        f"{visible(str(source))} is not attached",
        why=f"the files of one message may have {MAX_ATTACHED_BYTES} bytes together",
        remedy="send its path in the text instead",
    )


def _not_attached(source: Path, why: str, remedy: str = _READABLE) -> BadData:
    return BadData(f"{visible(str(source))} is not attached", why=why, remedy=remedy)


def _not_stored(error: CannotCreate) -> WakehubError:
    """What not being able to write the blobs means for the message: disk full, or a directory we may not write to."""
    if isinstance(error.__cause__, OSError) and files.is_denied(error.__cause__):
        return RecordUnwritable(error.what, why=error.why, remedy="inside a sandbox, allow writing to that directory")
    return NotStored(f"not stored: {error.what}", why=error.why, remedy=error.remedy)


def _why(error: OSError) -> str:
    return error.strerror or str(error)
