"""Sending: store the signed row, poke the publisher, say what is proven as it becomes known (receive.md §5).

A sender never opens a hub session: a second one under its agent's id would cut off that agent's own listener. Where no
publisher wakes for it, a session that this process holds anyway does (`own_sessions`). The row is the message; a wake
only makes its recipient look sooner, so whatever becomes of it, the send has succeeded.
"""

import contextlib
import hashlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from wakehub.client import advice, background, own_sessions, spool
from wakehub.client import names as own_names
from wakehub.client.credentials import Credentials, obtain
from wakehub.client.home import AgentKey, enrolled, ensure_home
from wakehub.client.poke import Answer, Missing, poke
from wakehub.client.presence import presence
from wakehub.client.receipts import Receipt, SendRequest, Sent, State, WaitFor
from wakehub.config import Config
from wakehub.errors import ErrorCode, Exit, NoRecipient, Unsafe
from wakehub.identity.addresses import check_address, check_namespace
from wakehub.identity.keys import KeyPair
from wakehub.identity.nearness import near
from wakehub.identity.owner import read_registry
from wakehub.identity.registry import Registry
from wakehub.inbox.admission import Guard
from wakehub.inbox.attachments import Attachments
from wakehub.inbox.clock import Now
from wakehub.inbox.envelope import Envelope
from wakehub.inbox.ids import new_group
from wakehub.inbox.leases import is_namespace
from wakehub.inbox.refusals import RecordUnwritable
from wakehub.inbox.rows import BYTES, TEXT, EventKind, NewRow, Row
from wakehub.inbox.signing import signer
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.inbox.store import Inbox
from wakehub.limits import MAIL_WAITS_AFTER_SECONDS, MAX_BACKSTOP_SECONDS, RECORD_WATCH_MS
from wakehub.processes import is_stopped
from wakehub.visible import visible

_BACKSTOP: Final = f"read within {MAX_BACKSTOP_SECONDS} s by the backstop"
_REACHED_BY: Final[dict[WaitFor, frozenset[EventKind]]] = {
    "stored": frozenset({"stored"}),
    "hinted": frozenset({"hinted", "handed_off", "answered"}),
    "handed-off": frozenset({"handed_off", "answered"}),
    "answered": frozenset({"answered"}),
}
_ENDED: Final[dict[EventKind, State]] = {"failed": State.FAILED, "expired": State.EXPIRED}
_TOLD: Final[dict[EventKind, State]] = {"handed_off": State.HANDED_OFF, "answered": State.ANSWERED, **_ENDED}


@dataclass(slots=True)
class _Receipts:
    """Says each receipt at once and keeps it."""

    tell: Callable[[Receipt], None]
    began: float = field(default_factory=time.monotonic)
    said: list[Receipt] = field(default_factory=list)

    def say(self, state: State, row_id: str = "", detail: str = "") -> None:
        receipt = Receipt(state, row_id, (time.monotonic() - self.began) * 1000, detail)
        self.said.append(receipt)
        self.tell(receipt)

    def note(self, detail: str) -> None:
        self.say(State.NOTE, detail=detail)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began


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
    receipts = _Receipts(tell)
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
            rows = _store(config, request, own.name, agent, inbox, receipts)
        except RecordUnwritable as denied:
            proof = _proof(agent, credentials, environ)
            spooled = _spool(config, request, own.name, proof, receipts, denied)
            return _sent(own.name, spooled, request, receipts, Exit.SPOOLED)
        _tell_stored(request, rows, inbox, receipts)
        _hint(config, request, rows, inbox, receipts, environ)
        reached = request.wait is None or _Wait(request.wait, rows, inbox, receipts).run(request.timeout_s)
    return _sent(own.name, rows, request, receipts, Exit.DONE if reached else Exit.NOT_REACHED)


def _sent(
    own_name: str, made: Sequence[Row] | Sequence[Envelope], request: SendRequest, receipts: _Receipts, exit: Exit
) -> Sent:
    digest = hashlib.sha256(request.body).hexdigest()
    return Sent(own_name, tuple(each.id for each in made), len(request.body), digest, tuple(receipts.said), exit)


def _guard(config: Config) -> Guard:
    return Guard(config.max_hops, config.pair_per_minute)


# --- storing ---


def _store(
    config: Config, request: SendRequest, own_name: str, agent: AgentKey | None, inbox: Inbox, receipts: _Receipts
) -> list[Row]:
    registry = _registry(config)
    recipients = _recipients(config, request, own_name, registry, inbox, receipts)
    now = Now.read()
    group = new_group(now.ms) if is_namespace(request.to) else None
    new = [_row(request, own_name, agent, to, group, registry) for to in recipients]
    with Attachments.of(config.paths).adding(request.attach) as attachments:
        return inbox.append([replace(row, attachments=attachments) for row in new], now)


def _tell_stored(request: SendRequest, rows: Sequence[Row], inbox: Inbox, receipts: _Receipts) -> None:
    for row in rows:
        receipts.say(State.STORED, row.id, f"for {row.recipient}" if row.group else "")
    if request.re is not None and not inbox.headers([request.re]):
        receipts.note(f"--re {request.re}: no such message here; it was stored all the same")
    for row in rows:
        _note_absence(row.recipient, inbox, receipts)


def _proof(agent: AgentKey | None, credentials: Credentials, environ: Mapping[str, str]) -> tuple[KeyPair, bytes]:
    """What proves to the publisher who writes: the enrolled key, else a bundle's session key with its certificate."""
    if agent is not None:
        return agent.pair, b""
    bundle = credentials.bundle(time.time(), environ)
    return bundle.delegate, bundle.certificate


def _spool(
    config: Config,
    request: SendRequest,
    own_name: str,
    proof: tuple[KeyPair, bytes],
    receipts: _Receipts,
    denied: RecordUnwritable,
) -> list[Envelope]:
    """Leave the message in a spool, signed, since the record may not be written from here (fault F57)."""
    pair, certificate = proof
    attached = Attachments.measured(request.attach)
    registry = _registry(config)
    now = Now.read()
    group = new_group(now.ms) if is_namespace(request.to) else None
    recipients = _recipients(config, request, own_name, registry, None, receipts)
    new = [replace(_row(request, own_name, None, to, group, registry), attachments=attached) for to in recipients]
    envelopes = [Envelope.seal(row, signer(pair), now, certificate=certificate) for row in new]
    receipts.note(f"{denied.what}: {denied.why}; {denied.remedy}")
    if request.wait is not None:
        receipts.note(f"nothing is waited for: whether it is {request.wait} cannot be seen from here")
    for envelope, path in zip(envelopes, spool.drop(config.spool_dirs, envelopes, request.attach), strict=True):
        receipts.say(State.SPOOLED, envelope.id, f"{visible(str(path.parent))}; the publisher takes it in from there")
    return envelopes


def _row(
    request: SendRequest, own_name: str, agent: AgentKey | None, to: str, group: str | None, registry: Registry | None
) -> NewRow:
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


def _registry(config: Config) -> Registry | None:
    try:
        return read_registry(config.paths)
    except Unsafe:  # a sandbox hides it: then nothing is known of the recipient, and the row can be stored all the same
        return None


def _recipients(
    config: Config,
    request: SendRequest,
    own_name: str,
    registry: Registry | None,
    inbox: Inbox | None,
    receipts: _Receipts,
) -> list[str]:
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


def _check_recipient(request: SendRequest, registry: Registry, inbox: Inbox | None, receipts: _Receipts) -> None:
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
            remedy="correct --to, or send to the new name with --create",
        )
    receipts.note(f"{to} has never been seen; kept for {_span(request.ttl_s)}")


def _note_absence(to: str, inbox: Inbox, receipts: _Receipts) -> None:
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


# --- hinting ---


def _hint(
    config: Config,
    request: SendRequest,
    rows: Sequence[Row],
    inbox: Inbox,
    receipts: _Receipts,
    environ: Mapping[str, str],
) -> None:
    if request.row_class == "fyi":
        receipts.note(f"fyi wakes nobody; {_BACKSTOP}")
        return
    by_id = {row.id: row for row in rows}
    left: dict[str, Answer | Missing] = {}
    for row_id, outcome in _poked(config, list(by_id), receipts, environ):
        if isinstance(outcome, Answer) and outcome.state != "hub_down":
            receipts.say(*_answered(outcome, by_id[row_id].recipient))
        else:
            left[row_id] = outcome
    for answer in own_sessions.wake(config.hub_socket, [by_id[row_id] for row_id in left], inbox) if left else ():
        del left[answer.row_id]
        receipts.say(*_answered(answer, by_id[answer.row_id].recipient))
    next_steps: dict[str, None] = {}
    for row_id, outcome in left.items():
        why, remedy = _unanswered(config, outcome, environ)
        receipts.say(State.NOT_HINTED, row_id, f"{why}; {_BACKSTOP}")
        next_steps[remedy] = None
    for remedy in next_steps:
        receipts.note(f"next: {remedy}")


def _poked(
    config: Config, ids: Sequence[str], receipts: _Receipts, environ: Mapping[str, str]
) -> Iterator[tuple[str, Answer | Missing]]:
    """What the publisher answers for each row; when there is none, one is started if that is for us to do."""
    outcomes = poke(config.paths.publish_socket, ids)
    first = next(outcomes)
    if first[1] is Missing.ABSENT and background.start(config, receipts.note, environ):
        return poke(config.paths.publish_socket, ids)
    return itertools.chain([first], outcomes)


def _answered(answer: Answer, recipient: str) -> tuple[State, str, str]:
    if answer.state == "hinted":
        return State.HINTED, answer.row_id, ""
    if answer.code == ErrorCode.UNKNOWN:
        absent = f"{visible(recipient)} has not connected since the hub started; read when it listens"
        return State.NOT_HINTED, answer.row_id, absent
    return State.HINT_REFUSED, answer.row_id, f"{answer.code}; {_BACKSTOP}"


def _unanswered(config: Config, outcome: Answer | Missing, environ: Mapping[str, str]) -> tuple[str, str]:
    """Why nobody was woken, and what to do about the publisher, or the hub with which it has no session."""
    match outcome:
        case Missing.ABSENT:
            why = advice.PUBLISHER.why_absent(config.paths)
            return why, advice.to_start(config.paths, advice.PUBLISHER, environ)
        case Missing.SILENT:
            return advice.to_answer(config.paths, advice.PUBLISHER)
        case Missing.DENIED:
            allow = f"allow it Unix socket {visible(str(config.paths.publish_socket))}"
            return f"{outcome.value}; {allow}", allow
        case Missing.GARBLED:
            return outcome.value, "wakehub doctor"
    holder = advice.HUB.holder(config.paths)
    if holder is None:
        return "the hub is down", advice.to_start(config.paths, advice.HUB, environ)
    remedy = advice.to_answer(config.paths, advice.HUB)[1] if is_stopped(holder.pid) else "wakehub doctor"
    return f"the hub, pid {holder.pid}, does not answer the publisher", remedy


# --- waiting ---


class _Wait:
    """Waits until every row reached a state, and tells what becomes known meanwhile."""

    def __init__(self, wait: WaitFor, rows: Sequence[Row], inbox: Inbox, receipts: _Receipts) -> None:
        self._wait = wait
        self._rows = rows
        self._inbox = inbox
        self._receipts = receipts
        self._told: set[tuple[str, EventKind]] = set()

    def run(self, timeout_s: float) -> bool:
        """False when time is up, a row ended otherwise, or mail from the other side waits here (fault F32)."""
        seen: object = None
        while True:
            now = self._inbox.changed()
            if now != seen:
                seen = now
                reached = [self._look(row) for row in self._rows]
                if all(reached) or None in reached:
                    return all(reached)
            if self._mail_waits():
                return False
            if self._receipts.elapsed_s >= timeout_s:
                self._receipts.note(f"{self._wait} was not reached within {timeout_s:g} s")
                return False
            time.sleep(RECORD_WATCH_MS / 1000)

    def _look(self, row: Row) -> bool | None:
        """Whether the row reached the state; None if it ended otherwise."""
        events = self._inbox.events(row.id)
        for event in events:
            if event.kind in _TOLD and (row.id, event.kind) not in self._told:
                self._told.add((row.id, event.kind))
                self._receipts.say(_TOLD[event.kind], row.id, event.proof or event.detail)
        kinds = {event.kind for event in events}
        if kinds & _REACHED_BY[self._wait]:
            return True
        return None if kinds & _ENDED.keys() else False

    def _mail_waits(self) -> bool:
        """Whether a message from the other side waits for us, which our own listener, if there is one, did not take.

        The other side may be waiting for us just as we wait for it.
        """
        if self._wait not in ("handed-off", "answered"):
            return False
        own_name = self._rows[0].sender
        waiting = self._inbox.unread(own_name, limit=1, senders={row.recipient for row in self._rows})
        if not waiting:
            return False
        now = Now.read()
        is_new = now.ms - waiting[0].stored_ms < MAIL_WAITS_AFTER_SECONDS * 1000
        if is_new and self._inbox.leases.resolve(own_name, now) is not None:
            return False
        self._receipts.note(f"{waiting[0].id} from {visible(waiting[0].sender)} waits for you; read it first")
        return True
