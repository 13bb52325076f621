"""Whether a directory lies on this machine's own disk (receive.md §1; F62).

SQLite's write-ahead log needs shared memory between all who use the file and locks that hold; a network or shared file
system promises neither, and loses rows without a word. So such a place is refused before anything is written there. The
table of mounts is read, not a system call's magic number: it names the type in words, on Linux and on macOS.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wakehub.errors import Misconfigured
from wakehub.visible import visible

_SHARED: Final = frozenset({
    "9p", "afpfs", "afs", "beegfs", "ceph", "cifs", "coda", "ftp", "fuse", "gfs2", "glusterfs", "gpfs", "lustre",
    "macfuse", "ncpfs", "nfs", "nfs4", "ocfs2", "osxfuse", "prl_fs", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs",
    "webdav",
})  # fmt: skip
_SHARED_PREFIX: Final = "fuse."
_FUSE_BUT_LOCAL: Final = frozenset({"fuse.fuse-overlayfs", "fuse.overlayfs"})


@dataclass(frozen=True, slots=True)
class Mount:
    """Where a file system is mounted, and its type in the kernel's word."""

    point: str
    kind: str


def check_local(directory: Path) -> None:
    """Raise `Misconfigured` (78) when `directory` lies on a network or shared file system.

    A machine whose mounts cannot be read is given the benefit of the doubt.
    """
    place, mount = os.path.realpath(directory), mount_at(directory)
    if mount is not None and is_shared(mount.kind):
        raise Misconfigured(
            f"{visible(place)} lies on a shared file system ({visible(mount.kind)} at {visible(mount.point)})",
            why="several machines or kernels may write there, and the record would lose rows",
            remedy="name a directory on a local disk with --state-dir",
        )


def mount_at(directory: Path) -> Mount | None:
    """The mount that `directory` lies on; None when the machine's mounts cannot be read."""
    return mount_of(os.path.realpath(directory), _mounts())


def is_unwritable(directory: Path) -> bool:
    """Whether nothing can be written to `directory` for want of room, or since it is mounted read-only."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return False
    is_full = found.f_blocks > 0 and found.f_bavail == 0  # some, as ramfs, tell nothing
    return is_full or bool(found.f_flag & os.ST_RDONLY)


def to_make_room(directory: Path) -> str:
    """What to do about a file system that takes nothing more."""
    mount = mount_at(directory)
    disk = shlex.quote(visible(str(mount.point if mount else directory)))
    try:
        is_fixed = bool(os.statvfs(directory).f_flag & os.ST_RDONLY)
    except OSError:
        is_fixed = False
    return f"it is mounted read-only: mount -o remount,rw {disk}" if is_fixed else f"free space on {disk}"


def is_shared(kind: str) -> bool:
    """Whether a file system of this type is reached over a network or shared between kernels."""
    return kind in _SHARED or (kind.startswith(_SHARED_PREFIX) and kind not in _FUSE_BUT_LOCAL)


def mount_of(place: str, mounts: Iterable[Mount]) -> Mount | None:
    """The mount that `place` (absolute, without links) lies on: the longest point above it, the last of equal ones."""
    best = None
    for mount in mounts:
        under = mount.point.rstrip("/") + "/"
        if (place + "/").startswith(under) and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def parse_mountinfo(text: str) -> list[Mount]:
    """The mounts in Linux's ``/proc/self/mountinfo``; the type stands behind the lone hyphen."""
    found = []
    for line in text.splitlines():
        fields = line.split(" ")
        if "-" in fields[6:]:
            found.append(Mount(_plain(fields[4]), fields[fields.index("-", 6) + 1]))
    return found


def parse_mount_output(text: str) -> list[Mount]:
    """The mounts in what macOS's ``mount`` prints: ``DEVICE on POINT (TYPE, FLAG, …)``."""
    found = []
    for line in text.splitlines():
        head, bracket, flags = line.rpartition(" (")
        _, on, point = head.partition(" on ")
        if bracket and on:
            found.append(Mount(point, flags.rstrip(")").split(",")[0]))
    return found


def _mounts() -> list[Mount]:
    try:
        if sys.platform == "linux":
            return parse_mountinfo(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
        answer = subprocess.run(["/sbin/mount"], capture_output=True, text=True, errors="surrogateescape", check=False)
        return parse_mount_output(answer.stdout)
    except OSError:
        return []


def _plain(escaped: str) -> str:
    for octal, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        escaped = escaped.replace(octal, character)
    return escaped
