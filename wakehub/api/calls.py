"""What a program does without waiting for messages: send one, look at what is unread. The commands' own code."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from wakehub.api.message import Message
from wakehub.client import names
from wakehub.client import send as sending
from wakehub.client.receipts import SendRequest, Sent, WaitFor
from wakehub.config import Config, load
from wakehub.errors import BadData
from wakehub.inbox.clock import Now
from wakehub.inbox.refusals import NoRecord
from wakehub.inbox.rows import RowClass
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.limits import DEFAULT_TTL_SECONDS
from wakehub.relay import message as relayed
from wakehub.relay.keyring import Keyring
from wakehub.visible import visible

__all__ = ["Sent", "inbox", "send"]


def send(
    to: str,
    body: str | bytes,
    *,
    sender: str | None = None,
    re: str | None = None,
    ttl: int = DEFAULT_TTL_SECONDS,
    row_class: RowClass = "normal",
    attach: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    create: bool = False,
    wait: WaitFor | None = None,
    timeout: float = 60.0,
    config: Config | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Sent:
    """Store a message for `to` and have its reader woken; what is proven of it is in ``Sent.receipts``.

    `to` is an address, or a namespace with its trailing slash for everyone enrolled under it. `body` has at most
    256 KiB; text is sent as UTF-8. `sender` is the own address (None: as every command chooses it), `re` the id of the
    message that this one answers, `ttl` how many seconds it is kept for an absent reader (at most 7 days), `attach`
    a file or files to send with it, `create` allows a name never seen that is like another. `wait` is the state to wait
    for, at most `timeout` seconds: ``Sent.exit`` is 4 when it was not reached, 5 when the message was only spooled.

    The publisher wakes; where none does, a subscription that is open in this process wakes over its own session with
    the hub. Blocks, for about 2.5 s at most without `wait` and 2 s more then: in Trio, call it in a thread, since a
    blocked loop wakes nobody. Raises `NoRecipient` (67), `BadData` (65), `LoopGuard` (69) and what home, identity
    and record raise, and `TypeError` for a body of another type; nothing is stored then.
    """
    if wait is not None and wait not in get_args(WaitFor):
        raise BadData(f"{visible(str(wait))} is no state to wait for", remedy=f"one of {', '.join(get_args(WaitFor))}")
    request = SendRequest(
        to=to,
        body=_bytes(body),
        sender=sender,
        re=re,
        ttl_s=ttl,
        row_class=row_class,
        create=create,
        attach=_paths(attach),
        wait=wait,
        timeout_s=timeout,
    )
    return sending.send(config or load(environ), request, environ=environ)


def _paths(attach: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[Path, ...]:
    return tuple(Path(path) for path in ((attach,) if isinstance(attach, str | os.PathLike) else attach))


def _bytes(body: str | bytes) -> bytes:
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    if not isinstance(body, str):
        raise TypeError(f"the body must be str or bytes, not {type(body).__name__}")
    try:
        return body.encode()
    except UnicodeEncodeError as error:  # a surrogate, as a file name or a cut text may have
        raise BadData("the message is no text", why=error.reason, remedy="give it as bytes") from error


def inbox(
    name: str | None = None,
    *,
    sender: str | None = None,
    limit: int = 100,
    config: Config | None = None,
    environ: Mapping[str, str] = os.environ,
) -> list[Message]:
    """The unread messages of `name` (None: the own name), oldest first; nothing is acknowledged by looking.

    At most `limit` of those from `sender`, or from anyone.
    """
    config = config or load(environ)
    box = names.choose(name, environ).name
    try:
        record = SqliteInbox.open(config.paths.record, create=False)
    except NoRecord:  # nothing was ever sent
        return []
    keyring, now = Keyring(config.paths), Now.read()
    with record:
        rows = record.unread(box, limit=limit, senders=[sender] if sender else None, now=now)
    return [Message.of(relayed.Message(row, keyring.verdict(row), now.ms)) for row in rows]
