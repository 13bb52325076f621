"""What the hub of a channel holds while it is that: the lock, and the socket that only the lock's holder touches (§5).

Existing clients unlink the socket of a hub that they think dead. So its path is looked at again and again, and bound
anew under the lock where it no longer is ours.
"""

from typing import Self

from wakehub.intercom.channels import Channel
from wakehub.intercom.election import lead
from wakehub.locks import Lock
from wakehub.server.listener import Listener, Place


class Leadership:
    """The channel, its lock and its listening socket, while this process is the hub."""

    def __init__(self, channel: Channel, lock: Lock) -> None:
        """Listen, holding `lock`, which is released in any case; raises `Unsafe` (77) or `CannotCreate` (73)."""
        self.channel = channel
        self._lock = lock
        try:
            self.listener = Listener.bind(channel.socket)
        except BaseException:
            lock.release()
            raise

    def mend(self) -> Place:
        """Look at the path, and bind it anew under the lock where it no longer is ours; what was found there.

        Where the directory itself was taken away it is made again. Raises `Held` (75) when another process leads by
        now, `Unsafe` or `CannotCreate` while it cannot be mended.
        """
        found = self.listener.look()
        if found is Place.OURS and self._lock.is_in_place():
            return found
        self.channel.reopen()
        if not self._lock.is_in_place():
            lock = lead(self.channel)
            self._lock.release()
            self._lock = lock
        self.listener.bind_anew()
        return found

    def withdraw(self) -> None:
        """Stop listening; the path is unlinked while it is ours, and the lock stays ours."""
        self.listener.withdraw()

    def hide(self) -> None:
        """Unlink the path while it is ours, and go on listening: whoever had connected before can still be taken."""
        if self.listener.look() is Place.OURS:
            self.listener.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Give everything up but the channel; the lock's file stays (F50)."""
        self.withdraw()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
