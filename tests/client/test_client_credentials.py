"""Where bundles come from, in order, and when a session needs a new one."""

from pathlib import Path

import pytest
from scripted_hub import NOW_S

from wakehub import config
from wakehub.client.credentials import Credentials, needs_renewal, obtain
from wakehub.client.home import ensure_home
from wakehub.errors import Unsafe
from wakehub.identity.delegation import Bundle, Certificate
from wakehub.identity.keys import KeyPair, b64, replace_key, verify, write_key


def in_environment(bundle: Bundle) -> dict[str, str]:
    return {"WAKEHUB_BUNDLE": b64(bundle.to_json())}


def test_a_bundle_is_minted_from_the_enrolled_key_with_a_new_session_key_each_time(key: KeyPair) -> None:
    source = Credentials("alice", "wakehub", key, Path("/nowhere"))
    one, other = source.bundle(NOW_S, {}), source.bundle(NOW_S, {})
    assert one.delegate != other.delegate
    certificate = Certificate.decode(one.certificate)
    assert verify(key.public, certificate.signed_bytes(), certificate.signature)
    begin, end = one.window()
    assert end - begin == 3600 * 1_000_000_000


def test_an_enrolled_key_that_was_replaced_is_used_from_then_on(tmp_path: Path, key: KeyPair) -> None:
    path = tmp_path / "alice.key"
    write_key(path, "alice", key)
    source, other = Credentials("alice", "wakehub", key, Path("/nowhere"), path), KeyPair.generate()

    def signed_by(pair: KeyPair) -> bool:
        certificate = Certificate.decode(source.bundle(NOW_S, {}).certificate)
        return verify(pair.public, certificate.signed_bytes(), certificate.signature)

    assert signed_by(key)
    replace_key(path, "alice", other)
    assert signed_by(other)
    path.unlink()  # or out of reach: the hub decides whether the key at hand still counts
    assert signed_by(key)


@pytest.mark.parametrize(
    ("has_key", "environ", "words"),
    [
        (True, {}, "wakehub enroll alice"),
        (False, {}, "wakehub delegate alice"),
        (False, {"WAKEHUB_BUNDLE": "x"}, "start it again"),
    ],
)
def test_the_remedy_is_one_for_the_source_that_is_used(
    key: KeyPair, has_key: bool, environ: dict[str, str], words: str
) -> None:
    assert words in Credentials("alice", "wakehub", key if has_key else None, Path("/x")).remedy(environ)


def test_the_variable_comes_first_and_the_file_last(tmp_path: Path, key: KeyPair, bundle: Bundle) -> None:
    bundle.write(tmp_path / "alice.a2a-hub.json")
    source = Credentials("alice", "wakehub", None, tmp_path / "alice.a2a-hub.json")
    assert source.bundle(NOW_S, {}).delegate == bundle.delegate
    given = Bundle.make("alice", key, "wakehub", NOW_S, 60)
    with_key = Credentials("alice", "wakehub", key, tmp_path / "alice.a2a-hub.json")
    assert with_key.bundle(NOW_S, in_environment(given)).delegate == given.delegate


@pytest.mark.parametrize(("agent_id", "hub_id"), [("bob", "wakehub"), ("alice", "other")])
def test_a_bundle_of_another_agent_or_hub_is_refused(
    tmp_path: Path, bundle: Bundle, agent_id: str, hub_id: str
) -> None:
    bundle.write(tmp_path / "bundle")
    source = Credentials(agent_id, hub_id, None, tmp_path / "bundle")
    for environ in ({}, in_environment(bundle)):
        with pytest.raises(Unsafe, match="is for alice at hub wakehub"):
            source.bundle(NOW_S, environ)


def test_no_source_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(Unsafe) as caught:
        Credentials("alice", "wakehub", None, tmp_path / "none").bundle(NOW_S, {})
    assert "wakehub delegate alice" in caught.value.remedy


@pytest.mark.parametrize(("ttl_s", "due_s"), [(43_200, 43_200 - 600), (3600, 3000), (1800, 1200), (900, 600), (3, 2)])
def test_renewal_is_due_10_min_or_a_third_before_the_end(key: KeyPair, ttl_s: int, due_s: int) -> None:
    bundle = Bundle.make("alice", key, "wakehub", NOW_S, ttl_s)
    assert not needs_renewal(bundle, NOW_S + due_s - 0.001)
    assert needs_renewal(bundle, NOW_S + due_s)


def test_renewal_is_due_when_the_clock_went_back_behind_the_beginning(key: KeyPair) -> None:
    bundle = Bundle.make("alice", key, "wakehub", NOW_S, 3600)
    assert not needs_renewal(bundle, NOW_S - 30)
    assert needs_renewal(bundle, NOW_S - 31)


def test_a_new_name_is_enrolled_and_a_known_one_is_found(run_directory: Path) -> None:
    settings = config.load({"WAKEHUB_HOME": str(run_directory)})
    ensure_home(settings)
    source, agent = obtain(settings, "alice", {})
    assert agent is not None
    assert agent.newly_enrolled
    assert source.key == agent.pair
    _, again = obtain(settings, "alice", {})
    assert again is not None
    assert not again.newly_enrolled


def test_where_the_key_is_hidden_a_bundle_serves(run_directory: Path) -> None:
    settings = config.load({"WAKEHUB_HOME": str(run_directory)})
    ensure_home(settings)
    _, agent = obtain(settings, "alice", {})
    assert agent is not None
    bundle = Bundle.make("alice", agent.pair, "wakehub", NOW_S, 3600)
    settings.paths.agent_key("alice").unlink()
    with pytest.raises(Unsafe):
        obtain(settings, "alice", {})
    source, nothing = obtain(settings, "alice", in_environment(bundle))
    assert nothing is None
    assert source.bundle(NOW_S, in_environment(bundle)).delegate == bundle.delegate
    bundle.write(settings.paths.bundle("alice"))
    source, nothing = obtain(settings, "alice", {})
    assert nothing is None
    assert source.bundle(NOW_S, {}).delegate == bundle.delegate
