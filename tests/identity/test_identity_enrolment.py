"""The acts that change the registry: each one line of the log, killed anywhere and run again."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from daemon_process import started
from registry_world import HUB, NOW, enroll, events, homes, killed

from wakehub import files
from wakehub.errors import BadData, NoRecipient, Unsafe
from wakehub.identity import allowlist, enrolment, keys
from wakehub.identity.audit import Event
from wakehub.identity.delegation import Bundle, Certificate, mint
from wakehub.identity.initialisation import init_owner
from wakehub.identity.keys import KeyPair
from wakehub.identity.owner import load_owner, read_registry
from wakehub.identity.registry import Agent, EnrolledKey, to_allowlist
from wakehub.paths import Paths

# --- enrolling ---


def test_enrolling_makes_a_key_and_a_line(ready: Paths) -> None:
    done = enroll(ready, "acme/bob", NOW + 5)
    pair = keys.load_key(ready.agent_key("acme/bob"), "acme/bob")
    assert done.agent == Agent("acme/bob", 1, (EnrolledKey(pair.public, NOW + 5),))
    assert done.event == Event(3, NOW + 5, "enroll", "acme/bob", pair.public, {})
    assert read_registry(ready).agents["acme/bob"] == done.agent
    assert ready.agent_key("acme/bob").name == "acme%2Fbob.key"


def test_enrolling_again_changes_nothing(ready: Paths) -> None:
    first = enroll(ready, "bob")
    again = enroll(ready, "bob", NOW + 5)
    assert again.event is None
    assert again.agent == first.agent
    assert events(ready) == ["init", "publisher", "enroll"]


@pytest.mark.parametrize(
    "name", ["owner", "wakehub-publisher", "wakehub-9", "wake-hub-producer", "wakehub", "WakeHub", "../x", "a b", ""]
)
def test_names_that_are_not_enrolled(ready: Paths, name: str) -> None:
    with pytest.raises(BadData):
        enroll(ready, name)
    assert events(ready) == ["init", "publisher"]
    assert os.listdir(ready.agents) == ["wakehub-publisher.key"]


def test_a_name_that_differs_only_in_case_is_refused_even_from_a_closed_one(ready: Paths) -> None:
    enroll(ready, "Builder")
    for _ in range(2):
        with pytest.raises(BadData, match=r"Builder differs from it only in case"):
            enroll(ready, "builder")
        enrolment.close(ready, "Builder", NOW)
    assert not ready.agent_key("builder").exists()


def test_the_hub_id_is_kept_whatever_it_is(ready: Paths) -> None:
    with pytest.raises(BadData, match="kept for wakehub"):
        enrolment.enroll(ready, "Ai-Memory", "ai-memory", NOW)
    assert enrolment.enroll(ready, "wakehub", "ai-memory", NOW).event is not None


def test_a_lost_key_file_is_a_new_key_in_the_same_generation(ready: Paths) -> None:
    old = enroll(ready, "bob").agent.keys[0]
    ready.agent_key("bob").unlink()
    agent = enroll(ready, "bob", NOW + 9).agent
    assert agent.generation == 1
    assert agent.keys[0] == EnrolledKey(old.public, NOW, NOW + 9)
    assert agent.key == EnrolledKey(keys.load_key(ready.agent_key("bob"), "bob").public, NOW + 9)


def test_a_key_file_that_is_not_safe_is_not_enrolled_and_not_replaced(ready: Paths) -> None:
    enroll(ready, "bob")
    ready.agent_key("bob").chmod(0o644)
    before = ready.agent_key("bob").read_bytes()
    with pytest.raises(Unsafe, match="0644"):
        enroll(ready, "bob")
    assert ready.agent_key("bob").read_bytes() == before


def test_a_name_too_many_is_refused_before_it_locks_everybody_out(
    ready: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    enroll(ready, "bob")
    size = len(allowlist.sign(to_allowlist(read_registry(ready), NOW), load_owner(ready)))
    monkeypatch.setattr(allowlist, "MAX_ALLOWLIST_BYTES", size + 100)
    with pytest.raises(BadData, match="wakehub close"):
        enroll(ready, "carol")
    assert read_registry(ready).names() == ["bob"]


# --- revoking, closing, delegating ---


def test_revoking_ends_the_key_and_enrolling_makes_another(ready: Paths) -> None:
    first = enroll(ready, "bob").agent.keys[0]
    agent = enrolment.revoke(ready, "bob", NOW + 1).agent
    assert agent.key is None
    assert agent.keys == (EnrolledKey(first.public, NOW, NOW + 1),)
    assert enrolment.revoke(ready, "bob", NOW + 2).event is None
    again = enroll(ready, "bob", NOW + 3).agent
    assert again.generation == 1
    assert again.key is not None
    assert again.key.public != first.public
    assert again.key.public == keys.load_key(ready.agent_key("bob"), "bob").public
    assert again.had(first.public)
    assert again.had(again.key.public)
    assert not again.had(b"\7" * 32)


def test_closing_ends_the_generation(ready: Paths) -> None:
    first = enroll(ready, "bob").agent.keys[0]
    agent = enrolment.close(ready, "bob", NOW + 1).agent
    assert (agent.closed_at, agent.key, agent.generation) == (NOW + 1, None, 1)
    assert enrolment.close(ready, "bob", NOW + 2).event is None
    registry = read_registry(ready)
    assert registry.names() == []
    assert registry.generation("bob") == 1
    again = enroll(ready, "bob", NOW + 3).agent
    assert (again.closed_at, again.generation) == (None, 2)
    assert again.key is not None
    assert again.key.public != first.public
    assert read_registry(ready).generation("bob") == 2
    assert read_registry(ready).generation("never") == 1


def test_a_revoked_name_can_be_closed(ready: Paths) -> None:
    enroll(ready, "bob")
    enrolment.revoke(ready, "bob", NOW + 1)
    agent = enrolment.close(ready, "bob", NOW + 2).agent
    assert agent.keys[0].until == NOW + 1
    assert agent.closed_at == NOW + 2
    assert enroll(ready, "bob").agent.generation == 2


def test_a_revoked_session_key_stays_revoked(ready: Paths) -> None:
    enroll(ready, "bob")
    assert enrolment.revoke_key(ready, "bob", b"\7" * 32, NOW).event is not None
    assert enrolment.revoke_key(ready, "bob", b"\7" * 32, NOW).event is None
    enrolment.revoke_key(ready, "bob", b"\6" * 32, NOW)
    enrolment.revoke(ready, "bob", NOW)
    enroll(ready, "bob", NOW + 1)
    found = to_allowlist(read_registry(ready), NOW + 1)
    assert found.agents["bob"].revoked_keys == {b"\7" * 32, b"\6" * 32}


def test_a_line_that_would_spoil_the_registry_is_not_written(ready: Paths) -> None:
    enroll(ready, "bob")
    with pytest.raises(BadData, match="32 bytes"):
        enrolment.revoke_key(ready, "bob", b"\7" * 31, NOW)
    assert events(ready) == ["init", "publisher", "enroll"]
    assert read_registry(ready).names() == ["bob"]


def test_unknown_names_are_refused_with_what_may_be_meant(ready: Paths) -> None:
    enroll(ready, "reviewer")
    for act in (enrolment.revoke, enrolment.close):
        with pytest.raises(NoRecipient, match=r"did you mean reviewer\?"):
            act(ready, "reviewr", NOW)
        with pytest.raises(NoRecipient, match="wakehub agents") as refusal:
            act(ready, "zzz\x1b", NOW)
        assert str(refusal.value).isprintable()
    with pytest.raises(NoRecipient):
        enrolment.revoke_key(ready, "zzz", b"\7" * 32, NOW)
    assert events(ready) == ["init", "publisher", "enroll"]


def test_the_publisher_can_be_given_a_new_key_but_not_revoked_or_closed(ready: Paths) -> None:
    with pytest.raises(BadData):
        enrolment.close(ready, "wakehub-publisher", NOW)
    with pytest.raises(BadData, match=r"to exchange it: rm .*wakehub-publisher\.key && wakehub init") as refused:
        enrolment.revoke(ready, "wakehub-publisher", NOW)
    assert refused.value.exit == 65
    assert events(ready) == ["init", "publisher"]
    first = read_registry(ready).agents["wakehub-publisher"].key
    ready.agent_key("wakehub-publisher").unlink()
    init_owner(ready, NOW + 1)
    later = read_registry(ready).agents["wakehub-publisher"].key
    assert first is not None
    assert later is not None
    assert later.public != first.public
    assert later.public == keys.load_key(ready.agent_key("wakehub-publisher"), "wakehub-publisher").public


def test_a_delegation_is_recorded_without_its_secret(ready: Paths) -> None:
    enroll(ready, "bob")
    pair = keys.load_key(ready.agent_key("bob"), "bob")
    bundle = Bundle.make("bob", pair, HUB, NOW, 3600)
    done = enrolment.record_delegation(ready, Certificate.decode(bundle.certificate), NOW)
    assert done.event == Event(
        4,
        NOW,
        "delegate",
        "bob",
        pair.public,
        {
            "delegate_key_b64": keys.b64(bundle.delegate.public),
            "hub_id": HUB,
            "not_before": bundle.not_before,
            "not_after": bundle.not_after,
        },
    )
    assert read_registry(ready).agents["bob"] == done.agent
    content = ready.audit.read_text()
    assert keys.b64(bundle.delegate.seed) not in content
    assert keys.b64(pair.seed) not in content


def test_a_delegation_by_a_key_that_is_not_enrolled_is_not_recorded(ready: Paths) -> None:
    enroll(ready, "bob")
    pair = keys.load_key(ready.agent_key("bob"), "bob")
    foreign = mint("bob", KeyPair.generate(), b"\7" * 32, HUB, NOW, 60)
    with pytest.raises(Unsafe, match="not signed by its enrolled key"):
        enrolment.record_delegation(ready, foreign, NOW)
    enrolment.revoke(ready, "bob", NOW)
    with pytest.raises(Unsafe, match="not signed by its enrolled key"):
        enrolment.record_delegation(ready, mint("bob", pair, b"\7" * 32, HUB, NOW, 60), NOW)
    with pytest.raises(NoRecipient):
        enrolment.record_delegation(ready, mint("carol", pair, b"\7" * 32, HUB, NOW, 60), NOW)


def test_a_torn_line_is_cut_and_told(ready: Paths) -> None:
    with ready.audit.open("ab") as file:
        file.write(b'{"n":3,')
    assert enroll(ready, "bob").cut == 7
    assert enroll(ready, "bob").cut == 0
    with ready.audit.open("ab") as file:
        file.write(b"x")
    assert init_owner(ready, NOW).cut == 1


# --- killed anywhere, and many at once ---


def test_enrolling_killed_anywhere_is_completed_by_the_next(tmp_path: Path) -> None:
    for at, places in enumerate(homes(tmp_path), 1):
        init_owner(places, NOW)
        was_killed = killed(lambda: enroll(places, "bob"), at)  # noqa: B023
        path = places.agent_key("bob")
        made = keys.load_key(path, "bob") if path.exists() else None
        done = enroll(places, "bob")
        assert made in (None, keys.load_key(path, "bob"))
        assert done.agent.keys == (EnrolledKey(keys.load_key(path, "bob").public, NOW),)
        assert events(places) == ["init", "publisher", "enroll"]
        if not was_killed:
            assert at > 8
            return


def test_enrolling_after_revoking_killed_anywhere_never_takes_the_old_key(tmp_path: Path) -> None:
    for at, places in enumerate(homes(tmp_path), 1):
        init_owner(places, NOW)
        old = enroll(places, "bob").agent.keys[0].public
        enrolment.revoke(places, "bob", NOW)
        was_killed = killed(lambda: enroll(places, "bob"), at)  # noqa: B023
        agent = enroll(places, "bob").agent
        assert agent.key is not None
        assert agent.key.public == keys.load_key(places.agent_key("bob"), "bob").public != old
        assert len(agent.keys) == 2
        if not was_killed:
            return


def test_many_processes_enrol_at_once(ready: Paths) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from wakehub.identity import enrolment; from wakehub.paths import Paths\n"
        "places = Paths(*map(Path, sys.argv[2:])); sys.stdin.readline()\n"
        "for name in ('shared', sys.argv[1]): enrolment.enroll(places, name, 'wakehub', 1790000000)\n"
    )
    where = [str(path) for path in (ready.run, ready.state, ready.keys, ready.config_file)]
    with contextlib.ExitStack() as running:
        children = [
            running.enter_context(
                started([sys.executable, "-c", program, f"own{number}", *where], stdin=subprocess.PIPE)
            )
            for number in range(4)
        ]
        for child in children:
            assert child.stdin is not None
            child.stdin.write(b"go\n")
            child.stdin.close()
        assert [child.wait() for child in children] == [0] * 4
    registry = read_registry(ready)
    assert registry.names() == ["own0", "own1", "own2", "own3", "shared"]
    assert len(registry.agents["shared"].keys) == 1
    assert files.is_absent(ready.agent_key("own4"))
