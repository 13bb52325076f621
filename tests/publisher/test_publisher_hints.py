"""What waits for a wake in the publisher."""

from wakehub.inbox.clock import Now
from wakehub.inbox.rows import Header, NewRow
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.publisher.hints import Box


def stored(inbox: SqliteInbox, sender: str, recipient: str) -> Header:
    (row,) = inbox.append(NewRow(sender, recipient, b"body"), Now.read())
    (header,) = inbox.headers([row.id])
    return header


def test_a_box_wakes_once_for_its_newest_row(inbox: SqliteInbox) -> None:
    rows = [stored(inbox, "bob", "alice") for _ in range(3)]
    box = Box("alice", "alice", False, {row.id: row for row in reversed(rows)})
    assert (box.wake().row_id, box.wake().watermark) == (rows[-1].id.encode(), 3)
