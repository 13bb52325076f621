"""Why the record refuses: each says what it means for the message, and has its exit status (receive.md §1)."""

from wakehub.errors import CannotCreate, Exit, Misconfigured, Unavailable, WakehubError


class NotStored(CannotCreate):
    """The record could not be written (disk full, quota, input/output error): nothing of it was stored (exit 73)."""


class RecordBusy(Unavailable):
    """Another process kept the record locked for longer than we wait; nothing was changed (exit 69)."""


class RecordDamaged(WakehubError):
    """The record's file is not what it was written as; `wakehub doctor` looks at it (exit 69)."""

    exit = Exit.UNAVAILABLE


class RecordReplaced(WakehubError):
    """The record's file was removed or replaced under a process that had opened it (exit 69)."""

    exit = Exit.UNAVAILABLE


class RecordUnwritable(WakehubError):
    """The record is there, but this process may not write it: a sandbox, perhaps; a spool may do (exit 77)."""

    exit = Exit.PERMISSION


class NoRecord(Misconfigured):
    """There is no record at that place, and it was not to be made (exit 78)."""


class LoopGuard(Unavailable):
    """Two agents answer each other without end, or one writes far too fast (exit 69, code 429)."""

    code = 429


class TooFast(LoopGuard):
    """One sender stores too many rows a minute for one recipient; the same row is taken a minute later."""


class AlreadyStored(WakehubError):
    """A row of this id was taken in before; the message is not lost and not stored twice (exit 65)."""

    exit = Exit.DATA
