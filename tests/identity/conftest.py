"""Fixtures for everything that needs a small world, or counts what it costs."""

from collections.abc import Callable
from pathlib import Path

import pytest
from identity_world import World
from registry_world import NOW

from wakehub.identity import keys
from wakehub.identity.initialisation import init_owner
from wakehub.paths import Paths


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "allowlist.jws")


@pytest.fixture
def verifications(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The outcome of every Ed25519 verification from here on, in order."""
    outcomes: list[bool] = []
    real: Callable[[bytes, bytes, bytes], bool] = keys.verify

    def counting(public: bytes, message: bytes, signature: bytes) -> bool:
        outcomes.append(real(public, message, signature))
        return outcomes[-1]

    monkeypatch.setattr(keys, "verify", counting)
    return outcomes


@pytest.fixture
def places(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "run", tmp_path / "state", tmp_path / "keys", tmp_path / "config.toml")


@pytest.fixture
def ready(places: Paths) -> Paths:
    """An instance after `init` and nothing else."""
    init_owner(places, NOW)
    return places
