"""A hub session of this process, as its senders in other threads may use it (receive.md §5; `own_sessions`).

It lives in the Trio loop of its subscription. Apart from `own_sessions`, since a `wakehub send` loads that one, and
nobody in it holds a session: Trio would be half of what it takes to start.
"""

import os
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Final

import trio

from wakehub.client.failures import HubError
from wakehub.client.proof import Addressed, Prover
from wakehub.limits import POKE_DEADLINE_MS, WAKE_BATCH

_DEADLINE_S: Final = POKE_DEADLINE_MS / 1000


class LentSession:
    """The session of `prover`; made in the loop that it lives in."""

    def __init__(self, prover: Prover) -> None:
        self._prover = prover
        self._token = trio.lowlevel.current_trio_token()
        self._pid = os.getpid()

    def is_usable(self) -> bool:
        """Whether its loop is another thread's: a child of `fork` has no such thread, and this one must not wait."""
        try:
            own = trio.lowlevel.current_trio_token()
        except RuntimeError:
            own = None
        return self._pid == os.getpid() and self._token is not own

    def deliver(self, wakes: Sequence[Addressed]) -> list[int | None]:
        """What the hub said to each wake, as far as it did within 2 s; for the codes see `Prover.deliver`."""
        codes: list[int | None] = []
        done: Future[None] = Future()

        async def deliver() -> None:
            try:
                with trio.move_on_after(_DEADLINE_S), suppress(HubError):
                    for first in range(0, len(wakes), WAKE_BATCH):
                        codes.extend(await self._prover.deliver(wakes[first : first + WAKE_BATCH], _spend))
            finally:
                done.set_result(None)

        with suppress(trio.RunFinishedError, TimeoutError):
            self._token.run_sync_soon(trio.lowlevel.spawn_system_task, deliver)
            done.result(_DEADLINE_S)
        return list(codes)


async def _spend(tokens: int) -> None:
    """What a few rows take is within what every session may send; above that the hub says 429, and so do we."""
    await trio.lowlevel.checkpoint()
