"""Wakes over a session that this process holds anyway, against a hub that answers as the test says (receive.md §5)."""

import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
import trio
from scripted_hub import Link, serve

from wakehub.client import own_sessions
from wakehub.client.connection import connect
from wakehub.client.lent_session import LentSession
from wakehub.client.poke import Answer
from wakehub.client.proof import Prover
from wakehub.errors import ErrorCode
from wakehub.identity.delegation import Bundle
from wakehub.inbox.clock import Now
from wakehub.inbox.rows import NewRow, Row
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.processes import ProcessId
from wakehub.wire.frames import Frame, Kind

Refuse = Callable[[Link, Frame], Awaitable[None]]


class Hub:
    """Keeps every wake, refuses those to the agents of `codes`, and answers pings."""

    def __init__(self, codes: dict[bytes, ErrorCode] | None = None) -> None:
        self.woken: list[bytes] = []
        self._codes = codes or {}

    async def script(self, link: Link) -> None:
        await link.admit()
        while (frame := await link.receive()) is not None:
            if frame.kind is Kind.WAKE:
                self.woken.append(frame.to_id)
                if frame.to_id in self._codes:
                    await link.refuse(self._codes[frame.to_id])
            elif frame.kind is Kind.PING:
                await link.send(Kind.PONG)


@pytest.fixture
def socket(run_directory: Path) -> Path:
    return run_directory / "hub.sock"


def stored(inbox: SqliteInbox, *recipients: str) -> list[Row]:
    return inbox.append([NewRow("alice", name, b"hi") for name in recipients], Now.read())


def kinds(inbox: SqliteInbox, row: Row) -> list[tuple[str, int | None]]:
    return [(event.kind, event.code) for event in inbox.events(row.id)]


async def woken(socket: Path, bundle: Bundle, hub: Hub, rows: Sequence[Row], inbox: SqliteInbox) -> list[Answer]:
    """What a sender in another thread is answered while this loop holds a session."""
    async with serve(socket, [hub.script]), connect(socket, bundle) as session, trio.open_nursery() as nursery:
        prover = Prover(session)
        nursery.start_soon(prover.listen)
        with own_sessions.offered(socket, LentSession(prover)):
            answers = await trio.to_thread.run_sync(own_sessions.wake, socket, rows, inbox)
        nursery.cancel_scope.cancel()
    return answers


async def test_it_wakes_who_holds_the_name_and_records_that(socket: Path, bundle: Bundle, inbox: SqliteInbox) -> None:
    inbox.leases.acquire(["acme/"], ProcessId.own(), "acme/relay", Now.read())
    rows, hub = stored(inbox, "bob", "acme/carol"), Hub()
    answers = await woken(socket, bundle, hub, rows, inbox)
    assert hub.woken == [b"bob", b"acme/relay"]
    assert [(answer.row_id, answer.state, answer.holder) for answer in answers] == [
        (rows[0].id, "hinted", False),
        (rows[1].id, "hinted", True),
    ]
    assert [kinds(inbox, row) for row in rows] == [[("stored", None), ("hinted", None)]] * 2
    assert inbox.unhinted() == []


async def test_a_refusal_is_recorded_but_for_one_that_passes(socket: Path, bundle: Bundle, inbox: SqliteInbox) -> None:
    rows = stored(inbox, "bob", "carol", "dora")
    hub = Hub({b"bob": ErrorCode.UNKNOWN, b"dora": ErrorCode.RATE_LIMITED})
    answers = await woken(socket, bundle, hub, rows, inbox)
    assert [(answer.state, answer.code) for answer in answers] == [("refused", 404), ("hinted", None), ("refused", 429)]
    assert [kinds(inbox, row)[1:] for row in rows] == [[("hint_refused", 404)], [("hinted", None)], []]


async def test_a_session_that_ended_wakes_nobody(socket: Path, bundle: Bundle, inbox: SqliteInbox) -> None:
    async def closing(link: Link) -> None:
        await link.admit()

    rows = stored(inbox, "bob")
    async with serve(socket, [closing]) as hub, connect(socket, bundle) as session:
        with own_sessions.offered(socket, LentSession(Prover(session))):
            await hub.all_ended()
            await session.aclose()
            assert await trio.to_thread.run_sync(own_sessions.wake, socket, rows, inbox) == []
    assert kinds(inbox, rows[0]) == [("stored", None)]
    assert own_sessions.wake(socket, rows, inbox) == []


async def test_the_loop_of_the_session_is_not_waited_for_by_itself(
    socket: Path, bundle: Bundle, inbox: SqliteInbox
) -> None:
    """A program that calls a blocking function in its own loop must not wait for what that loop has to do."""
    rows, hub = stored(inbox, "bob"), Hub()
    async with serve(socket, [hub.script]), connect(socket, bundle) as session:
        with own_sessions.offered(socket, LentSession(Prover(session))):
            assert own_sessions.wake(socket, rows, inbox) == []
    assert hub.woken == []


async def test_a_forked_child_leaves_the_session_alone(socket: Path, bundle: Bundle, inbox: SqliteInbox) -> None:
    """It has the descriptors of its parent, and no thread that would answer."""

    def offer_in_child() -> int:
        child = os.fork()
        if child == 0:
            os._exit(3 if own_sessions._usable(socket) is None else 4)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    async with serve(socket, [Hub().script]), connect(socket, bundle) as session:
        with own_sessions.offered(socket, LentSession(Prover(session))):
            assert await trio.to_thread.run_sync(offer_in_child) == 3
