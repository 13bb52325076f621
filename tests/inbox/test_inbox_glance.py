"""How much waits for a name, at a glance: the same as the record itself says (fault F86)."""

from pathlib import Path

import pytest

from wakehub.errors import Unsafe
from wakehub.inbox.clock import Now
from wakehub.inbox.glance import unattended
from wakehub.inbox.leases import Lease
from wakehub.inbox.rows import NewRow
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.processes import ProcessId


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "s tate?" / "record.db"


def test_it_counts_as_the_record_does(record: Path) -> None:
    """Rows whose time is over, and rows of others, do not wait for a name."""
    now = Now.read()
    with SqliteInbox.open(record) as inbox:
        inbox.append(
            [NewRow("bob", "alice", b"1", ttl_s=1), NewRow("bob", "alice", b"2"), NewRow("x", "al", b"3")], now
        )
        counts = set()
        for moment in (now, now.later(999), now.later(1000), now.later(90_000_000)):
            counts.add(found := unattended(record, "alice", moment))
            assert found == inbox.count_unread("alice", now=moment)
        assert counts == {2, 1, 0}
        inbox.ack([row.id for row in inbox.unread("alice")], "alice", None, now)
        assert unattended(record, "alice", now) == 0


@pytest.mark.parametrize("name", ["acme/deploy", "acme/"])
def test_what_a_listener_takes_waits_for_nobody_else(record: Path, name: str) -> None:
    now = Now.read()
    with SqliteInbox.open(record) as inbox:
        inbox.append(NewRow("bob", "acme/deploy", b"4"), now)
        assert unattended(record, "acme/deploy", now) == 1
        lease = inbox.leases.acquire([name], ProcessId.own(), "acme/relay", now)
        assert isinstance(lease, Lease)
        assert unattended(record, "acme/deploy", now) == 0
        assert unattended(record, "acme/deploy", now.later(301_000)) == 1
        inbox.leases.release(lease.token, now)
        assert unattended(record, "acme/deploy", now) == 1


def test_where_there_is_no_record_nothing_waits_and_none_is_made(record: Path) -> None:
    assert unattended(record, "alice", Now.read()) == 0
    assert not record.parent.exists()


def test_a_file_that_is_not_ours_alone_or_no_record_is_refused(record: Path) -> None:
    with SqliteInbox.open(record):
        pass
    record.chmod(0o644)
    with pytest.raises(Unsafe):
        unattended(record, "alice", Now.read())
    record.chmod(0o600)
    record.write_bytes(b"nonsense" * 1000)
    with pytest.raises(OSError, match="cannot be read"):
        unattended(record, "alice", Now.read())
