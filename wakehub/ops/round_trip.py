"""One real message from row to acknowledgement, handed to an agent that is thrown away (receive.md §1, §5; fault F84).

    row ──▶ poke ──▶ wake ──▶ hand-off ──▶ acknowledgement      each leg is timed; where it stops is named

That a socket answers proves nothing about the way behind it. So a message goes the whole way, by the code that every
sender and listener uses: the record, a poke, a hub session, a pipe with proof that its reader took it.

The agent is `wakehub-doctor`, a reserved name under which nobody else can act. It is enrolled once: one line of the
registry and one key file are all that stay. A bundle minted in memory, good for a minute, serves each run. Behind a run
the name is free, the hub has forgotten the agent (it departs), and no row of it is unread: one that did not arrive is
ended as failed, by this run or, after a kill -9, by the next; else it expires within a minute, which nobody is told of.
"""

import contextlib
import errno
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import trio

from wakehub.client import advice, diagnosis
from wakehub.client.connection import HubSession, connect
from wakehub.client.failures import HubError
from wakehub.client.poke import Answer, Missing, poke
from wakehub.config import Config
from wakehub.errors import ErrorCode, Exit, Held, WakehubError
from wakehub.identity.addresses import DOCTOR
from wakehub.identity.delegation import Bundle
from wakehub.identity.enrolment import enroll_doctor
from wakehub.identity.keys import KeyPair, load_key
from wakehub.identity.owner import read_registry
from wakehub.inbox import filesystem
from wakehub.inbox.clock import Now
from wakehub.inbox.leases import Lease
from wakehub.inbox.refusals import NoRecord, NotStored, RecordDamaged, RecordUnwritable
from wakehub.inbox.rows import NewRow, Row
from wakehub.inbox.signing import signer
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.inbox.store import Inbox
from wakehub.limits import (
    ENROLMENT_WAIT_SECONDS,
    FILE_WATCH_MS,
    READY_POLL_MS,
    ROUND_TRIP_LEG_SECONDS,
    ROUND_TRIP_TTL_SECONDS,
)
from wakehub.processes import ProcessId
from wakehub.relay.backends import HandedOff, Outcome
from wakehub.relay.backends.stdout import Output
from wakehub.relay.keyring import Keyring
from wakehub.relay.message import Message
from wakehub.visible import visible
from wakehub.wire.protocol import Woken

LEGS: Final[tuple[str, ...]] = ("row", "poke", "wake", "hand-off", "acknowledgement")
_TEXT: Final = "wakehub doctor: does a message arrive?"
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class Trip:
    """How far the message came.

    `legs` are the milliseconds of each leg that it passed, in order; `poke` and `wake` both count from the poke.
    `stopped_at` is the leg that it did not pass, or `session`; empty when it arrived, and when none could be sent for
    want of an identity to send it to, or since another doctor's is on the way.
    """

    legs: dict[str, float]
    stopped_at: str = ""
    why: str = ""
    remedy: str = ""

    @property
    def arrived(self) -> bool:
        return tuple(self.legs) == LEGS


class _Stopped(WakehubError):
    """The message does not get on."""


class _Occupied(Held):
    """Another doctor has the name, and its message is on the way."""


@dataclass(slots=True)
class _Way:
    """The legs that were passed, and the one that is being walked; empty before anything is sent."""

    at: str = ""
    legs: dict[str, float] = field(default_factory=dict)
    _began: float = 0.0

    def begin(self, leg: str) -> None:
        self.at, self._began = leg, time.monotonic()

    def passed(self, leg: str) -> None:
        self.legs[leg] = (time.monotonic() - self._began) * 1000

    def trip(self, why: str = "", remedy: str = "") -> Trip:
        legs = sorted(self.legs.items(), key=lambda leg: LEGS.index(leg[0]))  # a wake may overtake the poke's answer
        return Trip(dict(legs), self.at if why else "", why, remedy)


def travel(config: Config) -> Trip:
    """Send one message around, within some 20 s. Raises nothing that an instance and its state can cause."""
    way = _Way("row")
    try:
        # The lease comes first: a record that does not take it takes no row either, whoever would be enrolled.
        with SqliteInbox.open(config.paths.record, create=False) as inbox, _name(inbox) as lease:
            way.at = ""
            pair, is_new = _identity(config)
            trio.run(_Traveller(config, inbox, pair, lease, way).go, is_new)
    except NoRecord as error:
        return way.trip(error.what, advice.to_start(config.paths, advice.PUBLISHER))
    except (NotStored, RecordUnwritable) as error:
        no_room = isinstance(error, NotStored) or filesystem.is_unwritable(config.paths.state)
        remedy = filesystem.to_make_room(config.paths.state) if no_room else error.remedy
        return way.trip(f"{error.what}: {error.why}", remedy)
    except RecordDamaged as error:
        return way.trip(f"{error.what}: {error.why}", advice.to_repair(config.paths))
    except _Occupied as error:
        way.at = ""
        return way.trip(f"{error.what}: {error.why}", error.remedy)
    except WakehubError as error:
        return way.trip(error.what + (f": {error.why}" if error.why else ""), error.remedy)
    except OSError as error:
        if error.errno in _NO_ROOM:
            way.at = way.at or "row"
        remedy = (
            filesystem.to_make_room(config.paths.state)
            if error.errno in _NO_ROOM
            else "see what that concerns, then try again"
        )
        return way.trip(error.strerror or str(error), remedy)
    return way.trip()


# --- who travels ---


def _identity(config: Config) -> tuple[KeyPair, bool]:
    """The doctor's enrolled key, and whether it was enrolled just now; raises `Unsafe` where that cannot be done."""
    path = config.paths.agent_key(DOCTOR)
    agent = read_registry(config.paths).agents.get(DOCTOR)
    if agent is not None and agent.key is not None:
        with contextlib.suppress(FileNotFoundError, PermissionError):
            pair = load_key(path, DOCTOR)
            if pair.public == agent.key.public:
                return pair, False
    enroll_doctor(config.paths, time.time())
    return load_key(path, DOCTOR), True


@contextlib.contextmanager
def _name(inbox: Inbox) -> Iterator[Lease]:
    """The doctor's lease; no row of the name is unread when it is given up."""
    lease = _acquire(inbox)
    try:
        _end_rows(inbox, lease)
        yield lease
    finally:
        with contextlib.suppress(WakehubError):  # a record that takes no writing was reported before
            _end_rows(inbox, lease)
            inbox.leases.release(lease.token, Now.read())


def _acquire(inbox: Inbox) -> Lease:
    """Take the name, when another doctor has given it up; raises `_Occupied` when that one does not."""
    give_up = time.monotonic() + ROUND_TRIP_LEG_SECONDS
    while True:
        answer = inbox.leases.acquire([DOCTOR], ProcessId.own(), DOCTOR, Now.read(), host=socket.gethostname())
        if isinstance(answer, Lease):
            return answer
        if time.monotonic() >= give_up:
            by = f"pid {answer.lease.process.pid}"
            raise _Occupied("another doctor is at work", why=by, remedy="wait for it, or stop it")
        time.sleep(READY_POLL_MS / 1000)


def _end_rows(inbox: Inbox, lease: Lease) -> None:
    for row in inbox.unread(DOCTOR):
        now = Now.read()
        if inbox.claim(row.id, lease.token, now) is not None:
            inbox.fail(row.id, lease.token, Exit.UNAVAILABLE, "it did not arrive in time", now)


# --- the way ---


class _Traveller:
    def __init__(self, config: Config, inbox: Inbox, pair: KeyPair, lease: Lease, way: _Way) -> None:
        self._config = config
        self._inbox = inbox
        self._pair = pair
        self._token = lease.token
        self._way = way
        self._woken = trio.Event()
        self._lost: HubError | None = None

    async def go(self, is_new: bool) -> None:
        """The whole way; raises `WakehubError` where it ends early, and the way says at which leg.

        An agent that `is_new` is waited for until the signed allowlist shows it.
        """
        self._way.begin("session")
        bundle = await self._bundle(ENROLMENT_WAIT_SECONDS if is_new else 0)
        try:
            async with connect(self._config.hub_socket, bundle) as session:
                try:
                    row = self._store()
                    await self._be_woken(session, row)
                    await self._hand_over(row)
                finally:
                    await _depart(session)
        except HubError as error:
            raise diagnosis.explain(error, bundle, self._config, time.time()) from error

    async def _bundle(self, patience_s: float) -> Bundle:
        """A bundle that the hub should admit, as far as can be seen, within `patience_s` seconds."""
        give_up = trio.current_time() + patience_s
        while True:
            now_s = time.time()
            bundle = Bundle.make(DOCTOR, self._pair, self._config.hub_id, now_s, ROUND_TRIP_TTL_SECONDS)
            seen = diagnosis.reason(bundle, self._config, now_s)
            if seen is None:
                return bundle
            if trio.current_time() >= give_up:
                raise _Stopped("the hub would refuse it", why=seen[0], remedy=seen[1])
            await trio.sleep(FILE_WATCH_MS / 1000)

    def _store(self) -> Row:
        self._way.begin("row")
        new = NewRow(DOCTOR, DOCTOR, _TEXT.encode(), ttl_s=ROUND_TRIP_TTL_SECONDS, signed=signer(self._pair))
        (row,) = self._inbox.append(new, Now.read())
        self._way.passed("row")
        return row

    async def _be_woken(self, session: HubSession, row: Row) -> None:
        self._way.begin("poke")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen, session, row.id.encode())
            answer = await trio.to_thread.run_sync(self._poke, row.id)
            if _promises_a_wake(answer):
                self._way.passed("poke")
                self._way.at = "wake"
                with trio.move_on_after(ROUND_TRIP_LEG_SECONDS):
                    await self._woken.wait()
            nursery.cancel_scope.cancel()
        if not _promises_a_wake(answer):
            raise self._not_promised(answer)
        if self._lost is not None:
            raise self._lost
        if not self._woken.is_set():
            raise _Stopped(
                f"no wake came within {ROUND_TRIP_LEG_SECONDS} s",
                why="the publisher said that the hub took it",
                remedy="restart hub and publisher; until then who listens reads within 60 s, by the backstop",
            )

    def _not_promised(self, answer: Answer | Missing) -> WakehubError:
        where = self._config.paths
        if answer is Missing.SILENT:
            why, remedy = advice.to_answer(where, advice.PUBLISHER)
            return _Stopped(why, remedy=remedy)
        if isinstance(answer, Missing):
            if answer is Missing.ABSENT:
                why = advice.PUBLISHER.why_absent(where)
                return _Stopped(why, remedy=advice.to_start(where, advice.PUBLISHER))
            return _Stopped(answer.value, remedy=advice.SANDBOX)
        daemon = advice.PUBLISHER if answer.state == "hub_down" else advice.HUB
        what = "the publisher has no session with the hub" if answer.state == "hub_down" else "the hub refused the wake"
        code = f" ({answer.code})" if answer.code else ""
        return _Stopped(f"{what}{code}", remedy=f"why: {advice.log_of(where, daemon)}")

    def _poke(self, row_id: str) -> Answer | Missing:
        ((_, answer),) = poke(self._config.paths.publish_socket, [row_id])
        return answer

    async def _listen(self, session: HubSession, row_id: bytes) -> None:
        try:
            while True:
                event = await session.receive()
                if isinstance(event, Woken) and event.wake.row_id == row_id:
                    break
        except HubError as error:
            self._lost = error
        else:
            self._way.passed("wake")
        self._woken.set()

    async def _hand_over(self, row: Row) -> None:
        self._way.begin("hand-off")
        claimed = self._claim(row)
        message = Message(claimed, Keyring(self._config.paths).verdict(claimed), Now.read().ms)
        if message.verified != "yes":
            raise _Stopped("its own signature does not verify", why=message.verified, remedy="wakehub audit verify")
        proof = await _give(message)
        self._way.passed("hand-off")
        self._way.begin("acknowledgement")
        if not self._inbox.hand_off(row.id, self._token, proof, Now.read(), woken_by="wake"):
            raise _Stopped("the record does not take the acknowledgement", remedy="try again")
        self._way.passed("acknowledgement")

    def _claim(self, row: Row) -> Row:
        """The row, as a listener gets it: the record decides which one is next."""
        now = Now.read()
        header = self._inbox.next_for([DOCTOR], self._token, now)
        claimed = self._inbox.claim(header.id, self._token, now) if header is not None else None
        if claimed is None or claimed.id != row.id:
            raise _Stopped("the record does not give the row out", remedy="try again")
        return claimed


def _promises_a_wake(answer: Answer | Missing) -> bool:
    """Whether the publisher says that the wake was sent, or only waits for its turn (429)."""
    return isinstance(answer, Answer) and (answer.state == "hinted" or answer.code == ErrorCode.RATE_LIMITED)


async def _depart(session: HubSession) -> None:
    """Let the hub forget the agent; if that fails, the hub is gone or will be, and its memory with it."""
    with trio.CancelScope(shield=True, deadline=trio.current_time() + 1), contextlib.suppress(HubError):
        await session.depart()


async def _give(message: Message) -> str:
    """Hand `message` to the throw-away agent; what proves that it got it, whole."""
    outcome: Outcome | None = None
    with _agent() as (sink, heard), trio.move_on_after(ROUND_TRIP_LEG_SECONDS):
        outcome = await Output(sink, "json").deliver(message)
    if not isinstance(outcome, HandedOff):
        raise _Stopped("the agent did not get it", why=visible(str(outcome)), remedy="try again")
    told = json.loads(heard[0])
    if (told["id"], told["text"]) != (message.row.id, _TEXT):
        raise _Stopped("the agent got something else", why=visible(told["id"]), remedy="report this")
    return outcome.proof


@contextlib.contextmanager
def _agent() -> Iterator[tuple[int, list[bytes]]]:
    """An agent that reads a pipe to its end: the other end, and what it heard, once the context is left."""
    heard: list[bytes] = []
    source, sink = os.pipe()
    with open(source, "rb") as ear:
        reading = threading.Thread(target=lambda: heard.append(ear.read()))
        reading.start()
        try:
            yield sink, heard
        finally:
            os.close(sink)
            reading.join()
