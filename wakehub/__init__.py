"""wakehub: wakes idle agents on one machine at once, and never loses what woke them.

For programs (`wakehub guide python`): `subscribe` and `listen` wait for messages, `send` sends one, `inbox` looks.
They are loaded when they are first used, so that importing this package costs nothing.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = ["Message", "Messages", "Received", "Sent", "Taken", "WakehubError", "inbox", "listen", "send", "subscribe"]

if TYPE_CHECKING:
    from wakehub.api import Message, Messages, Received, Sent, Taken, WakehubError, inbox, listen, send, subscribe


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name == "inbox":  # a package here, which is the function as well
        return import_module("wakehub.inbox")
    if name in __all__:
        return getattr(import_module("wakehub.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
