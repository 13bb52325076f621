"""A reader's place (intercom.md §4): what the file may say, and what happens where it says nothing."""

import errno
import json
import os

import pytest

from wakehub.errors import CannotCreate
from wakehub.intercom import ndjson
from wakehub.intercom.place import Mark, Place, offset_in
from wakehub.intercom.spool import Inbox
from wakehub.relay.notices import told_to

DAMAGES = [b"", b"{", b"[]", b"{}", b"\xff", b"\0" * 40, b'{"offset": "7"}', b'{"offset": -1}', b'{"offset": true}']


def line(text: str) -> bytes:
    return ndjson.chat("ann", "bob", text, "room").line()


def taken(inbox: Inbox) -> list[str | None]:
    with inbox.taking() as batch:
        return [each.text for each in batch.envelopes]


@pytest.fixture
def said():
    lines: list[str] = []
    with told_to(lines.append):
        yield lines


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_cannot_be_understood_is_said_once_and_kept_aside(channel, said, damage):
    inbox = Inbox(channel, "bob")
    inbox.append([line("1"), line("2")])
    assert taken(inbox) == ["1", "2"]
    path = channel.path / "offset_bob.json"
    path.write_bytes(damage)
    assert inbox.document() == {}
    assert said == [], "a look without the lock moves nothing"
    assert taken(inbox) == ["1", "2"]
    (told,) = said
    assert told.startswith(f"{path} cannot be understood (")
    assert "read from its start, and mail may come a second time; the file is offset_bob.bad now" in told
    assert (channel.path / "offset_bob.bad").read_bytes() == damage
    assert taken(inbox) == []
    assert len(said) == 1


@pytest.mark.parametrize("act", ["peek", "count_unread", "reset", "annotate"])
def test_whoever_comes_first_says_it(channel, said, act):
    inbox = Inbox(channel, "bob", "bridge")
    inbox.append([line("1")])
    (channel.path / "offset_bob@bridge.json").write_bytes(b"{")
    getattr(inbox, act)(*[{"owner": "o"}] if act == "annotate" else [])
    assert len(said) == 1
    assert (channel.path / "offset_bob@bridge.bad").read_bytes() == b"{"


def test_what_was_kept_aside_goes_with_the_mailbox(channel, said):
    inbox = Inbox(channel, "bob")
    inbox.append([line("1")])
    (channel.path / "offset_bob.json").write_bytes(b"{")
    assert inbox.remove() == 1
    assert taken(inbox) == ["1"]
    assert inbox.remove() == 0
    assert not list(channel.path.glob("*.bad"))


def test_a_file_that_can_be_neither_understood_nor_moved_is_an_error(channel, said, monkeypatch):
    path = channel.path / "offset_bob.json"
    path.write_bytes(b"{")

    def rename(*args: object, **more: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(CannotCreate, match=r"nor moved aside: .*EROFS"):
        Place(channel, "offset_bob").mark()
    assert path.read_bytes() == b"{"
    assert said == []


def test_a_mark_is_kept_beside_the_keys_of_others_and_knows_its_file(channel):
    place = Place(channel, "offset_bob")
    assert place.create({"offset": 0, "mine": [1]})
    assert not place.create({"offset": 9})
    with channel.opened("inbox_bob.ndjson", os.O_RDWR | os.O_CREAT) as fd:
        os.write(fd, line("1"))
        size = os.fstat(fd).st_size
        mark = Mark.at(fd, size, ("a",))
        place.put(mark)
        assert place.mark() == mark
        assert mark.fits(fd)
        os.pwrite(fd, b"!", 0)
        assert not mark.fits(fd)
        assert not Mark(size + 1).fits(fd)
    found = json.loads((channel.path / "offset_bob.json").read_bytes())
    assert (found["offset"], found["mine"]) == (size, [1])
    assert offset_in(channel, "offset_bob.json") == size
    assert offset_in(channel, "offset_eve.json") == 0


def test_a_second_one_begins_where_the_first_is(channel):
    first, second = Place(channel, "offset_bob"), Place(channel, "offset_bob@bridge")
    assert first.create({"offset": 7, "owner": "o"})
    assert second.begin_like(first)
    assert not second.begin_like(first)
    second.annotate({"mine": 1})
    assert second.document().keys() == {"offset", "updated_at", "mine"}
    assert second.mark() == Mark(7)
