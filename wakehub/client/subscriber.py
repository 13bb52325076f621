"""The waiting client: holds one hub session and rings the doorbell when something may be there (receive.md §3).

It never reads the inbox, and it is never needed for it: with or without a hub, the reader's backstop is armed. What it
adds is speed. It connects, reconnects by the ladder, renews its delegation by a new session before the old one ends
(whatever fell between the two is replayed by the hub, and each welcome rings), and watches wall clock against
monotonic clock: more than 5 s apart means that the machine slept or its clock was set.

`run` returns when another session took this one's place and the name is no longer ours.
"""

import random
import re
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

import trio

from wakehub.client import diagnosis, own_sessions
from wakehub.client.backoff import Ladder
from wakehub.client.connection import HubSession, connect
from wakehub.client.credentials import Credentials, needs_renewal
from wakehub.client.doorbell import Doorbell, Reason
from wakehub.client.failures import Failure, HubError
from wakehub.client.lent_session import LentSession
from wakehub.client.proof import Prover
from wakehub.config import Config
from wakehub.errors import WakehubError
from wakehub.files import Stamp
from wakehub.identity.delegation import Bundle
from wakehub.limits import (
    CLOCK_CHECK_MS,
    CLOCK_DRIFT_SECONDS,
    ENROLMENT_WAIT_SECONDS,
    FILE_WATCH_MS,
    MAX_KNOWN_AGENTS,
    PROOF_DEADLINE_MS,
)
from wakehub.wire.payloads import Wake
from wakehub.wire.protocol import Event, Ponged, Woken

_NEVER: Final = float("inf")
_NUMBER: Final = re.compile(r"\d+")


class _Cut(Enum):
    """Why a session was ended from this side."""

    RENEWAL = auto()
    NO_PONG = auto()


class Subscriber:
    """Keeps one session for one listener.

    `still_ours` says whether the listener's names are still its own; `tell` gets one line per state change, for a
    person. `is_new` is true for a name that was enrolled just now: the first hello waits up to 5 s until the signed
    allowlist shows it. `wall` is the wall clock in seconds, `draw` gives numbers in [0, 1).
    """

    def __init__(
        self,
        config: Config,
        credentials: Credentials,
        bell: Doorbell,
        *,
        still_ours: Callable[[], bool],
        tell: Callable[[str], None],
        is_new: bool = False,
        wall: Callable[[], float] = time.time,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._config = config
        self._credentials = credentials
        self._bell = bell
        self._still_ours = still_ours
        self._tell = tell
        self._is_new = is_new
        self._wall = wall
        self._ladder = Ladder(draw)
        self._marks: dict[bytes, int] = {}
        self._told: str | None = None
        self._prover: Prover | None = None
        self._bundle: Bundle | None = None
        self._scope = trio.CancelScope()
        self._pause_scope = trio.CancelScope()
        self._cut: _Cut | None = None
        self._pong_due = _NEVER

    async def run(self) -> None:
        """Hold a session until the name is lost to another process."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_clock)
            if self._is_new:
                await self._until_listed()
            await self._hold()
            nursery.cancel_scope.cancel()

    async def _until_listed(self) -> None:
        with trio.move_on_after(ENROLMENT_WAIT_SECONDS):
            while not self._is_listed():  # noqa: ASYNC110  # files have no event that works everywhere
                await trio.sleep(FILE_WATCH_MS / 1000)

    def _is_listed(self) -> bool:
        try:
            bundle = self._credentials.bundle(self._wall())
        except WakehubError:
            return True  # nothing to wait for: the first attempt says what is wrong
        return diagnosis.reason(bundle, self._config, self._wall()) is None

    async def _hold(self) -> None:
        while True:
            before = self._stamps()  # ahead of the attempt: a change behind its refusal must count
            error = await self._attempt()
            if error is None:
                continue
            if error.failure is Failure.REPLACED and not self._still_ours():
                return
            self._say(error)
            await self._pause(error.failure, before)

    async def _attempt(self) -> HubError | None:
        """One session from connecting to its end: None when it was ended to renew the delegation."""
        self._cut = None
        began = _NEVER
        failure: HubError | None = None
        with trio.CancelScope() as self._scope:
            try:
                self._bundle = self._credentials.bundle(self._wall())
                async with connect(self._config.hub_socket, self._bundle) as session:
                    began = trio.current_time()
                    await self._attend(session)
            except HubError as error:
                failure = self._explained(error)
            except WakehubError as error:  # no identity to connect with
                failure = HubError(Failure.UNAUTHORIZED, error.what, why=error.why, remedy=error.remedy)
            finally:
                self._prover = None
                self._pong_due = _NEVER
                self._ladder.session_ended(trio.current_time() - began)
        if self._cut is _Cut.RENEWAL:
            return None
        if self._cut is _Cut.NO_PONG:
            return self._explained(HubError(Failure.TIMEOUT, "the hub no longer answers"))
        return failure

    async def _attend(self, session: HubSession) -> None:
        self._prover = prover = Prover(session)
        self._ladder.advise(session.welcome.reconnect_base_ms, session.welcome.reconnect_jitter_ms)
        if self._told is not None:
            self._told = None
            self._tell("connected to the hub")
        self._bell.ring(Reason.WELCOME)
        with own_sessions.offered(self._config.hub_socket, LentSession(prover)):
            while True:
                event = await session.receive()
                prover.take(event)
                self._take(event)

    def _take(self, event: Event) -> None:
        if isinstance(event, Woken):
            self._bell.ring(Reason.GAP if self._missed_one(event.wake) else Reason.WAKE)
        elif isinstance(event, Ponged):
            self._pong_due = _NEVER

    def _missed_one(self, wake: Wake) -> bool:
        if not wake.watermark:
            return False
        if len(self._marks) >= MAX_KNOWN_AGENTS and wake.namespace not in self._marks:
            self._marks.clear()  # namespaces are the senders' words: they must not fill the memory
        last = self._marks.get(wake.namespace, wake.watermark)
        self._marks[wake.namespace] = max(last, wake.watermark)
        return wake.watermark > last + 1

    def _explained(self, error: HubError) -> HubError:
        if self._bundle is None:
            return error
        return diagnosis.explain(error, self._bundle, self._config, self._wall(), self._credentials.remedy())

    def _say(self, error: HubError) -> None:
        """Say what is wrong once, until something else is; a number that grows does not make it another trouble."""
        trouble = _NUMBER.sub("", f"{error.what} {error.why}")
        if trouble != self._told:
            self._told = trouble
            self._tell(f"{error}; the record is read all the same")

    async def _pause(self, failure: Failure, before: object) -> None:
        until = trio.current_time() + self._ladder.delay_ms(failure) / 1000
        with trio.CancelScope(deadline=until) as self._pause_scope:
            if failure is Failure.UNAUTHORIZED:
                while self._stamps() == before:  # noqa: ASYNC110  # files have no event that works everywhere
                    await trio.sleep(FILE_WATCH_MS / 1000)
            else:
                await trio.sleep_forever()

    def _stamps(self) -> object:
        """What changes when a file changes that a 401 may depend on."""
        place, source = self._config, self._credentials
        watched = (place.allowlist, place.owner_pub, source.bundle_file, source.key_file)
        return tuple(Stamp.at(path) for path in watched if path is not None)

    async def _watch_clock(self) -> None:
        offset = self._wall() - trio.current_time()
        while True:
            await trio.sleep(CLOCK_CHECK_MS / 1000)
            now = self._wall() - trio.current_time()
            if abs(now - offset) > CLOCK_DRIFT_SECONDS:
                offset = now
                await self._clock_jumped()
            if trio.current_time() > self._pong_due:
                self._end(_Cut.NO_PONG)
            self._renew_if_due()

    async def _clock_jumped(self) -> None:
        """Read at once, and see whether the session still lives; a pause ends, as nobody knows how long it was."""
        self._bell.ring(Reason.CLOCK)
        self._pause_scope.cancel()
        if self._prover is None:
            return
        self._pong_due = trio.current_time() + PROOF_DEADLINE_MS / 1000
        with trio.move_on_at(self._pong_due):
            try:
                await self._prover.ping()
            except HubError:
                pass  # the receiving side sees it as well, and reports it

    def _renew_if_due(self) -> None:
        """End the session for a new one with a new bundle, if its own nears its end and there is a better one."""
        if self._prover is None or self._bundle is None or not needs_renewal(self._bundle, self._wall()):
            return
        try:
            better = self._credentials.bundle(self._wall())
        except WakehubError:
            return  # the present one is good to its end; then the refusal says what is missing
        if not needs_renewal(better, self._wall()):
            self._end(_Cut.RENEWAL)

    def _end(self, cut: _Cut) -> None:
        self._cut = cut
        self._scope.cancel()
