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


def test_without_a_registry_no_key_is_known_which_is_said_once(world: World) -> None:
    row = stored(world, "bob", "bob")
    told: list[str] = []
    keyring = Keyring(world.config.paths, told.append)
    assert (keyring.verdict(row), keyring.trouble, told) == ("yes", "", [])
    audit, owner = world.config.paths.audit, world.config.paths.owner_pub
    for path in (audit, owner):
        whole = path.read_bytes()
        path.write_bytes(b"damaged")
        assert [keyring.verdict(row), keyring.verdict(row)] == ["no", "no"]
        (line,) = told
        assert line == keyring.trouble
        assert line.startswith("no signature can be verified: ")
        assert str(path) in line
        assert line.endswith("; next: wakehub doctor")
        told.clear()
        path.write_bytes(whole)
        assert (keyring.verdict(row), keyring.trouble, told) == ("yes", "", [])
    audit.unlink()
    assert Keyring(world.config.paths, told.append).verdict(row) == "no"
    assert len(told) == 1
