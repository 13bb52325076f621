"""The hub's own command line: what is refused, and how."""

import subprocess
import sys

from wakehub.errors import Exit


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "wakehub.intercom", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_f53_what_cannot_be_led_is_refused_in_one_line(base):
    base.chmod(0o777)
    done = run(str(base), "room")
    assert done.returncode == Exit.PERMISSION
    assert done.stderr.count("\n") == 1
    assert "AGY_IPC_DIR=" in done.stderr


def test_f43_a_name_that_is_none_is_refused(base):
    done = run(str(base), "../x")
    assert done.returncode == Exit.DATA
    assert "is no channel" in done.stderr
    assert not list(base.iterdir())


def test_a_follower_is_no_failure(hub):
    hub.ready()
    assert run(str(hub.base), "room").returncode == 0


def test_it_takes_two_words():
    done = run("one")
    assert done.returncode == Exit.USAGE
    assert "usage" in done.stderr
