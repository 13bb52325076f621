"""What the client's tests share: an identity, and a short path for sockets."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_hub import NOW_S

from wakehub.identity.delegation import Bundle
from wakehub.identity.keys import KeyPair
from wakehub.inbox.sqlite import SqliteInbox


@pytest.fixture
def key() -> KeyPair:
    return KeyPair(bytes(31) + b"\x01")


@pytest.fixture
def bundle(key: KeyPair) -> Bundle:
    return Bundle.make("alice", key, "wakehub", NOW_S, 3600)


@pytest.fixture
def run_directory() -> Iterator[Path]:
    """A directory whose path leaves room for a socket name."""
    with tempfile.TemporaryDirectory(prefix="wh") as name:
        yield Path(name)


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[SqliteInbox]:
    with SqliteInbox.open(tmp_path / "inbox.db") as opened:
        yield opened
