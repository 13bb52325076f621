"""Messages into the inbox of running Claude Code sessions (receive.md §4; versions from 2.1.224).

    sessions     which sessions run here: what each says about itself in ``sessions/<pid>.json``
    routing      which of them a message goes to
    claims       which one `wakehub claim` made the shared endpoint of a workspace
    post         one message through a session's socket
    transcript   what a session wrote down about what it got: the proof
    deliver      the backend: these together
    inbound      which sessions are set to hold or refuse such messages

Nothing here types into a terminal. What a session does with a message is its own affair; that it queued it is proven by
its own transcript, and by nothing else.
"""

from collections.abc import Mapping
from pathlib import Path


def directory(environ: Mapping[str, str]) -> Path:
    """Where Claude Code keeps its sessions, transcripts and settings."""
    given = environ.get("CLAUDE_CONFIG_DIR")
    return Path(given) if given else Path(environ.get("HOME") or Path.home()) / ".claude"
