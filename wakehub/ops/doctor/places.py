"""Places and files: owners and modes, file systems, the record, and what dead processes left (faults F62, F68, F77)."""

import os
import re
import shlex
import stat
from pathlib import Path
from typing import Final

from wakehub import locks, ownership
from wakehub import sockets as socket_paths
from wakehub.client import advice
from wakehub.identity.owner import unfinished_mark
from wakehub.inbox import filesystem
from wakehub.limits import LEFTOVER_AFTER_SECONDS, MAX_SOCKET_DIRECTORY_BYTES, SWEEP_SECONDS
from wakehub.ops import salvage
from wakehub.ops.doctor.case import Case
from wakehub.ops.doctor.report import Line
from wakehub.ops.posture import Finding
from wakehub.processes import is_stopped
from wakehub.visible import visible

_SHOWN: Final = 8
_NOTED: Final = ("directory", "owner key", "agent key", "home")
_LEFT: Final = re.compile(r".+~(-wal|-shm)?")


def safety(case: Case) -> Line:
    found = case.posture.findings
    faults = [each for each in found if each.level == "fault" and not _has_its_line(case, each)]
    notes = [each for each in found if each.level == "note" and each.check in _NOTED]
    worst = (faults or notes)[:1]
    if not worst:
        well = sum(each.level == "ok" for each in found)
        return Line("safety", "ok", f"{well} owners, modes and limits are as they must be")
    more = len(faults or notes) - 1
    detail = worst[0].detail + (f"; {more} more: wakehub --posture" if more else "")
    return Line("safety", "critical" if faults else "warning", detail, worst[0].remedy, cause=worst[0].detail)


def _has_its_line(case: Case, finding: Finding) -> bool:
    """Whether a finding of the posture is what another check finds, too."""
    in_the_way = [each.socket for each in (case.hub, case.publisher) if each.state in ("not_a_socket", "not_ours")]
    is_socket = finding.check == "socket" and any(finding.detail.startswith(f"{path} ") for path in in_the_way)
    return is_socket or finding.check in ("registry", "path length", "allowlist")


def sockets(case: Case) -> Line:
    directory = case.config.hub_socket.parent
    socket_paths.check_directory(directory)
    size = f"{len(os.fsencode(directory))} of {MAX_SOCKET_DIRECTORY_BYTES} bytes"
    mount = filesystem.mount_at(directory)
    if mount is None:
        return Line("sockets", "warning", f"{directory}: {size}; its file system cannot be told", "see: mount")
    if filesystem.is_shared(mount.kind):
        detail = f"{directory} lies on {mount.kind} ({mount.point}), where sockets of other kernels cannot be reached"
        return Line("sockets", "critical", detail, ownership.elsewhere())
    return Line("sockets", "ok", f"{directory} on {mount.kind}, {size}")


def record(case: Case) -> Line:
    damage = salvage.damage(case.paths.record)
    if damage:
        what = f"the record {visible(str(case.paths.record))} is damaged: {damage}"
        return Line("record", "critical", what, advice.to_repair(case.paths), cause=what)
    mount = filesystem.mount_at(case.paths.state)
    size = os.stat(case.paths.record).st_size
    return Line("record", "ok", f"whole, {size // 1024} KiB on {mount.kind if mount else 'an unknown file system'}")


def leftovers(case: Case) -> Line:
    """What processes that are dead left behind. What is young may still be in use."""
    directories = dict.fromkeys((case.paths.run, case.config.hub_socket.parent, case.paths.state, case.paths.keys))
    old = [path for place in (*directories, case.paths.agents) for path in _temporary(place, case.now_s)]
    unfinished = unfinished_mark(case.paths)
    if unfinished.exists() and locks.live_holder(case.paths.lock("init")) is None:
        return Line("leftovers", "warning", f"{unfinished}: a set-up was interrupted", "wakehub init")
    if old:
        more = "; then again: wakehub doctor" if len(old) > _SHOWN else ""
        shown = shlex.join(str(path) for path in old[:_SHOWN])
        return Line("leftovers", "warning", f"{len(old)} temporary file(s), such as {old[0]}", f"rm {shown}{more}")
    if case.stale_leases:
        names = ", ".join(name for lease in case.stale_leases for name in lease.names)
        detail = f"names that dead listeners hold: {names}; the publisher frees them"
        return Line("leftovers", "warning", detail, _to_free(case))
    return Line("leftovers", "ok", "none of dead processes")


def _to_free(case: Case) -> str:
    publisher = advice.PUBLISHER.holder(case.paths)
    if publisher is None or is_stopped(publisher.pid):
        return advice.to_start(case.paths, advice.PUBLISHER)
    return f"wait: the publisher, pid {publisher.pid}, does so within {SWEEP_SECONDS} s"


def _temporary(directory: Path, now_s: float) -> list[Path]:
    """Temporary files and sockets of ours in `directory` that nothing was done with for a minute."""
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        if _LEFT.fullmatch(name) is None:
            continue
        try:
            there = os.lstat(directory / name)
        except FileNotFoundError:
            continue
        if not stat.S_ISDIR(there.st_mode) and now_s - there.st_mtime > LEFTOVER_AFTER_SECONDS:
            found.append(directory / name)
    return found
