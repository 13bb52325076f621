"""Which session a message goes to (receive.md §4, 2).

| listener | its messages go to |
|---|---|
| `--opt session=NAME` | the session of that name |
| inside a session (`$CLAUDE_CODE_SESSION_ID`) | that session |
| any other, for `<ws>/claude` | the session that ran `wakehub claim`; else the interactive one that was started last |
| any other, for `<ws>/NAME` | the session called NAME, and never another one |

A relay for a namespace takes no notice of the session it was started in: it routes by the address. A session's name is
compared as it is, else as it would be written as an address: `fix auth` is reached as `fix-auth`. Where several
sessions answer to one name nobody is guessed at: the message waits until the name is clear.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from wakehub.client.claude_sessions import Session
from wakehub.identity.addresses import name_from_directory
from wakehub.inbox.tenure import is_namespace
from wakehub.relay.message import after_workspace, workspace
from wakehub.relay.options import ToClaude

SHARED: Final = "claude"
"""The last part of the shared endpoint of a workspace."""


class Bond:
    """Stays with one session: by pid and start time, and, once that process is gone, by the id it had last.

    The id changes with ``/clear``; a session that is resumed has it again in another process.
    """

    def __init__(self, session_id: str, process: tuple[int, str] | None = None) -> None:
        self._session_id = session_id
        self._process = process

    def find(self, sessions: Iterable[Session]) -> Session | None:
        found: Session | None = None
        for session in sessions:
            if (session.pid, session.started) == self._process:
                found = session
                break
            if session.session_id == self._session_id:
                found = session
        if found is not None:
            self._session_id, self._process = found.session_id, (found.pid, found.started)
        return found


class Router:
    """Chooses for a listener that holds `names`; `claimed` tells the claim on a shared endpoint, if there is one."""

    def __init__(
        self,
        to: ToClaude,
        names: Sequence[str],
        environ: Mapping[str, str],
        claimed: Callable[[str], Bond | None],
    ) -> None:
        self._to = to
        self._names = names
        self._claimed = claimed
        own = environ.get("CLAUDE_CODE_SESSION_ID")
        is_relay = any(map(is_namespace, names))
        self._own = Bond(own) if own and not is_relay else None

    def candidates(self, agent: str, sessions: Collection[Session]) -> list[Session]:
        """The sessions that messages for the address `agent` may mean: none, the one, or several of one name."""
        address = after_workspace(agent)
        if self._to.agents is not None and address not in self._to.agents:
            return []
        if self._to.session is not None:
            return [session for session in sessions if session.name == self._to.session]
        if self._own is not None:
            return _as_list(self._own.find(sessions))
        if address == SHARED:
            return _as_list(self._shared(agent, sessions))
        exact = [session for session in sessions if session.name == address]
        return exact or [session for session in sessions if name_from_directory(session.name) == address]

    def absence(self, agent: str) -> str:
        """Why there are no `candidates` for the address `agent`, in words."""
        address = after_workspace(agent)
        if self._to.agents is not None and address not in self._to.agents:
            return f"--opt agents= leaves {address} out"
        if self._own is not None and self._to.session is None:
            return "the session for which this listener was started is not running"
        if address == SHARED and self._to.session is None:
            return "no interactive session is running"
        return f"no session called {self._to.session or address} is running"

    def _shared(self, agent: str, sessions: Collection[Session]) -> Session | None:
        bond = self._claimed(agent)
        claimed = bond.find(sessions) if bond is not None else None
        return claimed or newest(sessions)

    def is_anyone_there(self, sessions: Collection[Session]) -> bool:
        """Whether there is a session at all that messages under our names could go to."""
        return any(self._can_mean(name, sessions) for name in self._names)

    def _can_mean(self, name: str, sessions: Collection[Session]) -> bool:
        if not is_namespace(name):
            return bool(self.candidates(name, sessions))
        if self._to.agents is None:
            return bool(sessions)
        return any(self.candidates(f"{workspace(name)}/{agent}", sessions) for agent in self._to.agents)


def newest(sessions: Iterable[Session]) -> Session | None:
    """The interactive session that was started last, of those that take messages; else of those that do not."""
    interactive = [session for session in sessions if session.is_interactive]
    return max(interactive, key=lambda session: (session.socket is not None, session.started_at), default=None)


def _as_list(session: Session | None) -> list[Session]:
    return [] if session is None else [session]
