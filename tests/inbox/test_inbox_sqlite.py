"""The record in SQLite: the conformance of `Inbox`, and what only this implementation promises."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from inbox_conformance import InboxConformance

from wakehub.inbox.sqlite import SqliteInbox
from wakehub.inbox.store import Guard, Inbox


class SqliteStore:
    def __init__(self, path: Path, opened: ExitStack) -> None:
        self._path = path
        self._opened = opened

    def open(self, guard: Guard | None = None) -> Inbox:
        return self._opened.enter_context(SqliteInbox.open(self._path, guard=guard))


class TestConformance(InboxConformance):
    @pytest.fixture
    def store(self, record: Path) -> Iterator[SqliteStore]:
        with ExitStack() as opened:
            yield SqliteStore(record, opened)
