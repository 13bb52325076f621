"""What the publisher's tests share: short paths, a record, and the scripted hub of the client's tests."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from wakehub.config import Config
from wakehub.identity.keys import KeyPair
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.paths import Paths

sys.path.append(str(Path(__file__).parents[1] / "client"))


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory whose path leaves room for socket names."""
    with tempfile.TemporaryDirectory(prefix="wh") as name:
        yield Path(name)


@pytest.fixture
def config(home: Path) -> Config:
    return Config.at(Paths(home / "run", home / "state", home / "keys", home / "config.toml"))


@pytest.fixture
def inbox(config: Config) -> Iterator[SqliteInbox]:
    with SqliteInbox.open(config.paths.record) as opened:
        yield opened


@pytest.fixture
def key() -> KeyPair:
    return KeyPair(bytes(31) + b"\x02")
