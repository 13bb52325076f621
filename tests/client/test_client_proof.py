"""The proof by ping, against a hub that answers as the test says (formats.md, Poke)."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from scripted_hub import Link, serve
from trio.testing import MockClock, wait_all_tasks_blocked

from wakehub.client.connection import connect
from wakehub.client.failures import Failure, HubError
from wakehub.client.proof import Addressed, Prover
from wakehub.errors import ErrorCode, only_known
from wakehub.identity.delegation import Bundle
from wakehub.identity.keys import KeyPair
from wakehub.limits import PROOF_DEADLINE_MS
from wakehub.wire.frames import Frame, Kind
from wakehub.wire.payloads import Wake

Answer = Callable[[Link, Frame], Awaitable[None]]


class Hub:
    """Admits, keeps every frame, and answers each with `answer`."""

    def __init__(self, answer: Answer) -> None:
        self.frames: list[Frame] = []
        self._answer = answer

    async def script(self, link: Link) -> None:
        await link.admit()
        while (frame := await link.receive()) is not None:
            self.frames.append(frame)
            await self._answer(link, frame)

    def seen(self) -> str:
        """What came in: w for a wake, p for a ping."""
        return "".join({Kind.WAKE: "w", Kind.PING: "p"}[frame.kind] for frame in self.frames)


def wakes(count: int) -> list[Addressed]:
    return [(f"agent-{n}", Wake(b"m_%d" % n)) for n in range(count)]


async def deliver(
    run_directory: Path, key: KeyPair, hub: Hub, sent: list[Addressed], spent: list[int]
) -> list[int | None]:
    bundle = Bundle.make("wakehub-publisher", key, "wakehub", 1_800_000_000, 3600)

    async def spend(tokens: int) -> None:
        spent.append(tokens)

    async with serve(run_directory / "hub.sock", [hub.script]), connect(run_directory / "hub.sock", bundle) as session:
        prover = Prover(session)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(prover.listen)
            codes = await prover.deliver(sent, spend)
            nursery.cancel_scope.cancel()
    return codes


async def pong(link: Link, frame: Frame) -> None:
    if frame.kind is Kind.PING:
        await link.send(Kind.PONG)


def refusing(code: ErrorCode, agent: bytes) -> Answer:
    async def answer(link: Link, frame: Frame) -> None:
        if frame.to_id == agent:
            await link.refuse(code)
        await pong(link, frame)

    return answer


async def test_a_pong_without_an_error_proves_the_whole_batch(run_directory: Path, key: KeyPair) -> None:
    hub, spent = Hub(pong), []
    assert await deliver(run_directory, key, hub, wakes(64), spent) == [None] * 64
    assert hub.seen() == "w" * 64 + "p"
    assert spent == []
    assert all(frame.ttl_ms == 0 for frame in hub.frames)


async def test_an_error_in_a_batch_has_each_repeated_with_its_own_ping(run_directory: Path, key: KeyPair) -> None:
    hub, spent = Hub(refusing(ErrorCode.UNKNOWN, b"agent-1")), []
    assert await deliver(run_directory, key, hub, wakes(3), spent) == [None, 404, None]
    assert hub.seen() == "wwwp" + "wpwpwp"
    assert spent == [2, 2, 2]


async def test_an_error_for_a_single_wake_needs_no_repetition(run_directory: Path, key: KeyPair) -> None:
    hub = Hub(refusing(ErrorCode.OVERFLOW, b"agent-0"))
    assert await deliver(run_directory, key, hub, wakes(1), []) == [507]
    assert hub.seen() == "wp"


async def test_an_address_that_no_frame_carries_costs_only_its_own_wake(run_directory: Path, key: KeyPair) -> None:
    hub = Hub(pong)
    sent = [("alice", Wake(b"m_1")), ("new\nline", Wake(b"m_2"))]
    assert await deliver(run_directory, key, hub, sent, []) == [None, 400]
    assert hub.seen() == "wp" + "wp" + "p"


class Silence:
    """Answers no ping until it has swallowed `pings` of them, then all it owes."""

    def __init__(self, clock: MockClock, pings: int) -> None:
        self._clock = clock
        self._left = pings

    async def __call__(self, link: Link, frame: Frame) -> None:
        if frame.kind is not Kind.PING:
            return
        if self._left:
            self._left -= 1
            await wait_all_tasks_blocked()
            self._clock.jump(PROOF_DEADLINE_MS / 1000)
        else:
            await link.send(Kind.PONG)


async def test_silence_has_each_repeated_and_a_late_pong_proves_nothing_else(
    run_directory: Path, key: KeyPair, mock_clock: MockClock
) -> None:
    late = Silence(mock_clock, 1)

    async def answer(link: Link, frame: Frame) -> None:
        if frame.kind is Kind.PING and len(hub.frames) == 5:
            await link.send(Kind.PONG)  # the answer to the batch's ping, too late
            await link.refuse(ErrorCode.UNKNOWN)  # for the first of the repeated wakes
        await late(link, frame)

    hub = Hub(answer)
    assert await deliver(run_directory, key, hub, wakes(2), []) == [404, None]
    assert hub.seen() == "wwp" + "wp" + "wp"


async def test_a_second_silence_gives_the_session_up(run_directory: Path, key: KeyPair, mock_clock: MockClock) -> None:
    hub = Hub(Silence(mock_clock, 9))
    assert await deliver(run_directory, key, hub, wakes(3), []) == []
    assert hub.seen() == "wwwp" + "wp"


async def test_the_end_of_the_session_is_told(run_directory: Path, key: KeyPair) -> None:
    async def end(link: Link, frame: Frame) -> None:
        await link.stream.aclose()

    with pytest.raises(BaseExceptionGroup) as caught:
        await deliver(run_directory, key, Hub(end), wakes(2), [])
    ended = only_known(caught.value)
    assert isinstance(ended, HubError)
    assert ended.failure is Failure.LOST
