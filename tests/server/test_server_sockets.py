"""The hub's lock and two sockets, at start and while it runs (awh1.md §6; faults F46-F50, F53)."""

import os
import shutil
import socket
import stat
from pathlib import Path

import pytest

from wakehub.config import Config
from wakehub.errors import CannotCreate, Held, Misconfigured, Unsafe
from wakehub.locks import Lock
from wakehub.paths import Paths
from wakehub.server.listener import Place
from wakehub.server.sockets import Sockets


@pytest.fixture
def config(run_directory):
    root = run_directory
    return Config.at(Paths(root / "run", root / "state", root / "keys", root / "config.toml"))


@pytest.fixture
def sockets(config):
    opened = Sockets.open(config, {})
    yield opened
    opened.close()


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(os.fspath(path))
        except OSError:
            return False
        return True


def test_both_are_private_beside_each_other_and_the_lock_is_in_the_state_directory(sockets, config):
    assert sorted(os.listdir(config.paths.run)) == ["hub.sock", "stats.sock"]
    for path in config.paths.run.iterdir():
        assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600
    assert os.listdir(config.paths.state) == ["hub.lock"]


def test_closed_it_leaves_the_lock_file_and_nothing_else(config):
    Sockets.open(config, {}).close()
    assert os.listdir(config.paths.run) == []
    assert os.listdir(config.paths.state) == ["hub.lock"]


def test_withdrawn_it_still_holds_the_lock(sockets, config):
    sockets.withdraw()
    assert os.listdir(config.paths.run) == []
    with pytest.raises(Held):
        Sockets.open(config, {})


def test_a_second_one_is_refused_before_it_touches_anything(sockets, config):
    before = os.lstat(config.hub_socket)
    with pytest.raises(Held, match=f"pid {os.getpid()}"):
        Sockets.open(config, {})
    assert os.lstat(config.hub_socket) == before
    assert _answers(config.hub_socket)


@pytest.mark.parametrize("name", ["hub.sock", "stats.sock"])
def test_a_refusal_leaves_neither_socket_nor_lock_behind(config, name):
    config.paths.run.mkdir(mode=0o700)
    (config.paths.run / name).write_text("mine")
    with pytest.raises(Unsafe, match="is not a socket"):
        Sockets.open(config, {})
    assert os.listdir(config.paths.run) == [name]
    Lock.acquire(config.paths.lock("hub"), what="a hub").release()


def test_one_path_for_both_is_refused(config):
    with pytest.raises(Misconfigured, match="both"):
        Sockets.open(config.changed(stats_socket=config.hub_socket), {})


def test_a_stats_directory_of_88_bytes_is_refused_before_anything_is_made(config, run_directory):
    long = run_directory / ("x" * (87 - len(str(run_directory))))
    with pytest.raises(Misconfigured, match="88 bytes long"):
        Sockets.open(config.changed(stats_socket=long / "s"), {})
    assert not config.paths.run.exists()


def test_with_all_in_place_there_is_nothing_to_mend(sockets):
    assert sockets.mend() == {}


@pytest.mark.parametrize("name", ["hub", "stats"])
async def test_a_deleted_socket_is_bound_anew(sockets, name):
    listener = getattr(sockets, name)
    listener.path.unlink()
    assert sockets.mend() == {listener: Place.ABSENT}
    assert _answers(listener.path)
    assert sockets.mend() == {}


async def test_a_socket_of_somebody_without_the_lock_is_replaced(sockets, config):
    config.hub_socket.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(os.fspath(config.hub_socket))
        assert sockets.mend() == {sockets.hub: Place.OTHER_SOCKET}
    assert _answers(config.hub_socket)


async def test_a_deleted_run_directory_comes_back_with_both_sockets(sockets, config):
    shutil.rmtree(config.paths.run)
    assert sockets.mend() == {sockets.hub: Place.ABSENT, sockets.stats: Place.ABSENT}
    assert stat.S_IMODE(os.lstat(config.paths.run).st_mode) == 0o700
    assert _answers(config.hub_socket)
    assert _answers(config.stats_socket)


async def test_a_deleted_lock_is_taken_anew_and_keeps_others_out(sockets, config):
    config.hub_socket.unlink()
    config.paths.lock("hub").unlink()
    sockets.mend()
    with pytest.raises(Held):
        Sockets.open(config, {})
    assert _answers(config.hub_socket)


async def test_a_replaced_lock_that_nobody_holds_is_taken(sockets, config):
    config.hub_socket.unlink()
    config.paths.lock("hub").unlink()
    Lock.acquire(config.paths.lock("hub"), what="a hub").release()
    sockets.mend()
    with pytest.raises(Held):
        Sockets.open(config, {})


async def test_a_lock_that_another_holds_ends_us_and_leaves_the_other_alone(sockets, config):
    for path in (config.paths.lock("hub"), config.hub_socket, config.stats_socket):
        path.unlink()
    other = Sockets.open(config, {})
    with pytest.raises(Held) as caught:
        sockets.mend()
    assert caught.value.exit == 75
    sockets.close()
    assert other.mend() == {}
    assert _answers(config.hub_socket)
    other.close()


async def test_taking_the_lock_anew_leaks_no_descriptor(sockets, config):
    before = len(os.listdir("/dev/fd"))
    for _ in range(3):
        config.hub_socket.unlink()
        config.paths.lock("hub").unlink()
        sockets.mend()
    assert len(os.listdir("/dev/fd")) == before


async def test_without_its_state_directory_it_cannot_go_on(sockets, config):
    config.hub_socket.unlink()
    shutil.rmtree(config.paths.state)
    with pytest.raises(CannotCreate, match="state directory") as caught:
        sockets.mend()
    assert caught.value.exit == 73
    assert not config.paths.state.exists()


@pytest.mark.parametrize("name", ["hub", "stats"])
async def test_something_else_in_the_way_is_not_replaced(sockets, name):
    path = getattr(sockets, name).path
    path.unlink()
    path.write_text("mine")
    with pytest.raises(CannotCreate) as caught:
        sockets.mend()
    assert caught.value.exit == 73
    assert path.read_text() == "mine"


async def test_a_run_directory_that_is_not_safe_any_more_is_not_bound_in(sockets, config):
    config.hub_socket.unlink()
    config.paths.run.chmod(0o777)
    with pytest.raises(CannotCreate) as caught:
        sockets.mend()
    assert caught.value.exit == 73
    config.paths.run.chmod(0o700)


async def test_a_lock_path_that_cannot_be_locked_is_no_way_to_go_on(sockets, config):
    config.hub_socket.unlink()
    config.paths.lock("hub").unlink()
    config.paths.lock("hub").mkdir()
    with pytest.raises(CannotCreate) as caught:
        sockets.mend()
    assert caught.value.exit == 73
