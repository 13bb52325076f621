"""The waiting client against a scripted hub on a real socket, with its hours played in milliseconds."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing
from scripted_hub import NOW_S, Link, ScriptedHub, serve
from trio.testing import MockClock

from wakehub import files
from wakehub.client.credentials import Credentials
from wakehub.client.doorbell import Doorbell, Reason
from wakehub.client.subscriber import Subscriber
from wakehub.config import Config
from wakehub.errors import ErrorCode
from wakehub.identity.allowlist import POSSESSION_PROOF, Allowlist, Entry, sign
from wakehub.identity.delegation import Bundle, Certificate
from wakehub.identity.keys import KeyPair, replace_key, verify, write_key, write_public
from wakehub.identity.stamps import NS
from wakehub.paths import Paths
from wakehub.wire.frames import Kind

Script = Callable[[Link], Awaitable[object]]
OWNER = KeyPair(bytes(32))


class World:
    """One listener's surroundings: files, clocks, what it was told and why it was woken."""

    def __init__(self, directory: Path, key: KeyPair) -> None:
        self.directory = directory
        self.key = key
        self.config = Config.at(Paths(directory, directory, directory, directory / "config.toml"))
        self.credentials = Credentials("alice", "wakehub", key, directory / "alice.a2a-hub.json")
        self.bell = Doorbell()
        self.told: list[str] = []
        self.reasons: list[Reason] = []
        self.clock_step = 0.0
        self.is_ours = True
        self.is_over = False

    def wall(self) -> float:
        return NOW_S + trio.current_time() + self.clock_step

    def serve(self, *scripts: Script) -> AbstractAsyncContextManager[ScriptedHub]:
        return serve(self.config.hub_socket, scripts)

    def publish(self, names: Sequence[str] = ("alice",), valid_for_s: int = 43_200) -> None:
        """Sign an allowlist with these agents, all of them with our key."""
        now = int(self.wall()) * NS
        agents = {name: Entry(name, self.key.public, POSSESSION_PROOF, 0) for name in names}
        files.replace(self.config.allowlist, sign(Allowlist(now, valid_for_s, agents), OWNER))

    async def read(self) -> None:
        """The reader: answers each ring."""
        while True:
            self.bell.arm()
            await trio.lowlevel.checkpoint()
            self.reasons.append(await self.bell.wait(float("inf"), Reason.BACKSTOP))

    @asynccontextmanager
    async def subscribed(self, *, is_new: bool = False, draw: float = 0.0, reading: bool = True):  # type: ignore[no-untyped-def]
        subscriber = Subscriber(
            self.config,
            self.credentials,
            self.bell,
            still_ours=lambda: self.is_ours,
            tell=self.told.append,
            is_new=is_new,
            wall=self.wall,
            draw=lambda: draw,
        )

        async def run() -> None:
            await subscriber.run()
            self.is_over = True

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            if reading:
                nursery.start_soon(self.read)
            yield
            nursery.cancel_scope.cancel()


@pytest.fixture
def world(run_directory: Path, key: KeyPair) -> World:
    world = World(run_directory, key)
    write_public(world.config.owner_pub, OWNER.public)
    return world


async def stay(link: Link) -> None:
    await link.admit()
    await link.until_closed()


async def test_the_welcome_and_each_wake_ring(world: World, autojump_clock: MockClock) -> None:
    async def script(link: Link) -> None:
        await link.admit()
        for watermark in (0, 7, 8, 0, 10):
            await trio.sleep(1)
            await link.wake(watermark=watermark)
        await link.until_closed()

    async with world.serve(script), world.subscribed():
        await trio.sleep(10)
    assert world.reasons == [Reason.WELCOME, *[Reason.WAKE] * 4, Reason.GAP]


async def test_watermarks_are_compared_within_one_box(world: World, autojump_clock: MockClock) -> None:
    async def script(link: Link) -> None:
        await link.admit()
        for namespace, watermark in ((b"_inbox/a", 5), (b"_inbox/b", 50), (b"_inbox/a", 6), (b"_inbox/a", 6)):
            await trio.sleep(1)
            await link.wake(namespace=namespace, watermark=watermark)
        await link.until_closed()

    async with world.serve(script), world.subscribed():
        await trio.sleep(10)
    assert world.reasons == [Reason.WELCOME, *[Reason.WAKE] * 4]


async def test_made_up_namespaces_do_not_fill_the_memory(world: World, autojump_clock: MockClock) -> None:
    async def script(link: Link) -> None:
        await link.admit()
        for number in range(1100):
            await link.wake(namespace=f"n{number}".encode(), watermark=1)
        await link.until_closed()

    async with world.serve(script):
        subscriber = Subscriber(
            world.config,
            world.credentials,
            world.bell,
            still_ours=lambda: True,
            tell=world.told.append,
            wall=world.wall,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(subscriber.run)
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
    assert len(subscriber._marks) <= 1024


async def test_several_wakes_before_a_reading_are_one(world: World, autojump_clock: MockClock) -> None:
    async def script(link: Link) -> None:
        await link.admit()
        for _ in range(5):
            await link.wake()
        await link.until_closed()

    async with world.serve(script), world.subscribed(reading=False):
        await trio.sleep(1)
        assert world.bell.is_rung
        world.bell.arm()
        await trio.sleep(1)
        assert not world.bell.is_rung


async def test_a_hub_that_accepts_and_closes_is_met_by_the_ladder(world: World, autojump_clock: MockClock) -> None:
    async with world.serve(lambda link: link.admit()) as hub, world.subscribed():
        await trio.sleep(0.25 + 0.5 + 1 + 2 + 4 + 0.1)
        gaps = [b - a for a, b in zip(hub.connected_at, hub.connected_at[1:], strict=False)]
    assert gaps == pytest.approx([0.25, 0.5, 1, 2, 4])
    assert len(world.told) == 2 * len(hub.connected_at) - 1  # lost, connected, lost, …


async def test_a_hub_that_comes_back_finds_its_clients_within_2_s(world: World, autojump_clock: MockClock) -> None:
    async with world.subscribed():
        await trio.sleep(3600)
        began = trio.current_time()
        async with world.serve(stay) as hub:
            await trio.sleep(2.01)
            assert hub.connected_at[0] - began <= 2
            assert world.reasons == [Reason.WELCOME]
            no_hub, connected = world.told
    assert "no hub at" in no_hub
    assert connected == "connected to the hub"


async def test_a_session_of_30_s_starts_the_ladder_anew(world: World, autojump_clock: MockClock) -> None:
    async def for_31_s(link: Link) -> None:
        await link.admit()
        await trio.sleep(31)

    async with world.serve(lambda link: link.admit(), lambda link: link.admit(), for_31_s, stay) as hub:
        async with world.subscribed():
            await trio.sleep(40)
    gaps = [b - a for a, b in zip(hub.connected_at, hub.connected_at[1:], strict=False)]
    assert gaps == pytest.approx([0.25, 0.5, 31.25])


async def refuse(link: Link) -> None:
    await link.challenge()
    await link.refuse(ErrorCode.UNAUTHORIZED, "unauthorized")


async def test_a_401_is_explained_once_and_tried_again_every_60_s(world: World, autojump_clock: MockClock) -> None:
    async with world.serve(refuse) as hub, world.subscribed():
        await trio.sleep(185)
        assert hub.connections == 4
    assert len(world.told) == 1
    assert "allowlist is absent" in world.told[0]
    assert "wakehub up" in world.told[0]


async def test_a_stale_allowlist_is_told_once_although_it_grows_older(world: World, autojump_clock: MockClock) -> None:
    world.publish(valid_for_s=60)
    await trio.sleep(100)
    async with world.serve(refuse) as hub, world.subscribed():
        await trio.sleep(185)
        assert hub.connections == 4
    (told,) = world.told
    assert "allowlist is stale: 100 s old" in told


@pytest.mark.parametrize("name", ["allowlist.jws", "owner.pub", "alice.a2a-hub.json"])
async def test_a_401_is_tried_again_when_a_file_changes(world: World, autojump_clock: MockClock, name: str) -> None:
    async with world.serve(refuse, stay) as hub, world.subscribed():
        await trio.sleep(10)
        assert hub.connections == 1
        (world.directory / name).unlink(missing_ok=True)
        (world.directory / name).write_bytes(b"another")
        await trio.sleep(0.2)
        assert hub.connections == 2


async def test_a_key_that_was_enrolled_anew_brings_the_session_back(world: World, autojump_clock: MockClock) -> None:
    path, other = world.directory / "alice.key", KeyPair.generate()
    write_key(path, "alice", world.key)
    world.credentials = replace(world.credentials, key_file=path)
    signed: list[bool] = []

    async def note_and_refuse(link: Link) -> None:
        hello = await link.challenge()
        certificate = Certificate.decode(hello.certificate)
        signed.append(verify(other.public, certificate.signed_bytes(), certificate.signature))
        await link.refuse(ErrorCode.UNAUTHORIZED, "unauthorized")

    async with world.serve(note_and_refuse) as hub, world.subscribed():
        await trio.sleep(10)
        assert hub.connections == 1
        replace_key(path, "alice", other)
        await trio.sleep(0.2)
        assert hub.connections == 2
    assert signed == [False, True]


async def test_a_file_that_changes_while_the_hub_refuses_counts(world: World, autojump_clock: MockClock) -> None:
    async def refuse_and_publish(link: Link) -> None:
        await link.challenge()
        world.publish()
        await link.refuse(ErrorCode.UNAUTHORIZED, "unauthorized")

    async with world.serve(refuse_and_publish, stay) as hub, world.subscribed():
        await trio.sleep(1)
        assert hub.connections == 2


@pytest.mark.parametrize(
    ("names", "reason"), [(["bob"], "does not show alice"), (["alice"], "no reason can be seen from here")]
)
async def test_a_401_says_what_is_seen(world: World, autojump_clock: MockClock, names: list[str], reason: str) -> None:
    world.publish(names)
    async with world.serve(refuse), world.subscribed():
        await trio.sleep(1)
    assert reason in world.told[0]


async def test_a_new_name_waits_for_the_allowlist_first(world: World, autojump_clock: MockClock) -> None:
    world.publish(["bob"])
    async with world.serve(stay) as hub, world.subscribed(is_new=True):
        await trio.sleep(3)
        assert hub.connections == 0
        world.publish(["alice"])
        await trio.sleep(0.2)
        assert hub.connections == 1
    assert world.told == []


async def test_a_new_name_waits_5_s_at_most(world: World, autojump_clock: MockClock) -> None:
    async with world.serve(refuse) as hub, world.subscribed(is_new=True):
        await trio.sleep(5.1)
        assert hub.connections == 1


async def test_a_409_with_the_name_still_ours_waits_from_5_s_up(world: World, autojump_clock: MockClock) -> None:
    async def replaced(link: Link) -> None:
        await link.admit()
        await link.refuse(ErrorCode.REPLACED, "session replaced")

    async with world.serve(replaced, replaced, stay) as hub, world.subscribed():
        await trio.sleep(20)
    gaps = [b - a for a, b in zip(hub.connected_at, hub.connected_at[1:], strict=False)]
    assert gaps == pytest.approx([5, 10])


async def test_what_the_welcome_advises_is_how_long_it_waits(world: World, autojump_clock: MockClock) -> None:
    async def close(link: Link) -> None:
        await link.admit(base_ms=3000, jitter_ms=0)

    async with world.serve(close, close, stay) as hub, world.subscribed(draw=0.9):
        await trio.sleep(20)
    gaps = [b - a for a, b in zip(hub.connected_at, hub.connected_at[1:], strict=False)]
    assert gaps == pytest.approx([3, 6])


async def test_a_409_with_the_name_lost_ends_it(world: World, autojump_clock: MockClock) -> None:
    async def replaced(link: Link) -> None:
        await link.admit()
        world.is_ours = False
        await link.refuse(ErrorCode.REPLACED, "session replaced")

    async with world.serve(replaced) as hub, world.subscribed():
        await trio.sleep(100)
        assert world.is_over
        assert hub.connections == 1


async def test_the_delegation_is_renewed_10_min_before_its_end(world: World, autojump_clock: MockClock) -> None:
    keys = []

    async def note(link: Link) -> None:
        keys.append((await link.challenge()).key)
        await link.welcome()
        await link.until_closed()

    async with world.serve(note) as hub, world.subscribed():
        await trio.sleep(2 * 3000 + 10)
    assert [round(at) for at in hub.connected_at] == [0, 3000, 6000]
    assert len(set(keys)) == 3
    assert world.reasons == [Reason.WELCOME] * 3
    assert world.told == []


async def test_a_wake_between_two_sessions_is_not_lost(world: World, autojump_clock: MockClock) -> None:
    async def replay(link: Link) -> None:
        await link.admit()
        await link.wake()
        await link.until_closed()

    async with world.serve(stay, replay), world.subscribed():
        await trio.sleep(3010)
    assert world.reasons[:2] == [Reason.WELCOME, Reason.WELCOME]


async def test_a_bundle_from_a_file_is_renewed_when_the_file_is(world: World, autojump_clock: MockClock) -> None:
    world.credentials = Credentials("alice", "wakehub", None, world.credentials.bundle_file)
    Bundle.make("alice", world.key, "wakehub", NOW_S, 3600).write(world.credentials.bundle_file)
    async with world.serve(stay) as hub, world.subscribed():
        await trio.sleep(3500)
        assert hub.connections == 1
        Bundle.make("alice", world.key, "wakehub", world.wall(), 3600).write(world.credentials.bundle_file)
        await trio.sleep(2)
        assert hub.connections == 2


async def test_without_any_identity_it_says_so_and_waits_for_one(world: World, autojump_clock: MockClock) -> None:
    world.credentials = Credentials("alice", "wakehub", None, world.credentials.bundle_file)
    async with world.serve(stay) as hub, world.subscribed():
        await trio.sleep(5)
        assert "no identity for alice" in world.told[0]
        Bundle.make("alice", world.key, "wakehub", world.wall(), 3600).write(world.credentials.bundle_file)
        await trio.sleep(0.2)
        assert hub.connections == 1


@pytest.mark.parametrize("step", [300.0, -300.0, 8 * 3600.0, -2 * 3600.0])
async def test_a_clock_that_jumped_means_reading_and_probing(
    world: World, autojump_clock: MockClock, step: float
) -> None:
    frames = []

    async def script(link: Link) -> None:
        await link.admit()
        await link.until_closed(frames)

    async with world.serve(script) as hub:
        async with world.subscribed():
            await trio.sleep(10)
            world.clock_step = step
            await trio.sleep(1.1)
            assert Reason.CLOCK in world.reasons
        await hub.all_ended()
    assert frames[0].kind is Kind.PING
    expired_or_not_yet = step > 3000 or step < -30
    assert hub.connections == (2 if expired_or_not_yet else 1)


async def test_5_s_of_drift_are_nothing(world: World, autojump_clock: MockClock) -> None:
    async with world.serve(stay), world.subscribed():
        await trio.sleep(10)
        world.clock_step = 4.9
        await trio.sleep(10)
    assert world.reasons == [Reason.WELCOME]


async def test_a_session_mute_after_a_sleep_is_given_up(world: World, autojump_clock: MockClock) -> None:
    async def mute(link: Link) -> None:
        await link.admit()
        while await link.receive() is not None:
            pass

    async with world.serve(mute, stay) as hub, world.subscribed():
        await trio.sleep(10)
        world.clock_step = 300
        await trio.sleep(5)
        assert hub.connections == 2
    assert "no longer answers" in world.told[0]


async def test_a_sleep_ends_the_pause_between_two_attempts(world: World, autojump_clock: MockClock) -> None:
    async with world.serve(refuse, stay) as hub, world.subscribed():
        await trio.sleep(10)
        world.clock_step = 300
        await trio.sleep(1.1)
        assert hub.connections == 2
