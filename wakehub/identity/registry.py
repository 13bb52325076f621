"""Names and who owns them, as the verified audit log tells from its first line (formats.md, Registry).

A name has *generations*: closing ends one, enrolling again begins the next, which does not inherit the old mail.
Within a generation the *key* may change: revoking ends a key, enrolling again makes another. Keys that ended are
remembered, since they still verify the rows that were signed with them at the time.

The allowlist is derived from the registry and from nothing else.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from wakehub.errors import NoRecipient, Unsafe
from wakehub.identity import strict_json
from wakehub.identity.addresses import DAEMONS, is_kept, is_reserved
from wakehub.identity.allowlist import DAEMON_KEY_DIR, POSSESSION_PROOF, Allowlist, Entry
from wakehub.identity.audit import Event
from wakehub.identity.keys import unb64_key
from wakehub.identity.scope import prefixes_of
from wakehub.identity.stamps import NS
from wakehub.limits import ALLOWLIST_VALID_SECONDS, CLOCK_LEEWAY_SECONDS
from wakehub.visible import visible


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
                registry.play(event)
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

    def play(self, event: Event) -> None:
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
            name: entry_of(agent, key)
            for name, agent in sorted(registry.agents.items())
            if (key := agent.key) and key.since <= now + CLOCK_LEEWAY_SECONDS
        },
    )


def entry_of(agent: Agent, key: EnrolledKey) -> Entry:
    return Entry(
        agent.agent_id,
        key.public,
        DAEMON_KEY_DIR if agent.is_daemon else POSSESSION_PROOF,
        key.since * NS,
        agent.revoked_keys,
        () if agent.is_daemon else prefixes_of(agent.agent_id),
    )
