"""The acts that change the registry: enrolling, revoking, closing, delegating.

Every act needs the owner key and is one line of the audit log. It decides and writes in one turn of the log's lock,
and the key file it rests on comes first: kill it anywhere and run it again, and it completes. A key that ended is
never enrolled again: when its file is still there, it is replaced.
"""

import contextlib
import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wakehub import files
from wakehub.errors import BadData, NoRecipient, Unsafe
from wakehub.identity.addresses import DOCTOR, PUBLISHER, check_address, is_kept, is_reserved
from wakehub.identity.allowlist import sign
from wakehub.identity.audit import AuditLog, Event, Writer
from wakehub.identity.delegation import Certificate
from wakehub.identity.keys import KeyPair, b64, replace_key, verify, write_key
from wakehub.identity.nearness import near
from wakehub.identity.owner import Places, key_at, load_owner, no_registry
from wakehub.identity.registry import Agent, EnrolledKey, Registry, entry_of, to_allowlist
from wakehub.visible import visible


@dataclass(frozen=True, slots=True)
class Change:
    """What an act came to: the agent as it is now, and the line written, None when it already was so.

    `cut` counts the bytes of a torn last line of the log that were cut off; a person should be told.
    """

    agent: Agent
    event: Event | None
    cut: int = 0


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

    Raises `BadData` for the publisher, without which nobody is woken: who exchanges its key makes another at once.
    `NoRecipient` when the name was never enrolled, `Unsafe`.
    """
    if name == PUBLISHER:
        raise BadData(
            f"the key of {name} cannot be revoked",
            why="without one nobody is woken",
            remedy=f"to exchange it: rm {shlex.quote(str(places.agent_key(name)))} && wakehub init",
        )
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
        raise BadData(
            f"{name} cannot be closed",
            why="the name is kept for wakehub itself",
            remedy="list the names: wakehub agents",
        )
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
class Turn:
    """The owner at work: the only writer of the log, and the registry as the log tells it now."""

    owner: KeyPair
    writer: Writer
    registry: Registry

    @classmethod
    def of(cls, owner: KeyPair, writer: Writer) -> "Turn":
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
            self.registry.play(Event(number, math.floor(now_s), event, agent.agent_id, public, detail))
        except ValueError as error:
            raise BadData(
                f"cannot {event} {agent.agent_id}", why=visible(str(error)), remedy="see what is there: wakehub audit"
            ) from None
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
        allowlist.agents[agent.agent_id] = entry_of(agent, EnrolledKey(public, math.floor(now_s)))
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
        pair = key_at(path, agent.agent_id)
    except FileNotFoundError:
        pair = KeyPair.generate()
        write_key(path, agent.agent_id, pair)
        return pair
    if agent.had(pair.public) and not (agent.key and agent.key.public == pair.public):
        pair = KeyPair.generate()
        replace_key(path, agent.agent_id, pair)
    return pair


@contextlib.contextmanager
def _turn(places: Places) -> Iterator[Turn]:
    owner = load_owner(places)
    if files.is_absent(places.audit):
        raise no_registry(places)
    with AuditLog(places.audit, owner.public).writing() as writer:
        if not writer.events:
            raise no_registry(places)
        yield Turn.of(owner, writer)
