"""Network and shared file systems are told apart from local ones, on captured tables of mounts (F62)."""

import os
from pathlib import Path

import pytest

from wakehub.errors import Exit, Misconfigured
from wakehub.inbox import filesystem
from wakehub.inbox.filesystem import (
    Mount,
    check_local,
    is_shared,
    is_unwritable,
    mount_at,
    mount_of,
    parse_mount_output,
    parse_mountinfo,
    to_make_room,
)
from wakehub.inbox.sqlite import SqliteInbox

_MOUNTINFO = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,noatime - ext4 /dev/vda rw
31 27 0:40 / /home rw,relatime shared:5 - nfs4 files:/export rw,vers=4.2
32 31 254:1 /bob /home/bob\\040b rw shared:6 master:1 - btrfs /dev/vdb rw
33 27 0:41 / /mnt/c rw - 9p C:\\134 rw
34 27 0:42 / /mnt/c/local rw - tmpfs tmpfs rw
35 27 0:43 / /media/x rw - fuse.sshfs host: rw
36 27 0:44 / /media/x rw - xfs /dev/vdc rw
"""
_MOUNT = """\
/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)
/dev/disk3s5 on /System/Volumes/Data (apfs, local, journaled, nobrowse)
//bob@nas/share on /Volumes/my share (smbfs, nodev, nosuid, mounted by bob)
map auto_home on /System/Volumes/Data/home (autofs, automounted, nobrowse)
"""


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("/var/lib", "ext4"),
        ("/", "ext4"),
        ("/home", "nfs4"),
        ("/home/alice/state", "nfs4"),
        ("/homes/alice", "ext4"),
        ("/home/bob b/state", "btrfs"),
        ("/mnt/c/Users", "9p"),
        ("/mnt/c/local/x", "tmpfs"),
        ("/media/x/y", "xfs"),
    ],
)
def test_the_longest_and_last_mount_above_a_place_counts(place: str, kind: str) -> None:
    mount = mount_of(place, parse_mountinfo(_MOUNTINFO))
    assert mount is not None
    assert mount.kind == kind


@pytest.mark.parametrize(
    ("place", "kind"),
    [("/Users/bob", "apfs"), ("/Volumes/my share/state", "smbfs"), ("/System/Volumes/Data/home/x", "autofs")],
)
def test_what_mount_prints_on_macos(place: str, kind: str) -> None:
    mount = mount_of(place, parse_mount_output(_MOUNT))
    assert mount is not None
    assert mount.kind == kind


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "fuse", "fuse.sshfs"])
def test_shared_kinds(kind: str) -> None:
    assert is_shared(kind)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "apfs", "tmpfs", "overlay", "zfs", "fuseblk"])
def test_local_kinds(kind: str) -> None:
    assert not is_shared(kind)


def test_the_overlay_of_a_rootless_container_is_local() -> None:
    assert not is_shared("fuse.fuse-overlayfs")


def test_no_table_and_nonsense_tell_nothing() -> None:
    assert mount_of("/x", []) is None
    assert parse_mountinfo("nonsense\n\n1 2 3 4 5 6 7\n") == []
    assert parse_mount_output("nonsense\n\n") == []


def test_this_machines_own_table_is_understood(tmp_path: Path) -> None:
    mount = mount_at(tmp_path)
    assert mount is not None
    assert os.path.realpath(tmp_path).startswith(mount.point)
    check_local(tmp_path)


def test_a_record_on_a_shared_file_system_is_refused_before_anything_is_written(
    record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "_mounts", lambda: [Mount("/", "nfs4")])
    with pytest.raises(Misconfigured) as refused:
        SqliteInbox.open(record)
    assert refused.value.exit == Exit.CONFIG
    assert "nfs4" in str(refused.value)
    assert "--state-dir" in refused.value.remedy
    assert list(record.parent.iterdir()) == []


# --- a file system that takes nothing more ---


@pytest.mark.parametrize(
    ("free", "flags", "remedy"),
    [(0, 0, "free space on "), (100, os.ST_RDONLY, "it is mounted read-only: mount -o remount,rw ")],
)
def test_what_to_do_about_one_that_takes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, flags: int, remedy: str
) -> None:
    assert not is_unwritable(tmp_path)
    found = list(os.statvfs(tmp_path))
    found[4], found[8] = free, flags
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(found))
    assert is_unwritable(tmp_path)
    point = mount_at(tmp_path)
    assert point is not None
    assert to_make_room(tmp_path) == remedy + point.point


def test_one_that_cannot_be_asked_is_not_called_full(tmp_path: Path) -> None:
    assert not is_unwritable(tmp_path / "absent")
