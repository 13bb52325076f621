"""One listening socket and the descriptor limits (awh1.md §6); sockets passed by a supervisor are in tests/e2e."""

import json
import os
import socket
import stat
import subprocess
import sys

import pytest

from wakehub.errors import CannotCreate, Unsafe
from wakehub.server.listener import Listener, Place, connection_ceiling, passed_listeners


@pytest.fixture
def path(run_directory):
    return run_directory / "run" / "hub.sock"


@pytest.fixture
def listener(path):
    made = Listener.bind(path)
    yield made
    made.withdraw()


def _other_socket(path):
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(os.fspath(path))
    return sock


def test_bound_is_private_and_answers_and_leaves_no_temporary(listener, path):
    assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.lstat(path.parent).st_mode) == 0o700
    assert os.listdir(path.parent) == ["hub.sock"]
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(os.fspath(path))
    assert not listener.sock.getblocking()


def test_what_a_dead_hub_left_is_replaced_also_under_the_temporary_name(path):
    path.parent.mkdir(mode=0o700)
    for name in ("hub.sock", "hub.sock~"):
        _other_socket(path.with_name(name)).close()
    listener = Listener.bind(path)
    assert listener.look() is Place.OURS
    assert os.listdir(path.parent) == ["hub.sock"]
    listener.withdraw()


@pytest.mark.parametrize("name", ["hub.sock", "hub.sock~"])
def test_what_is_no_socket_is_never_replaced(path, name):
    path.parent.mkdir(mode=0o700)
    foreign = path.with_name(name)
    foreign.write_text("mine")
    with pytest.raises(Unsafe, match="is not a socket"):
        Listener.bind(path)
    assert foreign.read_text() == "mine"


def test_it_looks_at_what_lies_at_its_path(listener, path):
    assert listener.look() is Place.OURS
    path.unlink()
    assert listener.look() is Place.ABSENT
    path.symlink_to("elsewhere")
    assert listener.look() is Place.FOREIGN
    path.unlink()
    with _other_socket(path):
        assert listener.look() is Place.OTHER_SOCKET


def test_only_our_own_socket_is_unlinked(path):
    first = Listener.bind(path)
    second = Listener.bind(path)
    first.withdraw()
    assert second.look() is Place.OURS
    second.withdraw()
    assert not path.exists()
    second.withdraw()


def test_a_passed_socket_stays_where_its_supervisor_made_it(path):
    path.parent.mkdir(mode=0o700)
    sock = _other_socket(path)
    sock.listen()
    Listener(path, sock, owned=False).withdraw()
    assert path.exists()


async def test_bound_anew_it_is_ours_again_and_the_old_socket_is_closed(listener, path):
    old = listener.sock
    path.unlink()
    listener.bind_anew()
    assert listener.look() is Place.OURS
    assert old.fileno() == -1
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(os.fspath(path))


async def test_bound_anew_a_passed_socket_becomes_our_own(path):
    path.parent.mkdir(mode=0o700)
    sock = _other_socket(path)
    sock.listen()
    listener = Listener(path, sock, owned=False)
    path.unlink()
    listener.bind_anew()
    listener.withdraw()
    assert not path.exists()


async def test_a_directory_that_became_a_file_cannot_be_bound_in_and_the_old_socket_stays(listener, path):
    old = listener.sock
    path.unlink()
    path.parent.rmdir()
    path.parent.write_text("")
    with pytest.raises((CannotCreate, Unsafe)):
        listener.bind_anew()
    assert listener.sock is old
    assert old.fileno() >= 0


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"LISTEN_FDS": "1"},
        {"LISTEN_FDS": "1", "LISTEN_PID": "1"},
        {"LISTEN_FDS": "x", "LISTEN_PID": str(os.getpid())},
    ],
)
def test_descriptors_that_were_not_passed_to_us_are_left_alone(environ):
    assert passed_listeners(environ) == {}


_CEILING = """
import json, resource, sys
from wakehub.errors import WakehubError
from wakehub.server.listener import connection_ceiling
soft, hard, configured = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
try:
    answer = [connection_ceiling(configured)]
except WakehubError as error:
    answer = [str(error), int(error.exit)]
print(json.dumps([resource.getrlimit(resource.RLIMIT_NOFILE)[0], *answer]))
"""


def _ceiling(soft: int, hard: int, configured: int):
    answer = subprocess.run(
        [sys.executable, "-c", _CEILING, str(soft), str(hard), str(configured)],
        capture_output=True,
        check=True,
    )
    return json.loads(answer.stdout)


@pytest.mark.parametrize(
    ("soft", "hard", "configured", "expected"),
    [
        (256, 1000, 256, [1000, 256]),  # raised within the hard limit
        (1000, 20000, 5000, [4096, 4064]),  # raised toward 4,096, 32 kept
        (5000, 20000, 256, [5000, 256]),  # never lowered
        (40, 40, 256, [40, 8]),
    ],
)
def test_the_ceiling_follows_from_the_descriptor_limit(soft, hard, configured, expected):
    assert _ceiling(soft, hard, configured) == expected


def test_too_few_descriptors_and_too_low_a_setting_are_refused_in_different_words():
    limit = _ceiling(39, 39, 256)
    setting = _ceiling(256, 256, 7)
    assert limit[2] == setting[2] == 78
    assert "the limit of open files is 39" in limit[1]
    assert "at least 40" in limit[1]
    assert "max_connections is 7" in setting[1]
    assert "limit of open files" not in setting[1]


def test_a_limit_that_may_not_be_raised_has_to_do(monkeypatch):
    import resource

    def refuse(*_):
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 20000))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert connection_ceiling(256) == 68
