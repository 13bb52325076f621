"""Looking without taking: `--no-ack` (receive.md §3; formats.md, Leases).

Shows unread rows and changes nothing: no lease, no session, no acknowledgement. New rows are seen in the record itself.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from wakehub.client.home import ended
from wakehub.errors import Exit, WakehubError
from wakehub.identity.addresses import check_address
from wakehub.inbox.clock import Now
from wakehub.inbox.store import Inbox
from wakehub.inbox.tenure import covers, is_namespace
from wakehub.limits import PEEK_ROWS, RECORD_WATCH_MS
from wakehub.relay.backends import orphan
from wakehub.relay.backends.stdout import Output
from wakehub.relay.endings import Endings
from wakehub.relay.keyring import Keyring
from wakehub.relay.message import Message
from wakehub.relay.notices import nothing_for, tell
from wakehub.relay.options import ListenOptions

_NEVER: Final = float("inf")


class Peek:
    """Shows the unread rows of `names` on `output`, each once."""

    def __init__(
        self, options: ListenOptions, names: Sequence[str], inbox: Inbox, output: Output, keyring: Keyring
    ) -> None:
        self._options = options
        self._names = names
        self._inbox = inbox
        self._output = output
        self._keyring = keyring
        self._senders = None if options.sender is None else [check_address(options.sender)]
        self._seen: dict[str, int] = {}
        self._error: WakehubError | None = None

    async def run(self, ends: Endings) -> Exit:
        """Show until it is over; 0, or 3 when nothing was there.

        Raises the error that ended it, if one did, and `KeyboardInterrupt` when it was to end with something seen.
        """
        for agent in filter(None, map(self._keyring.agent, self._names)):
            if agent.key is None:  # its mail may be looked at, although nobody takes it any more
                tell(f"{ended(agent).what}; nobody takes its messages")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._heed, ends.signalled, nursery, None)
            if self._output.dies_with_parent:
                nursery.start_soon(self._heed, ends.orphaned, nursery, orphan())
            try:
                await self._show_all()
            except WakehubError as error:
                self._error = error
            nursery.cancel_scope.cancel()
        if self._error is not None:
            raise self._error
        if self._options.once and not self._seen:
            if ends.is_interrupt():
                raise KeyboardInterrupt
            tell(nothing_for(self._inbox, self._names))
            return Exit.NOTHING
        return Exit.DONE

    async def _heed(
        self, event: Callable[[], Awaitable[None]], nursery: trio.Nursery, error: WakehubError | None
    ) -> None:
        await event()
        self._error = error
        nursery.cancel_scope.cancel()

    async def _show_all(self) -> None:
        give_up = trio.current_time() + (self._options.wait_s or 0.0) if self._options.once else _NEVER
        while True:
            before = self._inbox.changed()
            for name in self._boxes():
                await self._show(name)
            if self._options.once and (self._seen or trio.current_time() >= give_up):
                return
            while self._inbox.changed() == before and trio.current_time() < give_up:
                self._output.check()
                await trio.sleep(RECORD_WATCH_MS / 1000)

    def _boxes(self) -> list[str]:
        found: dict[str, None] = {}
        for name in self._names:
            under = [box for box in self._inbox.boxes() if covers(name, box)] if is_namespace(name) else [name]
            found |= dict.fromkeys(under)
        return list(found)

    async def _show(self, name: str) -> None:
        while rows := self._inbox.unread(name, after=self._seen.get(name, 0), limit=PEEK_ROWS, senders=self._senders):
            for row in rows:
                message = Message(row, self._keyring.verdict(row), Now.read().ms, call=self._options.call)
                await self._output.show(message)
                self._seen[name] = row.rseq
