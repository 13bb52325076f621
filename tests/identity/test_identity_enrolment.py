"""Names, the registry, and the acts on it (receive.md §2, §6; formats.md, Key files and Registry)."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wakehub import files
from wakehub.errors import BadData, Exit, NoRecipient, Unsafe
from wakehub.identity import allowlist, enrolment, keys
from wakehub.identity.audit import AuditLog, Event
from wakehub.identity.delegation import Bundle, Certificate, mint
from wakehub.identity.enrolment import Agent, EnrolledKey, Registry
from wakehub.identity.keys import KeyPair
from wakehub.identity.stamps import NS
from wakehub.paths import Paths

NOW = 1_790_000_000
HUB = "wakehub"


@pytest.fixture
def ready(places: Paths) -> Paths:
    enrolment.init_owner(places, NOW)
    return places


def events(places: Paths) -> list[str]:
    return [event.event for event in AuditLog(places.audit, keys.load_public(places.owner_pub)).verify()]


def enroll(places: Paths, name: str, now_s: float = NOW) -> enrolment.Change:
    return enrolment.enroll(places, name, HUB, now_s)


# --- addresses ---


@pytest.mark.parametrize(
    "text",
    [
        "alice",
        "ai:alice",
        "acme/deploy",
        "a/b/c/d/e/f/g/h",
        "A",
        "9",
        "a.b_c-d:e",
        "0/1",
        "a" * 128,
        "a.",
        "a-",
        "Builder",
    ],
)
def test_what_is_an_address(text: str) -> None:
    assert enrolment.check_address(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "a/",
        "/a",
        "a//b",
        ".",
        "..",
        "../../x",
        "a/../b",
        "a/./b",
        ".hidden",
        "a/.b",
        "_inbox/a",
        "a/_b",
        "-a",
        ":a",
        "a b",
        " a",
        "a ",
        "a\n",
        "a\0",
        "a]b",
        "a\\b",
        "a#b",
        "#a",
        "a~",
        "a%41",
        "a*",
        "a" * 129,
        "a/" * 64 + "b",
        "a" * 300,
        "buiІder",  # F42: Cyrillic
        "é",
        "e\u0301",
        "a\u202eb",
        "é" * 64,
        "ａ",
        "٣",
        "\ud800",
        "[wakehub m_01 from x]",
    ],
)
def test_what_is_none(text: str) -> None:
    """F41, F42, F43: refused before any file is touched, and never mended."""
    with pytest.raises(BadData) as refusal:
        enrolment.check_address(text)
    assert refusal.value.exit is Exit.DATA
    assert str(refusal.value).isprintable()


@given(st.text(max_size=140))
def test_an_address_is_as_it_is_or_refused(text: str) -> None:
    try:
        assert enrolment.check_address(text) == text
    except BadData:
        return
    assert text.isascii()
    assert 1 <= len(text) <= 128
    assert all(part[0].isalnum() for part in text.split("/"))


def test_a_namespace_ends_in_a_slash() -> None:
    assert enrolment.check_namespace("acme/") == "acme/"
    assert enrolment.check_namespace("acme/eng/") == "acme/eng/"
    for text in ("", "/", "acme", "acme//", "/acme/", "é/"):
        with pytest.raises(BadData):
            enrolment.check_namespace(text)


@pytest.mark.parametrize(
    ("directory", "name"),
    [
        ("wakehub", "wakehub"),
        ("My Project", "My-Project"),
        ("-x-", "x"),
        ("(draft)", "draft"),
        (".config", "config"),
        ("_private", "private"),
        ("a.b", "a.b"),
        ("é", None),
        ("éa", "a"),
        ("aéb", "a--b"),
        ("a\udcffb", "a-b"),
        ("", None),
        ("...", None),
        ("...a", "a"),
        ("x" * 128, "x" * 128),
        ("x" * 129, None),
    ],
)
def test_the_default_name_of_a_directory(directory: str, name: str | None) -> None:
    assert enrolment.name_from_directory(directory) == name


@given(st.text(max_size=200))
def test_a_default_name_is_an_address(directory: str) -> None:
    name = enrolment.name_from_directory(directory.encode("utf-8", "ignore").decode())
    assert name is None or enrolment.check_address(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "owner",
        "Owner",
        "wakehub-publisher",
        "wakehub-x",
        "WAKEHUB-",
        "wakehub-x/y",
        "wake-hub-producer",
        "Wake-Hub-Producer",
    ],
)
def test_reserved_names(name: str) -> None:
    assert enrolment.is_reserved(name)


@pytest.mark.parametrize("name", ["owners", "owner/x", "wakehub", "my-wakehub-x", "wake-hub-producer2"])
def test_names_that_are_not(name: str) -> None:
    assert not enrolment.is_reserved(name)


# --- init ---


def test_init_makes_what_a_fresh_machine_needs(places: Paths) -> None:
    done = enrolment.init_owner(places, NOW)
    publisher = places.agent_key("wakehub-publisher")
    assert done.made == (places.owner_key, places.owner_pub, places.audit, publisher)
    assert done.owner_public == keys.load_public(places.owner_pub)
    assert enrolment.load_owner(places).public == enrolment.load_owner_public(places) == done.owner_public
    for path in done.made:
        assert path.stat().st_mode & 0o7777 == 0o600
        assert path.parent.stat().st_mode & 0o7777 == 0o700
    assert AuditLog(places.audit, done.owner_public).verify() == [
        Event(1, NOW, "init", "owner", done.owner_public, {}),
        Event(2, NOW, "publisher", "wakehub-publisher", keys.load_key(publisher, "wakehub-publisher").public, {}),
    ]
    assert json.loads(places.owner_key.read_bytes())["agent_id"] == "owner"


def test_init_again_changes_nothing(ready: Paths) -> None:
    before = {path: path.read_bytes() for path in ready.keys.rglob("*.*")} | {ready.audit: ready.audit.read_bytes()}
    again = enrolment.init_owner(ready, NOW + 1)
    assert again.made == ()
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("kept", ["owner_pub", "audit"])
def test_init_does_not_put_another_owner_in_the_place_of_a_lost_one(ready: Paths, kept: str) -> None:
    for name in {"owner_key", "owner_pub", "audit"} - {kept}:
        getattr(ready, name).unlink()
    with pytest.raises(Unsafe, match=r"owner\.key is missing.*backup") as refusal:
        enrolment.init_owner(ready, NOW)
    assert refusal.value.exit is Exit.PERMISSION
    assert not ready.owner_key.exists()


def test_init_mends_a_lost_public_key(ready: Paths) -> None:
    bob = enroll(ready, "bob").agent.key
    ready.owner_pub.unlink()
    assert enrolment.init_owner(ready, NOW).made == (ready.owner_pub,)
    assert enroll(ready, "bob").agent.key == bob


@pytest.mark.parametrize("lose", [Path.unlink, lambda audit: audit.write_bytes(b"")])
def test_init_begins_no_registry_in_the_place_of_a_lost_one(ready: Paths, lose: Callable[[Path], object]) -> None:
    enroll(ready, "bob")
    lose(ready.audit)
    with pytest.raises(Unsafe, match=r"the registry is gone.*from a backup") as refusal:
        enrolment.init_owner(ready, NOW)
    assert refusal.value.exit is Exit.PERMISSION
    ready.owner_key.unlink()
    ready.owner_pub.unlink()
    ready.audit.unlink(missing_ok=True)
    with pytest.raises(Unsafe, match="the registry is gone"):
        enrolment.init_owner(ready, NOW)
    assert not ready.owner_key.exists()


def test_init_refuses_files_that_do_not_belong_together(ready: Paths) -> None:
    ready.owner_key.unlink()
    keys.write_key(ready.owner_key, "owner", KeyPair.generate())
    for act in (lambda: enrolment.init_owner(ready, NOW), lambda: enroll(ready, "bob")):
        with pytest.raises(Unsafe, match="do not belong together"):
            act()


@pytest.mark.parametrize("name", ["owner_key", "owner_pub", "audit"])
def test_a_file_that_is_not_safe_stops_init_and_every_act(ready: Paths, name: str) -> None:
    getattr(ready, name).chmod(0o644)
    for act in (lambda: enrolment.init_owner(ready, NOW), lambda: enroll(ready, "bob")):
        with pytest.raises(Unsafe, match="0644"):
            act()


@pytest.mark.parametrize("name", ["owner_key", "owner_pub", "audit"])
def test_what_a_sandbox_hides_is_not_absent(ready: Paths, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = getattr(ready, name)
    real = os.open

    def masked(path: str | Path, *args: int, **kwargs: int) -> int:
        if str(path) == str(hidden):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **kwargs)

    before = {path: path.read_bytes() for path in ready.keys.rglob("*.*")}
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", masked)
        for act in (lambda: enrolment.init_owner(ready, NOW), lambda: enroll(ready, "bob")):
            with pytest.raises(Unsafe, match="Permission denied") as refusal:
                act()
            assert str(hidden) in refusal.value.what
            assert refusal.value.exit is Exit.PERMISSION
        if name != "owner_key":
            with pytest.raises(Unsafe, match="sandbox"):
                enrolment.read_registry(ready)
    assert {path: path.read_bytes() for path in ready.keys.rglob("*.*")} == before


# --- acts without an owner key or before init ---


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
    assert enrolment.read_registry(ready).names() == ["bob"]


@pytest.mark.parametrize("act", ACTS)
def test_acts_need_a_log_that_was_begun(ready: Paths, act: Callable[[Paths], object]) -> None:
    for begun in (lambda: ready.audit.write_bytes(b""), ready.audit.unlink):
        begun()
        for look in (act, enrolment.read_registry):
            with pytest.raises(Unsafe, match=r"the registry is gone.*from a backup"):
                look(ready)
    enrolment.unfinished_mark(ready).touch(0o600)
    with pytest.raises(Unsafe, match="not set up") as refusal:
        enrolment.read_registry(ready)
    assert refusal.value.remedy == "wakehub init"


def test_before_init_everything_says_so(places: Paths) -> None:
    for act in (
        lambda: enroll(places, "bob"),
        lambda: enrolment.read_registry(places),
        lambda: enrolment.load_owner(places),
        lambda: enrolment.load_owner_public(places),
    ):
        with pytest.raises(Unsafe, match="wakehub init"):
            act()
    assert not places.keys.exists()


# --- enrolling ---


def test_enrolling_makes_a_key_and_a_line(ready: Paths) -> None:
    done = enroll(ready, "acme/bob", NOW + 5)
    pair = keys.load_key(ready.agent_key("acme/bob"), "acme/bob")
    assert done.agent == Agent("acme/bob", 1, (EnrolledKey(pair.public, NOW + 5),))
    assert done.event == Event(3, NOW + 5, "enroll", "acme/bob", pair.public, {})
    assert enrolment.read_registry(ready).agents["acme/bob"] == done.agent
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
    size = len(allowlist.sign(enrolment.to_allowlist(enrolment.read_registry(ready), NOW), enrolment.load_owner(ready)))
    monkeypatch.setattr(allowlist, "MAX_ALLOWLIST_BYTES", size + 100)
    with pytest.raises(BadData, match="wakehub close"):
        enroll(ready, "carol")
    assert enrolment.read_registry(ready).names() == ["bob"]


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
    registry = enrolment.read_registry(ready)
    assert registry.names() == []
    assert registry.generation("bob") == 1
    again = enroll(ready, "bob", NOW + 3).agent
    assert (again.closed_at, again.generation) == (None, 2)
    assert again.key is not None
    assert again.key.public != first.public
    assert enrolment.read_registry(ready).generation("bob") == 2
    assert enrolment.read_registry(ready).generation("never") == 1


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
    found = enrolment.to_allowlist(enrolment.read_registry(ready), NOW + 1)
    assert found.agents["bob"].revoked_keys == {b"\7" * 32, b"\6" * 32}


def test_a_line_that_would_spoil_the_registry_is_not_written(ready: Paths) -> None:
    enroll(ready, "bob")
    with pytest.raises(BadData, match="32 bytes"):
        enrolment.revoke_key(ready, "bob", b"\7" * 31, NOW)
    assert events(ready) == ["init", "publisher", "enroll"]
    assert enrolment.read_registry(ready).names() == ["bob"]


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


def test_the_publisher_can_be_given_a_new_key_but_not_closed(ready: Paths) -> None:
    with pytest.raises(BadData):
        enrolment.close(ready, "wakehub-publisher", NOW)
    first = enrolment.read_registry(ready).agents["wakehub-publisher"].key
    enrolment.revoke(ready, "wakehub-publisher", NOW)
    enrolment.init_owner(ready, NOW + 1)
    later = enrolment.read_registry(ready).agents["wakehub-publisher"].key
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
    assert enrolment.read_registry(ready).agents["bob"] == done.agent
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
    assert enrolment.init_owner(ready, NOW).cut == 1


# --- the registry and the allowlist ---


def test_names_and_namespaces(ready: Paths) -> None:
    for name in ("acme/eng/x", "acme/bob", "alice", "acmeX/y", "acme/eng/y"):
        enroll(ready, name)
    enrolment.revoke(ready, "acme/eng/y", NOW)
    registry = enrolment.read_registry(ready)
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
    found = enrolment.to_allowlist(enrolment.read_registry(ready), NOW + 9.9)
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
    owner = enrolment.load_owner(ready)
    assert allowlist.parse(allowlist.sign(found, owner), owner.public) == found


def test_a_clock_set_back_locks_out_nobody_but_the_newly_bound(ready: Paths) -> None:
    """F75: an entry bound more than 30 s ahead would have the hub refuse the whole file."""
    enroll(ready, "old", NOW - 10_000)
    enroll(ready, "new", NOW)
    registry = enrolment.read_registry(ready)
    owner = enrolment.load_owner(ready)
    for back, names in ((30, {"old", "new", "wakehub-publisher"}), (31, {"old"}), (7200, {"old"})):
        found = enrolment.to_allowlist(registry, NOW - back)
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
    assert enrolment.to_allowlist(Registry.derive([]), NOW).agents == {}


# --- killed anywhere ---

EFFECTS = ("mkdir", "open", "write", "fsync", "link", "unlink", "rename", "ftruncate", "fchmod")


def killed(act: Callable[[], object], at: int) -> bool:
    """Run `act` in a child that is killed in the middle of its `at`-th change to the disk; False when it has fewer."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
        return os.WIFSIGNALED(status)
    try:
        count = 0

        def interrupted(name: str, real: Callable[..., object]) -> Callable[..., object]:
            def effect(*args: object, **kwargs: object) -> object:
                nonlocal count
                count += 1
                if count == at:
                    if name == "write":
                        real(args[0], bytes(args[1])[: len(bytes(args[1])) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **kwargs)

            return effect

        for name in EFFECTS:
            setattr(os, name, interrupted(name, getattr(os, name)))
        act()
        os._exit(0)
    except BaseException:
        os._exit(1)


def homes(root: Path) -> Iterator[Paths]:
    for number in range(1, 1000):
        home = root / str(number)
        yield Paths(home / "run", home / "state", home / "keys", home / "config.toml")


def test_init_killed_anywhere_is_completed_by_the_next(tmp_path: Path) -> None:
    for at, places in enumerate(homes(tmp_path), 1):
        was_killed = killed(lambda: enrolment.init_owner(places, NOW), at)  # noqa: B023 - called at once
        owner = keys.load_key(places.owner_key, "owner") if places.owner_key.exists() else None
        enrolment.init_owner(places, NOW)
        assert owner in (None, enrolment.load_owner(places))
        assert events(places) == ["init", "publisher"]
        registry = enrolment.read_registry(places)
        publisher = keys.load_key(places.agent_key("wakehub-publisher"), "wakehub-publisher")
        assert registry.agents["wakehub-publisher"].keys == (EnrolledKey(publisher.public, NOW),)
        if not was_killed:
            assert at > 30
            return


def test_enrolling_killed_anywhere_is_completed_by_the_next(tmp_path: Path) -> None:
    for at, places in enumerate(homes(tmp_path), 1):
        enrolment.init_owner(places, NOW)
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
        enrolment.init_owner(places, NOW)
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
    children = [
        subprocess.Popen([sys.executable, "-c", program, f"own{number}", *where], stdin=subprocess.PIPE)
        for number in range(4)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write(b"go\n")
        child.stdin.close()
    assert [child.wait() for child in children] == [0] * 4
    registry = enrolment.read_registry(ready)
    assert registry.names() == ["own0", "own1", "own2", "own3", "shared"]
    assert len(registry.agents["shared"].keys) == 1
    assert files.is_absent(ready.agent_key("own4"))
