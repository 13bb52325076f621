"""The interface of the record: that which we have fulfils it."""

from wakehub.inbox.sqlite import SqliteInbox
from wakehub.inbox.store import Inbox


def test_the_sqlite_record_is_an_inbox(inbox: SqliteInbox) -> None:
    held: Inbox = inbox
    missing = [name for name in dir(Inbox) if not name.startswith("_") and not hasattr(held, name)]
    assert missing == []
