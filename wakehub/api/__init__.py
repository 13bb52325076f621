"""The Python API (receive.md §5, From programs): what `wakehub` itself offers, and the same as the commands do.

`import wakehub` loads nothing of it; the first name that is used loads this package.
"""

from wakehub.api.blocking import listen
from wakehub.api.calls import Sent, inbox, send
from wakehub.api.message import Message, Received, Taken
from wakehub.api.subscription import Messages, subscribe
from wakehub.errors import WakehubError

__all__ = ["Message", "Messages", "Received", "Sent", "Taken", "WakehubError", "inbox", "listen", "send", "subscribe"]
