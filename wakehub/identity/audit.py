"""The audit log: the append-only signed chain that the registry is derived from (formats.md, Registry).

One event a line. A line holds the SHA-256 of the line before it (64 zeros in the first) and the owner's signature
over ``wakehub/audit/v1`` and its own bytes up to ``,"sig_b64"``; its JSON has one spelling. So no line can be
changed, moved, left out or slipped in without breaking the chain; only lines at the end can be missing.

Writers take turns by flock on the file, which is never replaced, and verify the whole chain before they add to it.
Bytes behind the last newline are of a writer that died before its line was whole: nobody was told that it was
written. Readers leave them out; the next writer cuts them off. Both say so.
"""

import contextlib
import fcntl
import hashlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from wakehub import files
from wakehub.errors import BadData, CannotCreate, Unsafe
from wakehub.identity import stamps, strict_json
from wakehub.identity.keys import KeyPair, b64, unb64, unb64_key, verify
from wakehub.identity.stamps import NS
from wakehub.limits import MAX_AUDIT_BYTES, MAX_AUDIT_LINE_BYTES
from wakehub.visible import visible

EVENTS: Final = frozenset({"init", "enroll", "revoke", "revoke_key", "close", "delegate", "publisher"})
_DOMAIN: Final = b"wakehub/audit/v1"
_START: Final = "0" * 64
_ORDER: Final = ("n", "at", "event", "agent_id", "pubkey_b64", "detail", "prev", "sig_b64")


@dataclass(frozen=True, slots=True)
class Event:
    """Line `n` (from 1) of the chain: what happened `at_s` (whole seconds since the epoch) to whom, with which key."""

    n: int
    at_s: int
    event: str
    agent_id: str
    public: bytes
    detail: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Chain:
    """A verified chain. `torn` counts the bytes behind the last whole line; `size` those up to its end."""

    events: tuple[Event, ...]
    size: int
    torn: int
    head: str


class BrokenChain(Unsafe):
    """The log does not verify; `line` is the first that does not, counted from 1."""

    def __init__(self, path: Path, line: int, why: str) -> None:
        self.line = line
        super().__init__(
            f"{visible(str(path))} is broken at line {line}",
            why=visible(why),
            remedy="nothing is signed from it; put back a copy from a backup, or start anew with other directories",
        )


class AuditLog:
    """The log at `path` of the owner whose public key (32 bytes) is `owner_public`."""

    def __init__(self, path: Path, owner_public: bytes) -> None:
        self.path = path
        self.owner_public = owner_public

    def read(self) -> Chain:
        """Read and verify the whole log, waiting for a writer to finish its line.

        Raises `FileNotFoundError`, `PermissionError`, `Unsafe` as `files.opened` does, `BrokenChain`.
        """
        with files.opened(self.path) as (fd, _):
            fcntl.flock(fd, fcntl.LOCK_SH)
            return self._chain(fd)

    def verify(self) -> list[Event]:
        """The events of the log, all of them proven; raises as `read` does."""
        return list(self.read().events)

    @contextlib.contextmanager
    def writing(self) -> Iterator["Writer"]:
        """Be the only writer: what is decided from `Writer.events` still holds when it is written.

        Raises `Unsafe`, `CannotCreate`, `BrokenChain`.
        """
        with files.appendable(self.path) as fd:
            chain = self._chain(fd)
            if chain.torn:
                os.ftruncate(fd, chain.size)
            yield Writer(self, fd, chain)

    def append(
        self, owner: KeyPair, event: str, agent_id: str, public: bytes, detail: dict[str, Any], now_s: float
    ) -> Event:
        """Add one event at `now_s` (seconds since the epoch); raises as `writing` and `Writer.append` do."""
        with self.writing() as writer:
            return writer.append(owner, event, agent_id, public, detail, now_s)

    def _chain(self, fd: int) -> Chain:
        data = _content(fd, self.path)
        size = data.rfind(b"\n") + 1
        events: list[Event] = []
        head = _START
        for number, line in enumerate(data[:size].split(b"\n")[:-1], 1):
            try:
                events.append(_event(line, number, head, self.owner_public))
            except ValueError as error:
                raise BrokenChain(self.path, number, str(error)) from None
            head = hashlib.sha256(line).hexdigest()
        return Chain(tuple(events), size, len(data) - size, head)


class Writer:
    """The turn of one writer; `cut` counts the bytes of a torn last line that were cut off before it."""

    def __init__(self, log: AuditLog, fd: int, chain: Chain) -> None:
        self.events = list(chain.events)
        self.cut = chain.torn
        self._log = log
        self._fd = fd
        self._size = chain.size
        self._head = chain.head

    def append(
        self, owner: KeyPair, event: str, agent_id: str, public: bytes, detail: dict[str, Any], now_s: float
    ) -> Event:
        """Write one event and sync it; when this returns, it is on disk, when it raises, it is not there.

        Raises `BadData` when the line would be too long or is not well formed, `CannotCreate` when the disk refuses.
        """
        number = len(self.events) + 1
        line = _line(owner, number, math.floor(now_s), event, agent_id, public, detail, self._head)
        try:
            added = _event(line, number, self._head, self._log.owner_public)
        except ValueError as error:
            raise BadData(
                f"cannot record {event} of {visible(agent_id)}",
                why=visible(str(error)),
                remedy="prove the registry: wakehub audit verify",
            ) from None
        if self._size + len(line) + 1 > MAX_AUDIT_BYTES:
            raise BadData(
                f"{visible(str(self._log.path))} is full",
                why=f"the limit is {MAX_AUDIT_BYTES} bytes",
                remedy="begin another instance, with another --state-dir",
            )
        try:
            self._write(line + b"\n")
        except OSError as error:
            raise CannotCreate(
                f"cannot write {visible(str(self._log.path))}", why=str(error.strerror), remedy="free space, try again"
            ) from error
        self.events.append(added)
        self._size += len(line) + 1
        self._head = hashlib.sha256(line).hexdigest()
        return added

    def _write(self, line: bytes) -> None:
        try:
            files.write_all(self._fd, line)
            os.fsync(self._fd)
            if not self.events:
                files.sync_directory(self._log.path.parent)
        except BaseException:
            os.ftruncate(self._fd, self._size)
            raise


def _line(
    owner: KeyPair, n: int, at_s: int, event: str, agent_id: str, public: bytes, detail: dict[str, Any], prev: str
) -> bytes:
    unsigned = strict_json.dump(
        {
            "n": n,
            "at": stamps.mint(at_s),
            "event": event,
            "agent_id": agent_id,
            "pubkey_b64": b64(public),
            "detail": detail,
            "prev": prev,
        }
    )[:-1]
    return unsigned + _signature_field(owner.sign(_DOMAIN + unsigned))


def _signature_field(signature: bytes) -> bytes:
    return b',"sig_b64":"' + b64(signature).encode() + b'"}'


def _event(line: bytes, number: int, prev: str, owner_public: bytes) -> Event:
    """The event in one line, proven to be the `number`-th and to follow the line with hash `prev`."""
    if len(line) > MAX_AUDIT_LINE_BYTES:
        raise ValueError(f"line exceeds {MAX_AUDIT_LINE_BYTES} bytes")
    found = strict_json.parse(line, frozenset(_ORDER))
    if strict_json.dump(found) != line or tuple(found) != _ORDER:
        raise ValueError("JSON is not in its one spelling")
    signature = unb64(strict_json.text(found, "sig_b64"))
    if not verify(owner_public, _DOMAIN + line[: -len(_signature_field(signature))], signature):
        raise ValueError("not signed by the owner key")
    strict_json.integer(found, "n", number, number)
    if strict_json.text(found, "prev") != prev:
        raise ValueError("does not follow the line before it")
    if strict_json.text(found, "event") not in EVENTS:
        raise ValueError("unknown event")
    at_s = stamps.parse(strict_json.text(found, "at")) // NS
    if stamps.mint(at_s) != found["at"]:
        raise ValueError("at is not in whole seconds UTC")
    return Event(
        number,
        at_s,
        found["event"],
        strict_json.text(found, "agent_id"),
        unb64_key(strict_json.text(found, "pubkey_b64")),
        strict_json.mapping(found, "detail"),
    )


def _content(fd: int, path: Path) -> bytes:
    os.lseek(fd, 0, os.SEEK_SET)
    return files.read_all(fd, files.Stamp.of(os.fstat(fd)), path, MAX_AUDIT_BYTES)
