"""Where a client's session identity comes from, and when it needs a new one (receive.md §3, §6).

In this order: the bundle in `$WAKEHUB_BUNDLE` (a place without files), a bundle minted in memory from the enrolled
key (the session key then never touches a disk), the bundle file that `wakehub delegate` wrote. Key and bundle are read
from their files anew each time: enrolling a name that was revoked makes another key.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wakehub.client.home import AgentKey, ensure_agent
from wakehub.config import Config
from wakehub.errors import Unsafe, WakehubError
from wakehub.identity.delegation import Bundle
from wakehub.identity.keys import KeyPair, load_key
from wakehub.identity.stamps import NS
from wakehub.limits import CLOCK_LEEWAY_SECONDS, DEFAULT_DELEGATION_SECONDS, RENEW_BEFORE_END_SECONDS
from wakehub.visible import visible


@dataclass(frozen=True, slots=True)
class Credentials:
    """The sources of bundles for `agent_id` at hub `hub_id`.

    `key` is its enrolled key where we may hold it, as `key_file` held it first.
    """

    agent_id: str
    hub_id: str
    key: KeyPair | None
    bundle_file: Path
    key_file: Path | None = None

    def bundle(self, now_s: float, environ: Mapping[str, str] = os.environ) -> Bundle:
        """A bundle for a session that begins now (`now_s`: wall clock, seconds).

        Raises `Unsafe` (77) when there is no source, or the one there is belongs to another agent or hub.
        """
        given = Bundle.from_environment(environ)
        if given is not None:
            return _checked(given, "$WAKEHUB_BUNDLE", self.agent_id, self.hub_id)
        if (key := self._key_now()) is not None:
            return Bundle.make(self.agent_id, key, self.hub_id, now_s, DEFAULT_DELEGATION_SECONDS)
        try:
            loaded = Bundle.load(self.bundle_file)
            return _checked(loaded, visible(str(self.bundle_file)), self.agent_id, self.hub_id)
        except (FileNotFoundError, PermissionError) as error:
            raise Unsafe(
                f"no identity for {visible(self.agent_id)}",
                why=f"no enrolled key and no bundle can be read ({error.strerror})",
                remedy=f"as the owner: wakehub delegate {visible(self.agent_id)} --ttl 12h",
            ) from error

    def remedy(self, environ: Mapping[str, str] = os.environ) -> str:
        """What to do when the hub refuses the identity itself, by where it comes from."""
        name = visible(self.agent_id)
        if environ.get("WAKEHUB_BUNDLE"):
            return f"start it again with another $WAKEHUB_BUNDLE, made by: wakehub delegate {name} --ttl 12h"
        return f"wakehub enroll {name}" if self.key is not None else f"wakehub delegate {name} --ttl 12h"

    def _key_now(self) -> KeyPair | None:
        if self.key is None or self.key_file is None:
            return self.key
        try:
            return load_key(self.key_file, self.agent_id)
        except (OSError, WakehubError):  # out of reach by now; the hub decides whether the one at hand still counts
            return self.key


def check_environment(config: Config, name: str, environ: Mapping[str, str] = os.environ) -> None:
    """Raise `Unsafe` (77) when `$WAKEHUB_BUNDLE` is no bundle, or one with which `name` could not say hello."""
    if (given := Bundle.from_environment(environ)) is not None:
        _checked(given, "$WAKEHUB_BUNDLE", name, config.hub_id)


def _checked(bundle: Bundle, where: str, agent_id: str, hub_id: str) -> Bundle:
    if (bundle.agent_id, bundle.hub_id) != (agent_id, hub_id):
        raise Unsafe(
            f"the bundle in {where} is for {visible(bundle.agent_id)} at hub {visible(bundle.hub_id)}",
            why=f"this is {visible(agent_id)} at hub {visible(hub_id)}",
            remedy=f"use --as {visible(bundle.agent_id)} --hub-id {visible(bundle.hub_id)}, or another bundle",
        )
    return bundle


def needs_renewal(bundle: Bundle, now_s: float) -> bool:
    """Whether a session should go on with a new bundle: min(10 min, a third of its life) before its end, and when the
    clock was set to before its beginning."""
    begin_s, end_s = (stamp / NS for stamp in bundle.window())
    margin_s = min(RENEW_BEFORE_END_SECONDS, (end_s - begin_s) / 3)
    return now_s >= end_s - margin_s or now_s < begin_s - CLOCK_LEEWAY_SECONDS


def obtain(config: Config, name: str, environ: Mapping[str, str] = os.environ) -> tuple[Credentials, AgentKey | None]:
    """The credentials of `name` and its enrolled key, enrolling a name that is new; no key where only a bundle is.

    Raises as `ensure_agent` does when there is no bundle to go by either.
    """
    bundle_file = config.paths.bundle(name)
    try:
        agent = ensure_agent(config, name)
    except Unsafe:
        if Bundle.from_environment(environ) is None and not bundle_file.exists():
            raise
        agent = None
    key_file = config.paths.agent_key(name)
    return Credentials(name, config.hub_id, agent.pair if agent else None, bundle_file, key_file), agent
