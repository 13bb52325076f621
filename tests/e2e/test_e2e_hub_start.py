"""How a real hub starts, or says why it does not (awh1.md §6; faults F46-F50, F53, F54, F59, F72, F73)."""

import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest


def test_it_makes_its_directories_and_sockets_private_whatever_the_umask(hub):
    shutil.rmtree(hub.home.run)
    shutil.rmtree(hub.home.state)
    hub.start(preexec_fn=lambda: os.umask(0))
    assert stat.S_IMODE(hub.home.run.stat().st_mode) == 0o700
    assert stat.S_IMODE(hub.home.state.stat().st_mode) == 0o700
    assert sorted(os.listdir(hub.home.run)) == ["hub.sock", "stats.sock"]
    assert os.listdir(hub.home.state) == ["hub.lock"]
    for path in (hub.home.hub_socket, hub.home.stats_socket, hub.home.hub_lock):
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert hub.stop() == 0
    assert os.listdir(hub.home.run) == []
    assert os.listdir(hub.home.state) == ["hub.lock"]


def test_a_second_hub_is_refused_names_the_first_and_leaves_it_untouched(hub, make_hub):
    hub.home.enroll("alice", "bob")
    hub.start()
    alice = hub.connect("alice")
    before = hub.home.hub_socket.lstat()
    status, said = make_hub().start_refused()
    assert status == 75
    assert f"pid {hub.pid}" in said
    assert hub.home.hub_socket.lstat() == before
    bob = hub.connect("bob")
    bob.wake("alice", "m_1")
    assert alice.recv_wake().wake.row_id == "m_1"
    assert hub.stop() == 0


def test_a_second_hub_elsewhere_is_its_own(hub, make_hub, make_home):
    other = make_hub(make_home("another"))
    for each in (hub, other):
        each.home.enroll("alice")
        each.start("--hub-id", each.home.hub_id)
        assert each.connect("alice").hub_id == each.home.hub_id


@pytest.mark.parametrize("alike", ["hub_socket", "stats_socket"])
def test_a_hub_of_another_state_directory_does_not_take_a_live_socket(hub, make_hub, make_home, alike):
    """Their locks do not meet; the socket that answers does."""
    hub.home.enroll("alice")
    hub.start()
    before = getattr(hub.home, alike).lstat()
    flag = "--" + alike.replace("hub_", "").replace("_", "-")
    status, said = make_hub(make_home()).start_refused(flag, str(getattr(hub.home, alike)))
    assert (status, str(getattr(hub.home, alike)) in said) == (75, True)
    assert getattr(hub.home, alike).lstat().st_ino == before.st_ino
    hub.connect("alice")


def test_what_a_killed_hub_left_is_taken_over(hub):
    hub.home.enroll("alice")
    hub.start()
    first = hub.connect("alice")
    hub.kill9()
    assert first.wait_closed() == []
    assert hub.home.hub_socket.is_socket()
    with pytest.raises(ConnectionRefusedError):
        hub.open()
    hub.start()
    assert hub.connect("alice").ping() == []


def test_a_slow_drain_does_not_take_a_successors_socket_away(hub, make_hub):
    hub.home.enroll("alice")
    hub.start()
    alice = hub.connect("alice")
    hub.send_signal(signal.SIGSTOP)  # it will hear of its end only later
    hub.send_signal(signal.SIGTERM)
    status, said = make_hub().start_refused()
    assert (status, f"pid {hub.pid}" in said) == (75, True)
    for path in (hub.home.hub_lock, hub.home.hub_socket, hub.home.stats_socket):
        path.unlink()  # somebody helps the restart along
    successor = make_hub()
    successor.start()
    hub.send_signal(signal.SIGCONT)
    assert hub.wait_exit() == 0
    assert alice.wait_closed() == []
    assert successor.connect("alice").ping() == []
    assert successor.stats()["connections"] == 1


@pytest.mark.parametrize("name", ["hub.sock", "stats.sock"])
@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_anything_at_a_socket_path_that_is_no_socket_is_refused_and_left(hub, name, kind):
    path = hub.home.run / name
    match kind:
        case "file":
            path.write_text("mine")
        case "directory":
            path.mkdir()
        case "link":
            path.symlink_to("elsewhere")
    before = path.lstat()
    status, said = hub.start_refused()
    assert (status, path.lstat()) == (77, before)
    assert f"{path} is not a socket" in said
    assert sorted(os.listdir(hub.home.run)) == sorted({"allowlist.jws", name})


@pytest.mark.parametrize("which", ["run", "state"])
@pytest.mark.parametrize("fault", ["link", "0777", "0750", "file"])
def test_a_directory_that_is_not_ours_alone_is_refused_and_left(hub, which, fault):
    path = getattr(hub.home, which)
    match fault:
        case "link":
            path.rename(path.with_name("elsewhere"))
            path.symlink_to("elsewhere")
        case "file":
            shutil.rmtree(path)
            path.write_text("mine")
        case mode:
            path.chmod(int(mode, 8))
    before = path.lstat()
    status, said = hub.start_refused()
    assert (status, path.lstat().st_mode) == (77, before.st_mode)
    assert str(path) in said
    assert {"link": "symbolic link", "file": "not a directory"}.get(fault, fault) in said


def test_a_directory_of_somebody_else_is_refused_with_its_owner(hub):
    if os.geteuid() == 0:
        os.chown(hub.home.run, 65534, -1)
        status, said = hub.start_refused()
        assert "belongs to uid 65534" in said
    else:  # nobody can give a directory away: one that belongs to root is there already
        status, said = hub.start_refused("--socket", "/usr/hub.sock")
        assert "belongs to uid 0" in said
    assert status == 77
    assert "WAKEHUB_HOME" in said


def test_an_owner_key_that_others_may_read_or_that_is_none_is_refused(hub):
    owner = hub.home.keys / "owner.pub"
    owner.chmod(0o644)
    status, said = hub.start_refused()
    assert (status, "0644" in said) == (77, True)
    owner.chmod(0o600)
    owner.write_text("no key")
    status, said = hub.start_refused()
    assert (status, "not a public key" in said) == (77, True)
    assert not hub.home.hub_socket.exists()


def _directory_of(size: int) -> Path:
    """A private directory whose path has `size` bytes, some of them beyond ASCII."""
    base = Path(tempfile.mkdtemp(prefix="wh", dir="/tmp"))
    left = size - len(os.fsencode(base)) - 1
    path = base / ("é" * 10 + "x" * (left - 20))
    assert len(os.fsencode(path)) == size
    path.mkdir(mode=0o700)
    return path


def test_a_socket_directory_of_87_bytes_works(hub):
    directory = _directory_of(87)
    try:
        hub.home.enroll("alice")
        hub.home.hub_socket, hub.home.stats_socket = directory / "hub.sock", directory / "stats.sock"
        hub.start("--socket", str(hub.home.hub_socket))
        assert hub.connect("alice").ping() == []
        assert hub.stats()["connections"] == 1
        assert hub.stop() == 0
    finally:
        shutil.rmtree(directory.parent)


def test_a_socket_directory_of_88_bytes_is_refused_with_a_shorter_one(hub):
    directory = _directory_of(88)
    try:
        status, said = hub.start_refused("--socket", str(directory / "hub.sock"))
        assert status == 78
        assert "88 bytes" in said
        assert "87 bytes" in said
        assert 'run = "/' in said
        assert os.listdir(directory) == []
        assert os.listdir(hub.home.state) == []
    finally:
        shutil.rmtree(directory.parent)


def _limit(soft: int, hard: int):
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_thirty_nine_descriptors_are_too_few_and_forty_carry_eight_connections(hub):
    status, said = hub.start_refused(preexec_fn=_limit(39, 39))
    assert (status, "limit of open files is 39" in said) == (78, True)
    hub.home.enroll(*(f"a{number}" for number in range(8)))
    hub.start(preexec_fn=_limit(40, 40))
    assert hub.wait_log("hub ready")["ceiling"] == 8
    sessions = [hub.connect(f"a{number}") for number in range(8)]
    assert hub.open().recv_error() == (507, "hub at its connection ceiling")
    assert hub.stats()["connections"] == 8
    assert [session.ping() for session in sessions] == [[]] * 8


def test_a_soft_limit_is_raised_within_the_hard_one(hub):
    hub.start(preexec_fn=_limit(39, 300))
    assert hub.wait_log("hub ready")["ceiling"] == 256


def test_a_ceiling_below_eight_is_refused_in_other_words(hub):
    status, said = hub.start_refused("--max-connections", "7")
    assert (status, "open files" in said) == (78, False)
    hub.home.configure("[hub]\nmax_connections = 7\n")
    status, said = hub.start_refused()
    assert (status, "max_connections" in said) == (78, True)
    hub.home.configure("[hub]\nmax_connections = 8\n")
    hub.start()
    assert hub.wait_log("hub ready")["ceiling"] == 8


@pytest.mark.parametrize("hub_id", ["", "x" * 65, "a\nb", "é" * 33])
def test_a_hub_id_that_cannot_be_sent_is_refused(hub, hub_id):
    status, _ = hub.start_refused("--hub-id", hub_id)
    assert status == 78


def test_a_lock_path_that_is_no_lock_file_is_refused_and_left(hub):
    hub.home.hub_lock.symlink_to("elsewhere")
    status, said = hub.start_refused()
    assert (status, str(hub.home.hub_lock) in said) == (77, True)
    assert hub.home.hub_lock.is_symlink()


def test_a_place_where_nothing_can_be_made_is_refused(hub):
    hub.home.hub_lock.touch(0o600)
    shutil.rmtree(hub.home.run)
    hub.home.path.joinpath("run").symlink_to("/proc/nowhere" if sys.platform == "linux" else "/dev/null/nowhere")
    status, _ = hub.start_refused()
    assert status in (73, 77)


# --- sockets that a supervisor passes ---------------------------------------------------------------------------------

_WRAPPER = """
import fcntl, os, sys
fds = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 50) for fd in sys.argv[1].split(",")]
for number, fd in enumerate(fds):
    os.dup2(fd, 3 + number)
    os.close(fd)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(fds)))
os.execv(sys.executable, [sys.executable, "-m", "wakehub", *sys.argv[2:]])
"""


def _listening(path: Path, mode: int = 0o600) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(os.fspath(path))
    path.chmod(mode)
    sock.listen(16)
    return sock


def _passing(*sockets: socket.socket) -> dict[str, object]:
    fds = [sock.fileno() for sock in sockets]
    wrapper = (sys.executable, "-c", _WRAPPER, ",".join(map(str, fds)))
    return {"command": wrapper, "pass_fds": fds}


def test_passed_sockets_are_served_and_stay_where_they_are(hub):
    hub.home.enroll("alice")
    with _listening(hub.home.hub_socket) as first, _listening(hub.home.stats_socket) as second:
        early = hub.open()  # before the hub runs: the supervisor listens already
        inodes = [path.lstat().st_ino for path in (hub.home.hub_socket, hub.home.stats_socket)]
        for sockets in ((first, second), (second, first)):
            hub.start(**_passing(*sockets))
            if early is not None:
                early.challenge()
                early = None
            assert hub.connect("alice").ping() == []
            assert hub.stats()["connections"] >= 1
            assert hub.stop() == 0
            assert [path.lstat().st_ino for path in (hub.home.hub_socket, hub.home.stats_socket)] == inodes


def test_a_passed_hub_socket_leaves_the_stats_socket_to_us(hub):
    hub.home.enroll("alice")
    with _listening(hub.home.hub_socket) as first:
        hub.start(**_passing(first))
        assert hub.connect("alice").ping() == []
        assert hub.stats()["connections"] == 1
        assert hub.stop() == 0
    assert hub.home.hub_socket.exists()
    assert not hub.home.stats_socket.exists()


def test_a_passed_socket_whose_path_is_gone_is_replaced_by_our_own(hub):
    hub.home.enroll("alice")
    with _listening(hub.home.hub_socket) as orphan:
        hub.home.hub_socket.unlink()
        hub.start(**_passing(orphan))
        assert hub.connect("alice").ping() == []
        assert hub.stop() == 0
    assert not hub.home.hub_socket.exists()


@pytest.mark.parametrize("fault", ["mode", "elsewhere", "directory", "datagram", "unbound"])
def test_a_passed_socket_that_cannot_be_right_is_refused(hub, fault):
    match fault:
        case "mode":
            sock, expected = _listening(hub.home.hub_socket, 0o666), (77, "SocketMode=0600")
        case "elsewhere":
            sock, expected = _listening(hub.home.run / "other.sock"), (78, "none is configured")
        case "directory":
            hub.home.run.chmod(0o755)
            sock, expected = _listening(hub.home.hub_socket), (77, "0755")
        case "datagram":
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            sock.bind(os.fspath(hub.home.hub_socket))
            expected = (78, "ListenStream=")
        case _:
            sock, expected = socket.socket(socket.AF_UNIX), (78, "ListenStream=")
    with sock:
        status, said = hub.start_refused(**_passing(sock))
    assert (status, expected[1] in said) == (expected[0], True), said


def test_a_passed_descriptor_that_is_no_socket_is_refused(hub):
    with open(hub.home.path / "file", "wb") as file:
        status, said = hub.start_refused(**_passing(file))
    assert (status, "is no socket" in said) == (78, True)


def test_what_is_meant_for_another_process_is_left_alone(hub):
    hub.home.enroll("alice")
    hub.start(environ={"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())})
    assert hub.connect("alice").ping() == []


def test_the_hub_process_holds_no_code_of_the_record():
    found = subprocess.run(
        [sys.executable, "-c", "import sys, wakehub.server.serve; print(sorted(sys.modules))"],
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    for name in ("sqlite3", "wakehub.inbox", "wakehub.publisher", "wakehub.relay", "wakehub.ops", "platformdirs"):
        assert f"'{name}'" not in found
