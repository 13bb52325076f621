"""Names and who owns them: the address grammar, the registry, and the acts that change it.

The registry is nothing but the verified audit log, read from its first line (formats.md, Registry); the allowlist is
derived from it. Every act needs the owner key and is one line of that log. An act decides and writes in one turn of
the log's lock, and the key file it rests on comes first: kill it anywhere and run it again, and it completes.

A name has *generations*: closing ends one, enrolling again begins the next, which does not inherit the old mail.
Within a generation the *key* may change: revoking ends a key, enrolling again makes another. Keys that ended are
remembered, since they still verify the rows that were signed with them at the time. A key that ended is never
enrolled again: when its file is still there, it is replaced.
"""

import contextlib
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

from wakehub import files
from wakehub.errors import BadData, NoRecipient, Unsafe
from wakehub.identity import strict_json
from wakehub.identity.allowlist import DAEMON_KEY_DIR, DAEMONS, POSSESSION_PROOF, Allowlist, Entry, sign
from wakehub.identity.audit import AuditLog, Event, Writer
from wakehub.identity.delegation import Certificate
from wakehub.identity.keys import (
    KeyPair,
    b64,
    load_key,
    load_public,
    replace_key,
    unb64_key,
    verify,
    write_key,
    write_public,
)
from wakehub.identity.nearness import near
from wakehub.identity.scope import prefixes_of
from wakehub.identity.stamps import NS
from wakehub.limits import ALLOWLIST_VALID_SECONDS, CLOCK_LEEWAY_SECONDS, MAX_ID_BYTES
from wakehub.visible import visible

OWNER: Final = "owner"
PUBLISHER: Final = "wakehub-publisher"
DOCTOR: Final = "wakehub-doctor"
_SEGMENT: Final = "[A-Za-z0-9][A-Za-z0-9._:-]*"
_ADDRESS: Final = re.compile(f"{_SEGMENT}(?:/{_SEGMENT})*")
_NOT_PLAIN: Final = re.compile(r"[^A-Za-z0-9._:-]")
_GRAMMAR: Final = (
    f"at most {MAX_ID_BYTES} bytes; letters, digits and . _ : - in parts joined by /, each beginning with a letter or "
    "digit"
)


# --- addresses ---


def check_address(text: str) -> str:
    """`text` if it is an address by the grammar of receive.md §2; raises `BadData` otherwise. Nothing is mended."""
    if len(text) > MAX_ID_BYTES or _ADDRESS.fullmatch(text) is None:
        raise BadData(f"'{visible(text[:MAX_ID_BYTES])}' is not an address", why=_GRAMMAR, remedy="choose another name")
    return text


def check_namespace(text: str) -> str:
    """`text` if it is a namespace, an address and a trailing slash (``acme/``); raises `BadData` otherwise."""
    if not text.endswith("/"):
        raise BadData(f"'{visible(text[:MAX_ID_BYTES])}' is not a namespace", why="a namespace ends in /")
    check_address(text[:-1])
    return text


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


# --- the registry ---


@dataclass(frozen=True, slots=True)
class EnrolledKey:
    """A public key (32 bytes) and when it was an agent's: whole seconds since the epoch; `until` None means still."""

    public: bytes
    since: int
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Agent:
    """One name: its generation (from 1), the keys it had, oldest first, and the session keys taken from it."""

    agent_id: str
    generation: int = 1
    keys: tuple[EnrolledKey, ...] = ()
    revoked_keys: frozenset[bytes] = frozenset()
    closed_at: int | None = None

    @property
    def key(self) -> EnrolledKey | None:
        """The key that stands for the agent now; None when it was revoked or the name closed."""
        return self.keys[-1] if self.keys and self.keys[-1].until is None else None

    @property
    def is_daemon(self) -> bool:
        """Whether this is one of the daemons, which the allowlist binds in their own way (awh1.md §4.3)."""
        return self.agent_id in DAEMONS

    @property
    def is_reserved(self) -> bool:
        """Whether this is one of the system's own principals and nobody's mailbox."""
        return is_reserved(self.agent_id)

    def had(self, public: bytes) -> bool:
        """Whether `public` is or was this agent's key."""
        return any(key.public == public for key in self.keys)


@dataclass(frozen=True, slots=True)
class Registry:
    """All names there ever were, as the verified log tells."""

    agents: dict[str, Agent] = field(default_factory=dict)

    @classmethod
    def derive(cls, events: Sequence[Event]) -> "Registry":
        """Play the events of a verified log; raises `Unsafe` when they make no sense together."""
        registry = cls()
        for event in events:
            try:
                registry._play(event)
            except ValueError as error:
                raise Unsafe(
                    f"the registry makes no sense at line {event.n}",
                    why=visible(str(error)),
                    remedy="it was signed by the owner key all the same; see: wakehub audit",
                ) from None
        return registry

    def names(self) -> list[str]:
        """The enrolled names, sorted: neither closed nor revoked, the system's own left out."""
        return sorted(agent.agent_id for agent in self.agents.values() if agent.key and not agent.is_reserved)

    def under(self, namespace: str) -> list[str]:
        """The enrolled names under a namespace (``acme/``), sorted."""
        return [name for name in self.names() if name.startswith(namespace)]

    def generation(self, name: str) -> int:
        """The generation that mail to `name` belongs to now: 1 for a name never seen, which its first one inherits."""
        agent = self.agents.get(name)
        return agent.generation if agent else 1

    def twin(self, name: str) -> str | None:
        """The name there ever was that differs from `name` only in case; None when `name` itself was enrolled."""
        if name in self.agents:
            return None
        return next((other for other in self.agents if other.casefold() == name.casefold()), None)

    def check_mailbox(self, name: str, hub_id: str) -> None:
        """Raise `NoRecipient` (67) when nobody can ever be enrolled as `name`, so that mail to it would wait for ever.

        The rule is that of `enroll`. Whether the name was closed is another question.
        """
        if is_kept(name, hub_id):
            raise NoRecipient(
                f"{visible(name)} is no mailbox",
                why="the name is kept for wakehub itself",
                remedy="wakehub agents shows who is there",
            )
        if (twin := self.twin(name)) is not None:
            raise NoRecipient(
                f"{visible(name)} is no mailbox", why=f"{twin} differs from it only in case", remedy=f"write to {twin}"
            )

    def _play(self, event: Event) -> None:
        if (event.n == 1) != (event.event == "init"):
            raise ValueError("init is the first event and no other")
        _PLAY[event.event](self, event)

    def _known(self, event: Event) -> Agent:
        agent = self.agents.get(event.agent_id)
        if agent is None:
            raise ValueError(f"{event.event} of a name that was never enrolled")
        return agent

    def _init(self, event: Event) -> None:
        """Begins the log and binds nobody."""

    def _enroll(self, event: Event) -> None:
        if event.agent_id in DAEMONS:
            raise ValueError("enroll of a reserved name")
        self._bind(event)

    def _publisher(self, event: Event) -> None:
        if event.agent_id not in DAEMONS:
            raise ValueError("publisher with a name that is not reserved")
        self._bind(event)

    def _bind(self, event: Event) -> None:
        agent = _ended(self.agents.get(event.agent_id) or Agent(event.agent_id), event.at_s)
        self.agents[event.agent_id] = replace(
            agent,
            generation=agent.generation + (agent.closed_at is not None),
            keys=(*agent.keys, EnrolledKey(event.public, event.at_s)),
            closed_at=None,
        )

    def _revoke(self, event: Event) -> None:
        self.agents[event.agent_id] = _ended(self._known(event), event.at_s)

    def _revoke_key(self, event: Event) -> None:
        agent = self._known(event)
        detail = strict_json.fields(event.detail, {"delegate_key_b64"})
        taken = unb64_key(strict_json.text(detail, "delegate_key_b64"))
        self.agents[event.agent_id] = replace(agent, revoked_keys=agent.revoked_keys | {taken})

    def _close(self, event: Event) -> None:
        agent = _ended(self._known(event), event.at_s)
        self.agents[event.agent_id] = replace(agent, closed_at=event.at_s)

    def _delegate(self, event: Event) -> None:
        self._known(event)


_PLAY: Final[dict[str, Callable[[Registry, Event], None]]] = {
    "init": Registry._init,
    "enroll": Registry._enroll,
    "publisher": Registry._publisher,
    "revoke": Registry._revoke,
    "revoke_key": Registry._revoke_key,
    "close": Registry._close,
    "delegate": Registry._delegate,
}


def _ended(agent: Agent, at_s: int) -> Agent:
    if agent.key is None:
        return agent
    return replace(agent, keys=(*agent.keys[:-1], replace(agent.keys[-1], until=at_s)))


def to_allowlist(registry: Registry, now_s: float) -> Allowlist:
    """What the owner may sign at `now_s`: every name with a key, in the form of awh1.md §4.3.

    A key enrolled more than 30 s in the future (the clock was set back since) is left out: one such entry would have
    the hub refuse the whole file. It comes back when the clock has caught up.
    """
    now = math.floor(now_s)
    return Allowlist(
        refreshed_at=now * NS,
        valid_for_secs=ALLOWLIST_VALID_SECONDS,
        agents={
            name: _entry(agent, key)
            for name, agent in sorted(registry.agents.items())
            if (key := agent.key) and key.since <= now + CLOCK_LEEWAY_SECONDS
        },
    )


def _entry(agent: Agent, key: EnrolledKey) -> Entry:
    return Entry(
        agent.agent_id,
        key.public,
        DAEMON_KEY_DIR if agent.is_daemon else POSSESSION_PROOF,
        key.since * NS,
        agent.revoked_keys,
        () if agent.is_daemon else prefixes_of(agent.agent_id),
    )


# --- the acts ---


class Places(Protocol):
    """Where the files of one instance lie; `wakehub.paths.Paths` is one."""

    @property
    def owner_key(self) -> Path: ...

    @property
    def owner_pub(self) -> Path: ...

    @property
    def audit(self) -> Path: ...

    def agent_key(self, agent_id: str) -> Path: ...


@dataclass(frozen=True, slots=True)
class Change:
    """What an act came to: the agent as it is now, and the line written, None when it already was so.

    `cut` counts the bytes of a torn last line of the log that were cut off; a person should be told.
    """

    agent: Agent
    event: Event | None
    cut: int = 0


@dataclass(frozen=True, slots=True)
class Initialised:
    """What `init_owner` found or made: the owner's public key (32 bytes) and the files that were not there before."""

    owner_public: bytes
    made: tuple[Path, ...]
    cut: int = 0


def init_owner(places: Places, now_s: float) -> Initialised:
    """Make the owner key, ``owner.pub``, the log with its first line, and the publisher's key; or complete that.

    It may be killed anywhere and run again. Raises `Unsafe` when a file is there but cannot be used, or when the owner
    key alone is missing: nothing can be signed in its place. Nor is a log begun anew beside keys of agents: they are
    made after its first line, so it was lost, and with it every name.
    """
    made: list[Path] = []
    owner = _owner_key(places, made)
    _owner_pub(places, owner, made)
    if files.is_absent(places.audit):
        _check_no_agents(places)
    files.private_directory(places.audit.parent)
    with AuditLog(places.audit, owner.public).writing() as writer:
        if not writer.events:
            _check_no_agents(places)
            writer.append(owner, "init", OWNER, owner.public, {}, now_s)
            made.append(places.audit)
        _bind_daemon(_Turn.of(owner, writer), places, PUBLISHER, now_s, made)
        return Initialised(owner.public, tuple(made), writer.cut)


def _owner_key(places: Places, made: list[Path]) -> KeyPair:
    try:
        return _key_at(places.owner_key, OWNER)
    except FileNotFoundError:
        pass
    for path in (places.owner_pub, places.audit):
        if not files.is_absent(path):
            raise Unsafe(
                f"the owner key {visible(str(places.owner_key))} is missing",
                why=f"{visible(str(path))} was made with it and cannot be signed by another",
                remedy="restore the key from a backup; or move that file away and begin anew, enrolling every name",
            )
    _check_no_agents(places)
    owner = KeyPair.generate()
    write_key(places.owner_key, OWNER, owner)
    made.append(places.owner_key)
    return owner


def unfinished_mark(places: Places) -> Path:
    """The file that is there while `wakehub init` is at work, or was interrupted."""
    return places.audit.parent / "init.unfinished"


def check_registry(places: Places) -> None:
    """Raise `Unsafe` when the log is missing or empty beside ``owner.pub``, and no interrupted init explains it."""
    is_blank = files.is_absent(places.audit) or places.audit.lstat().st_size == 0
    if is_blank and files.is_absent(unfinished_mark(places)) and not files.is_absent(places.owner_pub):
        raise _gone(places)


def _check_no_agents(places: Places) -> None:
    directory = places.agent_key(PUBLISHER).parent
    if not files.is_absent(directory) and any(name.endswith(".key") for name in os.listdir(directory)):
        raise _gone(places)


def _owner_pub(places: Places, owner: KeyPair, made: list[Path]) -> None:
    try:
        _check_pair(places, owner, load_public(places.owner_pub))
    except FileNotFoundError:
        write_public(places.owner_pub, owner.public)
        made.append(places.owner_pub)
    except PermissionError as error:
        raise _masked(places.owner_pub, error) from error


def _bind_daemon(turn: "_Turn", places: Places, name: str, now_s: float, made: list[Path]) -> None:
    path = places.agent_key(name)
    was_absent = files.is_absent(path)
    turn.bind(path, "publisher", name, now_s)
    if was_absent:
        made.append(path)


def load_owner(places: Places) -> KeyPair:
    """The owner's key, which must be that of ``owner.pub``; raises `Unsafe` (exit 77), naming the file."""
    try:
        owner = _key_at(places.owner_key, OWNER)
    except FileNotFoundError:
        raise Unsafe(
            f"the owner key {visible(str(places.owner_key))} is missing",
            why="names can only be enrolled, revoked or closed with it; names that are enrolled go on working",
            remedy="run this where the owner key is, restore it, or, on a fresh machine: wakehub init",
        ) from None
    _check_pair(places, owner, load_owner_public(places))
    return owner


def load_owner_public(places: Places) -> bytes:
    """The owner's public key (32 bytes); raises `Unsafe` when it is missing or cannot be used."""
    try:
        return load_public(places.owner_pub)
    except FileNotFoundError:
        raise _not_initialised(places.owner_pub) from None
    except PermissionError as error:
        raise _masked(places.owner_pub, error) from error


def read_registry(places: Places) -> Registry:
    """The registry as the verified log tells it now; raises `Unsafe` when there is none or it does not verify."""
    try:
        events = AuditLog(places.audit, load_owner_public(places)).verify()
    except FileNotFoundError:
        raise _no_registry(places) from None
    except PermissionError as error:
        raise _masked(places.audit, error) from error
    if not events:
        raise _no_registry(places)
    return Registry.derive(events)


def enroll(places: Places, name: str, hub_id: str, now_s: float) -> Change:
    """Give `name` a key and enter it in the registry; nothing changes when it has one that stands.

    Raises `BadData` for a name outside the grammar, reserved, the hub's own, or equal to another but for case;
    `Unsafe` when the owner key or a file cannot be used.
    """
    check_address(name)
    if is_kept(name, hub_id):
        raise BadData(f"{name} cannot be enrolled", why="the name is kept for wakehub itself", remedy="choose another")
    with _turn(places) as turn:
        if (twin := turn.registry.twin(name)) is not None:
            raise BadData(
                f"{name} cannot be enrolled", why=f"{twin} differs from it only in case", remedy=f"use {twin}"
            )
        return turn.bind(places.agent_key(name), "enroll", name, now_s)


def enroll_doctor(places: Places, now_s: float) -> Change:
    """Give `wakehub doctor` the principal that its round trips go to; nothing changes when it has one.

    Its binding is that of any agent, under a name that is reserved: the registry needs no other kind of event, and
    one line in it serves every later run. Raises `Unsafe` when the owner key or a file cannot be used.
    """
    with _turn(places) as turn:
        return turn.bind(places.agent_key(DOCTOR), "enroll", DOCTOR, now_s)


def revoke(places: Places, name: str, now_s: float) -> Change:
    """End the key of `name`: its sessions end and it admits nobody until it is enrolled again, with another key.

    Raises `NoRecipient` when the name was never enrolled, `Unsafe`.
    """
    with _turn(places) as turn:
        agent = turn.known(name)
        return turn.write("revoke", agent, {}, now_s) if agent.key else turn.nothing(agent)


def revoke_key(places: Places, name: str, delegate_public: bytes, now_s: float) -> Change:
    """Take one session key (32 bytes) from `name`: bundles that hold it admit nobody any more; raises as `revoke`."""
    with _turn(places) as turn:
        agent = turn.known(name)
        if delegate_public in agent.revoked_keys:
            return turn.nothing(agent)
        return turn.write("revoke_key", agent, {"delegate_key_b64": b64(delegate_public)}, now_s)


def close(places: Places, name: str, now_s: float) -> Change:
    """End the name: no key, and mail to it is refused; enrolling it again begins a new generation. As `revoke`."""
    if is_reserved(name):
        raise BadData(f"{name} cannot be closed", why="the name is kept for wakehub itself")
    with _turn(places) as turn:
        agent = turn.known(name)
        return turn.write("close", agent, {}, now_s) if agent.closed_at is None else turn.nothing(agent)


def record_delegation(places: Places, certificate: Certificate, now_s: float) -> Change:
    """Enter in the log that a bundle with `certificate` is given out; do so before it leaves our hands.

    Raises `Unsafe` when the certificate is not signed by the key that is enrolled, `NoRecipient`.
    """
    with _turn(places) as turn:
        agent = turn.known(certificate.principal)
        key = agent.key
        if key is None or not verify(key.public, certificate.signed_bytes(), certificate.signature):
            raise Unsafe(
                f"the delegation of {visible(agent.agent_id)} is not signed by its enrolled key",
                why="the name was revoked or closed, or its key file is another's",
                remedy=f"wakehub enroll {visible(agent.agent_id)}",
            )
        detail = {
            "delegate_key_b64": b64(certificate.delegate_key),
            "hub_id": certificate.hub_id,
            "not_before": certificate.not_before,
            "not_after": certificate.not_after,
        }
        return turn.write("delegate", agent, detail, now_s)


@dataclass(slots=True)
class _Turn:
    """The owner at work: the only writer of the log, and the registry as the log tells it now."""

    owner: KeyPair
    writer: Writer
    registry: Registry

    @classmethod
    def of(cls, owner: KeyPair, writer: Writer) -> "_Turn":
        return cls(owner, writer, Registry.derive(writer.events))

    def known(self, name: str) -> Agent:
        agent = self.registry.agents.get(name)
        if agent is None:
            candidates = near(name, self.registry.names())
            raise NoRecipient(
                f"{visible(name)} was never enrolled",
                remedy=f"did you mean {', '.join(candidates)}?" if candidates else "list the names: wakehub agents",
            )
        return agent

    def nothing(self, agent: Agent) -> Change:
        return Change(agent, None, self.writer.cut)

    def write(self, event: str, agent: Agent, detail: dict[str, Any], now_s: float, public: bytes = b"") -> Change:
        public = public or agent.keys[-1].public
        number = len(self.writer.events) + 1
        try:  # before it is written: a line that makes no sense would spoil the registry for good
            self.registry._play(Event(number, math.floor(now_s), event, agent.agent_id, public, detail))
        except ValueError as error:
            raise BadData(f"cannot {event} {agent.agent_id}", why=visible(str(error))) from None
        written = self.writer.append(self.owner, event, agent.agent_id, public, detail, now_s)
        return Change(self.registry.agents[agent.agent_id], written, self.writer.cut)

    def bind(self, path: Path, event: str, name: str, now_s: float) -> Change:
        agent = self.registry.agents.get(name) or Agent(name)
        pair = _pair_for(agent, path)
        if agent.key and agent.key.public == pair.public:
            return self.nothing(agent)
        self._check_room(agent, pair.public, now_s)
        return self.write(event, agent, {}, now_s, pair.public)

    def _check_room(self, agent: Agent, public: bytes, now_s: float) -> None:
        """The allowlist must stay signable: one name too many would lock everybody out."""
        allowlist = to_allowlist(self.registry, now_s)
        allowlist.agents[agent.agent_id] = _entry(agent, EnrolledKey(public, math.floor(now_s)))
        try:
            sign(allowlist, self.owner)
        except ValueError as error:
            raise BadData(
                f"{agent.agent_id} cannot be enrolled",
                why=f"the allowlist would be refused: {error}",
                remedy="close names that are not used any more: wakehub close NAME",
            ) from None


def _pair_for(agent: Agent, path: Path) -> KeyPair:
    """The key in the agent's file, or a new one there when it is absent or holds a key that ended."""
    try:
        pair = _key_at(path, agent.agent_id)
    except FileNotFoundError:
        pair = KeyPair.generate()
        write_key(path, agent.agent_id, pair)
        return pair
    if agent.had(pair.public) and not (agent.key and agent.key.public == pair.public):
        pair = KeyPair.generate()
        replace_key(path, agent.agent_id, pair)
    return pair


@contextlib.contextmanager
def _turn(places: Places) -> Iterator[_Turn]:
    owner = load_owner(places)
    if files.is_absent(places.audit):
        raise _no_registry(places)
    with AuditLog(places.audit, owner.public).writing() as writer:
        if not writer.events:
            raise _no_registry(places)
        yield _Turn.of(owner, writer)


def _key_at(path: Path, agent_id: str) -> KeyPair:
    try:
        return load_key(path, agent_id)
    except PermissionError as error:
        raise _masked(path, error) from error


def _check_pair(places: Places, owner: KeyPair, public: bytes) -> None:
    if public != owner.public:
        raise Unsafe(
            f"{visible(str(places.owner_key))} and {visible(str(places.owner_pub))} do not belong together",
            why="what the one signs the other does not verify",
            remedy="put back the file that was changed",
        )


def _masked(path: Path, error: OSError) -> Unsafe:
    return Unsafe(
        f"{visible(str(path))} cannot be read",
        why=f"{error.strerror}; it is there, so this may be a sandbox that hides it",
        remedy="run this outside the sandbox, or give the program a bundle: wakehub delegate NAME",
    )


def _not_initialised(path: Path) -> Unsafe:
    return Unsafe(f"{visible(str(path))} is missing", why="this instance is not set up", remedy="wakehub init")


def _no_registry(places: Places) -> Unsafe:
    """Why there is no log beside ``owner.pub``: an init that is unfinished, or a loss."""
    return _gone(places) if files.is_absent(unfinished_mark(places)) else _not_initialised(places.audit)


def _gone(places: Places) -> Unsafe:
    state = "missing" if files.is_absent(places.audit) else "empty"
    return Unsafe(
        f"the registry is gone: {visible(str(places.audit))} is {state}",
        why="who is enrolled stands there alone, and a new one would admit none of them",
        remedy="put audit.jsonl back from a backup; or move keys/ and state/ away and begin anew: wakehub init",
    )
