"""Directories and files of a channel (intercom.md §4): judged before they are used, opened without links or waiting."""

import json
import os
import stat

import pytest

from wakehub.errors import BadData, Exit, Held, Misconfigured, Unsafe
from wakehub.intercom.channels import Channel, Peers, base_directory, locked


def mode(path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def test_the_base_is_the_variable_unless_that_is_empty():
    assert str(base_directory({})) == "/tmp/agy-ipc"
    assert str(base_directory({"AGY_IPC_DIR": ""})) == "/tmp/agy-ipc"
    assert str(base_directory({"AGY_IPC_DIR": "/x/y"})) == "/x/y"
    assert base_directory({"AGY_IPC_DIR": "y"}).is_absolute()


def test_missing_directories_are_made_private(base):
    os.rmdir(base)
    with Channel.open(base, "room") as channel:
        assert (mode(base), mode(base / "room")) == (0o700, 0o700)
        assert channel.is_in_place()
        os.rename(base / "room", base / "gone")
        assert not channel.is_in_place()


def test_what_is_above_the_base_is_made_too(base):
    with Channel.open(base / "a" / "b", "room"):
        assert (mode(base / "a"), mode(base / "a/b"), mode(base / "a/b/room")) == (0o700,) * 3


def test_the_base_of_other_tools_is_taken(base):
    base.chmod(0o755)
    with Channel.open(base, "room") as channel:
        assert channel.path == base / "room"


@pytest.mark.parametrize("bad", [0o777, 0o775, 0o757, 0o1777])
def test_f53_a_base_that_others_can_write_to_is_refused(base, bad):
    base.chmod(bad)
    with pytest.raises(Unsafe, match=r"writable by group or others.*AGY_IPC_DIR=") as caught:
        Channel.open(base, "room")
    assert caught.value.exit == Exit.PERMISSION
    assert mode(base) == bad


@pytest.mark.parametrize("bad", [0o777, 0o755, 0o710, 0o701])
def test_f53_a_channel_that_is_open_to_others_is_refused(base, bad):
    (base / "room").mkdir()
    (base / "room").chmod(bad)
    with pytest.raises(Unsafe, match=r"room.*open to group or others.*AGY_IPC_DIR="):
        Channel.open(base, "room")
    assert mode(base / "room") == bad


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
@pytest.mark.parametrize("which", ["", "room"])
def test_f53_a_foreign_directory_is_refused_with_its_owner(base, which):
    (base / "room").mkdir(mode=0o700)
    os.chown(base / which, 12345, -1)
    with pytest.raises(Unsafe, match=r"belongs to uid 12345.*AGY_IPC_DIR="):
        Channel.open(base, "room")


@pytest.mark.parametrize("which", ["base", "channel"])
def test_f53_a_link_is_refused(base, which, tmp_path):
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    if which == "base":
        place, name = base / "link", "room"
        os.symlink(real, place)
    else:
        place, name = base, "room"
        os.symlink(real, base / name)
    with pytest.raises(Unsafe, match=r"symbolic link.*AGY_IPC_DIR="):
        Channel.open(place, name)
    assert not list(real.iterdir())


def test_f53_a_file_in_the_place_of_a_directory_is_refused(base):
    (base / "room").write_text("")
    with pytest.raises(Unsafe, match="AGY_IPC_DIR="):
        Channel.open(base, "room")


def test_a_base_below_a_directory_that_others_can_empty_is_refused(base):
    base.chmod(0o777)
    with pytest.raises(Unsafe, match="others can move away what is in it"):
        Channel.open(base / "mine", "room")


@pytest.mark.parametrize("name", ["../room", "Room", "a/b", "", "a\0b", "x" * 300])
def test_f43_a_name_is_refused_before_a_file_is_touched(base, name):
    with pytest.raises(BadData, match="is no channel"):
        Channel.open(base, name)
    assert not list(base.iterdir())


def test_f46_a_path_too_long_for_a_socket_is_refused_in_bytes(base):
    with pytest.raises(Misconfigured, match=r"bytes long.*AGY_IPC_DIR"):
        Channel.open(base / ("ü" * 40), "room")
    assert not list(base.iterdir())


def test_files_are_made_private_and_those_of_other_tools_become_so(channel):
    with channel.opened("made", os.O_RDWR | os.O_CREAT):
        assert mode(channel.path / "made") == 0o600
    (channel.path / "theirs").write_text("x")
    (channel.path / "theirs").chmod(0o644)
    with channel.opened("theirs") as fd:
        assert os.read(fd, 9) == b"x"
    assert mode(channel.path / "theirs") == 0o600


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR | os.O_CREAT | os.O_APPEND, os.O_WRONLY])
@pytest.mark.parametrize("kind", ["fifo", "link", "directory", "device"])
def test_what_is_no_file_is_refused_without_waiting(channel, kind, flags):
    path = channel.path / "thing"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        os.symlink("/etc/passwd", path)
    elif kind == "directory":
        path.mkdir()
    else:
        os.symlink("/dev/null", path)
    with pytest.raises(Unsafe, match="thing"):
        with channel.opened("thing", flags):
            pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_foreign_file_is_refused(channel):
    (channel.path / "theirs").write_text("x")
    os.chown(channel.path / "theirs", 12345, -1)
    with pytest.raises(Unsafe, match="uid 12345"):
        with channel.opened("theirs"):
            pass


def test_peers_are_written_and_read(channel):
    assert channel.peers() == Peers(0, (), "")
    channel.write_peers(77, ["ann", "bob"])
    found = json.loads((channel.path / "peers.json").read_bytes())
    assert list(found) == ["channel", "hub_pid", "active_sessions", "updated_at"]
    assert channel.peers() == Peers(77, ("ann", "bob"), found["updated_at"])
    assert mode(channel.path / "peers.json") == 0o600
    assert [each.name for each in channel.path.iterdir()] == ["peers.json"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"hub_pid":true,"active_sessions":7}', '{"active_sessions":[1]}'])
def test_peers_that_cannot_be_understood_are_nobody(channel, text):
    (channel.path / "peers.json").write_text(text)
    assert channel.peers() == Peers(0, (), "")


def test_a_document_is_made_once(channel):
    channel.create("one.json", {"a": 1})
    with pytest.raises(FileExistsError):
        channel.create("one.json", {"a": 2})
    assert channel.document("one.json", 100) == {"a": 1}
    channel.replace("one.json", {"a": 3})
    assert channel.document("one.json", 100) == {"a": 3}
    assert [each.name for each in channel.path.iterdir()] == ["one.json"]


def test_a_lock_that_is_not_released_is_given_up(channel):
    with channel.opened("file", os.O_RDWR | os.O_CREAT) as one, channel.opened("file") as other:
        with locked(one, "it"):
            with pytest.raises(Held, match="it is locked by another process"):
                with locked(other, "it", 20):
                    pass
        with locked(other, "it", 0):
            pass
