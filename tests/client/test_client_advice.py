"""The next step fits what lives and who supervises it, and really mends (faults F47, F66, F73): real processes."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_process import Daemon, environment, until

from wakehub import files
from wakehub.client import advice
from wakehub.client.advice import HUB, PUBLISHER
from wakehub.client.home import ensure_home
from wakehub.config import Config
from wakehub.identity.allowlist import AllowlistFile, Unusable, sign
from wakehub.identity.keys import load_public
from wakehub.identity.owner import load_owner, read_registry
from wakehub.identity.registry import to_allowlist
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.locks import live_holder
from wakehub.ops import health
from wakehub.paths import choose
from wakehub.processes import is_stopped


@pytest.fixture
def config(run_directory: Path) -> Config:
    """An instance that is set up; nothing runs, and no unit is installed for it."""
    config = Config.at(choose({"WAKEHUB_HOME": str(run_directory)}))
    ensure_home(config, explicit=True)
    return config


def home(config: Config) -> Path:
    return config.paths.config_file.parent


def environ(config: Config) -> dict[str, str]:
    """Where no unit of the person who runs the tests is found."""
    return environment(home(config)) | {"HOME": str(home(config)), "XDG_CONFIG_HOME": "", "XDG_DATA_HOME": ""}


def command_of(remedy: str) -> list[str]:
    """The command that a remedy begins with, as words."""
    return remedy.partition(" (")[0].partition(", then")[0].split()


@contextlib.contextmanager
def done(config: Config, remedy: str) -> Iterator[None]:
    """Do what a remedy that starts a daemon says."""
    name, *words = command_of(remedy)
    assert name == "wakehub"
    with Daemon(home(config), *words):
        yield


def both_answer(config: Config) -> bool:
    found = (health.check_hub(config), health.check_publisher(config))
    return all(each.state == "answers" for each in found)


def freeze(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    until(lambda: is_stopped(pid), "it is stopped")


# --- which of the two lives ---


@pytest.mark.parametrize("daemon", [HUB, PUBLISHER])
def test_where_nothing_lives_both_are_started(config: Config, daemon: advice.Daemon) -> None:
    remedy = advice.to_start(config.paths, daemon, environ(config))
    assert remedy == "wakehub up"
    with done(config, remedy):
        until(lambda: both_answer(config), "both answer")


@pytest.mark.parametrize("alone", [HUB, PUBLISHER])
def test_beside_one_that_runs_alone_the_other_one_is_started(config: Config, alone: advice.Daemon) -> None:
    with Daemon(home(config), alone.command.split()[1]) as running:
        running.logs(f"{alone.name} ready")
        remedy = advice.to_start(config.paths, alone.other, environ(config))
        assert remedy == f"{alone.other.command} (the {alone.name} runs alone)"
        with done(config, remedy):
            until(lambda: both_answer(config), "both answer")


def test_up_is_waited_for(config: Config) -> None:
    with Daemon(home(config), "up") as up:
        up.says("ready: the hub answers")
        hub = HUB.holder(config.paths)
        assert hub is not None
        freeze(up.process.pid)
        os.kill(hub.pid, signal.SIGKILL)
        until(lambda: HUB.holder(config.paths) is None, "the hub is dead")
        remedy = advice.to_start(config.paths, HUB, environ(config))
        assert command_of(remedy) == ["kill", "-CONT", str(up.process.pid)]
        os.kill(up.process.pid, signal.SIGCONT)
        until(lambda: both_answer(config), "both answer")
        os.kill(hub.pid if (hub := HUB.holder(config.paths)) else 0, signal.SIGKILL)
        until(lambda: both_answer(config), "both answer again, as up lives")


def test_up_that_lives_and_has_not_yet_started_the_other_one(config: Config) -> None:
    with Daemon(home(config), "up") as up:
        until(lambda: live_holder(config.paths.lock("up")), "up runs")
        until(lambda: PUBLISHER.holder(config.paths), "the publisher runs")
        stopped = PUBLISHER.holder(config.paths)
        assert stopped is not None
        config.paths.owner_key.rename(config.paths.owner_key.with_name("away"))
        try:
            os.kill(stopped.pid, signal.SIGKILL)
            assert up.ends() == 77, "what is final is not tried again"
        finally:
            config.paths.owner_key.with_name("away").rename(config.paths.owner_key)
    assert advice.to_start(config.paths, PUBLISHER, environ(config)) == "wakehub up"


@pytest.mark.parametrize(
    ("file", "daemon", "command"),
    [
        (".config/systemd/user/wakehub.service", HUB, "systemctl --user start wakehub.service"),
        (".config/systemd/user/wakehub-publish.service", PUBLISHER, "systemctl --user start wakehub-publish.service"),
        ("Library/LaunchAgents/wakehub.hub.plist", HUB, f"launchctl kickstart gui/{os.getuid()}/wakehub.hub"),
    ],
)
def test_an_installed_unit_is_what_starts_it(config: Config, file: str, daemon: advice.Daemon, command: str) -> None:
    path = home(config) / file
    path.parent.mkdir(parents=True)
    path.write_text(str(config.paths.state))
    assert advice.to_start(config.paths, daemon, environ(config)) == command
    assert advice.to_start(config.paths, daemon.other, environ(config)) == daemon.other.command, "that has none"


def test_what_would_end_a_publisher_again_is_mended_first(config: Config) -> None:
    key = config.paths.owner_key
    key.chmod(0o644)
    for daemon in (HUB, PUBLISHER):
        remedy = advice.to_start(config.paths, daemon, environ(config))
        assert remedy == f"{key} has mode 0644: chmod 600 {key}; then: wakehub up"
    with Daemon(home(config), "publish") as refused:
        assert refused.ends() == 77
    subprocess.run(["chmod", "600", str(key)], check=True)
    key.rename(key.with_name("away"))
    assert f"{key} is missing" in advice.to_start(config.paths, PUBLISHER, environ(config))
    key.with_name("away").rename(key)
    with done(config, advice.to_start(config.paths, PUBLISHER, environ(config))):
        until(lambda: both_answer(config), "both answer")


def test_a_directory_that_is_open_to_others_is_closed_first(config: Config) -> None:
    config.paths.state.chmod(0o755)
    remedy = advice.to_start(config.paths, HUB, environ(config))
    assert remedy.startswith(f"directory {config.paths.state} has mode 0755: chmod 700 {config.paths.state}, or ")
    assert remedy.endswith("; then: wakehub up")


def test_a_damaged_record_is_repaired_before_a_publisher_is_started(config: Config) -> None:
    SqliteInbox.open(config.paths.record).close()
    config.paths.record.write_bytes(b"x" * 8192)
    remedy = advice.to_start(config.paths, PUBLISHER, environ(config))
    assert remedy == "wakehub doctor --repair (the damaged file is kept); then: wakehub up"
    repair = [sys.executable, "-m", *command_of(remedy)]
    subprocess.run(repair, env=environ(config), check=False, capture_output=True)
    assert advice.to_start(config.paths, PUBLISHER, environ(config)) == "wakehub up"


@pytest.mark.parametrize("daemon", [HUB, PUBLISHER])
def test_a_file_in_the_place_of_the_socket_is_moved_away_first(config: Config, daemon: advice.Daemon) -> None:
    daemon.socket(config.paths).touch(0o600)
    remedy = advice.to_start(config.paths, daemon, environ(config))
    subprocess.run(command_of(remedy), check=True)
    with done(config, advice.to_start(config.paths, daemon, environ(config))):
        until(lambda: both_answer(config), "both answer")


def test_a_home_where_nothing_was_ever_set_up(run_directory: Path) -> None:
    """A wrong WAKEHUB_HOME: to start something there would found a second world."""
    config = Config.at(choose({"WAKEHUB_HOME": str(run_directory / "wrong")}))
    remedy = advice.to_start(config.paths, HUB, environ(config))
    assert remedy.startswith(f"correct WAKEHUB_HOME: nothing was ever set up in {run_directory}/wrong")


# --- one that lives and cannot be reached ---


@pytest.mark.parametrize("daemon", [HUB, PUBLISHER])
def test_one_that_is_stopped_is_named_and_told_to_go_on(config: Config, daemon: advice.Daemon) -> None:
    with Daemon(home(config), "serve") as hub, Daemon(home(config), "publish") as publisher:
        hub.logs("hub ready")
        publisher.logs("publisher ready")
        pid = (hub if daemon is HUB else publisher).process.pid
        freeze(pid)
        found = health.check_hub(config) if daemon is HUB else health.check_publisher(config)
        assert (found.state, found.remedy) == ("timeout", f"kill -CONT {pid}")
        assert f"the {daemon.name}, pid {pid}, is stopped" in found.why
        subprocess.run(found.remedy.split(), check=True)
        until(lambda: both_answer(config), "both answer")


def test_one_whose_socket_was_removed_binds_it_again(config: Config) -> None:
    with Daemon(home(config), "serve") as hub:
        hub.logs("hub ready")
        config.hub_socket.unlink()
        found = health.check_hub(config)
    assert found.state == "missing"
    assert found.remedy.startswith(
        f"wait: the hub, pid {hub.process.pid}, lives and binds its socket again within 15 s"
    )
    assert "wakehub up" not in found.remedy


def test_a_lone_one_is_started_anew_by_its_own_command(config: Config) -> None:
    with Daemon(home(config), "serve") as hub:
        hub.logs("hub ready")
        pid = hub.process.pid
        assert advice.to_restart(config.paths, HUB) == f"kill {pid}, then: wakehub serve"
        assert advice.to_restart(config.paths, HUB, hangs=True) == f"kill -KILL {pid}, then: wakehub serve"


def test_a_child_of_up_is_started_anew_by_up(config: Config) -> None:
    with Daemon(home(config), "up") as up:
        up.says("ready: the hub answers")
        hub = HUB.holder(config.paths)
        assert hub is not None
        remedy = advice.to_restart(config.paths, HUB, hangs=True)
        assert remedy == f"kill -KILL {hub.pid}"
        subprocess.run(remedy.split(), check=True)
        until(lambda: (new := HUB.holder(config.paths)) and new.pid != hub.pid, "another hub runs")
        until(lambda: both_answer(config), "both answer")


# --- the allowlist ---


def judged(config: Config) -> Unusable | None:
    found = AllowlistFile(config.allowlist, load_public(config.owner_pub)).current(time.time(), 0.0)
    return found if isinstance(found, Unusable) else None


def spoilt(config: Config, how: str) -> Unusable:
    now_s = time.time() - (61 if how == "stale" else -3600 if how == "future" else 0)
    config.paths.run.mkdir(mode=0o700, exist_ok=True)
    signed = sign(to_allowlist(read_registry(config.paths), now_s), load_owner(config.paths))
    if how != "absent":
        files.replace(config.allowlist, b"a.b.c" if how == "unsigned" else signed)
    if how == "unsafe":
        config.allowlist.chmod(0o666)
    found = judged(config)
    assert found is not None
    assert found.label == how
    return found


@pytest.mark.parametrize("how", ["absent", "stale", "future", "unsafe", "unsigned"])
def test_an_allowlist_that_cannot_be_used_is_made_anew_by_the_publisher(config: Config, how: str) -> None:
    with Daemon(home(config), "serve") as hub:
        hub.logs("hub ready")
        remedy = advice.to_sign(config, spoilt(config, how))
        assert remedy == "wakehub publish (the hub runs alone)"
        with done(config, remedy):
            until(lambda: judged(config) is None, "the allowlist can be used")
            assert advice.to_sign(config, Unusable(how, "")).startswith("wait: the publisher, pid ")


def test_a_directory_in_the_place_of_the_allowlist_is_moved_away(config: Config) -> None:
    config.allowlist.mkdir()
    found = judged(config)
    assert found is not None
    remedy = advice.to_sign(config, found)
    subprocess.run(remedy.split(), check=True)
    assert not config.allowlist.exists()


def test_a_damaged_record_is_repaired_once_nobody_uses_it(config: Config) -> None:
    assert advice.to_repair(config.paths).startswith("wakehub doctor --repair")
    with Daemon(home(config), "publish") as publisher:
        publisher.logs("publisher ready")
        remedy = advice.to_repair(config.paths)
        assert remedy.startswith(f"kill {publisher.process.pid} (the publisher); then: wakehub doctor --repair")
    with Daemon(home(config), "up") as up:
        up.says("ready: the hub answers")
        assert advice.to_repair(config.paths).startswith(f"kill {up.process.pid} (wakehub up); then: ")


def test_a_process_that_runs_is_not_stopped(config: Config) -> None:
    assert not is_stopped(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    freeze(child.pid)
    os.kill(child.pid, signal.SIGCONT)
    until(lambda: not is_stopped(child.pid), "it goes on")
    child.communicate(b"\n")
    assert not is_stopped(child.pid)
