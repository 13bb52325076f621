"""What a row's signature proves, as the registry changes."""

import time

from relay_world import World

from wakehub.identity import enrolment
from wakehub.inbox.clock import Now
from wakehub.inbox.rows import NewRow, Row
from wakehub.inbox.signing import signer
from wakehub.relay.keyring import Keyring


def stored(world: World, sender: str, signed_by: str | None) -> Row:
    pair = world.agent(signed_by).pair if signed_by else None
    (row,) = world.inbox.append(NewRow(sender, "alice", b"x", signed=signer(pair) if pair else None), Now.read())
    return row


def test_the_verdicts(world: World) -> None:
    world.agent("bob")
    keyring = Keyring(world.config.paths)
    good, forged, unsigned = stored(world, "bob", "bob"), stored(world, "bob", "carl"), stored(world, "bob", None)
    assert [keyring.verdict(row) for row in (good, forged, unsigned)] == ["yes", "no", "unsigned"]
    assert keyring.verdict(stored(world, "nobody", "bob")) == "no"


def test_a_changed_registry_is_read_again(world: World) -> None:
    keyring = Keyring(world.config.paths)
    row = stored(world, "bob", "bob")
    assert keyring.verdict(row) == "yes"
    enrolment.revoke(world.config.paths, "bob", time.time())
    assert keyring.verdict(row) == "at_the_time"
    enrolment.enroll(world.config.paths, "bob", "wakehub", time.time())
    assert keyring.verdict(row) == "at_the_time"
    late = stored(world, "dora", "dora")
    assert keyring.verdict(late) == "yes"


def test_without_a_registry_no_key_is_known(world: World) -> None:
    row = stored(world, "bob", "bob")
    world.config.paths.audit.unlink()
    assert Keyring(world.config.paths).verdict(row) == "no"
