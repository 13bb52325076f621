"""Which process is which, and what proves that one is dead (formats.md, Leases; F51)."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from wakehub import processes
from wakehub.processes import ProcessId

OWN = ProcessId.own()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until its stdin is closed."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as running:
        yield running


def identify(pid: int) -> ProcessId:
    return OWN._replace(pid=pid, started=processes.start_time(pid) or "")


def test_this_process_knows_itself() -> None:
    assert OWN.pid == os.getpid()
    assert OWN.started
    assert OWN.boot
    assert ProcessId.own() == OWN
    assert not OWN.is_provably_dead()


def test_a_process_is_alive_until_it_ended(child: subprocess.Popen[bytes]) -> None:
    other = identify(child.pid)
    assert other.started
    assert not other.is_provably_dead()
    child.communicate()
    assert other.is_provably_dead()
    assert processes.start_time(child.pid) is None


def test_a_zombie_is_dead(child: subprocess.Popen[bytes]) -> None:
    other = identify(child.pid)
    assert child.stdin is not None
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert other.is_provably_dead()


def test_a_pid_that_belongs_to_another_process_now_is_dead() -> None:
    assert OWN._replace(started="1").is_provably_dead()


@pytest.mark.parametrize("change", [{"boot": "another"}, {"boot": ""}, {"namespace": 1}, {"started": ""}])
def test_what_cannot_be_told_is_not_proven(change: dict[str, object]) -> None:
    gone = OWN._replace(**change)
    assert not gone.is_provably_dead()
    if "started" not in change:
        assert not gone._replace(pid=2**22 + 1).is_provably_dead()


@pytest.mark.parametrize("pid", [0, -1, 2**22 + 1, 2**80])
def test_no_such_process(pid: int) -> None:
    assert processes.start_time(pid) is None


def test_a_name_with_parentheses_does_not_confuse() -> None:
    program = (
        "import os, sys\n"
        "if os.path.exists('/proc/self/comm'): open('/proc/self/comm', 'w').write('a) Z 1 2 (b')\n"
        "print('named', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as named:
        assert named.stdout is not None
        assert named.stdout.readline() == b"named\n"
        assert identify(named.pid).started
        assert not identify(named.pid).is_provably_dead()


def test_without_proc_nothing_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(path: Path) -> bytes:
        raise FileNotFoundError(2, "No such file or directory", str(path))

    monkeypatch.setattr(Path, "read_bytes", absent)
    monkeypatch.setattr(Path, "exists", lambda path: False)
    assert processes._start_time_linux(os.getpid()) == ""
    assert not OWN._replace(pid=2**22 + 1).is_provably_dead()


def test_a_proc_that_hides_others_does_not_make_them_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ProtectProc=invisible does: the process is not there to be read, but it takes signals."""

    def hidden(path: Path) -> bytes:
        raise FileNotFoundError(2, "No such file or directory", str(path))

    monkeypatch.setattr(Path, "read_bytes", hidden)
    assert processes._start_time_linux(os.getppid()) == ""
    assert not OWN._replace(pid=os.getppid()).is_provably_dead()
    assert processes._start_time_linux(2**22 + 1) is None


def test_a_proc_that_may_not_be_read_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def masked(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", masked)
    assert processes._start_time_linux(os.getpid()) == ""


# --- the other platform ---


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What ps and sysctl say, as on macOS; the pids are real."""
    answers: dict[str, str] = {}
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(processes, "asked", lambda command, *_: answers.get(command.rpartition("/")[2], ""))
    return answers


def test_the_start_time_on_macos(mac: dict[str, str], child: subprocess.Popen[bytes]) -> None:
    mac["ps"] = "S+   Mon Nov 30 19:00:00 2026"
    assert processes.start_time(child.pid) == "Mon Nov 30 19:00:00 2026"
    mac["ps"] = "Z    Mon Nov 30 19:00:00 2026"
    assert processes.start_time(child.pid) is None
    mac["ps"] = ""  # ps may not be run in a sandbox: the process is there all the same
    assert processes.start_time(child.pid) == ""
    child.communicate()
    mac["ps"] = "S    Mon Nov 30 19:00:00 2026"
    assert processes.start_time(child.pid) is None
    assert processes.start_time(2**80) is None


def test_the_boot_on_macos(mac: dict[str, str]) -> None:
    mac["sysctl"] = "6F9B8C1D-0000-4000-8000-000000000000"
    assert processes.boot_id.__wrapped__() == "6F9B8C1D-0000-4000-8000-000000000000"


def test_a_command_that_is_not_there_answers_nothing() -> None:
    assert processes.asked("/nonexistent/ps", "-o", "stat=") == ""
    assert processes.asked(sys.executable, "-c", "import os; print(os.environ['LC_ALL'], os.environ['TZ'])") == "C UTC"


# --- the tether ---

TETHERED = """
import os, signal
from wakehub import processes
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
environ = dict(os.environ)
processes.hold_tether(environ)
assert processes.TETHER not in environ
print("held", flush=True)
signal.sigwait({signal.SIGTERM})
print("drained", flush=True)
"""


def test_a_tethered_process_drains_when_its_supervisor_is_gone() -> None:
    held, supervisor = os.pipe()
    environ = os.environ | {processes.TETHER: str(held)}
    with subprocess.Popen(
        [sys.executable, "-c", TETHERED], stdout=subprocess.PIPE, text=True, env=environ, pass_fds=[held]
    ) as tethered:
        os.close(held)
        assert tethered.stdout is not None
        assert tethered.stdout.readline() == "held\n"
        assert tethered.poll() is None
        os.close(supervisor)
        assert tethered.stdout.readline() == "drained\n"
    assert tethered.returncode == 0


@pytest.mark.parametrize("value", ["", "x", "-1", "9999"])
def test_without_a_tether_nothing_is_held(value: str) -> None:
    environ = {processes.TETHER: value, "KEPT": "1"}
    processes.hold_tether(environ)
    assert environ == {"KEPT": "1"}


def test_the_parent_of_a_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert processes.parent(child.pid) == os.getpid()
        child.communicate(b"\n")
    assert processes.parent(child.pid) is None


def test_open_files_are_counted() -> None:
    before = processes.open_files(os.getpid())
    if sys.platform != "linux":
        assert before is None
        return
    assert before is not None
    with open(os.devnull):
        assert processes.open_files(os.getpid()) == (before[0] + 1, before[1])
    assert processes.open_files(2**22 + 1) is None
