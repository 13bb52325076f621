"""The registry that a verified log tells, and the allowlist derived from it."""

import pytest
from registry_world import NOW, enroll

from wakehub.errors import Unsafe
from wakehub.identity import allowlist, enrolment, keys
from wakehub.identity.audit import Event
from wakehub.identity.owner import load_owner, read_registry
from wakehub.identity.registry import Registry, to_allowlist
from wakehub.identity.stamps import NS
from wakehub.paths import Paths


def test_names_and_namespaces(ready: Paths) -> None:
    for name in ("acme/eng/x", "acme/bob", "alice", "acmeX/y", "acme/eng/y"):
        enroll(ready, name)
    enrolment.revoke(ready, "acme/eng/y", NOW)
    registry = read_registry(ready)
    assert registry.names() == ["acme/bob", "acme/eng/x", "acmeX/y", "alice"]
    assert registry.under("acme/") == ["acme/bob", "acme/eng/x"]
    assert registry.under("acme/eng/") == ["acme/eng/x"]
    assert registry.agents["wakehub-publisher"].is_daemon
    assert not registry.agents["alice"].is_daemon


def test_the_allowlist_holds_who_has_a_key(ready: Paths) -> None:
    enroll(ready, "acme/eng/bob", NOW + 7)
    enroll(ready, "alice")
    enroll(ready, "carol")
    enrolment.revoke(ready, "alice", NOW)
    enrolment.close(ready, "carol", NOW)
    found = to_allowlist(read_registry(ready), NOW + 9.9)
    assert (found.refreshed_at, found.valid_for_secs) == ((NOW + 9) * NS, 60)
    assert list(found.agents) == ["acme/eng/bob", "wakehub-publisher"]
    assert found.agents["acme/eng/bob"] == allowlist.Entry(
        "acme/eng/bob",
        keys.load_key(ready.agent_key("acme/eng/bob"), "acme/eng/bob").public,
        "possession_proof",
        (NOW + 7) * NS,
        frozenset(),
        ("acme/eng", "acme"),
    )
    publisher = found.agents["wakehub-publisher"]
    assert (publisher.bind_authority, publisher.prefixes) == ("daemon_key_dir", ())
    assert publisher.may_delegate()
    owner = load_owner(ready)
    assert allowlist.parse(allowlist.sign(found, owner), owner.public) == found


def test_a_clock_set_back_locks_out_nobody_but_the_newly_bound(ready: Paths) -> None:
    """F75: an entry bound more than 30 s ahead would have the hub refuse the whole file."""
    enroll(ready, "old", NOW - 10_000)
    enroll(ready, "new", NOW)
    registry = read_registry(ready)
    owner = load_owner(ready)
    for back, names in ((30, {"old", "new", "wakehub-publisher"}), (31, {"old"}), (7200, {"old"})):
        found = to_allowlist(registry, NOW - back)
        assert set(found.agents) == names
        assert allowlist.parse(allowlist.sign(found, owner), owner.public) == found


def event(n: int, what: str, agent_id: str = "bob", **detail: str) -> Event:
    return Event(n, NOW + n, what, agent_id, bytes([n]) * 32, detail)


@pytest.mark.parametrize(
    "chain",
    [
        [event(1, "enroll")],
        [event(1, "init"), event(2, "init")],
        [event(1, "init"), event(2, "revoke")],
        [event(1, "init"), event(2, "close")],
        [event(1, "init"), event(2, "delegate")],
        [event(1, "init"), event(2, "revoke_key", delegate_key_b64=keys.b64(b"\7" * 32))],
        [event(1, "init"), event(2, "enroll"), event(3, "revoke_key", delegate_key_b64="x")],
        [event(1, "init"), event(2, "enroll"), event(3, "revoke_key")],
        [event(1, "init"), event(2, "enroll", "wakehub-publisher")],
        [event(1, "init"), event(2, "publisher", "bob")],
    ],
)
def test_a_signed_chain_without_sense_is_refused(chain: list[Event]) -> None:
    with pytest.raises(Unsafe, match=f"line {len(chain)}"):
        Registry.derive(chain)


def test_an_empty_chain_admits_nobody() -> None:
    assert Registry.derive([]).agents == {}
    assert to_allowlist(Registry.derive([]), NOW).agents == {}
