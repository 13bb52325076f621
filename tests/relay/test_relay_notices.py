"""What is said to the person beside a listener."""

import io
import sys

import pytest
import trio
from relay_world import World

from wakehub.inbox.clock import Now
from wakehub.relay.notices import clock, nothing_for, tell, told_to, wrong_box


def test_a_line_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    tell("hello")
    assert capsys.readouterr() == ("", "wakehub: hello\n")


def test_nobody_to_tell_is_no_reason_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    tell("hello")


def test_times_are_utc() -> None:
    assert clock(1_800_000_000_000) == "2027-01-15 08:00:00 UTC"


def test_other_boxes_are_named_unless_the_listener_covers_them(world: World) -> None:
    assert nothing_for(world.inbox, ["alice"]) == "nothing unread for alice"
    world.store("a", "b", to="carl")
    world.store("c", to="acme/x")
    assert nothing_for(world.inbox, ["alice"]) == "nothing unread for alice; unread elsewhere: acme/x 1, carl 2"


def test_what_was_not_handed_off_is_not_called_nothing(world: World) -> None:
    world.store("a", "b", to="carl")
    world.store("c", to="acme/x")
    assert nothing_for(world.inbox, ["carl"]) == "2 unread for carl left for later; unread elsewhere: acme/x 1"
    assert nothing_for(world.inbox, ["carl", "acme/"]) == "3 unread for carl, acme/ left for later"


def test_the_systems_own_boxes_are_nobodys_business(world: World) -> None:
    world.store("a", to="wakehub-doctor")
    assert nothing_for(world.inbox, ["alice"]) == "nothing unread for alice"
    assert wrong_box(world.inbox, ["alice"], Now.read()) is None


def test_a_listener_at_an_empty_box_is_told_of_those_that_nobody_empties(world: World) -> None:
    """F35."""

    def hint(name: str = "alice") -> str | None:
        return wrong_box(world.inbox, [name], Now.read())

    assert hint() is None
    world.store("a", to="carl")
    assert hint() == "nothing unread for alice; unread elsewhere: carl 1"
    assert hint("carl") is None
    listener = world.listen("--as", "carl", "--from", "dora")
    world.until_held("carl")
    assert hint() is None
    listener.kill()
    listener.wait()
    assert hint() is not None


async def test_a_program_has_them_told_elsewhere_in_its_tasks_and_threads_and_nowhere_else(
    capfd: pytest.CaptureFixture[str],
) -> None:
    heard: list[str] = []
    with told_to(heard.append):
        tell("here")
        await trio.to_thread.run_sync(tell, "in a thread")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, tell, "in a task")
    tell("behind it")
    assert heard == ["here", "in a thread", "in a task"]
    assert capfd.readouterr().err == "wakehub: behind it\n"
