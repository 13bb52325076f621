"""Every refusal of the record has its exit status."""

import pytest

from wakehub.errors import Exit
from wakehub.inbox.refusals import (
    AlreadyStored,
    LoopGuard,
    NoRecord,
    NotStored,
    RecordBusy,
    RecordDamaged,
    RecordUnwritable,
)


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (NotStored, Exit.CANNOT_CREATE),
        (RecordBusy, Exit.UNAVAILABLE),
        (RecordDamaged, Exit.UNAVAILABLE),
        (RecordUnwritable, Exit.PERMISSION),
        (NoRecord, Exit.CONFIG),
        (LoopGuard, Exit.UNAVAILABLE),
        (AlreadyStored, Exit.DATA),
    ],
)
def test_every_refusal_has_its_exit_status(kind: type[NotStored], status: Exit) -> None:
    assert kind("it").exit == status
