"""Sending: store the signed row, poke the publisher, say what is proven as it becomes known (receive.md §5).

A sender never opens a hub session: a second one under its agent's id would cut off that agent's own listener. Where no
publisher wakes for it, a session that this process holds anyway does (`own_sessions`). The row is the message; a wake
only makes its recipient look sooner, so whatever becomes of it, the send has succeeded.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence

from wakehub.client import names as own_names
from wakehub.client.credentials import obtain
from wakehub.client.home import enrolled, ensure_home
from wakehub.client.receipts import Receipt, Receipts, SendRequest, Sent
from wakehub.client.send.hinting import hint
from wakehub.client.send.spooling import leave_in_spool, proof_of
from wakehub.client.send.storing import store, tell_stored
from wakehub.client.send.waiting import Wait
from wakehub.config import Config
from wakehub.errors import Exit
from wakehub.identity.addresses import check_address, check_namespace
from wakehub.inbox.admission import Guard
from wakehub.inbox.envelope import Envelope
from wakehub.inbox.refusals import RecordUnwritable
from wakehub.inbox.rows import Row
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.inbox.tenure import is_namespace


def send(
    config: Config,
    request: SendRequest,
    tell: Callable[[Receipt], None] = lambda _: None,
    *,
    environ: Mapping[str, str] = os.environ,
) -> Sent:
    """Store the message, have it hinted, and wait for the state that was asked for; each receipt goes to `tell`.

    Blocks for about 2.5 s at most without `wait`; 2 s more when no publisher answers and a session of this process
    wakes instead (`own_sessions`), 10 s more when it is the one that starts hub and publisher (`background`).
    ``Sent.exit`` is 0, 4 when the awaited state was not reached, or 5 when the record cannot be written from here and
    the message was left in a spool instead. Raises `NoRecipient` (67: closed, mistyped, nobody in the namespace),
    `BadData` (65), `LoopGuard` (69), and what home, identity and record raise; nothing is stored then.
    """
    receipts = Receipts(tell)
    own = own_names.choose(request.sender, environ)
    (check_namespace if is_namespace(request.to) else check_address)(request.to)
    for line in ensure_home(config):
        receipts.note(line)
    credentials, agent = obtain(config, own.name, environ)
    if own.source != "--as":
        receipts.note(f"sending as {own.name}, from {own.source}")
    if agent is None:
        receipts.note("not signed: the enrolled key cannot be read here")
    elif agent.newly_enrolled:
        receipts.note(enrolled(config, own.name))
    with contextlib.ExitStack() as opened:
        try:
            inbox = opened.enter_context(SqliteInbox.open(config.paths.record, guard=_guard(config)))
            rows = store(config, request, own.name, agent, inbox, receipts)
        except RecordUnwritable as denied:
            proof = proof_of(agent, credentials, environ)
            spooled = leave_in_spool(config, request, own.name, proof, receipts, denied)
            return _sent(own.name, spooled, request, receipts, Exit.SPOOLED)
        tell_stored(request, rows, inbox, receipts)
        hint(config, request, rows, inbox, receipts, environ)
        wait = Wait(config.paths, request.wait, rows, inbox, receipts) if request.wait else None
        reached = wait is None or wait.run(request.timeout_s)
    return _sent(own.name, rows, request, receipts, Exit.DONE if reached else Exit.NOT_REACHED)


def _sent(
    own_name: str, made: Sequence[Row] | Sequence[Envelope], request: SendRequest, receipts: Receipts, exit: Exit
) -> Sent:
    digest = hashlib.sha256(request.body).hexdigest()
    return Sent(own_name, tuple(each.id for each in made), len(request.body), digest, tuple(receipts.said), exit)


def _guard(config: Config) -> Guard:
    return Guard(config.max_hops, config.pair_per_minute)
