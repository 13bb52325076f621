"""The socket of a channel's hub (intercom.md §5): whatever others do to it, it is there again."""

import os
import shutil
import socket

import pytest

from wakehub.errors import Held, Unsafe
from wakehub.intercom.election import lead
from wakehub.intercom.leadership import Leadership
from wakehub.server.listener import Place


def test_one_leads_and_the_lock_stays_behind(base, channel):
    """Fault F50: nobody ever unlinks the lock."""
    with Leadership(channel, lead(channel)) as leadership:
        inode = (base / "room/hub.lock").stat().st_ino
        with pytest.raises(Held, match="a hub of the channel room is already running"):
            lead(channel)
        assert leadership.mend() is Place.OURS
    assert not channel.socket.exists()
    with lead(channel):
        assert (base / "room/hub.lock").stat().st_ino == inode


async def test_a_path_that_is_not_ours_is_bound_anew(base, channel):
    with Leadership(channel, lead(channel)) as leadership:
        os.unlink(channel.socket)
        assert leadership.mend() is Place.ABSENT
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            os.unlink(channel.socket)
            other.bind(os.fspath(channel.socket))
            assert leadership.mend() is Place.OTHER_SOCKET
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(os.fspath(channel.socket))
        os.unlink(channel.socket)
        channel.socket.write_text("a file")
        with pytest.raises(Unsafe, match="is not a socket"):
            leadership.mend()


async def test_a_directory_that_was_taken_away_is_made_again(base, channel):
    with Leadership(channel, lead(channel)) as leadership:
        shutil.rmtree(base / "room")
        assert leadership.mend() is Place.ABSENT
        assert (base / "room/hub.sock").exists()
        with pytest.raises(Held):
            lead(leadership.channel)


async def test_who_lost_the_lock_to_another_one_leads_no_more(base, channel):
    with Leadership(channel, lead(channel)) as leadership:
        os.unlink(channel.path / "hub.lock")
        with lead(channel), pytest.raises(Held):
            leadership.mend()
