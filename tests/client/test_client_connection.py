"""One session over a real socket: the handshake, what can go wrong with it, and what comes after."""

import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from scripted_hub import HUB, Link, serve

from wakehub.client.connection import connect
from wakehub.client.failures import Failure, HubError
from wakehub.errors import ErrorCode, Exit
from wakehub.identity.delegation import Bundle
from wakehub.identity.keys import verify
from wakehub.wire import transcript
from wakehub.wire.frames import Frame, Kind, encode
from wakehub.wire.payloads import Error, Wake, Welcome
from wakehub.wire.protocol import Acknowledged, Ponged, Woken

Script = Callable[[Link], Awaitable[object]]


async def failure_of(path: Path, bundle: Bundle, script: Script, timeout_s: float = 5) -> HubError:
    async def exhaust() -> None:
        async with connect(path, bundle, timeout_s=timeout_s) as session:
            while True:
                await session.receive()

    async with serve(path, [script]) as hub:
        with pytest.raises(HubError) as caught:
            await exhaust()
        await hub.all_ended()
    return caught.value


async def test_the_hello_is_signed_with_the_session_key_and_carries_certificate_and_topics(
    run_directory: Path, bundle: Bundle
) -> None:
    topics = (b"#_inbox/alice", b"#acme")
    seen = []

    async def script(link: Link) -> None:
        seen.append(await link.challenge())
        await link.send(Kind.WELCOME, Welcome(7, 2, 1, False, 250, 750).encode())
        await link.until_closed()

    async with serve(run_directory / "hub.sock", [script]) as hub:
        async with connect(run_directory / "hub.sock", bundle, topics) as session:
            assert session.welcome.session == 7
            assert session.welcome.pending_count == 2
        await hub.all_ended()
    (hello,) = seen
    assert hello.topics == topics
    assert hello.key == bundle.delegate.public
    assert hello.certificate == bundle.certificate
    assert verify(hello.key, transcript.hello(HUB, bytes(32), b"alice", topics), hello.signature)


async def test_events_come_in_order_and_pings_are_answered_unseen(run_directory: Path, bundle: Bundle) -> None:
    answered = []

    async def script(link: Link) -> None:
        await link.admit()
        await link.wake("m_1", watermark=1)
        await link.send(Kind.PING, b"are you there")
        await link.refuse(ErrorCode.UNKNOWN, "no such agent")
        await link.wake("m_2", watermark=2)
        answered.extend(await link.until_closed())

    async with serve(run_directory / "hub.sock", [script]) as hub:
        async with connect(run_directory / "hub.sock", bundle) as session:
            first, error, second = [await session.receive() for _ in range(3)]
        await hub.all_ended()
    assert isinstance(first, Woken)
    assert first.wake.row_id == b"m_1"
    assert error == Error(ErrorCode.UNKNOWN, "no such agent")
    assert isinstance(second, Woken)
    assert second.wake.watermark == 2
    assert [frame.kind for frame in answered] == [Kind.PONG]


async def test_requests_go_out_as_frames_of_this_agent(run_directory: Path, bundle: Bundle) -> None:
    async def script(link: Link) -> None:
        await link.admit()
        for _ in range(2):
            frame = await link.receive()
            assert frame is not None
            await link.send(frame.kind, frame.payload)
        got.extend(await link.until_closed())

    got: list[Frame] = []
    async with serve(run_directory / "hub.sock", [script]) as hub:
        async with connect(run_directory / "hub.sock", bundle) as session:
            await session.subscribe([b"#acme"])
            assert await session.receive() == Acknowledged(Kind.SUBSCRIBE, (b"#acme",))
            await session.unsubscribe([b"#acme"])
            assert await session.receive() == Acknowledged(Kind.UNSUBSCRIBE, (b"#acme",))
            await session.wake("bob", Wake(b"m_9"), ttl_ms=500)
            await session.ping(b"x")
            assert await session.receive() == Ponged()
            await session.depart()
        await hub.all_ended()
    wake, ping, depart = got
    assert (wake.kind, wake.from_id, wake.to_id, wake.ttl_ms) == (Kind.WAKE, b"alice", b"bob", 500)
    assert wake.ts_ms > 0
    assert (ping.kind, ping.payload) == (Kind.PING, b"x")
    signed = transcript.membership(Kind.DEPART, HUB, bytes(32), b"alice")
    assert verify(bundle.delegate.public, signed, depart.payload)


async def test_no_socket_is_absent(run_directory: Path, bundle: Bundle) -> None:
    with pytest.raises(HubError) as caught:
        async with connect(run_directory / "hub.sock", bundle):
            pass
    assert caught.value.failure is Failure.ABSENT
    assert caught.value.exit is Exit.UNAVAILABLE
    assert "wakehub --health" in str(caught.value)


async def test_a_socket_that_nobody_serves_is_refused(run_directory: Path, bundle: Bundle) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(os.fspath(run_directory / "hub.sock"))
    with pytest.raises(HubError) as caught:
        async with connect(run_directory / "hub.sock", bundle):
            pass
    assert caught.value.failure is Failure.REFUSED


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        (ErrorCode.UNAUTHORIZED, Failure.UNAUTHORIZED),
        (ErrorCode.OVERFLOW, Failure.CEILING),
        (ErrorCode.MALFORMED, Failure.VIOLATION),
        (ErrorCode.RATE_LIMITED, Failure.VIOLATION),
    ],
)
async def test_an_error_in_place_of_the_welcome_is_told_apart(
    run_directory: Path, bundle: Bundle, code: ErrorCode, failure: Failure
) -> None:
    async def script(link: Link) -> None:
        await link.challenge()
        await link.refuse(code, "because \x1b[2K")

    error = await failure_of(run_directory / "hub.sock", bundle, script)
    assert error.failure is failure
    assert "\x1b" not in str(error)


async def test_a_full_hub_answers_before_any_challenge(run_directory: Path, bundle: Bundle) -> None:
    error = await failure_of(run_directory / "hub.sock", bundle, lambda link: link.refuse(ErrorCode.OVERFLOW, "full"))
    assert error.failure is Failure.CEILING


@pytest.mark.parametrize(
    ("code", "failure"), [(ErrorCode.REPLACED, Failure.REPLACED), (ErrorCode.UNAUTHORIZED, Failure.UNAUTHORIZED)]
)
async def test_an_ending_error_ends_the_session_behind_what_came_first(
    run_directory: Path, bundle: Bundle, code: ErrorCode, failure: Failure
) -> None:
    async def script(link: Link) -> None:
        await link.admit()
        await link.wake()
        await link.refuse(code)

    async with serve(run_directory / "hub.sock", [script]):
        async with connect(run_directory / "hub.sock", bundle) as session:
            assert isinstance(await session.receive(), Woken)
            with pytest.raises(HubError) as caught:
                await session.receive()
    assert caught.value.failure is failure


async def test_another_hub_id_than_the_bundles_is_refused_before_anything_is_signed(
    run_directory: Path, bundle: Bundle
) -> None:
    got = []

    async def script(link: Link) -> None:
        await link.stream.send_all(encode(Frame(Kind.HELLO, b"other-hub", payload=bytes(32))))
        got.append(await link.receive())

    error = await failure_of(run_directory / "hub.sock", bundle, script)
    assert error.failure is Failure.WRONG_HUB
    assert "other-hub" in str(error)
    assert "wakehub" in str(error)
    assert got == [None]


async def test_silence_is_a_timeout(
    run_directory: Path, bundle: Bundle, autojump_clock: trio.testing.MockClock
) -> None:
    error = await failure_of(run_directory / "hub.sock", bundle, lambda link: link.receive())
    assert error.failure is Failure.TIMEOUT


async def test_a_closed_stream_is_lost_and_half_a_frame_a_violation(run_directory: Path, bundle: Bundle) -> None:
    error = await failure_of(run_directory / "hub.sock", bundle, lambda link: link.admit())
    assert error.failure is Failure.LOST

    async def half(link: Link) -> None:
        await link.admit()
        await link.stream.send_all(b"\0\0\0\x40AWH1")

    error = await failure_of(run_directory / "hub.sock", bundle, half)
    assert error.failure is Failure.VIOLATION


async def test_whole_events_before_a_violation_are_still_given(run_directory: Path, bundle: Bundle) -> None:
    async def script(link: Link) -> None:
        await link.admit()
        wake = encode(Frame(Kind.WAKE, b"bob", b"alice", Wake(b"m_1").encode()))
        await link.stream.send_all(wake + b"\xff\xff\xff\xff")
        await link.until_closed()

    async with serve(run_directory / "hub.sock", [script]):
        async with connect(run_directory / "hub.sock", bundle) as session:
            assert isinstance(await session.receive(), Woken)
            with pytest.raises(HubError) as caught:
                await session.receive()
    assert caught.value.failure is Failure.VIOLATION
    assert "1304" in caught.value.why


async def test_a_kind_without_a_place_is_a_violation(run_directory: Path, bundle: Bundle) -> None:
    error = await failure_of(run_directory / "hub.sock", bundle, lambda link: link.wake())
    assert error.failure is Failure.VIOLATION


async def test_many_senders_never_mix_their_frames(run_directory: Path, bundle: Bundle) -> None:
    got: list[Frame] = []

    async def script(link: Link) -> None:
        await link.admit()
        got.extend(await link.until_closed())

    async with serve(run_directory / "hub.sock", [script]) as hub:
        async with connect(run_directory / "hub.sock", bundle) as session:
            async with trio.open_nursery() as nursery:
                for number in range(50):
                    nursery.start_soon(session.wake, "bob", Wake(f"m_{number}".encode(), b"n" * 100))
        await hub.all_ended()
    assert {Wake.decode(frame.payload).row_id for frame in got} == {f"m_{n}".encode() for n in range(50)}


async def test_a_cancelled_receive_loses_no_event(run_directory: Path, bundle: Bundle) -> None:
    go = trio.Event()

    async def script(link: Link) -> None:
        await link.admit()
        await go.wait()
        await link.wake("m_1")
        await link.until_closed()

    async with serve(run_directory / "hub.sock", [script]):
        async with connect(run_directory / "hub.sock", bundle) as session:
            with trio.CancelScope() as scope:
                scope.cancel()
                await session.receive()
            go.set()
            event = await session.receive()
    assert isinstance(event, Woken)


async def test_a_full_backlog_is_waited_out(run_directory: Path, bundle: Bundle) -> None:
    path = run_directory / "hub.sock"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as first:
        server.bind(os.fspath(path))
        server.listen(0)
        first.connect(os.fspath(path))
        with pytest.raises(HubError) as caught:
            async with connect(path, bundle, timeout_s=0.1):
                pass
        assert caught.value.failure is Failure.TIMEOUT
