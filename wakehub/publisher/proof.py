"""Proves that the hub took a wake: nothing answers a good one, so a ping behind it does (formats.md, Poke).

Up to 64 wakes and one ping are sent; a pong without an error before it proves all of them. An error does not say which
wake it is for, so after one, or after 2 s of silence, each is repeated with a ping of its own. A second silence means
that the hub is not running any more, whatever its socket says; the session is given up.

Pongs carry nothing, but they come in the order of the pings: errors belong to the oldest ping that is still open, also
when its answer comes too late to be of use.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from wakehub.client.connection import HubSession
from wakehub.client.failures import Failure, HubError
from wakehub.errors import Violation
from wakehub.limits import PROOF_DEADLINE_MS
from wakehub.wire.payloads import Error, Wake
from wakehub.wire.protocol import Ponged

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
    """Sends wakes on `session`; `listen` must run beside it and is its only receiver."""

    def __init__(self, session: HubSession) -> None:
        self._session = session
        self._open: deque[_Ping] = deque()

    async def listen(self) -> None:
        """Take what the hub says until the session ends; raises its `HubError`."""
        while True:
            event = await self._session.receive()
            if isinstance(event, Error) and self._open:
                self._open[0].codes.append(event.code)
            elif isinstance(event, Ponged) and self._open:
                self._open.popleft().answered.set()

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
        self._open.append(ping)
        with trio.move_on_after(_DEADLINE_S) as sending:
            for target, wake in wakes:
                try:
                    await self._session.wake(target, wake)
                except Violation as violation:  # an address from the record that no frame can carry
                    ping.codes.append(violation.code)
            await self._session.ping()
        if sending.cancelled_caught:
            raise HubError(Failure.TIMEOUT, "the hub reads nothing", remedy="wakehub --health says more")
        with trio.move_on_at(sending.deadline):
            await ping.answered.wait()
        return ping.codes if ping.answered.is_set() else None
