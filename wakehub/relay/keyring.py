"""What the registry says of a name now, and thus what the signature of a row proves (receive.md §1; formats.md)."""

import os

from wakehub.errors import WakehubError
from wakehub.identity.owner import read_registry
from wakehub.identity.registry import Agent, Registry
from wakehub.inbox.rows import Row
from wakehub.inbox.signing import Verified, verify_row
from wakehub.paths import Paths


class Keyring:
    """The registry of the instance at `paths`, read again when its file has changed."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._stamp: tuple[int, int, int] | None = None
        self._registry: Registry | None = None

    def verdict(self, row: Row) -> Verified:
        """Whether `row` is what its sender signed; with a registry that cannot be read, no key is known."""
        agent = self.agent(row.sender)
        current = agent.key.public if agent and agent.key else None
        past = [key.public for key in agent.keys if key.public != current] if agent else []
        return verify_row(row, current, past)

    def agent(self, name: str) -> Agent | None:
        """What the registry says of `name` now; None when it says nothing, or cannot be read."""
        stamp = self._stamp_now()
        if stamp != self._stamp:
            self._stamp = stamp
            self._registry = self._read()
        return self._registry.agents.get(name) if self._registry else None

    def _read(self) -> Registry | None:
        try:
            return read_registry(self._paths)
        except WakehubError:
            return None

    def _stamp_now(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._paths.audit, follow_symlinks=False)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size
