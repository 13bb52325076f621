"""Which instance a command line means, and what a user's environment may look like without a traceback."""

import argparse
import os
import pwd
from pathlib import Path

import pytest

from wakehub.cli.instance import instance
from wakehub.errors import Exit, Misconfigured


def flags(**given: object) -> argparse.Namespace:
    return argparse.Namespace(**given)


def test_the_home(home):
    config = instance(flags())
    assert config.hub_socket == home / "run" / "hub.sock"
    assert config.hub_id == "wakehub"


def test_a_socket_takes_the_stats_socket_with_it(home):
    config = instance(flags(socket=Path("/x/hub.sock")))
    assert (config.hub_socket, config.stats_socket) == (Path("/x/hub.sock"), Path("/x/stats.sock"))


def test_unless_that_is_told_its_own_place(home):
    config = instance(flags(socket=Path("/x/hub.sock"), stats_socket=Path("/y/s.sock")))
    assert config.stats_socket == Path("/y/s.sock")


def test_paths_are_made_absolute(home):
    config = instance(
        flags(socket=Path("h.sock"), allowlist=Path("a.jws"), owner_pub=Path("o.pub"), state_dir=Path("st"))
    )
    here = Path.cwd()
    assert config.hub_socket == here / "h.sock"
    assert config.allowlist == here / "a.jws"
    assert config.owner_pub == here / "o.pub"
    assert config.paths.state == here / "st"


def test_a_state_directory_rules_over_the_file(wakehub, home):
    assert wakehub("init").status == 0
    assert instance(flags()).paths.state == home / "state"
    assert instance(flags(state_dir=Path("/elsewhere"))).paths.state == Path("/elsewhere")


def test_without_a_home_a_state_directory_is_the_whole_world(home, monkeypatch):
    """Two state directories must not meet at one socket."""
    monkeypatch.delenv("WAKEHUB_HOME")
    monkeypatch.setenv("HOME", str(home))
    assert instance(flags(state_dir=Path("/a"))).paths.run == Path("/a/run")
    assert instance(flags(state_dir=Path("/b"))).paths.run == Path("/b/run")


@pytest.mark.parametrize("hub_id", ["", "x" * 65, "a\nb"])
def test_a_hub_id_that_cannot_be(home, hub_id):
    with pytest.raises(Misconfigured):
        instance(flags(hub_id=hub_id))


@pytest.mark.parametrize("command", [["agents"], ["inbox", "--as", "a"], ["metrics"], ["--health"], ["init"], ["up"]])
@pytest.mark.parametrize(
    "place",
    [
        "/" + "long/" * 1000,
        "/" + "n" * 300,
        "/dev/null",
        "/proc/1/nothing",
        os.fsdecode(b"/tmp/\xff"),
        "/tmp/" + "é" * 50,
    ],
    ids=["deep", "long name", "device", "proc", "not UTF-8", "too long for sockets"],
)
def test_a_place_that_cannot_be_is_said_in_words(process, command, place):
    found = process(*command, env={"WAKEHUB_HOME": place})
    assert found.status not in (0, Exit.FAILED), found
    assert "Traceback" not in found.err
    if found.status != Exit.NOTHING:
        assert "next: " in found.err + found.out


def test_a_user_without_a_home(home, monkeypatch):
    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.delenv("WAKEHUB_HOME")
    monkeypatch.delenv("HOME")
    with pytest.raises(Misconfigured, match="home directory"):
        instance(flags())


def test_a_relative_runtime_directory_is_refused(home, monkeypatch):
    """The next command may stand in another directory."""
    monkeypatch.delenv("WAKEHUB_HOME")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_RUNTIME_DIR", "relative")
    with pytest.raises(Misconfigured, match="absolute"):
        instance(flags())


def test_a_directory_that_is_gone(process, home):
    gone = home.parent / "gone"
    gone.mkdir()
    for environ in ({"WAKEHUB_HOME": "relative"}, {}):
        found = process("agents", "--state-dir", "st", env=environ, preexec_fn=gone.rmdir, cwd=gone)
        gone.mkdir()
        assert found.status == Exit.CONFIG
        assert "Traceback" not in found.err
