"""Chats on their way from the hub into the inboxes: off the event loop, and no inbox waits for another (§4, §5).

Each recipient with something to store has one task, which appends all there is in one write and then queues the live
copies in the order of the spool. A lock that is held, or a FIFO in the inbox's place, costs that task its thread and
its senders an error, and nobody else anything.
"""

from collections.abc import Callable, Sequence
from typing import Any

import trio

from wakehub.errors import WakehubError
from wakehub.intercom.channels import Channel
from wakehub.intercom.mesh import Post
from wakehub.intercom.spool import Inbox
from wakehub.visible import visible

_THREADS = 24  # each has a file open, and the hub keeps 32 descriptors in reserve


class Errand:
    """A post and whether it is through: `done` is set once every recipient's inbox took or refused it."""

    def __init__(self, post: Post) -> None:
        self.post = post
        self.done = trio.Event()
        self._left = len(post.recipients)
        if not self._left:
            self.done.set()

    def is_through_with_one(self) -> None:
        self._left -= 1
        if not self._left:
            self.done.set()


class Spooler:
    """Stores posts; `find_channel` gives the channel as it is now, `stored` is told of each (post, recipient)."""

    def __init__(
        self,
        nursery: trio.Nursery,
        find_channel: Callable[[], Channel],
        stored: Callable[[Post, str], None],
        logger: Any,
    ) -> None:
        self._log = logger
        self._nursery = nursery
        self._find_channel = find_channel
        self._stored = stored
        self._waiting: dict[str, list[Errand]] = {}
        self._threads = trio.CapacityLimiter(_THREADS)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be stored."""
        return not self._waiting

    def store(self, post: Post) -> Errand:
        """Have a post stored for all its recipients; returns at once."""
        errand = Errand(post)
        for session in post.recipients:
            if session in self._waiting:
                self._waiting[session].append(errand)
            else:
                self._waiting[session] = [errand]
                self._nursery.start_soon(self._write, session)
        return errand

    async def _write(self, session: str) -> None:
        while batch := self._waiting[session]:
            self._waiting[session] = []
            failure = ""
            try:
                posts = [errand.post for errand in batch]
                await trio.to_thread.run_sync(
                    self._append, session, posts, abandon_on_cancel=True, limiter=self._threads
                )
            except WakehubError as error:
                failure = visible(f"not stored for {session}: {error}")
            except Exception:  # a bug costs these senders an error, not the hub
                self._log.exception("spooling failed", session=session)
                failure = f"not stored for {session}: internal error"
            for errand in batch:
                if failure:
                    errand.post.failures.append(failure)
                else:
                    self._stored(errand.post, session)
                errand.is_through_with_one()
        del self._waiting[session]

    def _append(self, session: str, posts: Sequence[Post]) -> None:
        once = {post.line for post in posts if post.envelope.wants_receipt}  # such a sender may have given up on us
        Inbox(self._find_channel(), session).append([post.line for post in posts], once)
