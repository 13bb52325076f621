"""Whether a name still is what its listener began with, as the registry changes."""

import time

import pytest
from relay_world import World

from wakehub.errors import Exit, Unsafe
from wakehub.identity import enrolment
from wakehub.relay.keyring import Keyring
from wakehub.relay.standing import Standing


def change(world: World, *acts: str) -> None:
    for act in acts:
        if act == "enroll":
            enrolment.enroll(world.config.paths, "alice", "wakehub", time.time())
        else:
            getattr(enrolment, act)(world.config.paths, "alice", time.time())


def standing(world: World, *names: str) -> Standing:
    return Standing(Keyring(world.config.paths), names or ["alice"])


@pytest.mark.parametrize(
    ("acts", "why"),
    [
        (["revoke"], "alice was revoked on 20"),
        (["close"], "alice was closed on 20"),
        (["revoke", "close"], "alice was closed on 20"),
        (["close", "enroll"], "alice is another agent since 20"),
        (["close", "enroll", "revoke"], "alice was revoked on 20"),
    ],
)
def test_a_name_that_ended_is_ended_for_its_listener(world: World, acts: list[str], why: str) -> None:
    world.agent("alice")
    world.agent("bob")
    one = standing(world, "bob", "alice")
    one.check()
    change(world, *acts)
    with pytest.raises(Unsafe, match=why) as caught:
        one.check()
    assert caught.value.exit == Exit.PERMISSION
    assert "alice" in caught.value.remedy
    standing(world, "bob").check()


def test_another_key_of_the_same_agent_changes_nothing(world: World) -> None:
    world.agent("alice")
    one = standing(world)
    change(world, "revoke", "enroll")
    one.check()


def test_what_the_registry_does_not_tell_is_not_held_against_a_name(world: World) -> None:
    one = standing(world)
    one.check()
    world.agent("alice")
    one.check()
    change(world, "close", "enroll")
    with pytest.raises(Unsafe, match="another agent"):
        one.check()
    world.config.paths.audit.unlink()
    one.check()
