"""An envelope as a line for a person, and one about what was none (intercom.md §4, §6; faults F41, F87, F88).

    msg_0123456789ab from nova · to all · re msg_… · {"sha": "1f0c"}: the tests pass

What others wrote cannot leave its place: an id is shown in the characters of ids and escapes, a text on one line with
whatever is invisible made visible, and what a payload holds beside the text as JSON in ASCII.
"""

import json

from wakehub.intercom.ndjson import EVERYONE, Envelope
from wakehub.intercom.spool import Batch, Inbox
from wakehub.relay.render import plain
from wakehub.visible import visible

_PLACES = 5


def spoiled(batch: Batch, inbox: Inbox) -> str:
    """Which lines of `inbox` were no envelopes, and where they go once read past; empty when there are none."""
    places = [str(begin) for begin, _ in batch.spoiled]
    if not places:
        return ""
    where = ", ".join(places[:_PLACES]) + (", …" if len(places) > _PLACES else "")
    what, they = ("1 line", "was no envelope") if len(places) == 1 else (f"{len(places)} lines", "were no envelopes")
    at = "byte" if len(places) == 1 else "bytes"
    return f"{what} of {visible(str(inbox.path))} {they} (at {at} {where}); what is read past goes to {inbox.bad_name}"


def shown(envelope: Envelope) -> str:
    """The line, without its end."""
    parts = [f"{plain(envelope.id)} from {plain(envelope.from_session)}"]
    if envelope.type != "chat":
        parts.append(f"type {plain(envelope.type)}")
    if envelope.to_session in EVERYONE:
        parts.append("to all")
    if envelope.reply_to is not None:
        parts.append(f"re {plain(envelope.reply_to)}")
    others = {key: value for key, value in envelope.payload.items() if key != "text" or envelope.text is None}
    if others:
        parts.append(visible(json.dumps(others)))
    return f"{' · '.join(parts)}: {visible(envelope.text or '')}"
