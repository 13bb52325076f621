"""To whom a message goes, and the rows that it becomes."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from wakehub.client.home import AgentKey
from wakehub.client.presence import presence
from wakehub.client.receipts import Receipts, SendRequest, State
from wakehub.config import Config
from wakehub.errors import NoRecipient, Unsafe, WakehubError
from wakehub.identity.nearness import near
from wakehub.identity.owner import read_registry
from wakehub.identity.registry import Registry
from wakehub.inbox.attachments import Attachments
from wakehub.inbox.clock import Now
from wakehub.inbox.ids import new_group
from wakehub.inbox.rows import BYTES, TEXT, NewRow, Row
from wakehub.inbox.signing import signer
from wakehub.inbox.store import Inbox
from wakehub.inbox.tenure import is_namespace
from wakehub.visible import visible


def store(
    config: Config, request: SendRequest, own_name: str, agent: AgentKey | None, inbox: Inbox, receipts: Receipts
) -> list[Row]:
    """Store a row for each recipient, in one transaction; raises as `send` does, and nothing is stored then."""
    registry = registry_of(config)
    recipients = recipients_of(config, request, own_name, registry, inbox, receipts)
    now = Now.read()
    group = new_group(now.ms) if is_namespace(request.to) else None
    new = [row_for(request, own_name, agent, to, group, registry) for to in recipients]
    with Attachments.of(config.paths).adding(request.attach) as attachments:
        return inbox.append([replace(row, attachments=attachments) for row in new], now)


def tell_stored(request: SendRequest, rows: Sequence[Row], inbox: Inbox, receipts: Receipts) -> None:
    """Say that `rows` are stored, and what a sender should know about their recipients."""
    for row in rows:
        receipts.say(State.STORED, row.id, f"for {row.recipient}" if row.group else "")
    with contextlib.suppress(WakehubError):  # a record that is busy now has it stored all the same
        if request.re is not None and not inbox.headers([request.re]):
            receipts.note(f"--re {request.re}: no such message here; it was stored all the same")
        for row in rows:
            _note_absence(row.recipient, inbox, receipts)


def row_for(
    request: SendRequest, own_name: str, agent: AgentKey | None, to: str, group: str | None, registry: Registry | None
) -> NewRow:
    """The row for one recipient, without its files."""
    recipient = registry.agents.get(to) if registry else None
    return NewRow(
        own_name,
        to,
        request.body,
        media_type=request.media_type or _media_type(request.body),
        re=request.re,
        group=group,
        class_=request.row_class,
        ttl_s=request.ttl_s,
        signed=signer(agent.pair) if agent else None,
        generation=recipient.generation if recipient else 1,
    )


def _media_type(body: bytes) -> str:
    try:
        body.decode()
    except UnicodeDecodeError:
        return BYTES
    return TEXT


def registry_of(config: Config) -> Registry | None:
    """The registry, None when nothing can be known of it here."""
    try:
        return read_registry(config.paths)
    except Unsafe:  # a sandbox hides it: then nothing is known of the recipient, and the row can be stored all the same
        return None


def recipients_of(
    config: Config,
    request: SendRequest,
    own_name: str,
    registry: Registry | None,
    inbox: Inbox | None,
    receipts: Receipts,
) -> list[str]:
    """The addresses that the message goes to; `inbox` None knows no boxes. Raises `NoRecipient` (67)."""
    to = request.to
    if is_namespace(to):
        found = [name for name in (registry.under(to) if registry else []) if name != own_name]
        if not found:
            raise NoRecipient(
                f"nobody else is enrolled under {to}",
                why="a broadcast goes to those who are enrolled now",
                remedy="wakehub agents shows them",
            )
        return found
    if registry is not None:
        registry.check_mailbox(to, config.hub_id)
        _check_recipient(request, registry, inbox, receipts)
    return [to]


def _check_recipient(request: SendRequest, registry: Registry, inbox: Inbox | None, receipts: Receipts) -> None:
    to, agent = request.to, registry.agents.get(request.to)
    if agent is not None and agent.closed_at is not None:
        raise NoRecipient(
            f"{to} was closed on {datetime.fromtimestamp(agent.closed_at, UTC):%Y-%m-%d %H:%M} UTC",
            why="mail to it is refused",
            remedy="wakehub agents shows who is there",
        )
    boxes = inbox.boxes() if inbox else []
    if agent is not None or to in boxes:
        return
    meant = near(to, [*registry.names(), *boxes])
    if meant and not request.create:
        raise NoRecipient(
            f"{to} has never been seen; did you mean {' or '.join(visible(name) for name in meant)}?",
            why="a message to a mistyped name would wait for nobody",
            remedy="correct the name, or send to the new one: --create, in Python create=True",
        )
    receipts.note(f"{to} has never been seen; kept for {_span(request.ttl_s)}")


def _note_absence(to: str, inbox: Inbox, receipts: Receipts) -> None:
    """Say that nobody listens for `to`, since when, and whether its listener died (faults F2, F28)."""
    found = presence(inbox.leases, to, Now.read())
    if found.last is not None:
        died = f"; its listener, pid {found.last.pid}, died" if found.state == "died" else ""
        ended = datetime.fromtimestamp(found.last.ended_ms / 1000, UTC)
        receipts.note(f"nobody is listening for {to} since {ended:%Y-%m-%d %H:%M:%S} UTC{died}")
    elif found.listener is None:
        receipts.note(f"nobody is listening for {to} yet")


def _span(seconds: int) -> str:
    """A time to live as it is written in `--ttl`: in the largest unit that says it exactly, a day as 24 h."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds % size == 0 and seconds > (size if unit == "d" else 0):
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
