"""One small world: an owner, an agent, a signed allowlist on disk, and the hellos that people may try with it."""

import os
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path

from wakehub import files
from wakehub.identity.allowlist import Allowlist, AllowlistFile, Entry, sign
from wakehub.identity.delegation import Bundle
from wakehub.identity.keys import KeyPair
from wakehub.identity.stamps import NS
from wakehub.identity.verifier import Claim, DelegationVerifier
from wakehub.wire import transcript

NOW = 1_790_000_000
HUB = "wakehub"
AGENT = "acme/eng/bob"


@dataclass
class World:
    path: Path
    owner: KeyPair = field(default_factory=lambda: KeyPair(b"\1" * 32))
    agent: KeyPair = field(default_factory=lambda: KeyPair(b"\2" * 32))
    mono_s: float = 100.0

    def __post_init__(self) -> None:
        self.entry = Entry(
            AGENT, self.agent.public, "possession_proof", (NOW - 60) * NS, frozenset(), ("acme/eng", "acme")
        )
        self.file = AllowlistFile(self.path, self.owner.public)
        self.verifier = DelegationVerifier(HUB, self.file, lambda: self.mono_s)
        self.publish()

    def publish(self, *, at_s: float = NOW, **changes: object) -> None:
        """Sign the allowlist anew, its one entry with these changes."""
        self.entry = replace(self.entry, **changes)
        self.publish_all(Allowlist(int(at_s * NS), 60, {self.entry.agent_id: self.entry}))

    def publish_all(self, allowlist: Allowlist) -> None:
        files.replace(self.path, sign(allowlist, self.owner))

    def bundle(self, *, agent_id: str = AGENT, hub_id: str = HUB, now_s: float = NOW, ttl_s: int = 3600) -> Bundle:
        return Bundle.make(agent_id, self.agent, hub_id, now_s, ttl_s)

    def claim(self, bundle: Bundle, *topics: bytes, agent_id: str | None = None) -> Claim:
        """An honest hello with `bundle`, said in the name of `agent_id`."""
        name = bundle.agent_id if agent_id is None else agent_id
        nonce = secrets.token_bytes(32)
        signature = bundle.delegate.sign(transcript.hello(HUB.encode(), nonce, name.encode(), topics))
        return Claim(name, bundle.delegate.public, signature, bundle.certificate, topics, nonce)


def make_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir(0o700)
