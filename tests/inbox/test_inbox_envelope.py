"""Envelopes: what is signed travels whole, and nothing that is not one is taken for one (formats.md, Spool)."""

import json
from dataclasses import replace
from typing import Any

import pytest

from wakehub.errors import BadData
from wakehub.identity.keys import KeyPair
from wakehub.inbox.clock import Now
from wakehub.inbox.envelope import Envelope
from wakehub.inbox.ids import is_row_id, new_id
from wakehub.inbox.rows import Attachment, NewRow
from wakehub.inbox.signing import signer, verify_row
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.limits import MAX_BODY_BYTES, MAX_ENVELOPE_BYTES

PAIR = KeyPair(bytes(31) + b"\x07")
NEW = NewRow("bob", "alice", "exactly\n\x00 ünd `so`\n".encode(), re=new_id(1), class_="fyi", ttl_s=60)


def envelope(new: NewRow = NEW) -> Envelope:
    return Envelope.seal(new, signer(PAIR), Now.read())


def changed(**fields: Any) -> bytes:
    return json.dumps(json.loads(envelope().encode()) | fields).encode()


def test_an_envelope_is_the_signed_fields_the_body_and_the_signature_and_nothing_else() -> None:
    made = envelope()
    found = json.loads(made.encode())
    signed = {"id", "sender", "recipient", "re", "group", "class", "hops", "created", "expires", "media_type", "digest"}
    assert found.keys() == signed | {"attachments", "body_b64", "sig_b64", "key_id"}
    assert found["attachments"] == []
    assert is_row_id(found["id"])
    assert (found["sender"], found["recipient"], found["class"], found["hops"]) == ("bob", "alice", "fyi", 0)
    assert found["expires"] - found["created"] == 60_000


def test_what_is_decoded_is_what_was_sealed() -> None:
    for new in (NEW, replace(NEW, re=None, group="g_1", media_type="application/octet-stream", body=b"\xff")):
        made = envelope(new)
        assert Envelope.decode(made.encode()) == made


def test_the_row_that_it_becomes_verifies_and_its_way_is_the_records_to_say(inbox: SqliteInbox) -> None:
    (first,) = inbox.append(NewRow("alice", "bob", b"question"), Now.read())
    (second,) = inbox.append(NewRow("bob", "alice", b"answer", re=first.id), Now.read())
    made = envelope(replace(NEW, re=second.id))
    (row,) = inbox.append(Envelope.decode(made.encode()).row(generation=1), Now.read())
    assert verify_row(row, PAIR.public) == "yes"
    assert (row.id, row.origin, row.hops, row.signed_hops) == (made.id, "spool", 2, 0)
    assert (row.created_ms, row.expires_ms, row.body) == (made.created_ms, made.expires_ms, NEW.body)


def test_the_largest_message_fits() -> None:
    body = "\u20ac".encode() * (MAX_BODY_BYTES // 3)
    long = '"' * 128  # which JSON doubles
    new = NewRow(long, long, body, re=new_id(1), group=long, media_type="text/" + '"' * 123)
    made = Envelope.seal(new, replace(signer(PAIR), key_id=long), Now.read())
    assert len(made.encode()) <= MAX_ENVELOPE_BYTES
    assert Envelope.decode(made.encode()) == made


@pytest.mark.parametrize(
    "new", [replace(NEW, body=bytes(MAX_BODY_BYTES + 1)), replace(NEW, ttl_s=0), replace(NEW, recipient="acme/")]
)
def test_what_the_record_would_refuse_is_not_sealed(new: NewRow) -> None:
    with pytest.raises(BadData):
        envelope(new)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b"null",
        envelope().encode()[:-1],
        envelope().encode() + b"{}",
        changed(extra=1),
        changed(body_b64="aGk="),
        changed(body_b64="aGk"),
        changed(digest="00" * 32),
        changed(sig_b64="*"),
        changed(hops=256),
        changed(hops=-1),
        changed(hops=True),
        changed(created=1.5),
        changed(expires=1 << 63),
        changed(re=5),
        changed(**{"class": "urgent"}),
        changed(sender="x" * 129),
        changed(media_type="x" * 129),
        changed(attachments=[{"name": "x", "size": 1, "sha256": "00" * 31}]),
        changed(attachments=[{"name": "x", "size": 1, "sha256": "0A" * 32}]),
        changed(attachments=[{"name": "x", "size": -1, "sha256": "00" * 32}]),
        changed(attachments=[{"name": "x", "size": 1, "sha256": "00" * 32, "path": "/x"}]),
        changed(attachments=["x"]),
        changed(delegation_b64="*"),
        changed(attachments={}),
        changed(recipient="\ud800"),
        changed(id=None),
        envelope().encode()[:-1] + b',"id":"m_0"}',
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        Envelope.decode(data)


def test_neither_body_nor_signature_is_shown() -> None:
    assert "exactly" not in repr(envelope())
    assert "signature" not in repr(envelope())


def test_files_are_signed_with_it() -> None:
    file = Attachment("a.txt", 3, bytes(32))
    made = envelope(replace(NEW, attachments=(file,)))
    assert Envelope.decode(made.encode()) == made
    assert made.attachments == (file,)
    assert made.row(1).attachments == (file,)
    assert replace(made, attachments=()).signed_bytes() != made.signed_bytes()
