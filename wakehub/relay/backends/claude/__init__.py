"""Messages into the inbox of running Claude Code sessions (receive.md §4; versions from 2.1.224).

    routing      which of them a message goes to
    claims       which one `wakehub claim` made the shared endpoint of a workspace
    post         one message through a session's socket
    transcript   what a session wrote down about what it got: the proof
    deliver      the backend: these together
    inbound      which sessions are set to hold or refuse such messages

Which sessions run here is `client.claude_sessions`'s to tell.

Nothing here types into a terminal. What a session does with a message is its own affair; that it queued it is proven by
its own transcript, and by nothing else.
"""

from wakehub.client.claude_sessions import directory

__all__ = ["directory"]
