"""How an instance begins, is completed after a kill, and refuses to begin anew."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from registry_world import NOW, enroll, events, homes, killed

from wakehub.errors import Exit, Unsafe
from wakehub.identity import keys
from wakehub.identity.audit import AuditLog, Event
from wakehub.identity.initialisation import init_owner
from wakehub.identity.keys import KeyPair
from wakehub.identity.owner import load_owner, load_owner_public, read_registry
from wakehub.identity.registry import EnrolledKey
from wakehub.paths import Paths


def test_init_makes_what_a_fresh_machine_needs(places: Paths) -> None:
    done = init_owner(places, NOW)
    publisher = places.agent_key("wakehub-publisher")
    assert done.made == (places.owner_key, places.owner_pub, places.audit, publisher)
    assert done.owner_public == keys.load_public(places.owner_pub)
    assert load_owner(places).public == load_owner_public(places) == done.owner_public
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
    again = init_owner(ready, NOW + 1)
    assert again.made == ()
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("kept", ["owner_pub", "audit"])
def test_init_does_not_put_another_owner_in_the_place_of_a_lost_one(ready: Paths, kept: str) -> None:
    for name in {"owner_key", "owner_pub", "audit"} - {kept}:
        getattr(ready, name).unlink()
    with pytest.raises(Unsafe, match=r"owner\.key is missing.*backup") as refusal:
        init_owner(ready, NOW)
    assert refusal.value.exit is Exit.PERMISSION
    assert not ready.owner_key.exists()


def test_init_mends_a_lost_public_key(ready: Paths) -> None:
    bob = enroll(ready, "bob").agent.key
    ready.owner_pub.unlink()
    assert init_owner(ready, NOW).made == (ready.owner_pub,)
    assert enroll(ready, "bob").agent.key == bob


@pytest.mark.parametrize("lose", [Path.unlink, lambda audit: audit.write_bytes(b"")])
def test_init_begins_no_registry_in_the_place_of_a_lost_one(ready: Paths, lose: Callable[[Path], object]) -> None:
    enroll(ready, "bob")
    lose(ready.audit)
    with pytest.raises(Unsafe, match=r"the registry is gone.*from a backup") as refusal:
        init_owner(ready, NOW)
    assert refusal.value.exit is Exit.PERMISSION
    ready.owner_key.unlink()
    ready.owner_pub.unlink()
    ready.audit.unlink(missing_ok=True)
    with pytest.raises(Unsafe, match="the registry is gone"):
        init_owner(ready, NOW)
    assert not ready.owner_key.exists()


def test_init_refuses_files_that_do_not_belong_together(ready: Paths) -> None:
    ready.owner_key.unlink()
    keys.write_key(ready.owner_key, "owner", KeyPair.generate())
    for act in (lambda: init_owner(ready, NOW), lambda: enroll(ready, "bob")):
        with pytest.raises(Unsafe, match="do not belong together"):
            act()


@pytest.mark.parametrize("name", ["owner_key", "owner_pub", "audit"])
def test_a_file_that_is_not_safe_stops_init_and_every_act(ready: Paths, name: str) -> None:
    getattr(ready, name).chmod(0o644)
    for act in (lambda: init_owner(ready, NOW), lambda: enroll(ready, "bob")):
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
        for act in (lambda: init_owner(ready, NOW), lambda: enroll(ready, "bob")):
            with pytest.raises(Unsafe, match="Permission denied") as refusal:
                act()
            assert str(hidden) in refusal.value.what
            assert refusal.value.exit is Exit.PERMISSION
        if name != "owner_key":
            with pytest.raises(Unsafe, match="sandbox"):
                read_registry(ready)
    assert {path: path.read_bytes() for path in ready.keys.rglob("*.*")} == before


def test_init_killed_anywhere_is_completed_by_the_next(tmp_path: Path) -> None:
    for at, places in enumerate(homes(tmp_path), 1):
        was_killed = killed(lambda: init_owner(places, NOW), at)  # noqa: B023 - called at once
        owner = keys.load_key(places.owner_key, "owner") if places.owner_key.exists() else None
        init_owner(places, NOW)
        assert owner in (None, load_owner(places))
        assert events(places) == ["init", "publisher"]
        registry = read_registry(places)
        publisher = keys.load_key(places.agent_key("wakehub-publisher"), "wakehub-publisher")
        assert registry.agents["wakehub-publisher"].keys == (EnrolledKey(publisher.public, NOW),)
        if not was_killed:
            assert at > 30
            return
