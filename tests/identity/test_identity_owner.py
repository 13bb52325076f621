"""Without the owner key, the log or an init, everything says what is missing and what to do."""

from collections.abc import Callable

import pytest
from registry_world import HUB, NOW, enroll

from wakehub.errors import Exit, Unsafe
from wakehub.identity import enrolment
from wakehub.identity.delegation import mint
from wakehub.identity.keys import KeyPair
from wakehub.identity.owner import load_owner, load_owner_public, read_registry, unfinished_mark
from wakehub.paths import Paths

ACTS: list[Callable[[Paths], object]] = [
    lambda places: enroll(places, "bob"),
    lambda places: enrolment.revoke(places, "bob", NOW),
    lambda places: enrolment.revoke_key(places, "bob", b"\7" * 32, NOW),
    lambda places: enrolment.close(places, "bob", NOW),
    lambda places: enrolment.record_delegation(places, mint("bob", KeyPair.generate(), b"\7" * 32, HUB, NOW, 60), NOW),
]


@pytest.mark.parametrize("act", ACTS)
def test_acts_need_the_owner_key_and_name_it(ready: Paths, act: Callable[[Paths], object]) -> None:
    enroll(ready, "bob")
    ready.owner_key.unlink()
    with pytest.raises(Unsafe, match=r"owner\.key is missing") as refusal:
        act(ready)
    assert refusal.value.exit is Exit.PERMISSION
    assert "init" not in refusal.value.remedy, "it makes no key in the place of one that was lost"
    assert read_registry(ready).names() == ["bob"]


@pytest.mark.parametrize("act", ACTS)
def test_acts_need_a_log_that_was_begun(ready: Paths, act: Callable[[Paths], object]) -> None:
    for begun in (lambda: ready.audit.write_bytes(b""), ready.audit.unlink):
        begun()
        for look in (act, read_registry):
            with pytest.raises(Unsafe, match=r"the registry is gone.*from a backup"):
                look(ready)
    unfinished_mark(ready).touch(0o600)
    with pytest.raises(Unsafe, match="not set up") as refusal:
        read_registry(ready)
    assert refusal.value.remedy == "wakehub init"


def test_before_init_everything_says_so(places: Paths) -> None:
    for act in (
        lambda: enroll(places, "bob"),
        lambda: read_registry(places),
        lambda: load_owner(places),
        lambda: load_owner_public(places),
    ):
        with pytest.raises(Unsafe, match="is missing: this instance is not set up") as refusal:
            act()
        assert refusal.value.remedy == "wakehub init"
    assert not places.keys.exists()
