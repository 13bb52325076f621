"""What the registry says of a name now, and thus what the signature of a row proves (receive.md §1; formats.md).

With a registry that cannot be read no key is known, and nothing is verified. That is no fault of a row or its sender,
so it is said, once until there is another reason.
"""

from collections.abc import Callable
from typing import Final

from wakehub.errors import WakehubError
from wakehub.files import Stamp
from wakehub.identity.owner import read_registry
from wakehub.identity.registry import Agent, Registry
from wakehub.inbox.rows import Row
from wakehub.inbox.signing import Verified, verify_row
from wakehub.paths import Paths

_NEVER: Final = object()


class Keyring:
    """The registry of the instance at `paths`, read again when its files have changed.

    `tell` gets a line when it cannot be read; `trouble` is that line while it lasts, else empty.
    """

    def __init__(self, paths: Paths, tell: Callable[[str], None] = lambda _: None) -> None:
        self.trouble = ""
        self._paths = paths
        self._tell = tell
        self._stamps: object = _NEVER
        self._registry: Registry | None = None

    def verdict(self, row: Row) -> Verified:
        """Whether `row` is what its sender signed; with a registry that cannot be read, no key is known."""
        agent = self.agent(row.sender)
        current = agent.key.public if agent and agent.key else None
        past = [key.public for key in agent.keys if key.public != current] if agent else []
        return verify_row(row, current, past)

    def agent(self, name: str) -> Agent | None:
        """What the registry says of `name` now; None when it says nothing, or cannot be read."""
        stamps = [Stamp.at(self._paths.audit), Stamp.at(self._paths.owner_pub)]
        if stamps != self._stamps:
            self._stamps = stamps
            self._read()
        return self._registry.agents.get(name) if self._registry else None

    def _read(self) -> None:
        before, self._registry, self.trouble = self.trouble, None, ""
        try:
            self._registry = read_registry(self._paths)
        except WakehubError as error:
            why = f": {error.why}" if error.why else ""
            self.trouble = f"no signature can be verified: {error.what}{why}; next: wakehub doctor"
            if self.trouble != before:
                self._tell(self.trouble)
