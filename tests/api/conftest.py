"""What the API's tests share: an instance of their own under a short path, and no word that leads elsewhere."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_process import stand_in_for_up

from wakehub import config
from wakehub.client.home import ensure_home
from wakehub.config import Config
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.inbox.store import Inbox


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch) -> Iterator[Config]:
    """An instance that this process finds by its environment; none is started in the background for it."""
    for name in list(os.environ):
        if name.startswith(("WAKEHUB_", "XDG_")):
            monkeypatch.delenv(name)
    with tempfile.TemporaryDirectory(prefix="wa", dir="/tmp") as name:
        monkeypatch.setenv("WAKEHUB_HOME", f"{name}/home")
        monkeypatch.setenv("CLAUDE_CONFIG_DIR", f"{name}/no-claude")
        monkeypatch.chdir(name)
        (Path(name) / "home").mkdir(mode=0o700)
        found = config.load()
        ensure_home(found)
        with stand_in_for_up(found.paths):
            yield found


@pytest.fixture
def record(instance: Config) -> Iterator[Inbox]:
    """The record as another process sees it."""
    with SqliteInbox.open(instance.paths.record) as inbox:
        yield inbox
