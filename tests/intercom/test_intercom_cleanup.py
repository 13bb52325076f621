"""What a dead hub left goes, and nothing else: no lock, no socket that answers, no unread mail."""

import fcntl
import os
import socket
import threading

import pytest

from wakehub.errors import BadData, Held, Unsafe
from wakehub.intercom import ndjson
from wakehub.intercom.channels import Channel
from wakehub.intercom.cleanup import Cleaned, Reader, clean, forget, readers
from wakehub.intercom.spool import Inbox
from wakehub.limits import MESH_COMPACT_BYTES


def names(channel: Channel) -> set[str]:
    """The channel's files but for the locks, which stay."""
    return {name for name in os.listdir(channel.fd) if not name.endswith(".lock")}


def fill(channel: Channel, session: str, count: int = 1) -> Inbox:
    inbox = Inbox(channel, session)
    inbox.append([ndjson.chat("wren", session, f"number {number}", channel.name).line() for number in range(count)])
    return inbox


def read(inbox: Inbox) -> None:
    with inbox.taking() as batch:
        assert batch.envelopes


def dead_socket(channel: Channel) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(os.fspath(channel.socket))


def test_an_empty_channel_is_clean(channel):
    assert clean(channel, stale=True) == Cleaned(is_live=False)


def test_what_a_dead_hub_left_goes_and_its_lock_stays(channel):
    """F50."""
    dead_socket(channel)
    channel.write_peers(1, ["wren"])
    with channel.opened("hub.lock", os.O_RDWR | os.O_CREAT):
        pass
    fill(channel, "rowan")
    assert clean(channel, stale=False) == Cleaned(is_live=False, removed=("hub.sock", "peers.json"))
    assert (channel.path / "hub.lock").exists()
    assert names(channel) == {"inbox_rowan.ndjson"}


def test_while_a_hub_has_the_lock_nothing_is_touched(channel):
    dead_socket(channel)
    read(fill(channel, "rowan"))
    before = names(channel)
    with channel.opened("hub.lock", os.O_RDWR | os.O_CREAT) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)
        assert clean(channel, stale=True) == Cleaned(is_live=True)
    assert names(channel) == before


@pytest.mark.parametrize("backlog", [0, 8])
def test_a_socket_that_answers_is_a_hub_whoever_has_the_lock(channel, backlog):
    """F47: the hub of another tool may know no lock, and one that is stopped answers nobody."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as hub:
        hub.bind(os.fspath(channel.socket))
        hub.listen(backlog)
        assert clean(channel, stale=True) == Cleaned(is_live=True)
    assert channel.socket.exists()


def test_what_is_no_socket_is_left_and_said(channel):
    channel.socket.write_text("notes")
    with pytest.raises(Unsafe, match="not a socket"):
        clean(channel, stale=False)
    assert channel.socket.read_text() == "notes"


def test_what_may_not_go_is_said(channel):
    (channel.path / "hub.sock~").mkdir()
    with pytest.raises(Unsafe, match=r"hub\.sock~ "):
        clean(channel, stale=False)


def test_mailboxes_go_when_all_is_read_and_stay_with_what_is_not(channel):
    read(fill(channel, "rowan", 3))
    fill(channel, "nova", 2)
    torn = Inbox(channel, "wren")
    torn.append([b"{torn\n"])
    with torn.taking() as batch:
        assert len(batch.spoiled) == 1
    found = clean(channel, stale=True)
    assert found.kept == (("nova", 2),)
    assert set(found.removed) == {
        "inbox_rowan.ndjson",
        "offset_rowan.json",
        "inbox_wren.ndjson",
        "inbox_wren.bad",
        "offset_wren.json",
    }
    assert names(channel) == {"inbox_nova.ndjson"}
    assert fill(channel, "nova").count_unread() == 3
    assert fill(channel, "rowan").count_unread() == 1


def test_what_a_second_reader_has_not_read_stays(channel):
    inbox = fill(channel, "rowan")
    assert Inbox(channel, "rowan", "bridge").begin_like(inbox)
    read(inbox)
    assert clean(channel, stale=True).removed == ()
    read(Inbox(channel, "rowan", "bridge"))
    assert set(clean(channel, stale=True).removed) == {
        "inbox_rowan.ndjson",
        "offset_rowan.json",
        "offset_rowan@bridge.json",
    }


def test_a_reader_that_will_not_come_back_is_named_and_can_be_forgotten(channel):
    """Until then nothing is taken from it: neither its inbox is made smaller, nor removed."""
    inbox, bridge = fill(channel, "rowan", 3), Inbox(channel, "rowan", "bridge")
    assert bridge.begin_like(inbox)
    read(inbox)
    (channel.path / "offset_rowan@no reader.json").write_text("{}")
    assert readers(channel) == [Reader("rowan", "bridge", 3, is_attended=False)]
    assert clean(channel, stale=True).kept == (("rowan", 3),)
    with bridge.attended(), Inbox(channel, "rowan", "bridge").attended():
        assert readers(channel) == [Reader("rowan", "bridge", 3, is_attended=True)]
        with pytest.raises(Held, match="the place of bridge in the inbox of rowan"):
            Inbox(channel, "rowan", "bridge", patience_ms=0).forget()
    assert forget(channel, "rowan@bridge") == Reader("rowan", "bridge", 3, is_attended=False)
    assert readers(channel) == []
    assert set(clean(channel, stale=True).removed) == {"inbox_rowan.ndjson", "offset_rowan.json"}


def test_an_inbox_is_compacted_once_a_reader_is_forgotten(channel):
    inbox, bridge = fill(channel, "rowan"), Inbox(channel, "rowan", "bridge")
    assert bridge.begin_like(inbox)
    inbox.append([ndjson.chat("wren", "rowan", "x" * 1_000_000, "room").line()] * 2)
    read(inbox)
    size = inbox.path.stat().st_size
    assert size > MESH_COMPACT_BYTES
    forget(channel, "rowan@bridge")
    fill(channel, "rowan")
    read(inbox)
    assert inbox.path.stat().st_size == 0


@pytest.mark.parametrize(
    "name", ["rowan", "rowan@", "@bridge", "rowan@bridge", "../x@bridge", "rowan@../x", "rowan@a@b"]
)
def test_who_has_no_place_is_not_forgotten(channel, name):
    """F43."""
    fill(channel, "rowan")
    before = names(channel)
    with pytest.raises(BadData, match="has no place in an inbox of channel room"):
        forget(channel, name)
    assert names(channel) == before


def test_a_mailbox_that_is_being_read_stays(channel):
    inbox = fill(channel, "rowan")
    with inbox.taking():
        assert clean(channel, stale=True).kept == (("rowan", 1),)
    assert (channel.path / "inbox_rowan.ndjson").exists()


def test_nothing_is_lost_to_a_mailbox_that_goes_meanwhile(channel):
    """A line that waits for the lock of a mailbox that is removed finds the next one."""
    sent, got = 300, []

    def send() -> None:
        for number in range(sent):
            Inbox(channel, "rowan").append([ndjson.chat("wren", "rowan", f"{number}", channel.name).line()])

    sender = threading.Thread(target=send)
    sender.start()
    while sender.is_alive() or Inbox(channel, "rowan").count_unread():
        with Inbox(channel, "rowan").taking() as batch:
            got += [each.text for each in batch.envelopes]
        clean(channel, stale=True)
    sender.join()
    assert got == [f"{number}" for number in range(sent)]
