"""The hub under test is the real one: it checks who comes, and refuses whom it must."""

import socket
import time

import pytest

from wakehub.bench.dialects import Wrong, load
from wakehub.bench.fleet import Fleet
from wakehub.bench.hubs import Hub
from wakehub.identity.allowlist import AllowlistFile
from wakehub.identity.keys import load_public


@pytest.fixture
def hub(stage):
    made = Hub(stage, 3)
    made.start(())
    return made


def fleet(hub, bundles=None):
    return Fleet(load("awh1", {"bundles": str(bundles or hub.bundles)}), hub.address, crowd=False)


def test_its_agents_are_admitted_and_others_are_not(hub, stage):
    ours, theirs = fleet(hub), fleet(hub, Hub(stage, 3).bundles)
    try:
        ours.grow(3)
        with pytest.raises(Wrong, match="the hub refused 401"):
            theirs.grow(1)
    finally:
        ours.close()
        theirs.close()


def test_its_allowlist_is_signed_by_its_own_owner(hub):
    owner = load_public(hub.paths.owner_pub)
    found = AllowlistFile(hub.paths.allowlist, owner).current(time.time(), 0)
    assert sorted(found.agents) == ["bench/0000", "bench/0001", "bench/0002"]


def test_it_comes_back_at_the_same_place(hub):
    hub.kill()
    with socket.socket(socket.AF_UNIX) as sock, pytest.raises(OSError, match="refused"):
        sock.connect(hub.address)
    hub.start(())
    ours = fleet(hub)
    try:
        ours.grow(3)
        assert len(ours) == 3
    finally:
        ours.close()


def test_keys_and_bundles_are_private(hub):
    assert hub.bundles.stat().st_mode & 0o777 == 0o600
    assert hub.paths.keys.stat().st_mode & 0o777 == 0o700
