"""Every reason for a 401 that can be seen from here is named, with the remedy."""

from pathlib import Path

import pytest
from scripted_hub import NOW_S

from wakehub import files
from wakehub.client.diagnosis import explain, reason
from wakehub.client.failures import Failure, HubError
from wakehub.config import Config
from wakehub.identity.allowlist import POSSESSION_PROOF, Allowlist, Entry, sign
from wakehub.identity.delegation import Bundle
from wakehub.identity.keys import KeyPair, write_public
from wakehub.identity.stamps import NS
from wakehub.paths import Paths

OWNER = KeyPair(bytes(32))
REFUSED = HubError(Failure.UNAUTHORIZED, "the hub refused this identity")


class Place:
    def __init__(self, directory: Path, key: KeyPair) -> None:
        self.config = Config.at(Paths(directory, directory, directory, directory / "config.toml"))
        self.allowlist, self.owner_pub = self.config.allowlist, self.config.owner_pub
        self.key = key
        write_public(self.owner_pub, OWNER.public)

    def publish(self, *, name: str = "alice", at_s: int = NOW_S, **entry: object) -> None:
        values = {"public": self.key.public, "bind_authority": POSSESSION_PROOF, "bound_at": at_s * NS} | entry
        agents = {name: Entry(name, **values)}  # type: ignore[arg-type]
        files.replace(self.allowlist, sign(Allowlist(at_s * NS, 60, agents), OWNER))

    def why(self, bundle: Bundle, now_s: float = NOW_S) -> str:
        found = reason(bundle, self.config, now_s)
        return found[0] if found else ""


@pytest.fixture
def place(tmp_path: Path, key: KeyPair) -> Place:
    return Place(tmp_path, key)


def test_nothing_is_wrong(place: Place, bundle: Bundle) -> None:
    place.publish()
    assert place.why(bundle) == ""
    error = explain(REFUSED, bundle, place.config, NOW_S)
    assert error.failure is Failure.UNAUTHORIZED
    assert "log" in error.remedy


def test_the_window(place: Place, bundle: Bundle) -> None:
    place.publish()
    assert "ended at 2027-01-15T09:00:00Z" in place.why(bundle, NOW_S + 3600)
    assert "clock is behind" in place.why(bundle, NOW_S - 31)
    assert "clock" not in place.why(bundle, NOW_S - 30)


def test_the_allowlist(place: Place, bundle: Bundle) -> None:
    assert "is absent" in place.why(bundle)
    place.publish()
    assert "is stale" in place.why(bundle, NOW_S + 60)
    place.allowlist.chmod(0o644)
    assert "is unsafe" in place.why(bundle)
    files.replace(place.allowlist, b"a.b.c")
    assert "is unsigned" in place.why(bundle)


def test_the_owner(place: Place, bundle: Bundle) -> None:
    place.publish()
    place.owner_pub.unlink()
    assert "owner.pub" in place.why(bundle)
    write_public(place.owner_pub, KeyPair(b"\x09" * 32).public)
    assert "bad_signature" in place.why(bundle)


def test_the_binding(place: Place, bundle: Bundle) -> None:
    place.publish(name="bob")
    assert "does not show alice" in place.why(bundle)
    place.publish(revoked_keys=frozenset({bundle.delegate.public}))
    assert "revoked" in place.why(bundle)
    place.publish(public=KeyPair(b"\x05" * 32).public)
    assert "not signed by the key that alice is enrolled with" in place.why(bundle)
    place.publish(bound_at=(NOW_S + 5) * NS)
    assert "older than the enrolment" in place.why(bundle)


def test_the_remedy_for_a_bundle_at_fault_is_the_one_of_its_source(place: Place, bundle: Bundle) -> None:
    place.publish(public=KeyPair(b"\x05" * 32).public)
    own = explain(REFUSED, bundle, place.config, NOW_S, "wakehub enroll alice").remedy
    assert own == "wakehub enroll alice"
    assert "wakehub delegate" in explain(REFUSED, bundle, place.config, NOW_S).remedy
