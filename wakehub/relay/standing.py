"""Whether a listener still is what it was started as (receive.md §6, `revoke` and `close`; formats.md, Registry).

Whoever listens under a name that was revoked or closed meanwhile is nobody any more, and what is sent to a name that
was enrolled anew behind a close is for another agent. Such a listener takes nothing more, gives its names up, and ends
with 77: as with any other identity that does not count, starting it again changes nothing before its owner acts. A key
that was changed within one generation (revoked and enrolled at once) leaves the agent what it was.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

from wakehub.client.home import ended
from wakehub.errors import Unsafe
from wakehub.relay.keyring import Keyring


class Standing:
    """The enrolments that `names` had when this was made. What the registry does not tell is not held against them."""

    def __init__(self, keyring: Keyring, names: Iterable[str]) -> None:
        self._keyring = keyring
        self._generations = {name: agent.generation if (agent := keyring.agent(name)) else None for name in names}

    def check(self) -> None:
        """Raise `Unsafe` (77) when one of the names ended; as cheap as a look whether the registry has changed."""
        for name, generation in self._generations.items():
            agent = self._keyring.agent(name)
            if agent is None:
                continue
            if agent.key is None:
                raise ended(agent)
            if generation is None:
                self._generations[name] = agent.generation
            elif agent.generation != generation:
                since = datetime.fromtimestamp(agent.key.since, UTC)
                raise Unsafe(
                    f"{name} is another agent since {since:%Y-%m-%d %H:%M} UTC",
                    why="it was closed and enrolled anew; this listener belongs to the one before",
                    remedy=f"to listen as the new one: wakehub listen --as {name}",
                )
