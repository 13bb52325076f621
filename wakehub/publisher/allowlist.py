"""The owner's pen: derives the allowlist from the verified chain and signs it (formats.md, Registry; awh1.md §4.3).

What calls for a new signature, judged twice a second and when a poke comes:

- the chain is not the file that the last signature was made from;
- the allowlist is not the file that was last written (removed, replaced, its directory made anew);
- 20 s have passed on the wall clock or on the monotonic one, or the two have drifted apart by more than 5 s: after a
  sleep or a clock step the file is old, or from the future, whatever its age was.

A chain that does not verify, or lacks lines that this process has read, is not signed from, and the last allowlist is
not refreshed either: it goes stale after 60 s, and the hub admits nobody until a person has looked. A failed attempt is
repeated every 5 s, and at once when the chain changes. Only this module writes the file.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
import trio

from wakehub import files
from wakehub.errors import Unsafe, WakehubError
from wakehub.files import Stamp
from wakehub.identity import allowlist
from wakehub.identity.audit import AuditLog, Event
from wakehub.identity.keys import KeyPair
from wakehub.identity.registry import Registry, to_allowlist
from wakehub.limits import (
    ALLOWLIST_RESIGN_SECONDS,
    CLOCK_DRIFT_SECONDS,
    PUBLISHER_TICK_MS,
    RESIGN_RETRY_SECONDS,
)
from wakehub.visible import visible

_log = structlog.get_logger(program="publisher")

_TICK_S: Final = PUBLISHER_TICK_MS / 1000


@dataclass(frozen=True, slots=True)
class _Attempt:
    """When something was last signed, or tried to be, from what, and what it became (None: it failed)."""

    wall_s: float
    mono_s: float
    chain: Stamp | None
    written: Stamp | None


class Signer:
    """Keeps `target` signed by `owner` from the chain at `chain`; synchronous, and handed both clocks.

    `registry` is what was last derived from the chain; None before the first time and while it does not verify.
    """

    def __init__(self, chain: Path, target: Path, owner: KeyPair) -> None:
        self._chain = chain
        self._target = target
        self._owner = owner
        self._last: _Attempt | None = None
        self.registry: Registry | None = None
        self._known: tuple[Event, ...] = ()
        self._trouble = ""

    def keep(self, wall_s: float, mono_s: float) -> bool:
        """Sign if it is due; whether that was done. A failure is logged, and due again after 5 s."""
        chain = Stamp.at(self._chain)
        if not self._is_due(wall_s, mono_s, chain):
            return False
        written: Stamp | None = None
        try:
            if self.registry is None or self._last is None or chain != self._last.chain:
                self.registry = None
                self.registry = self._derived()
                _log.info("registry read", agents=len(self.registry.names()))
            written = self._write(self.registry, wall_s)
        except (WakehubError, OSError, ValueError) as error:
            self._failed(str(error))
        self._last = _Attempt(wall_s, mono_s, chain, written)
        return written is not None

    def _is_due(self, wall_s: float, mono_s: float, chain: Stamp | None) -> bool:
        last = self._last
        if last is None or chain != last.chain:
            return True
        wall_age, mono_age = wall_s - last.wall_s, mono_s - last.mono_s
        limit = RESIGN_RETRY_SECONDS if last.written is None else ALLOWLIST_RESIGN_SECONDS
        if not 0 <= wall_age < limit or mono_age >= limit or abs(wall_age - mono_age) > CLOCK_DRIFT_SECONDS:
            return True
        return last.written is not None and last.written != Stamp.at(self._target)

    def _derived(self) -> Registry:
        """The registry as the chain has it now; raises `Unsafe` for one that lost lines that were read before.

        Lines cut off from the end leave a chain that verifies: only who remembers them can tell.
        """
        chain = AuditLog(self._chain, self._owner.public).read()
        if chain.events[: len(self._known)] != self._known:
            raise Unsafe(
                f"{visible(str(self._chain))} went back",
                why=f"it had {len(self._known)} lines that are not all there now",
                remedy="put the whole file back; to take it as it is, start the publisher again",
            )
        if chain.torn:
            _log.warning("the audit log ends in a line that was never finished", bytes=chain.torn)
        self._known = chain.events
        return Registry.derive(chain.events)

    def _write(self, registry: Registry, wall_s: float) -> Stamp | None:
        found = to_allowlist(registry, wall_s)
        files.private_directory(self._target.parent)
        files.replace(self._target, allowlist.sign(found, self._owner))
        if self._trouble:
            _log.info("allowlist is signed again", agents=len(found.agents))
            self._trouble = ""
        return Stamp.at(self._target)

    def _failed(self, why: str) -> None:
        if why != self._trouble:  # one line per change, not one per attempt
            _log.error("allowlist is not signed", why=why, until="the hub admits nobody once it is 60 s old")
            self._trouble = why


class Keeper:
    """Runs a `Signer`: now, whenever a poke rings, and twice a second.

    `signed` is called, in the worker thread that signs, after each signature. `wall` is seconds since the epoch.
    """

    def __init__(
        self,
        signer: Signer,
        *,
        signed: Callable[[], None] = lambda: None,
        wall: Callable[[], float] = time.time,
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        self._signer = signer
        self._signed = signed
        self._wall = wall
        self._mono = mono
        self._rung = trio.Event()

    def ring(self) -> None:
        """Look at once."""
        self._rung.set()

    async def run(self, *, task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the allowlist signed until cancelled; started once that was done or has failed for the first time."""
        while True:
            self._rung = trio.Event()
            await trio.to_thread.run_sync(self._keep, self._wall(), self._mono())
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED
            with trio.move_on_after(_TICK_S):
                await self._rung.wait()

    def _keep(self, wall_s: float, mono_s: float) -> None:
        if self._signer.keep(wall_s, mono_s):
            self._signed()
