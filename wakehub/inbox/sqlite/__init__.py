"""The record in SQLite: `Inbox` over one file that any number of processes share (receive.md §1).

    rows          a row as it stands in the tables, and the conditions that statements share
    leases        who listens under which name
    storing       what a sender does
    reading       what changes nothing
    handing_off   what a listener does, and who acknowledges by hand
    sweeping      what the publisher does

Each state change is one UPDATE whose WHERE holds all of its conditions, the live lease included, and whose RETURNING
says whether it happened; the event is written in the same transaction. Every reading goes through an index that holds
open rows only and is named in the statement, so that a plan which would walk through history fails at once.
"""

from pathlib import Path
from types import TracebackType
from typing import Self

from wakehub.inbox.admission import Guard
from wakehub.inbox.database import Database
from wakehub.inbox.sqlite.handing_off import HandingOff
from wakehub.inbox.sqlite.reading import Reading
from wakehub.inbox.sqlite.sweeping import Sweeping


class SqliteInbox(Reading, HandingOff, Sweeping):
    """The record at one path; the Protocol `Inbox` says what each method does. `SqliteInbox.open` makes one."""

    @classmethod
    def open(cls, path: Path, *, create: bool = True, guard: Guard | None = None) -> "SqliteInbox":
        """Open the record at `path`; `create` makes it when there is none, and its directory.

        Raises `NoRecord` (not `create`), `Unsafe` (owner, mode), `Misconfigured` (network file system, newer schema),
        `CannotCreate`, `NotStored`, `RecordBusy`, `RecordUnwritable`, `RecordDamaged`.
        """
        return cls(Database.open(path, create=create), guard or Guard())

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
