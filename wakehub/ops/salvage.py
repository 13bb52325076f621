"""`wakehub doctor --repair`: a fresh record in the place of a damaged one, which is kept beside it (fault F68).

    look ── whole ──▶ nothing is changed
      └─ damaged ──▶ nobody uses it? ──▶ copy it aside ──▶ build a fresh one from the copy ──▶ write that in its place

Rules. Nothing is repaired under anybody who works with it: the locks of `up` and publisher are taken, a live lease or
any process that has the file open is a refusal that says who. That is asked of SQLite's own locks, which are then held
to the end: whoever opens the record meanwhile waits, and finds the fresh one.

The fresh record is written into the very same file, not put in its place by a rename: a process that waits for the lock
has that file open already, and SQLite finds the log by the path. With the old file under it, it would take the fresh
record's log for its own, and remove it.

Killed at any step, it can be run again. First of all the beginning of the file becomes a mark that names the copy, so
that nobody can open what is half old and half new, and the next run begins with the copy; last of all the mark goes.

The locked descriptor stays open to the end: closing any other one of that file in this process, SQLite's own included,
would drop the locks.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from wakehub import files
from wakehub.client import advice
from wakehub.config import Config
from wakehub.errors import CannotCreate, Exit, Held, Unsafe, WakehubError
from wakehub.identity.owner import read_registry
from wakehub.inbox import tenure
from wakehub.inbox.clock import Now
from wakehub.inbox.pages import Found, PageFile
from wakehub.inbox.rebuild import Rebuilt, Verdict, rebuild
from wakehub.inbox.refusals import RecordDamaged
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.limits import COPY_BYTES
from wakehub.locks import Lock
from wakehub.processes import ProcessId
from wakehub.relay.keyring import Keyring
from wakehub.visible import visible

JSON_KEYS: Final = ("damage", "kept_as", "kept", "unread", "lost", "lost_ended", "unverified", "signatures")
_SIDECARS: Final = ("-wal", "-shm")
_MARK: Final = b"wakehub: repair\0"  # in the place of SQLite's own
_HEAD_BYTES: Final = 100  # of the mark and the name of the copy behind it
_LOCK_BYTES: Final = (0x4000_0000, 512)  # where SQLite locks a file (its file format, §1.3.2): begin and length
_LEASE_COLUMNS: Final = (13, 14)  # the last one came with schema 3
_SHOWN: Final = 3
_REFUSED: Final = "the record is not repaired"
_STOP: Final = "stop that first, then run this again"


@dataclass(frozen=True, slots=True)
class Repair:
    """What was wrong with the record (empty: nothing), where the damaged file is kept, and what was saved of it."""

    damage: str
    kept_as: Path | None = None
    rebuilt: Rebuilt | None = None

    @property
    def exit(self) -> Exit:
        """0 when nothing was wrong or nothing is lost that was not handed off, else 1; 1 too when that is not known."""
        return Exit.FAILED if self.rebuilt and (self.rebuilt.lost or _is_blank(self.rebuilt)) else Exit.DONE

    def to_json(self) -> dict[str, Any]:
        """The report for programs: exactly `JSON_KEYS`, null where nothing was repaired."""
        found = asdict(self.rebuilt) if self.rebuilt else {}
        return {
            "damage": self.damage,
            "kept_as": None if self.kept_as is None else str(self.kept_as),
            **{key: found.get(key) for key in JSON_KEYS[2:]},
        }

    def to_text(self) -> str:
        """The report for people."""
        if self.rebuilt is None or self.kept_as is None:
            return "✓ record: whole, nothing to repair"
        lines = [f"! record: it was damaged: {visible(self.damage)}", _saved(self.rebuilt)]
        if self.rebuilt.lost:
            known = [visible(id) for id in self.rebuilt.lost if id]
            more = f": {', '.join(known[:_SHOWN])}{', …' if len(known) > _SHOWN else ''}" if known else ""
            lines.append(f"✗ lost: {len(self.rebuilt.lost)} that nobody had provably got{more}; ask for them again")
        if self.rebuilt.lost_ended:
            lines.append(f"! lost: the history of {self.rebuilt.lost_ended} that had been handed off or had ended")
        if self.rebuilt.unverified:
            lines.append(
                f"! {self.rebuilt.unverified} will be shown as unverified: files of theirs are not known any more"
            )
        if not self.rebuilt.signatures:
            lines.append("! signatures were not checked, since the registry cannot be read; digests were")
        lines.append(f"  the damaged file is kept: {visible(str(self.kept_as))}")
        return "\n".join(lines)


def repair(config: Config) -> Repair:
    """Look at the record, and rebuild it if it is damaged; nothing is changed if it is not.

    Raises `Held` (75) with who uses it, `NoRecord` (78), `Unsafe` (77), `CannotCreate` (73) when there is no room for
    the fresh one, and what opening the record raises but for `RecordDamaged`.
    """
    found = damage(config.paths.record)
    if not found:
        return Repair("")
    with _locked(config, "up", "wakehub up"), _locked(config, "publish", "a publisher"):
        with _alone(config.paths.record) as fd:
            return _Repairing(config, fd, found).run()


def damage(record: Path) -> str:
    """What is wrong with the record, in words; empty when nothing is. Raises what opening it does otherwise."""
    try:
        with SqliteInbox.open(record, create=False) as inbox:
            return next((_headline(text) for text in inbox.damage()), "")
    except RecordDamaged as error:
        return _headline(error.why)


def _headline(text: str) -> str:
    """The first line that tells something: SQLite puts a heading, `*** in database main ***`, above what it found."""
    lines = text.splitlines()
    return next((line for line in lines if line and not line.startswith("***")), text)


class _Repairing:
    """Rebuilds the record that is open and locked at `fd`."""

    def __init__(self, config: Config, fd: int, damage: str) -> None:
        self._config = config
        self._record = config.paths.record
        self._fd = fd
        self._damage = damage

    def run(self) -> Repair:
        begun = self._begun()
        aside = begun or self._set_aside()
        fresh = self._record.with_name(f".{self._record.name}.{secrets.token_hex(8)}~")
        try:
            with files.opened(aside) as (bad, _):
                source = PageFile(bad, _content(_log_of(aside)))
                _check_leases(source)
                rebuilt = rebuild(source, fresh, self._verdict())
            self._overwrite(fresh, aside)
        except BaseException:
            if begun is None and self._begun() is None:  # nothing has happened to the record
                for path in (aside, _log_of(aside)):
                    path.unlink(missing_ok=True)
            raise
        finally:
            for end in ("", *_SIDECARS):
                fresh.with_name(fresh.name + end).unlink(missing_ok=True)
        return Repair(self._damage, aside, rebuilt)

    def _verdict(self) -> Verdict | None:
        """What judges signatures; None when the registry, which has the keys, cannot be read either."""
        try:
            read_registry(self._config.paths)
        except WakehubError:
            return None
        return Keyring(self._config.paths).verdict

    def _begun(self) -> Path | None:
        """Where a repair that was killed while it wrote the record has kept the bad one."""
        head = os.pread(self._fd, _HEAD_BYTES, 0)
        if not head.startswith(_MARK):
            return None
        return self._record.with_name(os.fsdecode(head[len(_MARK) :].split(b"\n")[0]))

    def _set_aside(self) -> Path:
        """A copy of the record and of its log as they are now."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        names = [f"{self._record.name}.bad-{stamp}", *(f"{self._record.name}.bad-{stamp}-{n}" for n in range(2, 100))]
        aside = next(path for name in names if not (path := self._record.with_name(name)).exists())
        if log := _content(_log_of(self._record)):
            files.create(_log_of(aside), log)
        with files.draft(aside.parent, aside.name) as copy:
            for part in _parts(self._fd):
                files.write_all(copy.fd, part)
            copy.link(aside.name)
        return aside

    def _overwrite(self, fresh: Path, aside: Path) -> None:
        """Make the record's file what `fresh` is; only its last step makes a database of it again."""
        try:
            _write_at(self._fd, _MARK + os.fsencode(aside.name) + b"\n", 0)
            os.fsync(self._fd)
            for end in _SIDECARS:  # SQLite would take the old log for the new file's
                self._record.with_name(self._record.name + end).unlink(missing_ok=True)
            files.sync_directory(self._record.parent)
            with files.opened(fresh) as (new, stamp):
                at = _HEAD_BYTES
                for part in _parts(new, at):
                    _write_at(self._fd, part, at)
                    at += len(part)
                os.ftruncate(self._fd, stamp.size)
                os.fsync(self._fd)
                _write_at(self._fd, os.pread(new, _HEAD_BYTES, 0), 0)
                os.fsync(self._fd)
        except OSError as error:
            raise CannotCreate(
                f"{visible(str(self._record))} was not repaired",
                why=error.strerror or str(error),
                remedy="free space on its disk, then run it again; the damaged file is kept",
            ) from error


def _log_of(record: Path) -> Path:
    return record.with_name(record.name + "-wal")


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _parts(fd: int, at: int = 0) -> Iterator[bytes]:
    """The content of a file from `at` on, in parts."""
    while part := os.pread(fd, COPY_BYTES, at):
        yield part
        at += len(part)


def _write_at(fd: int, data: bytes, at: int) -> None:
    while data:
        written = os.pwrite(fd, data, at)
        data, at = data[written:], at + written


# --- who else uses it ---


def _locked(config: Config, name: str, what: str) -> Lock:
    try:
        return Lock.acquire(config.paths.lock(name), what=what)
    except Held as held:
        stop = advice.to_stop(config.paths)
        remedy = f"{stop}; then run this again" if stop else _STOP
        raise Held(_REFUSED, why=f"{held.what}: {held.why}", remedy=remedy) from held


@contextlib.contextmanager
def _alone(record: Path) -> Iterator[int]:
    """A descriptor of the record under SQLite's exclusive lock, so that nobody has it open or can open it."""
    fd = os.open(record, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise Unsafe(f"{visible(str(record))} is not a file of ours", remedy="run as its owner")
        begin, length = _LOCK_BYTES
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, length, begin)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise _in_use(_user(fd)) from None
        yield fd
    finally:
        os.close(fd)


def _user(fd: int) -> str:
    """Which process has the file open, as the kernel tells of its lock; "another process" where it does not."""
    begin, length = _LOCK_BYTES
    is_linux = sys.platform == "linux"
    form = "@hhqqi" if is_linux else "@qqihh"
    asked = (
        (fcntl.F_WRLCK, os.SEEK_SET, begin, length, 0) if is_linux else (begin, length, 0, fcntl.F_WRLCK, os.SEEK_SET)
    )
    try:
        answer = struct.unpack(form, fcntl.fcntl(fd, fcntl.F_GETLK, struct.pack(form, *asked)))
    except OSError:
        return "another process"
    pid = answer[4] if is_linux else answer[2]
    return f"pid {pid}" if pid > 0 else "another process"


def _check_leases(source: PageFile) -> None:
    """Raise `Held` while somebody holds a name: a listener may have the record open where no lock tells of it."""
    now = Now.read()
    for found in source.entries():
        if found.owner == "lease" and len(found.values) in _LEASE_COLUMNS and (who := _live(found, now)):
            raise _in_use(who)


def _live(found: Found, now: Now) -> str:
    """Who holds the name in an entry of `lease`, if that lease is live; empty for what is over or makes no sense."""
    match found.values:
        case (str(name), bytes(), str(), int(pid), str(started), str(boot), int(namespace), _, str(), int(), *rest):
            match rest:
                case (int(renewed_ms), int(renewed_mono_ms), _, *_):
                    process = ProcessId(pid, started, boot, namespace)
                    if tenure.is_live(process, renewed_ms, renewed_mono_ms, now):
                        return f"pid {pid}, which listens as {visible(name)},"
    return ""


def _in_use(who: str) -> Held:
    return Held(_REFUSED, why=f"{who} works with it", remedy=_STOP)


def _is_blank(rebuilt: Rebuilt) -> bool:
    """Whether no row left any trace: a record without messages cannot be told from one whose messages are all gone."""
    return not (rebuilt.kept or rebuilt.lost or rebuilt.lost_ended)


def _saved(rebuilt: Rebuilt) -> str:
    if _is_blank(rebuilt):
        return "✗ saved: 0 messages: nothing could be read; how many are lost is not known"
    mark = "✓" if rebuilt.kept else "!"
    return f"{mark} saved: {rebuilt.kept} message{'' if rebuilt.kept == 1 else 's'}, {rebuilt.unread} of them unread"
