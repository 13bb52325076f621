"""Where things lie, by what the environment says (design.md, Where things lie)."""

import sys
from pathlib import Path

import platformdirs
import pytest

from wakehub.paths import Paths, choose


def test_one_directory_holds_everything():
    paths = choose({"WAKEHUB_HOME": "/w", "XDG_RUNTIME_DIR": "/run/user/1", "STATE_DIRECTORY": "/var/lib/w"})
    assert paths == Paths(Path("/w/run"), Path("/w/state"), Path("/w/keys"), Path("/w/config.toml"))


def test_a_relative_home_is_made_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert choose({"WAKEHUB_HOME": "w"}).run == tmp_path / "w" / "run"


def test_an_empty_variable_says_nothing():
    given = {
        "WAKEHUB_HOME": "",
        "CONFIGURATION_DIRECTORY": "/etc/w",
        "STATE_DIRECTORY": "/s",
        "RUNTIME_DIRECTORY": "/r",
    }
    assert choose(given) == Paths(Path("/r"), Path("/s"), Path("/etc/w/keys"), Path("/etc/w/config.toml"))


def test_a_supervisor_may_name_several_directories_and_the_first_counts():
    given = {"CONFIGURATION_DIRECTORY": "/a:/b", "STATE_DIRECTORY": "/c:/d", "RUNTIME_DIRECTORY": "/e:/f"}
    assert choose(given) == Paths(Path("/e"), Path("/c"), Path("/a/keys"), Path("/a/config.toml"))


def test_the_users_runtime_directory_is_shared_with_others():
    given = {"CONFIGURATION_DIRECTORY": "/a", "WAKEHUB_STATE_DIR": "/c", "XDG_RUNTIME_DIR": "/run/user/1"}
    assert choose(given).run == Path("/run/user/1/wakehub")


def test_without_a_runtime_directory_sockets_lie_with_the_state():
    assert choose({"CONFIGURATION_DIRECTORY": "/a", "WAKEHUB_STATE_DIR": "/c"}).run == Path("/c/run")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere platformdirs itself is asked")
@pytest.mark.parametrize("base", ["", " ", "/x"])
def test_the_platforms_directories_are_those_of_platformdirs(monkeypatch, base):
    monkeypatch.setenv("HOME", "/home/w")
    monkeypatch.setenv("XDG_CONFIG_HOME", base)
    monkeypatch.setenv("XDG_STATE_HOME", base)
    found = choose({})
    assert found.config_file.parent == platformdirs.user_config_path("wakehub", appauthor=False)
    assert found.state == platformdirs.user_state_path("wakehub", appauthor=False)


def test_the_state_directory_that_was_named_comes_before_the_supervisors():
    given = {"CONFIGURATION_DIRECTORY": "/a", "WAKEHUB_STATE_DIR": "/c", "STATE_DIRECTORY": "/d"}
    assert choose(given).state == Path("/c")


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("hub_socket", "run/hub.sock"), ("stats_socket", "run/stats.sock"), ("publish_socket", "run/publish.sock"),
        ("allowlist", "run/allowlist.jws"), ("owner_key", "keys/owner.key"), ("owner_pub", "keys/owner.pub"),
        ("agents", "keys/agents"), ("record", "state/record.db"), ("audit", "state/audit.jsonl"),
    ],
)  # fmt: skip
def test_the_names_of_files(name, place):
    assert getattr(choose({"WAKEHUB_HOME": "/w"}), name) == Path("/w") / place


def test_the_files_of_an_agent():
    paths = choose({"WAKEHUB_HOME": "/w"})
    assert paths.agent_key("acme/Bob") == Path("/w/keys/agents/acme%2F%42ob.key")
    assert paths.bundle("alice") == Path("/w/keys/agents/alice.a2a-hub.json")
    assert paths.lock("hub") == Path("/w/state/hub.lock")
