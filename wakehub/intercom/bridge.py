"""Carries mail between sessions of the mesh and agents of this instance (intercom.md §7; faults F20, F21, F31).

    mesh ──▶ inbox_rowan.ndjson ──read, not taken──▶ rows for alice ──poke──▶ publisher ──▶ her listener
    mesh ◀── hub, else the spool ◀──one at a time── rows from alice to intercom:dev/… ◀── wakehub send

In. Each seat has a place of its own in its session's spool, which moves once the rows are committed; the record stores
an envelope once. Killed in between, it is found again and not stored anew. The session is never connected under its own
id, nothing is taken away from its own tools, and nothing is reset.

Out. The bridge is a listener for the channel's namespace like any other (`relay.loop`), with the mesh as its backend:
lease, wakes, order, back-off and proof are those of the record. A row goes out under an id derived from its own; one
that may have gone out already is looked for in the spool first.

The loop guard counts answers through the mesh, since an answer there becomes an answer here. What came in is stored
however long its chain is, and however fast it comes: the mesh has it already. The chain is broken where the agent
answers, by `send`.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import trio

from wakehub import files
from wakehub.client.home import ended, ensure_home
from wakehub.client.poke import poke
from wakehub.config import Config
from wakehub.errors import BadData, CannotCreate, Exit, Held, NoRecipient, WakehubError, only_known
from wakehub.identity.addresses import check_address
from wakehub.identity.nearness import near
from wakehub.identity.owner import read_registry
from wakehub.inbox.admission import Guard
from wakehub.inbox.attachments import Attachments
from wakehub.inbox.clock import Now
from wakehub.inbox.refusals import AlreadyStored, RecordBusy, TooFast
from wakehub.inbox.rows import TEXT, Header, NewRow, Row
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.inbox.store import Inbox
from wakehub.intercom import crossing, spool
from wakehub.intercom.channels import Channel
from wakehub.intercom.client import send
from wakehub.intercom.crossing import Seat
from wakehub.intercom.ndjson import Envelope, Refusal, is_session
from wakehub.intercom.render import spoiled
from wakehub.limits import MAX_BODY_BYTES, MAX_RECORD_SETTING, RECORD_RETRY_SECONDS, RECORD_WATCH_MS
from wakehub.relay.backends import Backend, HandedOff, Never, NotNow, Outcome
from wakehub.relay.endings import endings
from wakehub.relay.keyring import Keyring
from wakehub.relay.loop import Names, work
from wakehub.relay.message import Message, is_address
from wakehub.relay.notices import tell
from wakehub.relay.options import ListenOptions
from wakehub.visible import visible

_READER: Final = "bridge"
_EVERYONE: Final = "*"
_NOTE: Final = "(a message of {size} bytes; a row holds {limit}, so it is attached as {name})"
_ATTACHED: Final = "message.txt"
_NO_SEAT: Final = "{name} has no session on channel {channel}; give the bridge one: --session ID --as {name}"


@dataclass(frozen=True, slots=True)
class BridgeOptions:
    """What `wakehub intercom bridge` was asked to carry: `seats` are all on one channel."""

    channel: Channel
    seats: tuple[Seat, ...]
    take_over: bool = False

    def __post_init__(self) -> None:
        """Raises `BadData` (65) for a channel that gives no addresses, and for two seats of one session or agent."""
        crossing.namespace(self.channel.name)
        for seat in self.seats:
            check_address(seat.name)
            if not is_session(seat.session):
                raise BadData(f"{visible(seat.session)} is no id of a session", remedy="wakehub intercom peers")
        for what, taken in (("session", [s.session for s in self.seats]), ("agent", [s.name for s in self.seats])):
            if twice := {each for each in taken if taken.count(each) > 1}:
                raise BadData(
                    f"{what} {visible(min(twice))} has two seats",
                    why="one session is one agent here, and the other way round",
                    remedy="leave one of them out",
                )


def run(config: Config, options: BridgeOptions, *, environ: Mapping[str, str] = os.environ) -> Exit:
    """Carry mail until a signal; 0.

    Runs its own Trio loop. Raises `Held` (75) when another process bridges the channel or took it over, `NoRecipient`
    (67) for an agent that was closed or mistyped, `Unsafe` (77), and what home, record and channel raise.
    """
    parent = os.getppid()
    for line in ensure_home(config):
        tell(line)
    for seat in options.seats:
        _check_agent(config, seat)
    # What the mesh carried is in its spool already: holding it back would break no chain, and lose it in the end.
    guard = Guard(max_hops=MAX_RECORD_SETTING, pair_per_minute=MAX_RECORD_SETTING)
    with SqliteInbox.open(config.paths.record, guard=guard) as inbox:
        try:
            return trio.run(_work, config, options, inbox, environ, parent)
        except BaseExceptionGroup as group:
            known = only_known(group)
            if known is None:
                raise
            raise known from None


async def _work(config: Config, options: BridgeOptions, inbox: Inbox, environ: Mapping[str, str], parent: int) -> Exit:
    seats = ", ".join(f"{seat.name} as {seat.session}" for seat in options.seats)
    names = Names((crossing.namespace(options.channel.name),), f"for {seats}")
    listen = ListenOptions(namespaces=names.held, take_over=options.take_over)
    carrier = Carrier(options.channel, inbox, options.seats)
    intakes = [Intake(config, options.channel.base, inbox, seat) for seat in options.seats]
    async with trio.open_nursery() as nursery:

        def begin() -> None:
            for intake in intakes:
                nursery.start_soon(intake.run)

        with endings(parent) as ends:
            status = await work(config, listen, names, inbox, carrier, environ, ends, is_held=begin)
        nursery.cancel_scope.cancel()
    return status


def _check_agent(config: Config, seat: Seat) -> None:
    """Raise `NoRecipient` (67) for an agent that gets no mail, or that was probably meant otherwise (fault F15)."""
    registry = read_registry(config.paths)
    registry.check_mailbox(seat.name, config.hub_id)
    agent = registry.agents.get(seat.name)
    if agent is None:
        if meant := near(seat.name, registry.names()):
            raise NoRecipient(
                f"{seat.name} has never been seen; did you mean {' or '.join(meant)}?",
                why="mail to a mistyped name would wait for nobody",
                remedy=f"correct --as, or make it known: wakehub enroll {seat.name}",
            )
        tell(f"{seat.name} has never been seen; its mail waits until it listens")
    elif agent.key is None:
        over = ended(agent)
        raise NoRecipient(over.what, why=over.why, remedy=over.remedy)


# --- in ---


class Intake:
    """The way in for one seat."""

    def __init__(self, config: Config, base: Path, inbox: Inbox, seat: Seat) -> None:
        """`base` is the directory of all channels."""
        self._config = config
        self._base = base
        self._inbox = inbox
        self._seat = seat
        self._keyring = Keyring(config.paths)
        self._attachments = Attachments.of(config.paths)
        self._senders: set[str] = set()

    async def run(self) -> None:
        """Look whenever the spool has changed, until cancelled; what may pass by itself is told and waited out.

        Raises `Unsafe` (77) when the agent was closed, or the channel is no longer safe.
        """
        with Channel.open(self._base, self._seat.channel) as self._channel:
            self._spool = spool.Inbox(self._channel, self._seat.session, _READER)
            with self._spool.attended():
                await self._look_forever()

    async def _look_forever(self) -> None:
        while True:
            try:
                stamp = self._stamp()
                if not self._spool.document():  # the first time it begins with what the session has not read
                    self._spool.begin_like(spool.Inbox(self._channel, self._seat.session))
                while stamp is not None and await trio.to_thread.run_sync(self.take):
                    pass
                while self._stamp() == stamp:  # noqa: ASYNC110  # nothing portable tells of a file that grows
                    await trio.sleep(RECORD_WATCH_MS / 1000)
            except (RecordBusy, TooFast, CannotCreate, Held) as error:
                tell(f"{self._seat}: {error}; trying again")
                await trio.sleep(RECORD_RETRY_SECONDS)
            except FileNotFoundError:  # the directory was taken away meanwhile: it is opened again
                await trio.sleep(RECORD_WATCH_MS / 1000)

    def _stamp(self) -> files.Stamp | None:
        """The state of the spool, also when its directory was taken away and made anew."""
        self._channel.reopen()
        return self._spool.stamp()

    def take(self) -> bool:
        """Store the next few envelopes, have their reader woken, and move on behind them; whether there is more.

        Raises what the record and the channel do: then nothing has moved, and what was stored is known when it is
        found again.
        """
        with self._spool.taking() as batch:
            if complaint := spoiled(batch, self._spool):
                tell(f"{self._seat}: {complaint}")
            ids = self._store(batch.envelopes) if batch.envelopes else []
        for _ in poke(self._config.paths.publish_socket, ids):
            pass  # whatever becomes of it: the rows are found all the same
        return not batch.is_last

    def _store(self, envelopes: Sequence[Envelope]) -> list[str]:
        now = Now.read()
        new = [self._row(envelope, now) for envelope in envelopes]
        self._make_known(new, now)
        if not any(map(crossing.is_too_large, new)):
            try:
                return [row.id for row in self._inbox.append(new, now)]  # one transaction, if none was taken before
            except AlreadyStored:
                pass
        return [row_id for each in new if (row_id := self._store_one(each, now))]

    def _store_one(self, new: NewRow, now: Now) -> str | None:
        try:
            if crossing.is_too_large(new):
                return self._store_as_file(new, now)
            return self._inbox.append(new, now)[0].id
        except AlreadyStored:
            return None

    def _store_as_file(self, new: NewRow, now: Now) -> str:
        """Nothing is cut: what no row can hold is attached."""
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / _ATTACHED
            path.write_bytes(new.body)
            note = _NOTE.format(size=len(new.body), limit=MAX_BODY_BYTES, name=_ATTACHED).encode()
            with self._attachments.adding([path]) as attached:
                (row,) = self._inbox.append(replace(new, body=note, media_type=TEXT, attachments=attached), now)
                return row.id

    def _row(self, envelope: Envelope, now: Now) -> NewRow:
        agent = self._keyring.agent(self._seat.name)
        if agent is not None and agent.key is None:
            raise ended(agent)
        generation = agent.generation if agent is not None else 1
        return crossing.arriving(self._seat, envelope, now.ms, re=self._answered(envelope), generation=generation)

    def _answered(self, envelope: Envelope) -> str | None:
        """The row that an envelope answers: what we sent lies in the mailbox of who answers it."""
        if envelope.reply_to is None or not is_session(envelope.from_session):
            return None
        return crossing.answered_row(spool.Inbox(self._channel, envelope.from_session).find(envelope.reply_to))

    def _make_known(self, new: Sequence[NewRow], now: Now) -> None:
        """Whoever wrote can be answered: an address that has a box is not taken for a slip of another (fault F15)."""
        for sender in {each.sender for each in new} - self._senders:
            if is_address(sender):
                self._inbox.open_box(sender, 1, now)
            self._senders.add(sender)


# --- out ---


class Carrier(Backend):
    """The mesh as a backend: each row of an agent with a seat goes out as a chat of its session."""

    def __init__(self, channel: Channel, inbox: Inbox, seats: Sequence[Seat]) -> None:
        self._channel = channel
        self._inbox = inbox
        self._seats = {seat.name: seat for seat in seats}
        self.mode = f"what they send to {crossing.namespace(channel.name)}… goes out, and what is sent to them comes in"

    def check(self) -> None:
        """Where there is no hub there is the spool, so somewhere to deliver to there always is."""

    async def deliver(self, message: Message) -> Outcome:
        row = message.row
        seat, to = self._seats.get(row.sender), self._recipient(row)
        if to is None:
            return Never(Exit.NO_RECIPIENT, f"{visible(row.recipient)} is the address of no session")
        if seat is None:
            return NotNow(_NO_SEAT.format(name=visible(row.sender), channel=self._channel.name))
        if message.verified == "no":
            return Never(Exit.DATA, f"its signature is not by a key of {visible(row.sender)}")
        try:
            chat = crossing.leaving(seat, to, message, self._answered(row))
            return await trio.to_thread.run_sync(self._send, chat, row.redelivery > 0, abandon_on_cancel=True)
        except (BadData, Refusal) as error:
            return Never(Exit.DATA, str(error))
        except (WakehubError, OSError) as error:
            return NotNow(str(error), in_doubt=True)

    def _recipient(self, row: Header) -> str | None:
        """Who gets it on the mesh. Of a broadcast to the namespace this bridge gets the row: it is the one enrolled."""
        if row.group is not None and row.recipient == f"{crossing.namespace(self._channel.name)}relay":
            return _EVERYONE
        return crossing.session_of(self._channel.name, row.recipient)

    def _answered(self, row: Header) -> Row | None:
        return self._inbox.row(row.re) if row.re is not None else None

    def _send(self, chat: Envelope, in_doubt: bool) -> Outcome:
        """Have it spooled, once: one that may have gone out before is looked for first."""
        to = chat.to_session
        if in_doubt and to != _EVERYONE and spool.Inbox(self._channel, to).find(chat.id) is not None:
            return HandedOff(f"spooled as {chat.id}")
        sent = send(self._channel, chat)
        if sent.status == "error":
            return NotNow(sent.message, in_doubt=True)
        return HandedOff(f"{sent.status} as {chat.id}")
