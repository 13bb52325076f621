"""Proves that the hub took a wake: nothing answers a good one, so a ping behind it does (formats.md, Poke).

The publisher's wakes are proven so, and those that a program sends over the session it listens on (`own_sessions`).

Up to 64 wakes and one ping are sent; a pong without an error before it proves all of them. An error does not say which
wake it is for, so after one, or after 2 s of silence, each is repeated with a ping of its own. A second silence means
that the hub is not running any more, whatever its socket says; the publisher gives the session up.

Pongs carry nothing, but they come in the order of the pings, so every ping of the session is sent from here, each in
one turn with its wakes: errors belong to the oldest ping that is still open, also when its answer comes too late to be
of use.
"""

import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from wakehub.client.connection import HubSession
from wakehub.client.failures import Failure, HubError
from wakehub.errors import Violation
from wakehub.limits import PROOF_DEADLINE_MS
from wakehub.wire.payloads import Error, Wake
from wakehub.wire.protocol import Event, Ponged

Addressed = tuple[str, Wake]
"""A wake and the agent id it goes to."""

Spend = Callable[[int], Awaitable[None]]
"""Waits until the budget has so many frames."""

_DEADLINE_S: Final = PROOF_DEADLINE_MS / 1000


class _Ping:
    """A ping on its way: the codes of the errors that came before its pong."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.answered = trio.Event()


class Prover:
    """Sends wakes and pings on `session`; who receives on it gives each event to `take`, as `listen` does."""

    def __init__(self, session: HubSession) -> None:
        self._session = session
        self._open: deque[_Ping] = deque()
        self._turn = trio.Lock()

    async def listen(self) -> None:
        """Take what the hub says until the session ends; raises its `HubError`."""
        while True:
            self.take(await self._session.receive())

    def take(self, event: Event) -> None:
        """Note what an event of the session proves, if anything."""
        if isinstance(event, Error) and self._open:
            self._open[0].codes.append(event.code)
        elif isinstance(event, Ponged) and self._open:
            self._open.popleft().answered.set()

    async def ping(self) -> None:
        """Send a ping that proves nothing but the session; raises `HubError` as `HubSession.ping` does."""
        await self._send(_Ping(), ())

    async def deliver(self, wakes: Sequence[Addressed], spend: Spend) -> list[int | None]:
        """Send `wakes` (1..64); for each None when the hub took it, else the code it was refused with.

        One frame for each and one for the ping are paid for already; what a repetition takes is paid with `spend`.

        A shorter list means that the hub fell silent behind those: the session is of no use any more. Raises
        `HubError` when it ended, or does not even take what is sent.
        """
        codes = await self._prove(wakes)
        if codes == []:
            return [None] * len(wakes)
        if codes and len(wakes) == 1:
            return [codes[0]]
        answers: list[int | None] = []
        for wake in wakes:
            await spend(2)
            codes = await self._prove([wake])
            if codes is None:
                break
            answers.append(codes[0] if codes else None)
        return answers

    async def _prove(self, wakes: Sequence[Addressed]) -> list[int] | None:
        """The codes that came before the pong; None when no pong came within 2 s."""
        ping = _Ping()
        with trio.move_on_after(_DEADLINE_S) as sending:
            await self._send(ping, wakes)
        if sending.cancelled_caught:
            raise HubError(Failure.TIMEOUT, "the hub reads nothing", remedy="wakehub --health says more")
        with trio.move_on_at(sending.deadline):
            await ping.answered.wait()
        return ping.codes if ping.answered.is_set() else None

    async def _send(self, ping: _Ping, wakes: Sequence[Addressed]) -> None:
        async with self._turn:
            self._open.append(ping)
            try:
                for target, wake in wakes:
                    try:
                        await self._session.wake(target, wake)
                    except Violation as violation:  # an address from the record that no frame can carry
                        ping.codes.append(violation.code)
                await self._session.ping()
            except BaseException:
                with contextlib.suppress(ValueError):  # a pong that nobody asked for
                    self._open.remove(ping)
                raise
