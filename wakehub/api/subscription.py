"""Waiting for messages in a Trio program: the listener's own loop, with the program as its backend.

`Program` hands one message at a time to whoever iterates, and the program's acknowledgement is the proof of the
hand-off. Names, lease, hub session, arm-then-check, backstop and renewal are the loop's (`relay.loop.work`). A message
that nobody asked for yet counts as unseen, one that was given as seen; so redelivery marks say what is known.
"""

import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from wakehub.api.message import Hand, Received
from wakehub.client.home import ensure_home
from wakehub.config import Config, check_poll, load
from wakehub.errors import WakehubError
from wakehub.inbox.clock import Now
from wakehub.inbox.rows import State
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.inbox.store import Inbox
from wakehub.limits import PROGRAM_DEADLINE_SECONDS
from wakehub.relay import loop
from wakehub.relay import message as relayed
from wakehub.relay.backends import Backend, Outcome, OutputGone
from wakehub.relay.endings import Endings
from wakehub.relay.notices import tell, told_to
from wakehub.relay.options import ListenOptions

_log: Final = logging.getLogger("wakehub")


class Program(Backend):
    """The program as a place to deliver to: one message, once it asks for it, and then its answer.

    It may keep a message for a day; that it died is seen at once by its lease.
    """

    mode = "messages go to the program itself"
    deadline_s = PROGRAM_DEADLINE_SECONDS

    def __init__(self, inbox: Inbox, give: trio.MemorySendChannel[Received]) -> None:
        self._inbox = inbox
        self._give = give
        self._hand: Hand | None = None
        self._is_over = False

    async def deliver(self, message: relayed.Message) -> Outcome:
        self._hand = Hand(message.row.id, message.row.expires_ms, self._state)
        try:
            await self._give.send(Received.of(message, hand=self._hand))
        except (trio.BrokenResourceError, trio.Cancelled):  # the latter comes again at once, wherever it goes on
            raise OutputGone("the subscription is over") from None
        return await self._hand.outcome()

    def check(self) -> None:
        """Who iterates ends the subscription."""

    def end(self) -> None:
        """The loop is over, and the record closed."""
        self._is_over = True

    def _state(self, hand: Hand) -> State | None:
        """How far a message came; None when nothing can become of it here, as the loop went on without recording it."""
        found = [] if self._is_over else self._inbox.headers([hand.row_id])
        if not found or (found[0].state == "claimed" and self._hand is not hand):
            return None
        return found[0].state


class Messages(AsyncIterator[Received]):
    """The messages of a subscription, in order, without end; asking for the next puts one back that was not
    acknowledged. For one task at a time. Raises what ended the subscription, as `Held` when the name was taken."""

    def __init__(self, receive: trio.MemoryReceiveChannel[Received]) -> None:
        self._receive = receive
        self._last: Received | None = None
        self.error: WakehubError | None = None

    async def __anext__(self) -> Received:
        if self._last is not None:
            self._last.hand.pass_over()
            self._last = None
        while True:
            try:
                found = await self._receive.receive()
            except (trio.EndOfChannel, trio.ClosedResourceError):
                raise self.error or StopAsyncIteration from None
            if Now.read().ms < found.hand.expires_ms:
                self._last = found
                return found
            found.hand.lapse()


@asynccontextmanager
async def subscribe(
    *names: str,
    namespaces: Sequence[str] = (),
    sender: str | None = None,
    take_over: bool = False,
    session: str | None = None,
    poll_s: int | None = None,
    config: Config | None = None,
    environ: Mapping[str, str] = os.environ,
) -> AsyncIterator[Messages]:
    """Listen under `names` (none: the own name, as every command chooses it) and all that is under `namespaces`.

        async with wakehub.subscribe("alice") as messages:
            async for message in messages:
                ...
                await message.ack()

    At least once: a message that is not acknowledged before the next is asked for, or before the block ends, comes
    again with its `redelivery` counted up. Within the block the names are this process's; `take_over` takes them from
    another, `session` names a logical session that takes its own names back ($WAKEHUB_SESSION). `sender` takes only
    messages from that address. `poll_s` (1..60) is how often it looks by itself. Notices go to the logger `wakehub`.

    Raises `Held` (75), `BadData` (65), `Unsafe` (77) and what home, record and identity raise.
    """
    options = ListenOptions(
        names=names,
        namespaces=(namespaces,) if isinstance(namespaces, str) else tuple(namespaces),
        sender=sender,
        take_over=take_over,
        session=session,
        poll_s=poll_s,
    )
    config = config or load(environ)
    give, receive = trio.open_memory_channel[Received](0)
    messages = Messages(receive)
    ready = trio.Event()
    raised: BaseException | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_work, config, options, environ, give, messages, ready.set)
        await ready.wait()
        try:
            if messages.error is not None:
                raise messages.error
            yield messages
        except BaseException as error:  # raised behind the nursery, which would put it into a group
            raised = error
        receive.close()
        nursery.cancel_scope.cancel()
    if raised is not None:
        raise raised


async def _work(
    config: Config,
    options: ListenOptions,
    environ: Mapping[str, str],
    give: trio.MemorySendChannel[Received],
    messages: Messages,
    is_ready: Callable[[], None],
) -> None:
    """Run the loop; what ended it is for the one who iterates."""
    never = Endings(trio.sleep_forever, trio.sleep_forever)  # signals are the program's own
    try:
        with told_to(_log.info):
            if options.poll_s is not None:
                config = config.changed(poll_s=check_poll(options.poll_s))
            names = loop.choose_names(options, environ)
            for line in ensure_home(config):
                tell(line)
            with SqliteInbox.open(config.paths.record) as inbox:
                backend = Program(inbox, give)
                try:
                    await loop.work(config, options, names, inbox, backend, environ, never, is_held=is_ready)
                finally:
                    backend.end()
    except WakehubError as error:
        messages.error = error
    finally:
        give.close()
        is_ready()
