"""The signed allowlist: who may say hello, with which key (awh1.md §4.3).

One file, one key: a compact JWS by the owner. Signature first, then JSON, and any fault refuses the whole file. The
hub trusts what is in it as signed and nothing else. The file is opened and checked each time that somebody's
identity is; what was parsed is reused for two seconds while device, inode, mtime and size stand still, and beyond
that when the same bytes are read again, since the same bytes say the same.

| label | the file |
|---|---|
| absent | is not there |
| unreadable | cannot be opened or read (permission, I/O) |
| unsafe | is a link, not regular, not ours, not 0600, or too large |
| unsigned | is no compact JWS |
| bad_signature | is not signed by the owner key |
| malformed | is signed, but header or content break a rule |
| stale | is older than it says it is good for |
| future | says it was made more than 30 s from now |
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from wakehub import files
from wakehub.errors import Unsafe
from wakehub.identity import stamps, strict_json
from wakehub.identity.addresses import DAEMONS
from wakehub.identity.keys import KeyPair, b64, unb64, unb64_key, verify
from wakehub.identity.stamps import NS
from wakehub.limits import (
    ALLOWLIST_CACHE_SECONDS,
    CLOCK_LEEWAY_SECONDS,
    MAX_ALLOWLIST_BYTES,
    MAX_ALLOWLIST_VALID_SECONDS,
    MAX_ID_BYTES,
    MAX_PREFIX_BYTES,
    MAX_PREFIXES,
)
from wakehub.visible import visible
from wakehub.wire.fields import has_control

POSSESSION_PROOF: Final = "possession_proof"
DAEMON_KEY_DIR: Final = "daemon_key_dir"
_DELEGATING: Final = frozenset({POSSESSION_PROOF, "lineage_succession", "guardian_recovery"})
_FIELDS: Final = frozenset({"version", "refreshed_at", "valid_for_secs", "agents"})
_ENTRY_FIELDS: Final = frozenset(
    {"agent_id", "pubkey_b64", "bind_authority", "bound_at", "revoked_keys", "readable_prefixes"}
)
_VERSION: Final = 2
_HEADER: Final = strict_json.dump({"alg": "EdDSA"})


@dataclass(frozen=True, slots=True)
class Entry:
    """One agent: its enrolled key (32 bytes), who vouched for the binding, since when (ns), and what it may read."""

    agent_id: str
    public: bytes
    bind_authority: str
    bound_at: int
    revoked_keys: frozenset[bytes] = frozenset()
    prefixes: tuple[str, ...] = ()

    def may_delegate(self) -> bool:
        """Whether this binding is one that certificates may rest on."""
        if self.bind_authority == DAEMON_KEY_DIR:
            return self.agent_id in DAEMONS
        return self.bind_authority in _DELEGATING


@dataclass(frozen=True, slots=True)
class Allowlist:
    """What the owner signed: `refreshed_at` (ns since the epoch), good for `valid_for_secs`, the agents by id."""

    refreshed_at: int
    valid_for_secs: int
    agents: dict[str, Entry]


@dataclass(frozen=True, slots=True)
class Unusable:
    """Why there is no allowlist now: a label of the table above, and a detail for the operator, safe to show.

    `stale` is what the file says when its age is all that is wrong with it.
    """

    label: str
    detail: str
    stale: Allowlist | None = field(default=None, repr=False)


class Refused(ValueError):
    """Bytes that are no allowlist of this owner."""

    label: ClassVar[str]


class Unsigned(Refused):
    label = "unsigned"


class BadSignature(Refused):
    label = "bad_signature"


class Malformed(Refused):
    label = "malformed"


def sign(allowlist: Allowlist, owner: KeyPair) -> bytes:
    """The file's content; stamps are cut to whole seconds. Raises `ValueError` for what `parse` would refuse."""
    payload = strict_json.dump(
        {
            "version": _VERSION,
            "refreshed_at": stamps.mint(allowlist.refreshed_at // NS),
            "valid_for_secs": allowlist.valid_for_secs,
            "agents": [_document(entry) for entry in allowlist.agents.values()],
        }
    )
    signed = f"{b64(_HEADER)}.{b64(payload)}".encode()
    jws = signed + b"." + b64(owner.sign(signed)).encode()
    parse(jws, owner.public)
    return jws


def _document(entry: Entry) -> dict[str, Any]:
    return {
        "agent_id": entry.agent_id,
        "pubkey_b64": b64(entry.public),
        "bind_authority": entry.bind_authority,
        "bound_at": stamps.mint(entry.bound_at // NS),
        "revoked_keys": sorted(b64(key) for key in entry.revoked_keys),
        "readable_prefixes": list(entry.prefixes),
    }


def parse(jws: bytes, owner_public: bytes) -> Allowlist:
    """The allowlist in a compact JWS by `owner_public`; its age is not judged here.

    Raises `Unsigned`, `BadSignature` or `Malformed`, all of them `ValueError`.
    """
    if len(jws) > MAX_ALLOWLIST_BYTES:
        raise Malformed(f"{len(jws)} bytes exceed {MAX_ALLOWLIST_BYTES}")
    try:
        header, payload, signature = (unb64(part) for part in jws.decode("ascii").split("."))
    except ValueError:
        raise Unsigned("not three base64url parts joined by dots") from None
    if not verify(owner_public, jws[: jws.rindex(b".")], signature):
        raise BadSignature("not signed by the owner key")
    try:
        _check_header(header)
        return _content(payload)
    except ValueError as error:
        raise Malformed(visible(str(error))) from None


def _check_header(header: bytes) -> None:
    found = strict_json.parse(header, {"alg"}, {"kid", "typ"})
    for key in found:
        strict_json.text(found, key)
    if found["alg"] != "EdDSA":
        raise ValueError("alg is not EdDSA")


def _content(payload: bytes) -> Allowlist:
    found = strict_json.parse(payload, _FIELDS)
    strict_json.integer(found, "version", _VERSION, _VERSION)
    refreshed_at = stamps.parse(strict_json.text(found, "refreshed_at"))
    valid_for_secs = strict_json.integer(found, "valid_for_secs", 1, MAX_ALLOWLIST_VALID_SECONDS)
    agents: dict[str, Entry] = {}
    for number, item in enumerate(strict_json.array(found, "agents")):
        with _naming(number):
            entry = _entry(item)
            if entry.bound_at > refreshed_at + CLOCK_LEEWAY_SECONDS * NS:
                raise ValueError("bound_at lies after refreshed_at")
            if entry.agent_id in agents:
                raise ValueError("agent_id appears twice")
        agents[entry.agent_id] = entry
    return Allowlist(refreshed_at, valid_for_secs, agents)


@contextmanager
def _naming(number: int) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"agents[{number}]: {error}") from None


def _entry(item: object) -> Entry:
    found = strict_json.fields(item, _ENTRY_FIELDS)
    prefixes = strict_json.array(found, "readable_prefixes")
    if len(prefixes) > MAX_PREFIXES:
        raise ValueError(f"more than {MAX_PREFIXES} readable_prefixes")
    authority = strict_json.text(found, "bind_authority")  # any word loads; few may delegate
    if has_control(authority):
        raise ValueError("bind_authority holds a control character")
    return Entry(
        agent_id=_name(found["agent_id"], "agent_id", MAX_ID_BYTES),
        public=unb64_key(strict_json.text(found, "pubkey_b64")),
        bind_authority=authority,
        bound_at=stamps.parse(strict_json.text(found, "bound_at")),
        revoked_keys=frozenset(_revoked(key) for key in strict_json.array(found, "revoked_keys")),
        prefixes=tuple(_name(prefix, "readable_prefixes", MAX_PREFIX_BYTES) for prefix in prefixes),
    )


def _name(value: object, what: str, most: int) -> str:
    if not isinstance(value, str) or not 1 <= len(value.encode()) <= most or has_control(value):
        raise ValueError(f"{what} is not text of 1..{most} bytes without control characters")
    return value


def _revoked(value: object) -> bytes:
    if not isinstance(value, str):
        raise ValueError("revoked_keys holds something that is no text")
    return unb64_key(value)


class AllowlistFile:
    """The allowlist at `path`, signed by `owner_public` (32 bytes), as it is on disk now.

    A hub gives a `spare` descriptor: for want of one it would find the file unreadable, and close every session.
    """

    def __init__(self, path: Path, owner_public: bytes, spare: files.Spare | None = None) -> None:
        self.path = path
        self.owner_public = owner_public
        self._spare = spare
        self._stamp: files.Stamp | None = None
        self._read_at = 0.0
        self._data: bytes | None = None
        self._parsed: Allowlist | Refused = Unsigned("not read yet")

    def current(self, now_s: float, mono_s: float) -> Allowlist | Unusable:
        """The allowlist if it can be used at `now_s` (wall clock); `mono_s` is the monotonic clock, for the reuse."""
        try:
            with files.opened(self.path, self._spare) as (fd, stamp):
                if stamp != self._stamp or not 0 <= mono_s - self._read_at < ALLOWLIST_CACHE_SECONDS:
                    self._load(files.read_all(fd, stamp, self.path, MAX_ALLOWLIST_BYTES))
                    self._stamp, self._read_at = stamp, mono_s
        except FileNotFoundError:
            return Unusable("absent", f"{visible(str(self.path))} is not there")
        except Unsafe as error:
            return Unusable("unsafe", error.what + (f": {error.why}" if error.why else ""))
        except OSError as error:
            return Unusable("unreadable", f"{visible(str(self.path))}: {error.strerror}")
        if isinstance(self._parsed, Refused):
            return Unusable(self._parsed.label, str(self._parsed))
        return _judged(self._parsed, now_s)

    def _load(self, data: bytes) -> None:
        if data == self._data:
            return
        self._data = data
        try:
            self._parsed = parse(data, self.owner_public)
        except Refused as refused:
            self._parsed = refused


def _judged(found: Allowlist, now_s: float) -> Allowlist | Unusable:
    age = int(now_s * NS) - found.refreshed_at
    if age >= found.valid_for_secs * NS:
        return Unusable("stale", f"{age // NS} s old, good for {found.valid_for_secs} s", found)
    if age < -CLOCK_LEEWAY_SECONDS * NS:
        return Unusable("future", f"made {-age // NS} s in the future")
    return found
