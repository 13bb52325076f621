"""The row signature against bytes put together by hand from formats.md, and what verification says."""

import hashlib
import struct
from dataclasses import replace

import pytest

from wakehub.identity.keys import KeyPair
from wakehub.inbox.clock import Now
from wakehub.inbox.rows import Attachment, NewRow, Row
from wakehub.inbox.signing import key_id, row_signing_bytes, signer, verify_row
from wakehub.inbox.sqlite import SqliteInbox

_DIGEST = hashlib.sha256(b"hello").digest()
_PLAIN = {
    "id": "m_0",
    "sender": "bob",
    "recipient": "acme/älice",
    "re": None,
    "group": None,
    "class_": "normal",
    "hops": 3,
    "created_ms": 1_800_000_000_000,
    "expires_ms": 1_800_000_060_000,
    "media_type": "text/plain",
    "digest": _DIGEST,
}


def _lp4(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


def test_the_bytes_are_those_of_the_specification() -> None:
    expected = b"wakehub/row/v1" + b"".join(
        map(_lp4, (b"m_0", b"bob", "acme/älice".encode(), b"m_9", b"g_1", b"normal"))
    )
    expected += struct.pack(">BQQ", 3, 1_800_000_000_000, 1_800_000_060_000) + _lp4(b"text/plain") + _DIGEST
    expected += struct.pack(">H", 2) + b"\1" * 32 + struct.pack(">Q", 5) + b"\2" * 32 + struct.pack(">Q", 1 << 40)
    files = [Attachment("a", 5, b"\1" * 32), Attachment("b", 1 << 40, b"\2" * 32)]
    given = _PLAIN | {"re": "m_9", "group": "g_1"}
    assert row_signing_bytes(**given, attachments=files) == expected  # type: ignore[arg-type]


def test_absent_fields_are_empty() -> None:
    without = row_signing_bytes(**_PLAIN)  # type: ignore[arg-type]
    assert without == row_signing_bytes(**(_PLAIN | {"re": "", "group": ""}))  # type: ignore[arg-type]
    assert without.endswith(_DIGEST + b"\0\0")


@pytest.mark.parametrize(("field", "value"), [("hops", 256), ("hops", -1), ("created_ms", 1 << 64)])
def test_a_number_that_does_not_fit_is_never_cut(field: str, value: int) -> None:
    with pytest.raises(OverflowError):
        row_signing_bytes(**(_PLAIN | {field: value}))  # type: ignore[arg-type]


@pytest.fixture
def pair() -> KeyPair:
    return KeyPair.generate()


@pytest.fixture
def row(inbox: SqliteInbox, pair: KeyPair) -> Row:
    new = NewRow(
        "bob", "alice", b"hello", group="g_1", attachments=(Attachment("f", 5, b"d" * 32),), signed=signer(pair)
    )
    return inbox.append(new, Now.read())[0]


def test_the_current_key_verifies(row: Row, pair: KeyPair) -> None:
    assert verify_row(row, pair.public) == "yes"
    assert row.key_id == key_id(pair.public)


def test_a_former_key_verifies_at_the_time(row: Row, pair: KeyPair) -> None:
    other = KeyPair.generate().public
    assert verify_row(row, other, [other, pair.public]) == "at_the_time"
    assert verify_row(row, None, [pair.public]) == "at_the_time"


def test_no_key_or_another_one_does_not_verify(row: Row) -> None:
    assert verify_row(row, None) == "no"
    assert verify_row(row, KeyPair.generate().public) == "no"


def test_an_unsigned_row_says_so(row: Row, pair: KeyPair) -> None:
    assert verify_row(replace(row, signature=None), pair.public) == "unsigned"


@pytest.mark.parametrize(
    "change",
    [
        {"id": "m_1"},
        {"sender": "eve"},
        {"recipient": "eve"},
        {"re": "m_1"},
        {"group": None},
        {"class_": "fyi"},
        {"signed_hops": 1},
        {"created_ms": 1},
        {"expires_ms": 1 << 50},
        {"media_type": "text/html"},
        {"digest": b"x" * 32},
        {"body": b"other"},
        {"attachments": ()},
        {"attachments": (Attachment("f", 6, b"d" * 32),)},
        {"signature": b"x" * 64},
    ],
)
def test_every_covered_field_is_covered(row: Row, pair: KeyPair, change: dict[str, object]) -> None:
    assert verify_row(replace(row, **change), pair.public) == "no"  # type: ignore[arg-type]


def test_what_the_record_adds_is_not_covered(row: Row, pair: KeyPair) -> None:
    changed = replace(row, state="claimed", hops=9, rseq=7, origin="spool", redelivery=2)
    assert verify_row(changed, pair.public) == "yes"


def test_a_tombstone_still_verifies(row: Row, pair: KeyPair) -> None:
    assert verify_row(replace(row, body=None, state="expired"), pair.public) == "yes"
