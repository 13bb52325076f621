"""Messages into sessions that take them well or badly; the waits of up to a minute are played, not waited for."""

import itertools
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from fake_claude import Does, FakeClaude, FakeSession, fake_claude
from relay_world import World, message
from trio.testing import MockClock

from wakehub.identity import peercred
from wakehub.relay.backends import HandedOff, NotNow, Outcome, OutputGone
from wakehub.relay.backends.claude.deliver import Sessions
from wakehub.relay.message import Message
from wakehub.relay.options import ToClaude
from wakehub.relay.render import render

PROVEN = HandedOff("transcript")
BIG = "é" * 125_000
"""As large as a body may be, and three times that in JSON: more than a socket holds."""


@pytest.fixture
async def claude(world: World) -> AsyncIterator[FakeClaude]:
    async with fake_claude(world.directory / "c") as fake:
        yield fake


@pytest.fixture
def backend(world: World, claude: FakeClaude) -> Sessions:
    return sessions(world, claude)


def sessions(world: World, claude: FakeClaude, *names: str, environ: Any = None, **to: Any) -> Sessions:
    return Sessions(ToClaude(**to), names or ("acme/",), world.config.paths, claude.environ | (environ or {}))


def to(name: str = "review", body: str = "hello", number: int = 0, **fields: Any) -> Message:
    return message(body, id=f"m_{number:026}", sender="acme/bob", recipient=f"acme/{name}", **fields)


async def test_the_transcript_shows_it_enqueued(
    autojump_clock: MockClock, claude: FakeClaude, backend: Sessions
) -> None:
    session = await claude.start()
    assert await backend.deliver(to()) == PROVEN
    (got,) = session.got
    assert trio.current_time() < 1
    (line,) = got.lines
    assert line.pop("msg_id")
    assert line == {
        "type": "user",
        "session_id": session.session_id,
        "priority": "next",
        "message": {"role": "user", "content": render(to(), "agent").decode()},
    }


@pytest.mark.parametrize("does", [Does.ACCEPT_AS_USER, Does.DUPLICATE])
async def test_other_ways_to_show_it(
    autojump_clock: MockClock, claude: FakeClaude, backend: Sessions, does: Does
) -> None:
    session = await claude.start("review", does)
    assert await backend.deliver(to()) == PROVEN
    assert len(session.got) == 1


async def test_a_session_that_asks_for_a_token_gets_it_first(
    autojump_clock: MockClock, claude: FakeClaude, backend: Sessions
) -> None:
    session = await claude.start(token="s3cret")
    assert await backend.deliver(to()) == PROVEN
    assert [line["type"] for line in session.got[0].lines] == ["auth", "user"]


async def test_what_the_transcript_showed_before_proves_nothing(
    autojump_clock: MockClock, claude: FakeClaude, backend: Sessions
) -> None:
    session = await claude.start("review", Does.DROP, Does.DROP)
    session.enqueue(render(to(), "agent").decode())
    assert isinstance(await backend.deliver(to()), NotNow)


async def test_one_that_drops_it_is_told_once_more(
    autojump_clock: MockClock, claude: FakeClaude, backend: Sessions
) -> None:
    session = await claude.start("review", Does.DROP)
    assert await backend.deliver(to()) == PROVEN
    first, second = session.got
    assert second.at - first.at >= 40
    assert "redelivery" not in first.text
    assert "redelivery 1]" in second.text
    assert first.lines[0]["msg_id"] == second.lines[0]["msg_id"]


async def test_one_that_takes_its_time_is_not_told_again(
    autojump_clock: MockClock, claude: FakeClaude, backend: Sessions
) -> None:
    session = await claude.start("review", Does.DELAY)
    assert await backend.deliver(to()) == PROVEN
    assert len(session.got) == 1
    assert trio.current_time() == pytest.approx(20, abs=1)


async def test_one_that_holds_it_has_not_got_it(
    autojump_clock: MockClock, claude: FakeClaude, backend: Sessions
) -> None:
    """Told twice, 40 s apart; then not now, from 60 s on; let in later, it is found without being said again."""
    session = await claude.start("review", *[Does.HOLD] * 4)
    outcome = await backend.deliver(to())
    assert isinstance(outcome, NotNow)
    assert (outcome.busy, outcome.in_doubt, outcome.retry_s) == (False, True, 60)
    assert "told twice, and its transcript shows nothing; it speaks peer protocol 1" in outcome.reason
    assert [got.at for got in session.got] == pytest.approx([0, 40], abs=1)
    assert trio.current_time() == pytest.approx(50, abs=1)
    session.release()
    assert await backend.deliver(to(redelivery=1)) == PROVEN
    assert len(session.got) == 2


async def test_one_that_never_shows_it_is_told_again_at_each_attempt(
    autojump_clock: MockClock, claude: FakeClaude, backend: Sessions
) -> None:
    session = await claude.start("review", *[Does.DROP] * 4)
    assert isinstance(await backend.deliver(to()), NotNow)
    assert isinstance(await backend.deliver(to(redelivery=1)), NotNow)
    assert len({got.lines[0]["msg_id"] for got in session.got}) == 2
    assert ["redelivery 2]" in got.text for got in session.got] == [False, False, False, True]
    assert await backend.deliver(to(redelivery=2)) == PROVEN


async def test_one_that_dies_when_it_has_read_it_has_not_got_it(
    autojump_clock: MockClock, claude: FakeClaude, backend: Sessions
) -> None:
    """Found out at once, not after a minute; it comes again when the name has a session again (F37)."""
    session = await claude.start("review", Does.DIE_BEFORE)
    outcome = await backend.deliver(to())
    assert outcome == NotNow(f"session review (pid {session.pid}) ended before it showed the message", True, True)
    assert trio.current_time() < 1
    backend.check()
    assert not backend.exists("acme/review")
    again = await claude.start("review")
    backend.check()
    assert backend.exists("acme/review")
    assert await backend.deliver(to(redelivery=1)) == PROVEN
    assert len(again.got) == 1


async def test_one_that_dies_between_enqueuing_and_reading_has_it_in_its_transcript(
    autojump_clock: MockClock, claude: FakeClaude, backend: Sessions
) -> None:
    session = await claude.start("review", Does.DIE_AFTER)
    assert await backend.deliver(to()) == PROVEN
    assert session.is_dead


async def test_one_that_changes_its_session_id_meanwhile(
    autojump_clock: MockClock, claude: FakeClaude, backend: Sessions
) -> None:
    """F37: /clear between the post and the queue; the proof is in the new transcript."""
    session = await claude.start("review", Does.SWAP)
    old = session.transcript
    assert await backend.deliver(to()) == PROVEN
    assert session.transcript != old
    assert len(session.got) == 1


async def test_the_session_id_is_read_anew_before_every_post(
    autojump_clock: MockClock, claude: FakeClaude, backend: Sessions
) -> None:
    session = await claude.start("review", Does.DROP)
    ids = [session.session_id]

    async def clear_meanwhile() -> None:
        await trio.sleep(30)
        session.clear()
        ids.append(session.session_id)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(clear_meanwhile)
        assert await backend.deliver(to()) == PROVEN
    assert [got.lines[0]["session_id"] for got in session.got] == ids


async def test_one_that_cuts_the_connection_leaves_it_in_doubt(
    autojump_clock: MockClock, claude: FakeClaude, backend: Sessions
) -> None:
    session = await claude.start("review", Does.RESET)
    outcome = await backend.deliver(to(body=BIG))
    assert outcome == NotNow(f"session review (pid {session.pid}) closed its socket on us", in_doubt=True)
    assert await backend.deliver(to(body=BIG, redelivery=1)) == PROVEN


async def test_one_that_never_reads_keeps_us_for_seconds_only(
    autojump_clock: MockClock, claude: FakeClaude, backend: Sessions
) -> None:
    session = await claude.start("review", Does.STARVE)
    outcome = await backend.deliver(to(body=BIG))
    assert outcome == NotNow(f"session review (pid {session.pid}) did not read in 5 s", in_doubt=True)
    assert trio.current_time() == pytest.approx(5, abs=0.5)


async def test_one_without_a_socket_is_unreachable_and_that_is_said(
    autojump_clock: MockClock, claude: FakeClaude, backend: Sessions
) -> None:
    session = await claude.start("review", has_socket=False)
    assert backend.exists("acme/review")
    outcome = await backend.deliver(to())
    assert isinstance(outcome, NotNow)
    assert (outcome.busy, outcome.in_doubt) == (True, False)
    assert f"session review (pid {session.pid}) has no messaging socket" in outcome.reason


async def test_a_socket_that_is_gone_or_none(autojump_clock: MockClock, claude: FakeClaude, backend: Sessions) -> None:
    session = await claude.start()
    session.socket_path.unlink()
    outcome = await backend.deliver(to())
    assert outcome == NotNow(
        f"session review (pid {session.pid}) cannot be reached at its socket (No such file or directory)", busy=True
    )
    session.socket_path.touch()
    outcome = await backend.deliver(to())
    assert outcome == NotNow(f"{session.socket_path} is no socket of ours", busy=True)


async def test_a_socket_that_nobody_serves_or_another_user_does(
    autojump_clock: MockClock, claude: FakeClaude, backend: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await claude.start()
    monkeypatch.setattr(peercred, "read", lambda sock: peercred.PeerCredentials(12345, 1))
    outcome = await backend.deliver(to())
    assert outcome == NotNow(f"the socket of session review (pid {session.pid}) is served by uid 12345", busy=True)
    assert session.got == []
    session.socket_path.unlink()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(session.socket_path))
        outcome = await backend.deliver(to())
    assert outcome == NotNow(
        f"session review (pid {session.pid}) cannot be reached at its socket (Connection refused)", busy=True
    )


async def test_a_directory_without_sessions_is_named(world: World, tmp_path: Path) -> None:
    environ = {"CLAUDE_CONFIG_DIR": str(tmp_path)}
    backend = Sessions(ToClaude(), ["acme/"], world.config.paths, environ)
    said = f"there is no {tmp_path}/sessions yet; is CLAUDE_CONFIG_DIR right?"
    assert said in backend.mode
    assert await backend.deliver(to()) == NotNow(said, busy=True)
    (tmp_path / "sessions").mkdir()
    assert backend.absence("acme/review") == "no session called review is running"
    assert said not in Sessions(ToClaude(), ["acme/"], world.config.paths, environ).mode


async def test_nobody_of_that_name_and_several(
    autojump_clock: MockClock, claude: FakeClaude, backend: Sessions
) -> None:
    assert await backend.deliver(to()) == NotNow("no session called review is running", busy=True)
    first, second = await claude.start(), await claude.start()
    outcome = await backend.deliver(to())
    assert isinstance(outcome, NotNow)
    assert outcome.busy
    assert str(first.pid) in outcome.reason
    assert str(second.pid) in outcome.reason
    second.rename("other")
    assert await backend.deliver(to()) == PROVEN
    assert second.got == []


async def test_messages_to_one_session_go_one_at_a_time_and_2_s_apart(
    autojump_clock: MockClock, claude: FakeClaude, backend: Sessions
) -> None:
    session = await claude.start("review", *[Does.ACCEPT, Does.DELAY] * 2)
    outcomes: list[Outcome] = []

    async def deliver(number: int) -> None:
        outcomes.append(await backend.deliver(to(number=number)))

    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(deliver, number)
    assert outcomes == [PROVEN] * 4
    assert session.most_connections == 1
    times = [got.at for got in session.got]
    assert min(b - a for a, b in itertools.pairwise(times)) >= 2


async def test_a_session_that_holds_keeps_no_other_waiting(
    autojump_clock: MockClock, claude: FakeClaude, backend: Sessions
) -> None:
    await claude.start("slow", Does.HOLD, Does.HOLD)
    await claude.start("quick")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(backend.deliver, to("slow"))
        await trio.sleep(1)
        assert await backend.deliver(to("quick", number=1)) == PROVEN
        assert trio.current_time() < 3
        nursery.cancel_scope.cancel()


async def test_without_a_session_for_600_s_it_ends(
    autojump_clock: MockClock, claude: FakeClaude, backend: Sessions
) -> None:
    backend.check()
    await trio.sleep(599)
    backend.check()
    session = await claude.start()
    backend.check()
    session.die()
    await trio.sleep(599)
    backend.check()
    await trio.sleep(1)
    with pytest.raises(OutputGone, match="no Claude Code session has been running for 600 s") as gone:
        backend.check()
    assert not gone.value.in_doubt


@pytest.mark.parametrize(("exit_after_s", "ends"), [(5, True), (0, False)])
async def test_how_long_can_be_said(
    autojump_clock: MockClock, world: World, claude: FakeClaude, exit_after_s: int, ends: bool
) -> None:
    backend = sessions(world, claude, exit_after_s=exit_after_s)
    backend.check()
    await trio.sleep(80_000)
    if ends:
        with pytest.raises(OutputGone, match="for 5 s"):
            backend.check()
    else:
        backend.check()


async def test_a_listener_in_a_session_watches_that_one(
    autojump_clock: MockClock, world: World, claude: FakeClaude
) -> None:
    own, other = await claude.start("mine"), await claude.start("alice")
    backend = sessions(world, claude, "alice", environ={"CLAUDE_CODE_SESSION_ID": own.session_id})
    assert await backend.deliver(message()) == PROVEN
    assert (len(own.got), len(other.got)) == (1, 0)
    own.clear()
    assert backend.exists("alice")
    assert await backend.deliver(message(id="m_00000000000000000000000001")) == PROVEN
    assert own.got[1].lines[0]["session_id"] == own.session_id
    own.die()
    backend.check()
    await trio.sleep(600)
    with pytest.raises(OutputGone):
        backend.check()
    assert other.got == []


async def test_one_that_comes_is_another_agent(
    autojump_clock: MockClock, claude: FakeClaude, backend: Sessions
) -> None:
    backend.check()
    assert set(backend.list_agents()) == set()
    session = await claude.start()
    backend.check()
    first = set(backend.list_agents())
    assert len(first) == 1
    session.rename("other")
    backend.check()
    assert set(backend.list_agents()).isdisjoint(first)


async def test_what_was_not_shown_is_remembered_for_so_many_only(
    autojump_clock: MockClock, claude: FakeClaude, backend: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wakehub.relay.backends.claude.deliver.MAX_LOOKS", 2)
    session = await claude.start("review", *[Does.HOLD] * 6)
    for number in range(3):
        assert isinstance(await backend.deliver(to(number=number)), NotNow)
    session.release()
    assert await backend.deliver(to(number=2)) == PROVEN
    assert len(session.got) == 6
    assert await backend.deliver(to(number=0)) == PROVEN
    assert len(session.got) == 7  # said once more: at least once


async def test_stale_records_are_nobody(autojump_clock: MockClock, claude: FakeClaude, backend: Sessions) -> None:
    """A killed session leaves record and socket; its pid may belong to another process by now."""
    dead = await claude.start("dead")
    dead.die()
    reused = await claude.start("reused")
    reused.write_record(procStart="1")
    backend.check()
    assert dead.record_path.exists()
    assert dead.socket_path.exists()
    assert not backend.exists("acme/dead")
    assert not backend.exists("acme/reused")
    assert await backend.deliver(to("reused")) == NotNow("no session called reused is running", busy=True)
    assert reused.got == []


async def test_nothing_of_a_token_is_ever_said(
    autojump_clock: MockClock, claude: FakeClaude, backend: Sessions
) -> None:
    session = await claude.start("review", *[Does.DROP] * 2, token="s3cret")
    outcome = await backend.deliver(to())
    assert isinstance(outcome, NotNow)
    assert "s3cret" not in outcome.reason
    assert "s3cret" not in json.dumps([got.text for got in session.got])


def is_a_path_of_theirs(path: Path, session: FakeSession) -> bool:
    return path.is_relative_to(session.config)


async def test_nothing_is_ever_written_into_their_directory(
    autojump_clock: MockClock, claude: FakeClaude, backend: Sessions
) -> None:
    session = await claude.start("review", Does.DROP)
    before = {path for path in session.config.rglob("*") if is_a_path_of_theirs(path, session)}
    assert await backend.deliver(to()) == PROVEN
    after = set(session.config.rglob("*")) - before
    assert after <= {*session.transcript.parents, session.transcript}
