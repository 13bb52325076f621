"""An envelope as a line for a person (intercom.md §6; faults F41, F87, F88).

    msg_0123456789ab from nova · to all · re msg_… · {"sha": "1f0c"}: the tests pass

What others wrote cannot leave its place: an id is shown in the characters of ids and escapes, a text on one line with
whatever is invisible made visible, and what a payload holds beside the text as JSON in ASCII.
"""

import json

from wakehub.intercom.ndjson import EVERYONE, Envelope
from wakehub.relay.render import plain
from wakehub.visible import visible


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
