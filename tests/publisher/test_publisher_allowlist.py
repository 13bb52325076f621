"""When the allowlist is signed, and from what (formats.md, Registry). Times are handed in; nothing waits."""

import os
import time
from dataclasses import dataclass

import pytest
import trio
from trio.testing import MockClock

from wakehub.client.home import ensure_home
from wakehub.config import Config
from wakehub.identity import enrolment
from wakehub.identity.allowlist import Allowlist, AllowlistFile, Unusable
from wakehub.identity.owner import load_owner, load_owner_public
from wakehub.limits import ALLOWLIST_RESIGN_SECONDS, CLOCK_DRIFT_SECONDS, PUBLISHER_TICK_MS, RESIGN_RETRY_SECONDS
from wakehub.publisher.allowlist import Keeper, Signer

NOW = 1_900_000_000.0


@dataclass
class Desk:
    """A signer at an instance, with both clocks in hand."""

    config: Config
    signer: Signer
    wall: float = NOW
    mono: float = 100.0

    def after(self, seconds: float, *, wall: float | None = None) -> bool:
        """Whether it signs once `seconds` have passed (and `wall` seconds on the wall clock, if they differ)."""
        self.mono += seconds
        self.wall += seconds if wall is None else wall
        return self.signer.keep(self.wall, self.mono)

    def enroll(self, name: str) -> None:
        enrolment.enroll(self.config.paths, name, self.config.hub_id, self.wall)

    def current(self) -> Allowlist | Unusable:
        public = load_owner_public(self.config.paths)
        return AllowlistFile(self.config.allowlist, public).current(self.wall, self.mono)

    def agents(self) -> list[str]:
        found = self.current()
        assert isinstance(found, Allowlist), found
        return list(found.agents)


@pytest.fixture
def desk(config: Config, monkeypatch: pytest.MonkeyPatch) -> Desk:
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: NOW)
        ensure_home(config)
    return Desk(config, Signer(config.paths.audit, config.allowlist, load_owner(config.paths)))


def test_the_first_look_signs_and_the_publisher_itself_may_delegate(desk: Desk) -> None:
    assert desk.after(0)
    found = desk.current()
    assert isinstance(found, Allowlist)
    assert (found.refreshed_at, found.valid_for_secs) == (int(NOW) * 1_000_000_000, 60)
    entry = found.agents["wakehub-publisher"]
    assert (entry.bind_authority, entry.prefixes, entry.may_delegate()) == ("daemon_key_dir", (), True)
    assert os.stat(desk.config.allowlist).st_mode & 0o777 == 0o600


def test_nothing_is_written_while_nothing_calls_for_it(desk: Desk) -> None:
    desk.after(0)
    before = os.stat(desk.config.allowlist)
    assert not desk.after(ALLOWLIST_RESIGN_SECONDS - 0.1)
    assert os.stat(desk.config.allowlist) == before


def test_a_change_of_the_chain_is_signed_at_the_next_look(desk: Desk) -> None:
    desk.after(0)
    desk.enroll("alice")
    assert desk.after(0.1)
    assert desk.agents() == ["alice", "wakehub-publisher"]
    enrolment.revoke(desk.config.paths, "alice", desk.wall)
    assert desk.after(0.1)
    assert desk.agents() == ["wakehub-publisher"]


def test_the_age_on_the_wall_clock_calls_for_it(desk: Desk) -> None:
    desk.after(0)
    assert desk.after(ALLOWLIST_RESIGN_SECONDS)
    assert not desk.after(0.5)


def test_a_wall_clock_that_stands_still_does_not_hold_it_up(desk: Desk) -> None:
    desk.after(0)
    assert desk.after(ALLOWLIST_RESIGN_SECONDS, wall=0)


@pytest.mark.parametrize("step", [28_800, 60, CLOCK_DRIFT_SECONDS + 1, -1, -7200], ids=lambda step: f"{step:+d} s")
def test_after_a_sleep_or_a_clock_step_it_is_signed_at_once(desk: Desk, step: int) -> None:
    desk.after(0)
    assert desk.after(0.5, wall=step)
    assert isinstance(desk.current(), Allowlist)


def test_two_hours_back_it_is_still_signed_for_those_it_can_be(desk: Desk) -> None:
    desk.after(0)
    desk.after(0.5, wall=-7200)
    desk.enroll("bob")
    assert desk.after(0.5)
    assert desk.agents() == ["bob"]
    assert desk.after(0.5, wall=7200)
    assert desk.agents() == ["bob", "wakehub-publisher"]


def test_a_file_that_was_removed_replaced_or_lost_its_directory_is_written_again(desk: Desk) -> None:
    desk.after(0)
    desk.config.allowlist.unlink()
    assert desk.after(0.1)
    desk.config.allowlist.write_bytes(b"x.y.z")
    assert desk.after(0.1)
    desk.config.allowlist.unlink()
    desk.config.allowlist.parent.rmdir()
    assert desk.after(0.1)
    assert desk.agents() == ["wakehub-publisher"]


def test_a_broken_chain_is_not_signed_from_until_it_is_mended(desk: Desk) -> None:
    desk.enroll("alice")
    desk.after(0)
    good = desk.config.paths.audit.read_bytes()
    desk.config.paths.audit.write_bytes(good.replace(b'"alice"', b'"mallo"'))
    signed = desk.config.allowlist.read_bytes()
    assert not desk.after(0.5)
    assert not desk.after(60)
    assert desk.config.allowlist.read_bytes() == signed
    found = desk.current()
    assert isinstance(found, Unusable)
    assert found.label == "stale"
    desk.config.paths.audit.write_bytes(good)
    assert desk.after(0.5)
    assert desk.agents() == ["alice", "wakehub-publisher"]


@pytest.mark.parametrize("lines", [0, 1, -1])
def test_a_chain_that_lost_lines_is_not_signed_from(desk: Desk, lines: int) -> None:
    """What is left verifies; only who read the lost lines can tell. Otherwise a revoked key would come back."""
    desk.enroll("mallory")
    enrolment.revoke(desk.config.paths, "mallory", desk.wall)
    assert desk.after(0)
    whole = desk.config.paths.audit.read_bytes()
    desk.config.paths.audit.write_bytes(b"".join(whole.splitlines(keepends=True)[:lines]))
    assert not desk.after(1)
    assert "mallory" not in desk.agents()
    desk.config.paths.audit.write_bytes(whole)
    assert desk.after(1)


def test_an_absent_chain_is_not_an_empty_one(desk: Desk) -> None:
    desk.after(0)
    desk.config.paths.audit.rename(desk.config.paths.audit.with_suffix(".away"))
    assert not desk.after(0.5)
    assert desk.signer.registry is None
    assert desk.agents() == ["wakehub-publisher"]


def test_a_torn_last_line_is_left_out(desk: Desk) -> None:
    desk.enroll("alice")
    with open(desk.config.paths.audit, "ab") as audit:
        audit.write(b'{"n":4,"at":')
    assert desk.after(0)
    assert desk.agents() == ["alice", "wakehub-publisher"]


def test_a_file_that_cannot_be_written_is_tried_again_after_5_s(desk: Desk) -> None:
    desk.config.allowlist.mkdir(parents=True)  # a directory in its place cannot be renamed over
    assert not desk.after(0)
    desk.config.allowlist.rmdir()
    assert not desk.after(RESIGN_RETRY_SECONDS - 0.1)
    assert desk.after(0.2)


async def test_the_keeper_looks_twice_a_second_and_whenever_it_is_rung(desk: Desk, autojump_clock: MockClock) -> None:
    signed: trio.MemorySendChannel[list[str]]
    signed, seen = trio.open_memory_channel[list[str]](1)

    def note() -> None:
        assert desk.signer.registry is not None
        trio.from_thread.run(signed.send, desk.signer.registry.names())

    async def after() -> tuple[list[str], float]:
        """The names of the next signature, and how long it took on Trio's clock."""
        began = trio.current_time()
        return await seen.receive(), trio.current_time() - began

    keeper = Keeper(desk.signer, signed=note, wall=lambda: NOW + trio.current_time(), mono=trio.current_time)
    async with trio.open_nursery() as nursery, signed, seen:
        nursery.start_soon(keeper.run)
        assert await after() == ([], 0)
        desk.enroll("alice")
        assert await after() == (["alice"], PUBLISHER_TICK_MS / 1000)
        desk.enroll("bob")
        keeper.ring()
        assert await after() == (["alice", "bob"], 0)
        assert await after() == (["alice", "bob"], ALLOWLIST_RESIGN_SECONDS)
        nursery.cancel_scope.cancel()
