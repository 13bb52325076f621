"""Wakes from rows: what they say, and what gives way when it does not fit."""

import hashlib
from dataclasses import replace

import pytest

from wakehub.client.wakes import wake_for
from wakehub.inbox.clock import Now
from wakehub.inbox.rows import Header, NewRow
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.limits import MAX_WAKE_PAYLOAD_BYTES


def stored(inbox: SqliteInbox, sender: str, recipient: str) -> Header:
    (row,) = inbox.append(NewRow(sender, recipient, b"body"), Now.read())
    (header,) = inbox.headers([row.id])
    return header


def test_a_short_row_says_everything(inbox: SqliteInbox) -> None:
    row = stored(inbox, "bob", "alice")
    wake = wake_for(row)
    assert (wake.row_id, wake.namespace, wake.sender) == (row.id.encode(), b"_inbox/alice", b"bob")
    assert wake.digest == hashlib.sha256(b"body").digest()
    assert wake.watermark == 1


@pytest.mark.parametrize(
    ("sender", "recipient", "kept"),
    [
        (60, 110, {"namespace", "sender", "digest"}),
        (128, 1, {"namespace", "sender", "digest"}),
        (128, 128, {"namespace", "digest"}),  # 335 bytes in all, 207 without the sender
    ],
)
def test_the_sender_gives_way_first(inbox: SqliteInbox, sender: int, recipient: int, kept: set[str]) -> None:
    wake = wake_for(stored(inbox, "s" * sender, "r" * recipient))
    assert {field for field in ("namespace", "sender", "digest") if getattr(wake, field)} == kept
    assert wake.watermark == 1
    assert len(wake.encode()) <= MAX_WAKE_PAYLOAD_BYTES


def test_exactly_256_bytes_keep_the_sender(inbox: SqliteInbox) -> None:
    # id 29, namespace 8 + r, sender 1 + s, digest 33, watermark 8
    assert len(wake_for(stored(inbox, "s" * 100, "r" * 77)).encode()) == 256
    assert wake_for(stored(inbox, "s" * 100, "r" * 78)).sender == b""


@pytest.mark.parametrize(
    ("row_id", "kept"), [(120, {"digest"}), (230, set())], ids=["namespace next", "digest last, id and watermark never"]
)
def test_what_else_gives_way_for_an_id_from_elsewhere(inbox: SqliteInbox, row_id: int, kept: set[str]) -> None:
    wake = wake_for(replace(stored(inbox, "bob", "r" * 128), id="i" * row_id))
    assert {field for field in ("namespace", "sender", "digest") if getattr(wake, field)} == kept
    assert (len(wake.row_id), wake.watermark) == (row_id, 1)
    wake.encode()
