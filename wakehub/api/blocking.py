"""Waiting for messages in a program without Trio: `subscribe` in a thread of its own, which renews the lease and holds
the hub session while the program works on a message. The thread ends with the iteration, or with the interpreter, and
the names are free then. No signal is handled here, that is the program's to do."""

import atexit
import os
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import trio

from wakehub.api.message import Received, Taken
from wakehub.api.subscription import Messages, subscribe
from wakehub.config import Config


class _Subscription:
    """A subscription in another thread: started, asked for messages, and stopped by this one."""

    def __init__(self, *names: str, **options: Any) -> None:
        self._names = names
        self._options = options
        self._outcomes: SimpleQueue[BaseException | None] = SimpleQueue()
        self._scope = trio.CancelScope()
        self._messages: Messages
        tokens: SimpleQueue[trio.lowlevel.TrioToken] = SimpleQueue()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(tokens.put,), name="wakehub", daemon=True)
        self._thread.start()
        self._token = tokens.get()
        atexit.register(self.stop)  # a generator that is still referred to is closed too late, or never

    def _work(self, tell_token: Callable[[trio.lowlevel.TrioToken], None]) -> None:
        try:
            trio.run(self._run, tell_token)
        finally:
            self._is_over.set()

    async def _run(self, tell_token: Callable[[trio.lowlevel.TrioToken], None]) -> None:
        tell_token(trio.lowlevel.current_trio_token())
        try:
            with self._scope:
                async with subscribe(*self._names, **self._options) as self._messages:
                    self._outcomes.put(None)
                    await trio.sleep_forever()
        except BaseException as error:  # it is the other thread's to raise
            self._outcomes.put(error)

    def started(self) -> None:
        """Wait until the names are ours, or raise what is in the way."""
        if (error := self._outcomes.get()) is not None:
            raise error

    def next(self) -> Taken | None:
        try:
            message: Received | None = trio.from_thread.run(anext, self._messages, None, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled) as over:
            raise self._outcomes.get() or over from None
        if message is None:
            return None
        received = message
        return Taken.from_received(received, lambda: self._acknowledge(received))

    def _acknowledge(self, message: Received) -> None:
        try:
            trio.from_thread.run(message.ack, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled):
            raise message.hand.lost() from None

    def stop(self) -> None:
        try:
            self._end_thread()
        finally:
            self._end_thread()  # a second signal may have cut the first short, and the names would stay taken
            atexit.unregister(self.stop)

    def _end_thread(self) -> None:
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._scope.cancel)
        if self._thread.is_alive():  # a fork's child has none
            self._is_over.wait()  # a join that a signal cuts short takes the thread for ended (Python < 3.13)
        self._thread.join()


def listen(
    *names: str,
    namespaces: Sequence[str] = (),
    sender: str | None = None,
    take_over: bool = False,
    session: str | None = None,
    poll_s: int | None = None,
    config: Config | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Generator[Taken, None, None]:
    """The messages for `names`, without end; blocks until there is one. Parameters and errors as for `subscribe`.

        for message in wakehub.listen("alice"):
            ...
            message.ack()

    The names are taken with the first step and free again when the iteration ends: by `break`, by an error, by
    ``close()``, by the end of the interpreter; but not by a signal that the program does not handle. A message that was
    not acknowledged before the next step comes again, marked as a redelivery.
    """
    subscription = _Subscription(
        *names,
        namespaces=namespaces,
        sender=sender,
        take_over=take_over,
        session=session,
        poll_s=poll_s,
        config=config,
        environ=environ,
    )
    try:
        subscription.started()
        while (message := subscription.next()) is not None:
            yield message
    finally:
        subscription.stop()
