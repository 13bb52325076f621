"""From rows to wakes and receipts, against a hub that answers as the test says and a real record."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from scripted_hub import Link, serve
from trio.testing import MockClock, wait_all_tasks_blocked

from wakehub.errors import ErrorCode
from wakehub.identity.keys import KeyPair
from wakehub.identity.stamps import NS
from wakehub.inbox.clock import Now
from wakehub.inbox.leases import Lease
from wakehub.inbox.refusals import RecordBusy
from wakehub.inbox.rows import NewRow, Row
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.limits import POKE_DEADLINE_MS, PUBLISHER_TICK_MS, RECONNECT_CAP_MS, RECORD_RETRY_SECONDS, WAKE_BATCH
from wakehub.processes import ProcessId
from wakehub.publisher.forwarder import Forwarder
from wakehub.publisher.hints import Outcome
from wakehub.wire.frames import Frame, Kind
from wakehub.wire.payloads import Wake

Answer = Callable[[Link, Frame], Awaitable[None]]
PATIENCE_S = 60.0


async def pong(link: Link, frame: Frame) -> None:
    if frame.kind is Kind.PING:
        await link.send(Kind.PONG)


def refusing(code: ErrorCode, agent: bytes, times: int = 1_000) -> Answer:
    left = times

    async def answer(link: Link, frame: Frame) -> None:
        nonlocal left
        if frame.to_id == agent and left:
            left -= 1
            await link.refuse(code)
        await pong(link, frame)

    return answer


class Hub:
    """Keeps the wakes that came in; `answer` says what each frame gets."""

    def __init__(self, answer: Answer = pong) -> None:
        self.answer = answer
        self.wakes: list[Frame] = []
        self.pings = 0
        self.sessions = self.ended = 0
        self._came = trio.Event()

    async def script(self, link: Link) -> None:
        await link.admit(base_ms=1, jitter_ms=0)
        self.sessions += 1
        self._note()
        while (frame := await link.receive()) is not None:
            if frame.kind is Kind.WAKE:
                self.wakes.append(frame)
            else:
                self.pings += 1
            self._note()
            await self.answer(link, frame)
        self.ended += 1
        self._note()

    def _note(self) -> None:
        self._came.set()
        self._came = trio.Event()

    async def until(self, condition: Callable[["Hub"], bool]) -> None:
        while not condition(self):
            await self._came.wait()

    def woken(self) -> list[tuple[str, str]]:
        """Whom each wake went to, and for which row."""
        return [(frame.to_id.decode(), Wake.decode(frame.payload).row_id.decode()) for frame in self.wakes]


def forwarder(inbox: SqliteInbox, home: Path, key: KeyPair, **options: object) -> Forwarder:
    return Forwarder(inbox, home / "hub.sock", "wakehub", key, **options)  # type: ignore[arg-type]


@asynccontextmanager
async def running(subject: Forwarder) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(subject.run)
        yield
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def connected(subject: Forwarder, hub: Hub, home: Path) -> AsyncIterator[None]:
    async with serve(home / "hub.sock", [hub.script]), running(subject):
        await hub.until(lambda hub: hub.sessions == 1)
        yield


def store(inbox: SqliteInbox, *recipients: str, class_: str = "normal") -> list[Row]:
    return inbox.append([NewRow("bob", name, b"hi", class_=class_) for name in recipients], Now.read())  # type: ignore[arg-type]


def lease(inbox: SqliteInbox, name: str, agent_id: str) -> None:
    found = inbox.leases.acquire([name], ProcessId.own(), agent_id, Now.read())
    assert isinstance(found, Lease)


def events(inbox: SqliteInbox, row: Row) -> list[tuple[str, int | None]]:
    return [(event.kind, event.code) for event in inbox.events(row.id)]


async def until_recorded(inbox: SqliteInbox, row: Row, kind: str) -> None:
    while kind not in [event.kind for event in inbox.events(row.id)]:  # noqa: ASYNC110 - the record tells nobody
        await trio.sleep(0.005)


async def test_a_poke_is_a_wake_and_its_receipt_is_in_the_record_first(
    inbox: SqliteInbox, home: Path, key: KeyPair
) -> None:
    hub, subject = Hub(), forwarder(inbox, home, key)
    before_ms = time.time_ns() // 1_000_000
    async with connected(subject, hub, home):
        (row,) = store(inbox, "alice")
        assert await subject.submit([row.id]) == {row.id: Outcome("hinted", None, holder=False)}
        assert events(inbox, row) == [("stored", None), ("hinted", None)]
    (frame,) = hub.wakes
    assert (frame.from_id, frame.to_id, frame.ttl_ms) == (b"wakehub-publisher", b"alice", 0)
    assert before_ms <= frame.ts_ms <= time.time_ns() // 1_000_000
    assert Wake.decode(frame.payload) == Wake(row.id.encode(), b"_inbox/alice", b"bob", row.digest, 1)


async def test_the_session_of_the_most_specific_holder_is_woken(inbox: SqliteInbox, home: Path, key: KeyPair) -> None:
    lease(inbox, "acme/", "acme/relay")
    lease(inbox, "acme/ops", "acme/first")
    hub, subject = Hub(), forwarder(inbox, home, key)
    async with connected(subject, hub, home):
        dev, ops, bob = store(inbox, "acme/dev", "acme/ops", "carol")
        answers = await subject.submit([dev.id, ops.id, bob.id])
    assert {row_id: answer.holder for row_id, answer in answers.items()} == {dev.id: True, ops.id: True, bob.id: False}
    assert sorted(hub.woken()) == [("acme/first", ops.id), ("acme/relay", dev.id), ("carol", bob.id)]
    assert {Wake.decode(frame.payload).namespace for frame in hub.wakes} >= {b"_inbox/acme/dev", b"_inbox/acme/ops"}


async def test_rows_that_nobody_poked_about_are_found(inbox: SqliteInbox, home: Path, key: KeyPair) -> None:
    (early,) = store(inbox, "alice")
    hub, subject = Hub(), forwarder(inbox, home, key)
    async with connected(subject, hub, home):
        await hub.until(lambda hub: len(hub.wakes) == 1)
        (late,) = store(inbox, "carol")
        await hub.until(lambda hub: len(hub.wakes) == 2)
        await until_recorded(inbox, late, "hinted")
    assert hub.woken() == [("alice", early.id), ("carol", late.id)]
    assert events(inbox, early) == [("stored", None), ("hinted", None)]


async def test_a_row_that_was_taken_before_it_was_poked_about_wakes_nobody(
    inbox: SqliteInbox, home: Path, key: KeyPair
) -> None:
    taken, waiting = store(inbox, "alice", "carol")
    inbox.ack([taken.id], "alice", None, Now.read())
    hub, subject = Hub(), forwarder(inbox, home, key)
    async with connected(subject, hub, home):
        answers = await subject.submit([taken.id, waiting.id])
    assert {answer.state for answer in answers.values()} == {"hinted"}
    assert hub.woken() == [("carol", waiting.id)]


async def test_one_wake_for_all_rows_of_a_recipient_and_one_ping_for_the_batch(
    inbox: SqliteInbox, home: Path, key: KeyPair
) -> None:
    rows = store(inbox, "alice", "carol", "alice", "alice")
    hub, subject = Hub(), forwarder(inbox, home, key)
    async with connected(subject, hub, home):
        for row in rows:
            await until_recorded(inbox, row, "hinted")
    assert hub.woken() == [("alice", rows[3].id), ("carol", rows[1].id)]
    assert hub.pings == 1


async def test_more_than_a_batch_and_more_than_a_look(inbox: SqliteInbox, home: Path, key: KeyPair) -> None:
    rows = store(inbox, *(f"agent-{n}" for n in range(300)))
    hub, subject = Hub(), forwarder(inbox, home, key)
    async with connected(subject, hub, home):
        await until_recorded(inbox, rows[-1], "hinted")
        await hub.until(lambda hub: len(hub.wakes) == 300)
    assert hub.woken() == [(row.recipient, row.id) for row in rows]
    assert hub.pings == -(-256 // WAKE_BATCH) + 1
    assert inbox.unhinted() == []


async def test_a_refusal_is_recorded_with_its_code_and_final(inbox: SqliteInbox, home: Path, key: KeyPair) -> None:
    hub, subject = Hub(refusing(ErrorCode.UNKNOWN, b"carol")), forwarder(inbox, home, key)
    async with connected(subject, hub, home):
        alice, carol = store(inbox, "alice", "carol")
        answers = await subject.submit([alice.id, carol.id])
        (later,) = store(inbox, "dave")
        await subject.submit([later.id])
    assert answers == {alice.id: Outcome("hinted"), carol.id: Outcome("refused", 404)}
    assert events(inbox, carol) == [("stored", None), ("hint_refused", 404)]
    assert events(inbox, alice) == [("stored", None), ("hinted", None)]
    assert [who for who, _ in hub.woken()].count("carol") == 2  # in the batch and on its own, and then no more


async def test_a_poke_for_a_refused_row_tries_again(inbox: SqliteInbox, home: Path, key: KeyPair) -> None:
    hub, subject = Hub(refusing(ErrorCode.OVERFLOW, b"alice", times=1)), forwarder(inbox, home, key)
    async with connected(subject, hub, home):
        (row,) = store(inbox, "alice")
        assert await subject.submit([row.id]) == {row.id: Outcome("refused", 507)}
        assert await subject.submit([row.id]) == {row.id: Outcome("hinted")}
        assert await subject.submit([row.id]) == {row.id: Outcome("hinted")}  # by what the record says
    assert len(hub.wakes) == 2


async def test_over_the_rate_of_the_hub_nothing_is_recorded_and_the_wake_follows(
    inbox: SqliteInbox, home: Path, key: KeyPair
) -> None:
    hub, subject = Hub(refusing(ErrorCode.RATE_LIMITED, b"alice")), forwarder(inbox, home, key)
    async with connected(subject, hub, home):
        (row,) = store(inbox, "alice")
        assert await subject.submit([row.id]) == {row.id: Outcome("refused", 429)}
        hub.answer = pong
        await until_recorded(inbox, row, "hinted")
    assert events(inbox, row) == [("stored", None), ("hinted", None)]


async def test_what_wakes_nobody(inbox: SqliteInbox, home: Path, key: KeyPair) -> None:
    hub, subject = Hub(), forwarder(inbox, home, key)
    async with connected(subject, hub, home):
        (fyi,) = store(inbox, "alice", class_="fyi")
        assert await subject.submit([fyi.id, "m_none"]) == {
            fyi.id: Outcome("refused"),
            "m_none": Outcome("refused", 404),
        }
        assert await subject.submit([]) == {}
    assert hub.wakes == []
    assert events(inbox, fyi) == [("stored", None)]


async def test_without_a_hub_the_answer_comes_at_once_and_the_wake_when_there_is_one(
    inbox: SqliteInbox, home: Path, key: KeyPair, mock_clock: MockClock
) -> None:
    hub, subject = Hub(), forwarder(inbox, home, key)
    lease(inbox, "alice", "alice")
    async with running(subject):
        await wait_all_tasks_blocked()
        (row,) = store(inbox, "alice")
        assert await subject.submit([row.id]) == {row.id: Outcome("hub_down", holder=True)}
        assert events(inbox, row) == [("stored", None)]
        async with serve(home / "hub.sock", [hub.script]):
            # The clock stands still: it is the poke that has the new socket looked at.
            assert await subject.submit([row.id]) == {row.id: Outcome("hinted", holder=True)}
    assert hub.woken() == [("alice", row.id)]


async def test_a_session_that_ends_before_its_pong_proves_nothing(inbox: SqliteInbox, home: Path, key: KeyPair) -> None:
    async def die_once(link: Link, frame: Frame) -> None:
        if hub.sessions == 1:
            raise trio.BrokenResourceError  # ends the script, and with it the connection
        await pong(link, frame)

    hub, subject = Hub(die_once), forwarder(inbox, home, key)
    async with connected(subject, hub, home):
        (row,) = store(inbox, "alice")
        assert await subject.submit([row.id]) == {row.id: Outcome("hub_down")}
        await until_recorded(inbox, row, "hinted")
    assert hub.sessions == 2
    assert hub.woken() == [("alice", row.id)] * 2


async def test_a_silent_hub_is_down(inbox: SqliteInbox, home: Path, key: KeyPair, mock_clock: MockClock) -> None:
    async def ignore(link: Link, frame: Frame) -> None:
        if frame.kind is Kind.PING:
            await wait_all_tasks_blocked()
            mock_clock.jump(POKE_DEADLINE_MS / 1000)

    hub, subject = Hub(ignore), forwarder(inbox, home, key)
    async with connected(subject, hub, home):
        (row,) = store(inbox, "alice")
        assert await subject.submit([row.id]) == {row.id: Outcome("hub_down")}
        await hub.until(lambda hub: hub.ended == 1)
        assert hub.pings == 2
        hub.answer = pong
        await wait_all_tasks_blocked()
        mock_clock.jump(RECONNECT_CAP_MS / 1000)
        await hub.until(lambda hub: hub.sessions == 2)
    assert events(inbox, row)[:1] == [("stored", None)]


async def test_over_the_budget_wakes_coalesce_and_receipts_are_late(
    inbox: SqliteInbox, home: Path, key: KeyPair, mock_clock: MockClock
) -> None:
    """The clock stands still but for two jumps, each when everything waits for it; threads take what time they need."""
    names = [f"agent-{n}" for n in range(WAKE_BATCH)]
    hub, subject = Hub(), forwarder(inbox, home, key, rate=1, burst=WAKE_BATCH + 2)
    answers: dict[str, Outcome] = {}

    async def ask(rows: Sequence[Row]) -> None:
        answers.update(await subject.submit([row.id for row in rows]))

    async with connected(subject, hub, home), trio.open_nursery() as nursery:
        first = store(inbox, *names)
        await expect(subject, first, Outcome("hinted"))
        second, third = store(inbox, *names), store(inbox, *names)
        later = [row.id for row in (*second, *third)]
        for rows in (second, third):
            nursery.start_soon(ask, rows)
        await comes_to_pass(lambda: len(subject._waits) == len(later))
        await wait_all_tasks_blocked()
        mock_clock.jump(POKE_DEADLINE_MS / 1000)
        await comes_to_pass(lambda: len(answers) == len(later))
        assert answers == dict.fromkeys(later, Outcome("refused", 429))
        assert len(hub.wakes) == WAKE_BATCH
        assert [events(inbox, row) for row in (*second, *third)] == [[("stored", None)]] * len(later)
        await wait_all_tasks_blocked()
        mock_clock.jump(2 * WAKE_BATCH)
        await comes_to_pass(lambda: all(header.hinted_ms for header in inbox.headers(later)))
        await expect(subject, [*second, *third], Outcome("hinted"))
    assert hub.woken() == [(row.recipient, row.id) for row in (*first, *third)]
    assert hub.pings == 2


async def comes_to_pass(holds: Callable[[], bool]) -> None:
    """Wait until it holds, in the time of the threads that work on it, not in that of the clock."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it never came to pass"
        await trio.to_thread.run_sync(time.sleep, 0.002)


async def expect(subject: Forwarder, rows: Sequence[Row], outcome: Outcome) -> None:
    assert await subject.submit([row.id for row in rows]) == dict.fromkeys([row.id for row in rows], outcome)


async def test_a_delegation_that_runs_out_is_renewed_by_a_new_session(
    inbox: SqliteInbox, home: Path, key: KeyPair
) -> None:
    now_s = 1_900_000_000.0
    windows: list[tuple[int, int]] = []
    hub, subject = Hub(), forwarder(inbox, home, key, wall=lambda: now_s)

    async def script(link: Link) -> None:
        from wakehub.identity.delegation import Certificate
        from wakehub.wire.payloads import Welcome

        hello = await link.challenge()
        begin, end = Certificate.decode(hello.certificate).window()
        windows.append((begin // NS, end // NS))
        await link.send(Kind.WELCOME, Welcome(1, 0, 0, False, 1, 0).encode())
        hub.sessions += 1
        hub._note()
        while (frame := await link.receive()) is not None:
            await pong(link, frame)

    async with serve(home / "hub.sock", [script]), running(subject):
        await hub.until(lambda hub: hub.sessions == 1)
        now_s += 3000
        await hub.until(lambda hub: hub.sessions == 2)
        (row,) = store(inbox, "alice")
        assert await subject.submit([row.id]) == {row.id: Outcome("hinted")}
        now_s -= 86_400  # the clock is set back
        await hub.until(lambda hub: hub.sessions == 3)
    begins = [1_900_000_000, 1_900_003_000, 1_900_003_000 - 86_400]
    assert windows == [(begin, begin + 3600) for begin in begins]


class BusyOnce(SqliteInbox):
    """A record that another process has locked when the first hint is recorded."""

    busy = True

    def record_hint(self, *args: object, **options: object) -> None:
        if self.busy:
            self.busy = False
            raise RecordBusy("the record is locked")
        super().record_hint(*args, **options)  # type: ignore[arg-type]


async def test_trouble_with_the_record_is_waited_out(
    inbox: SqliteInbox, home: Path, key: KeyPair, autojump_clock: MockClock
) -> None:
    with BusyOnce.open(home / "state" / "record.db") as busy:
        hub, subject = Hub(), forwarder(busy, home, key)
        async with connected(subject, hub, home):
            (row,) = store(inbox, "alice")
            began = trio.current_time()
            await hub.until(lambda hub: len(hub.wakes) == 2)
            assert trio.current_time() - began >= RECORD_RETRY_SECONDS - PUBLISHER_TICK_MS / 1000
            await until_recorded(inbox, row, "hinted")
    assert hub.woken() == [("alice", row.id)] * 2
