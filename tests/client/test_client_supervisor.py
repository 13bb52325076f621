"""Who would start a daemon again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from daemon_process import started

from wakehub.client.supervisor import launchd_job, supervisor_of, unit_in
from wakehub.locks import Lock
from wakehub.paths import Paths, choose

LISTING = "PID\tStatus\tLabel\n-\t0\tcom.apple.x\n4711\t0\tdev.wakehub.serve\n471\t-9\tdev.wakehub.publish\n"


@pytest.fixture
def paths(run_directory: Path) -> Paths:
    paths = choose({"WAKEHUB_HOME": str(run_directory)})
    paths.state.mkdir(mode=0o700)
    return paths


@pytest.mark.parametrize(
    ("groups", "unit"),
    [
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/wakehub.service\n", "wakehub.service"),
        ("0::/user.slice/user-1000.slice/session-2.scope\n", None),
        ("0::/user.slice/user-1000.slice/user@1000.service/init.scope\n", None),
        ("1:name=systemd:/system.slice/wakehub.service\n0::/\n", "wakehub.service"),
        ("", None),
    ],
)
def test_the_unit_is_read_from_the_control_group(groups, unit):
    found = unit_in(groups)
    assert (found and found.name) == unit


@pytest.mark.parametrize(("pid", "job"), [(4711, "dev.wakehub.serve"), (471, "dev.wakehub.publish"), (0, None)])
def test_the_job_is_the_one_with_that_pid(pid, job):
    assert launchd_job(pid, LISTING) == job


@pytest.mark.parametrize("listing", ["", "launchctl: not permitted\n", "4711 0 spaces\n", "4711\t0\n"])
def test_a_listing_that_says_nothing(listing):
    assert launchd_job(4711, listing) is None


def test_up_supervises_its_children_and_nobody_elses(paths):
    words = [sys.executable, "-c", "input()"]
    with Lock.acquire(paths.lock("up"), what="up"), started(words, stdin=subprocess.PIPE) as child:
        assert str(supervisor_of(child.pid, paths)) == f"wakehub up, pid {os.getpid()}"
        stranger = os.getppid()
        assert "up" not in str(supervisor_of(stranger, paths))


def test_nobody_supervises_what_is_gone(paths):
    with started([sys.executable, "-c", ""]) as child:
        child.wait()
    assert supervisor_of(child.pid, paths) is None
