"""Takes in what sandboxed senders left in the spools (formats.md, Spool).

    spool/<id>.json ──judge──▶ record, once per id ──▶ unlink          ✗ refused ──▶ spool/bad/<id>.json, <id>.json.why

Rules. The row is committed before its file goes, and the record takes an id once: killed in between, the file is found
again and nothing is stored anew. The signature must be by the key that the registry has for the sender now, or by a
session key that this key certified for the time at which the message was written, and that was not revoked; how far a
message has come and where it came from is ours to say. Files beside an envelope must be those that were signed.

Nothing about a file is believed: it is opened relative to the directory's descriptor, without following links or
waiting for a writer, and judged by fstat; one round touches a bounded number of them. What cannot be judged yet stays
where it is: the record is locked or full, the registry does not verify, a pair sends too fast, a file is still being
written. A refusal after a good signature is told to the sender.
"""

import contextlib
import itertools
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
import trio

from wakehub import files
from wakehub.errors import BadData, NoRecipient, WakehubError
from wakehub.identity import stamps
from wakehub.identity.addresses import PUBLISHER, is_reserved
from wakehub.identity.delegation import Certificate
from wakehub.identity.keys import verify
from wakehub.identity.registry import Agent, Registry
from wakehub.identity.stamps import NS
from wakehub.identity.verifier import window_fault
from wakehub.inbox.attachments import Attachments
from wakehub.inbox.clock import Now
from wakehub.inbox.envelope import FILES_SUFFIX, Envelope
from wakehub.inbox.ids import is_row_id
from wakehub.inbox.refusals import AlreadyStored, LoopGuard, TooFast
from wakehub.inbox.rows import NewRow, Signer
from wakehub.inbox.store import Inbox
from wakehub.limits import (
    COLLECT_SECONDS,
    KEEP_TAKEN_IDS_SECONDS,
    LEFTOVER_AFTER_SECONDS,
    MAX_ENVELOPE_BYTES,
    MAX_TTL_SECONDS,
    PUBLISHER_TICK_MS,
    RECORD_RETRY_SECONDS,
    SPOOL_BATCH,
    SPOOL_RETRY_SECONDS,
    SPOOL_SCAN,
)
from wakehub.log import Repeats
from wakehub.visible import visible

_log = structlog.get_logger(program="publisher")

_BAD: Final = "bad"
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_NAME_BYTES: Final = 200  # of the file with the reason, whose name may be no longer than 255


class _Refused(Exception):
    """Why an envelope is never taken in."""


class _Later(Exception):
    """What cannot be judged yet, and is looked at again after a while."""


@dataclass(frozen=True, slots=True)
class _Spool:
    """One spool directory, open at descriptor `where`."""

    path: Path
    where: int

    def names(self) -> list[str]:
        """What there is to take in, the oldest first: ids sort by time. Hidden files are ours, half-written."""
        with os.scandir(self.where) as entries:
            names = (entry.name for entry in entries if entry.name != _BAD and not entry.name.startswith("."))
            found = (name for name in names if not is_row_id(name.removesuffix(FILES_SUFFIX)))
            return sorted(itertools.islice(found, SPOOL_SCAN))

    def read(self, name: str) -> Envelope:
        """The envelope in the file `name`; raises `_Refused`, `_Later`, `FileNotFoundError`."""
        try:
            fd = os.open(name, _READ, dir_fd=self.where)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _Refused(f"it cannot be opened: {error.strerror}") from error
        try:
            found = os.fstat(fd)
            _check_file(found)
            data = _whole(fd)
        finally:
            os.close(fd)
        try:
            envelope = Envelope.decode(data)
        except ValueError as error:
            if 0 <= time.time() - found.st_mtime < LEFTOVER_AFTER_SECONDS:
                raise _Later from error  # by somebody who writes it in its place
            raise _Refused(f"it is no envelope: {error}") from error
        if name != f"{envelope.id}.json" or not is_row_id(envelope.id):
            raise _Refused("its name is not its id")
        return envelope

    def files_of(self, envelope: Envelope) -> list[Path]:
        """Where the envelope's files lie, each content once."""
        beside = self.path / f"{envelope.id}{FILES_SUFFIX}"
        return [beside / digest.hex() for digest in dict.fromkeys(file.digest for file in envelope.attachments)]

    def remove(self, name: str) -> None:
        """Remove an envelope, then its files: what is left when killed in between is removed as a leftover."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.where)
        self._remove_files(name)

    def _remove_files(self, name: str) -> None:
        stem = name.removesuffix(".json")
        if is_row_id(stem):
            with contextlib.suppress(OSError):  # none, mostly
                shutil.rmtree(f"{stem}{FILES_SUFFIX}", dir_fd=self.where)

    def set_aside(self, name: str, why: str) -> None:
        """Move the file to ``bad/``, the reason beside it, and remove its files, which are copies; raises `OSError`,
        `WakehubError`."""
        files.private_directory(self.path / _BAD)
        bad = os.open(_BAD, _DIRECTORY, dir_fd=self.where)
        try:
            os.rename(name, name, src_dir_fd=self.where, dst_dir_fd=bad)
        finally:
            os.close(bad)
        stem = os.fsdecode(os.fsencode(name)[:_MAX_NAME_BYTES])
        files.replace(self.path / _BAD / f"{stem}.why", f"{why}\n".encode(errors="backslashreplace"))
        self._remove_files(name)

    def forget(self) -> None:
        """Remove what was refused so long ago that nobody asks for it, and what a killed sender left half-written."""
        _remove_older(self.where, LEFTOVER_AFTER_SECONDS, lambda name: name.startswith(".") and name.endswith("~"))
        self._forget_files()
        with contextlib.suppress(FileNotFoundError):
            bad = os.open(_BAD, _DIRECTORY, dir_fd=self.where)
            try:
                _remove_older(bad, KEEP_TAKEN_IDS_SECONDS, lambda name: True)
            finally:
                os.close(bad)

    def _forget_files(self) -> None:
        """Remove files whose envelope never came, or went before them."""
        names = os.listdir(self.where)
        for name in itertools.islice((name for name in names if name.endswith(FILES_SUFFIX)), SPOOL_SCAN):
            envelope = f"{name.removesuffix(FILES_SUFFIX)}.json"
            found = os.stat(name, dir_fd=self.where, follow_symlinks=False)
            if envelope not in names and time.time() - found.st_mtime > LEFTOVER_AFTER_SECONDS:
                self._remove_files(envelope)


class SpoolReader:
    """Takes in the envelopes in `directories`, asked for anew each round, to `inbox`.

    `registry` tells who is enrolled, as of the last look (None: it does not verify); `look_again` reads it anew, which
    is done once a round at most. Notices about what was refused are signed with `signer`. Nobody gets mail as `hub_id`.
    Files go to `attachments`.
    """

    def __init__(
        self,
        directories: Callable[[], Sequence[Path]],
        inbox: Inbox,
        registry: Callable[[], Registry | None],
        look_again: Callable[[], Registry],
        signer: Signer,
        hub_id: str,
        attachments: Attachments,
    ) -> None:
        self._directories = directories
        self._attachments = attachments
        self._inbox = inbox
        self._registry = registry
        self._look_again = look_again
        self._signer = signer
        self._hub_id = hub_id
        self._later: dict[tuple[Path, str], float] = {}
        self._slow: dict[tuple[str, str], float] = {}
        self._anew: Registry | None = None
        self._tidied: float | None = None
        self._repeats = Repeats()

    async def run(self) -> None:
        """Look twice a second until cancelled; trouble with the record is logged and waited out."""
        while True:
            try:
                busy = await trio.to_thread.run_sync(self.take_in) >= SPOOL_BATCH
            except WakehubError as error:
                self._tell("the spools wait", str(error))
                await trio.sleep(RECORD_RETRY_SECONDS)
            else:
                await trio.sleep(0 if busy else PUBLISHER_TICK_MS / 1000)

    def take_in(self) -> int:
        """One round; how many files it dealt with, at most 64. Raises what the record does: it goes on where it was."""
        now_s = time.monotonic()
        self._anew = None
        self._later = {file: until for file, until in self._later.items() if until > now_s}
        self._slow = {pair: until for pair, until in self._slow.items() if until > now_s}
        is_tidy_due = self._tidied is None or now_s - self._tidied > COLLECT_SECONDS
        dealt = 0
        for spool in self._opened():
            dealt += self._take(spool, SPOOL_BATCH - dealt, now_s)
            if is_tidy_due:
                self._tidied = now_s
                self._tidy(spool)
        return dealt

    def _opened(self) -> Iterator[_Spool]:
        """Each directory that is there and safe, open while it is dealt with."""
        for path in self._directories():
            try:
                where = os.open(path, _DIRECTORY)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._tell("a spool cannot be opened", f"{path}: {error.strerror}")
                continue
            try:
                found = os.fstat(where)
                if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
                    self._tell("a spool is not used", f"{path} must be ours and 0700")
                else:
                    yield _Spool(path, where)
            finally:
                os.close(where)

    def _take(self, spool: _Spool, room: int, now_s: float) -> int:
        waiting = [name for name in spool.names() if (spool.path, name) not in self._later]
        for name in waiting[:room]:
            try:
                self._take_one(spool, name)
            except FileNotFoundError:
                continue  # taken back by its sender
            except _Later:
                self._later[spool.path, name] = now_s + SPOOL_RETRY_SECONDS
            except _Refused as refused:
                self._refuse(spool, name, refused, now_s)
        return len(waiting[:room])

    def _take_one(self, spool: _Spool, name: str) -> None:
        envelope = spool.read(name)
        registry = self._proven(envelope)
        pair = (envelope.sender, envelope.recipient)
        if pair in self._slow:
            raise _Later  # an earlier one of theirs waits, and must not be passed
        try:
            _check_recipient(envelope, registry, self._hub_id)
            self._store(spool, envelope, registry)
        except AlreadyStored:
            pass  # killed behind the commit, or sent by two ways
        except TooFast as error:
            self._slow[pair] = time.monotonic() + SPOOL_RETRY_SECONDS
            raise _Later from error
        except (BadData, NoRecipient, LoopGuard) as error:
            why = error.what + (f": {error.why}" if error.why else "")
            self._notify(envelope, registry, why)
            raise _Refused(why) from error
        else:
            _log.info("taken in from the spool", id=envelope.id, sender=envelope.sender)
        spool.remove(name)

    def _store(self, spool: _Spool, envelope: Envelope, registry: Registry) -> None:
        row = envelope.row(registry.generation(envelope.recipient))
        with self._attachments.adding(spool.files_of(envelope)) as added:
            if {(file.digest, file.size) for file in added} != {(file.digest, file.size) for file in row.attachments}:
                raise BadData("a file is not what was signed")
            self._inbox.append(row, Now.read())

    def _proven(self, envelope: Envelope) -> Registry:
        """The registry that proves the signature; it is read anew before a signature is called false."""
        why = ""
        for read in (self._registry, self._registry_now):
            registry = read()
            if registry is None:
                raise _Later
            why = _fault(envelope, registry.agents.get(envelope.sender), self._hub_id)
            if not why:
                return registry
        raise _Refused(why)

    def _registry_now(self) -> Registry:
        if self._anew is None:
            self._anew = self._look_again()
        return self._anew

    def _refuse(self, spool: _Spool, name: str, refused: _Refused, now_s: float) -> None:
        try:
            spool.set_aside(name, str(refused))
        except (OSError, WakehubError) as error:
            self._later[spool.path, name] = now_s + SPOOL_RETRY_SECONDS
            self._tell("a refused envelope cannot be put aside", f"{spool.path / name}: {error}")
        else:
            self._tell("refused from the spool", str(refused), file=name)

    def _notify(self, envelope: Envelope, registry: Registry, why: str) -> None:
        text = f"refused: {envelope.id} to {visible(envelope.recipient)} was spooled and is not stored: {visible(why)}"
        notice = NewRow(
            PUBLISHER,
            envelope.sender,
            text.encode(),
            re=envelope.id,
            class_="fyi",
            ttl_s=MAX_TTL_SECONDS,
            signed=self._signer,
            generation=registry.generation(envelope.sender),
        )
        with contextlib.suppress(BadData, NoRecipient, LoopGuard):
            self._inbox.append(notice, Now.read())

    def _tidy(self, spool: _Spool) -> None:
        try:
            spool.forget()
        except OSError as error:
            self._tell("a spool cannot be tidied", f"{spool.path}: {error.strerror}")

    def _tell(self, event: str, why: str, **more: str) -> None:
        times = self._repeats.due((event, why), time.monotonic())
        if times is not None:
            _log.warning(event, why=why, times=times, **more)


def _fault(envelope: Envelope, agent: Agent | None, hub_id: str) -> str:
    """Why the envelope does not prove that its sender wrote it; empty when it does."""
    name = visible(envelope.sender)
    if agent is None or agent.key is None or is_reserved(envelope.sender):
        return f"its signature is not by the enrolled key of {name}"
    public = agent.key.public
    if envelope.certificate:
        try:
            certificate = Certificate.decode(envelope.certificate)
        except ValueError as error:
            return f"its delegation is malformed: {error}"
        if (certificate.principal, certificate.hub_id) != (envelope.sender, hub_id):
            return f"its delegation is not for {name} at this hub"
        if not verify(public, certificate.signed_bytes(), certificate.signature):
            return f"its delegation is not by the enrolled key of {name}"
        if certificate.delegate_key in agent.revoked_keys or certificate.window()[0] // NS < agent.key.since:
            return "its delegation was revoked"
        if label := window_fault(certificate.window(), envelope.created_ms / 1000):
            return f"its delegation did not hold when it was written: {label}"
        public = certificate.delegate_key
    if not verify(public, envelope.signed_bytes(), envelope.signature):
        return f"its signature is not by the {'delegated' if envelope.certificate else 'enrolled'} key of {name}"
    return ""


def _check_file(found: os.stat_result) -> None:
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISREG(found.st_mode):
        raise _Refused("it is not a regular file")
    if found.st_uid != os.geteuid():
        raise _Refused(f"it belongs to uid {found.st_uid}")
    if mode != 0o600:
        raise _Refused(f"it has mode {mode:04o}, and must have 0600")
    if found.st_size > MAX_ENVELOPE_BYTES:
        raise _Refused(f"it has {found.st_size} bytes, and may have {MAX_ENVELOPE_BYTES}")


def _whole(fd: int) -> bytes:
    """The file to its end; one that grows meanwhile ends a byte over the limit, and parses as nothing."""
    parts: list[bytes] = []
    left = MAX_ENVELOPE_BYTES + 1
    while left and (part := os.read(fd, left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _check_recipient(envelope: Envelope, registry: Registry, hub_id: str) -> None:
    """Raise `NoRecipient` when nobody gets mail under that name, or another one does than when it was written."""
    shown, agent = visible(envelope.recipient), registry.agents.get(envelope.recipient)
    registry.check_mailbox(envelope.recipient, hub_id)
    if agent is None:
        return
    if agent.closed_at is not None:
        raise NoRecipient(f"{shown} was closed", why=f"on {stamps.mint(agent.closed_at)}")
    if agent.generation > 1 and agent.keys[-1].since * 1000 > envelope.created_ms:
        raise NoRecipient(f"{shown} is another agent now", why="the name was removed and enrolled anew")


def _remove_older(where: int, age_s: int, matches: Callable[[str], bool]) -> None:
    with os.scandir(where) as entries:
        for name in [entry.name for entry in itertools.islice(entries, SPOOL_SCAN) if matches(entry.name)]:
            found = os.stat(name, dir_fd=where, follow_symlinks=False)
            if not stat.S_ISDIR(found.st_mode) and time.time() - found.st_mtime > age_s:
                os.unlink(name, dir_fd=where)
