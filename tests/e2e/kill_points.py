"""Runs `wakehub` and kills it with SIGKILL at a named point: `python kill_points.py POINT COMMAND…`.

The points are put around functions of the package from here; nothing in the package knows of them.
"""

import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from wakehub.__main__ import main
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.relay.backends.exec import Hook
from wakehub.relay.backends.stdout import Output

_STDOUT = 1


def die(*_: object) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()
    raise AssertionError("SIGKILL does not come late")


def before(owner: Any, name: str, is_meant: Callable[..., bool] = lambda *_: True) -> None:
    """Die when `owner.name` is called with arguments that are meant."""
    real = getattr(owner, name)

    @functools.wraps(real)
    def call(*arguments: Any, **named: Any) -> Any:
        return die() if is_meant(*arguments) else real(*arguments, **named)

    setattr(owner, name, call)


def behind(owner: Any, name: str, is_meant: Callable[..., bool] = lambda *_: True) -> None:
    """Die when such a call has returned."""
    real = getattr(owner, name)

    @functools.wraps(real)
    def call(*arguments: Any, **named: Any) -> Any:
        result = real(*arguments, **named)
        return die() if is_meant(*arguments) else result

    setattr(owner, name, call)


def behind_await(owner: Any, name: str) -> None:
    """Die when such a coroutine has returned."""
    real = getattr(owner, name)

    @functools.wraps(real)
    async def call(*arguments: Any, **named: Any) -> Any:
        await real(*arguments, **named)
        die()

    setattr(owner, name, call)


def event(kind: str) -> Callable[..., bool]:
    """Whether a call of `_event` is about that kind."""
    return lambda _inbox, _seq, what, *_: what == kind


def half_a_write() -> None:
    """Die when half of the first message is out."""
    real = os.write

    def write(fd: int, data: Any) -> int:
        if fd != _STDOUT:
            return real(fd, data)
        real(fd, bytes(data)[: len(data) // 2])
        die()

    os.write = write  # type: ignore[assignment]


RECEIVING: dict[str, Callable[[], None]] = {
    "before the claim": lambda: before(SqliteInbox, "claim"),
    "row claimed, event not written": lambda: before(SqliteInbox, "_event", event("claimed")),
    "claim and event written, not committed": lambda: behind(SqliteInbox, "_event", event("claimed")),
    "claim committed": lambda: behind(SqliteInbox, "claim"),
    "half of the message written": half_a_write,
    "message written, not proven": lambda: before(Output, "_prove"),
    "proven, not acknowledged": lambda: behind_await(Output, "deliver"),
    "before the acknowledgement": lambda: before(SqliteInbox, "hand_off"),
    "row acknowledged, event not written": lambda: before(SqliteInbox, "_event", event("handed_off")),
    "acknowledgement and event written, not committed": lambda: behind(SqliteInbox, "_event", event("handed_off")),
    "acknowledgement committed": lambda: behind(SqliteInbox, "hand_off"),
}
HOOK: dict[str, Callable[[], None]] = {
    "hook ended with 0, not acknowledged": lambda: behind_await(Hook, "deliver"),
}
FAILING: dict[str, Callable[[], None]] = {
    "row put back, event not written": lambda: before(SqliteInbox, "_event", event("attempt_failed")),
    "failure committed": lambda: behind(SqliteInbox, "attempt_failed"),
}
SENDING: dict[str, Callable[[], None]] = {
    "before the row": lambda: before(SqliteInbox, "append"),
    "row written, event not": lambda: before(SqliteInbox, "_event", event("stored")),
    "row and event written, not committed": lambda: behind(SqliteInbox, "_event", event("stored")),
    "row committed, nothing said": lambda: behind(SqliteInbox, "append"),
}

if __name__ == "__main__":
    point, *sys.argv[1:] = sys.argv[1:]
    (RECEIVING | HOOK | FAILING | SENDING)[point]()
    sys.exit(main())
