"""The backend `claude`: a message into the inbox of a running session, proven by its transcript (receive.md §4, 2-7).

    find the session ──▶ post ──▶ look for 40 s ──▶ post once more ──▶ look for 10 s ──▶ not now, from 60 s on
                                       └── the transcript shows it ──────────┴──▶ handed off

Rules. Nothing but the transcript proves a hand-off. Which process a session is, is settled once for each attempt; its
session id is read anew for each post, since ``/clear`` changes it. Messages to one session go one at a time and at
least 2 s apart. What was posted and not shown is remembered: at the next attempt the transcript is looked at first,
from where it was at the first post, so that a message that was held back for long is not said once more. When a session
ends, one last look decides; the message then waits for its address to have a session again.
"""

import os
import uuid
from collections import OrderedDict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import trio

from wakehub.client import claude_sessions as sessions
from wakehub.client.claude_sessions import Session
from wakehub.limits import (
    MAX_LOOKS,
    SESSION_DEADLINE_SECONDS,
    SESSION_PAUSE_MS,
    SESSION_PROOF_POLL_MS,
    SESSION_PROOF_SECONDS,
    SESSION_RETRY_SECONDS,
    SESSION_SECOND_POST_SECONDS,
)
from wakehub.paths import Paths
from wakehub.relay.backends import Backend, HandedOff, NotNow, Outcome, OutputGone
from wakehub.relay.backends.claude import claims, directory
from wakehub.relay.backends.claude.post import NotPosted, post
from wakehub.relay.backends.claude.routing import Router
from wakehub.relay.backends.claude.transcript import Look
from wakehub.relay.message import Message
from wakehub.relay.options import ToClaude
from wakehub.relay.render import render
from wakehub.visible import visible

_PROOF: Final = "transcript"
_POSTS: Final = (SESSION_PROOF_SECONDS + SESSION_SECOND_POST_SECONDS, SESSION_PROOF_SECONDS)
"""How long to look behind each post, in seconds."""


@dataclass(slots=True)
class _Line:
    """The way to one session: one message at a time, the next one not before `free_at` (Trio's clock)."""

    turn: trio.Lock = field(default_factory=trio.Lock)
    free_at: float = 0.0


class Sessions(Backend):
    """Delivers to the sessions of Claude Code on this machine, for a listener that holds `names`."""

    deadline_s = SESSION_DEADLINE_SECONDS
    is_apart = True

    def __init__(self, to: ToClaude, names: Sequence[str], paths: Paths, environ: Mapping[str, str]) -> None:
        self._directory = directory(environ)
        self._router = Router(to, names, environ, partial(claims.claimed, paths))
        self._exit_after_s = to.exit_after_s
        self._there: list[Session] | None = None
        self._seen_at: float | None = None
        self._lines: dict[tuple[int, str], _Line] = {}
        self._looks: OrderedDict[str, Look] = OrderedDict()
        self.mode = "each message to its Claude Code session, acknowledged once its transcript shows it"
        if nowhere := self._nowhere():
            self.mode += f"; {nowhere}"

    # --- who is there ---

    def check(self) -> None:
        """Look who is there; raise `OutputGone` when nobody has been for `exit_after` seconds."""
        now = trio.current_time()
        there = self._scan()
        if self._seen_at is None or self._router.is_anyone_there(there):
            self._seen_at = now
        elif self._exit_after_s and now - self._seen_at >= self._exit_after_s:
            raise OutputGone(f"no Claude Code session has been running for {self._exit_after_s} s")

    def exists(self, agent: str) -> bool:
        there = self._scan() if self._there is None else self._there
        return bool(self._router.candidates(agent, there))

    def absence(self, agent: str) -> str:
        return self._nowhere() or self._router.absence(agent)

    def _nowhere(self) -> str:
        """What to say where no session ever ran; empty where one did."""
        where = self._directory / "sessions"
        return "" if os.path.isdir(where) else f"there is no {visible(str(where))} yet; is CLAUDE_CONFIG_DIR right?"

    def list_agents(self) -> Collection[Hashable]:
        return {(session.pid, session.started, session.name, session.socket) for session in self._there or ()}

    def _scan(self) -> list[Session]:
        self._there = sessions.scan(self._directory)
        living = {(session.pid, session.started) for session in self._there}
        self._lines = {process: line for process, line in self._lines.items() if process in living}
        return self._there

    # --- handing off ---

    async def deliver(self, message: Message) -> Outcome:
        earlier = self._looks.get(message.row.id)
        if earlier is not None and earlier.finds():
            return self._handed_off(message.row.id)
        found = self._router.candidates(message.row.recipient, self._scan())
        if not found:
            return NotNow(self.absence(message.row.recipient), busy=True)
        if len(found) > 1:
            pids = ", ".join(str(session.pid) for session in found)
            return NotNow(f"several sessions have that name: pid {pids}; rename all but one", busy=True)
        (session,) = found
        line = self._lines.setdefault((session.pid, session.started), _Line())
        async with line.turn:
            return await self._hand_over(message, session, line)

    async def _hand_over(self, message: Message, session: Session, line: _Line) -> Outcome:
        look = self._look(message.row.id)
        message_id = str(uuid.uuid4())
        for again, patience_s in enumerate(_POSTS):
            await trio.sleep_until(line.free_at)
            current = self._reread(session)
            if current is None:
                return self._ended(look, message, session, in_doubt=again > 0)
            look.follow(current)
            text = _text(message, again)
            try:
                await post(self._directory, current, text, message_id)
            except NotPosted as failure:
                return NotNow(failure.reason, busy=not failure.in_doubt, in_doubt=failure.in_doubt or again > 0)
            finally:
                line.free_at = trio.current_time() + SESSION_PAUSE_MS / 1000
            if await self._shows(look, session, patience_s):
                return self._handed_off(message.row.id)
            if self._reread(session) is None:
                return self._ended(look, message, session, in_doubt=True)
        told = f"; it speaks peer protocol {session.protocol}" if session.protocol else ""
        return NotNow(
            f"{session} was told twice, and its transcript shows nothing{told}",
            in_doubt=True,
            retry_s=SESSION_RETRY_SECONDS,
        )

    async def _shows(self, look: Look, session: Session, patience_s: float) -> bool:
        """Whether the transcript shows the message within so many seconds, or before the session ends."""
        until = trio.current_time() + patience_s
        while not look.finds():
            if trio.current_time() >= until:
                return False
            await trio.sleep(SESSION_PROOF_POLL_MS / 1000)
            current = self._reread(session)
            if current is None:
                return look.finds()
            look.follow(current)
        return True

    def _reread(self, session: Session) -> Session | None:
        """What the session says about itself now; None when that process is gone."""
        current = sessions.read(self._directory, session.pid)
        return current if current is not None and current.is_same_process(session) else None

    def _ended(self, look: Look, message: Message, session: Session, *, in_doubt: bool) -> Outcome:
        if look.finds():
            return self._handed_off(message.row.id)
        return NotNow(f"{session} ended before it showed the message", busy=True, in_doubt=in_doubt)

    # --- what was posted and not shown yet ---

    def _look(self, row_id: str) -> Look:
        """The look at the message `row_id`: the one that began with an earlier post, if there is one."""
        look = self._looks.pop(row_id, None) or Look(self._directory, row_id)
        self._looks[row_id] = look
        while len(self._looks) > MAX_LOOKS:
            self._looks.popitem(last=False)
        return look

    def _handed_off(self, row_id: str) -> HandedOff:
        self._looks.pop(row_id, None)
        return HandedOff(_PROOF)


def _text(message: Message, again: int) -> str:
    """The `agent` block; said again, it is marked as what it may be: a redelivery."""
    row = replace(message.row, redelivery=message.row.redelivery + again)
    return render(replace(message, row=row), "agent").decode()
