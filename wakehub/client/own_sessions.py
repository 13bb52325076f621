"""Wakes over a hub session that this very process holds (receive.md §5).

A sender never opens a session, and has the publisher wake for it. But a program that listens holds one already, and
where no publisher does it, that one wakes. Sessions live in the Trio loop of their subscription; senders are in other
threads, or in the loop itself, which they block: then there is nothing to be had here.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from wakehub.client.failures import HubError
from wakehub.client.poke import Answer
from wakehub.client.proof import Addressed, Prover
from wakehub.client.wakes import wake_for
from wakehub.errors import ErrorCode, WakehubError
from wakehub.inbox.clock import Now
from wakehub.inbox.rows import Row
from wakehub.inbox.store import Inbox
from wakehub.limits import POKE_DEADLINE_MS, WAKE_BATCH

_DEADLINE_S: Final = POKE_DEADLINE_MS / 1000


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    prover: Prover
    token: trio.lowlevel.TrioToken
    pid: int


_held: Final[dict[Path, list[_Held]]] = {}
_lock: Final = threading.Lock()


@contextmanager
def offered(socket: Path, prover: Prover) -> Iterator[None]:
    """Within the block, senders in this process may wake over this session with the hub at `socket`."""
    held = _Held(prover, trio.lowlevel.current_trio_token(), os.getpid())
    with _lock:
        _held.setdefault(socket, []).append(held)
    try:
        yield
    finally:
        with _lock:
            _held[socket].remove(held)


def wake(socket: Path, rows: Sequence[Row], inbox: Inbox) -> list[Answer]:
    """Wake for `rows` by a session with the hub at `socket`, and record what it took or refused.

    The answers that there are within 2 s, none when this process has no such session; raises nothing.
    """
    held = _usable(socket)
    if held is None:
        return []
    with suppress(WakehubError):  # a record that cannot be read says nothing about who is to be woken
        now = Now.read()
        leases = [inbox.leases.resolve(row.recipient, now) for row in rows]
        targets = [lease.agent_id if lease else row.recipient for row, lease in zip(rows, leases, strict=True)]
        codes = _deliver(held, [(target, wake_for(row)) for target, row in zip(targets, rows, strict=True)])
        _record(inbox, list(zip(rows, codes, strict=False)))
        return [
            Answer(row.id, "hinted" if code is None else "refused", code, lease is not None)
            for row, lease, code in zip(rows, leases, codes, strict=False)
        ]
    return []


def _usable(socket: Path) -> _Held | None:
    """A session whose loop is another thread's: a child of `fork` has no such thread, and this one must not wait."""
    try:
        own = trio.lowlevel.current_trio_token()
    except RuntimeError:
        own = None
    with _lock:
        found = [held for held in _held.get(socket, ()) if held.pid == os.getpid() and held.token is not own]
    return found[-1] if found else None


def _deliver(held: _Held, wakes: Sequence[Addressed]) -> list[int | None]:
    """What the hub said to each wake, as far as it did in time; for the codes see `Prover.deliver`."""
    codes: list[int | None] = []
    done: Future[None] = Future()

    async def deliver() -> None:
        try:
            with trio.move_on_after(_DEADLINE_S), suppress(HubError):
                for first in range(0, len(wakes), WAKE_BATCH):
                    codes.extend(await held.prover.deliver(wakes[first : first + WAKE_BATCH], _spend))
        finally:
            done.set_result(None)

    with suppress(trio.RunFinishedError, TimeoutError):
        held.token.run_sync_soon(trio.lowlevel.spawn_system_task, deliver)
        done.result(_DEADLINE_S)
    return list(codes)


async def _spend(tokens: int) -> None:
    """What a few rows take is within what every session may send; above that the hub says 429, and so do we."""
    await trio.lowlevel.checkpoint()


def _record(inbox: Inbox, told: Sequence[tuple[Row, int | None]]) -> None:
    for code in dict.fromkeys(code for _, code in told):
        if code != ErrorCode.RATE_LIMITED:
            ids = [row.id for row, found in told if found == code]
            with suppress(WakehubError):  # then the publisher wakes once more, which does no harm
                inbox.record_hint(ids, code, Now.read())
