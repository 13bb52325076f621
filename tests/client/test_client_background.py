"""Hub and publisher started in the background: when, how, and above all when not (formats.md, Detached start)."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from daemon_process import Daemon, is_alive, stand_in_for_up, started, until

from wakehub import config as configuration
from wakehub import files
from wakehub.client import background
from wakehub.client.home import ensure_home
from wakehub.client.poke import Answer, poke
from wakehub.client.supervisor import installed_units
from wakehub.config import Config
from wakehub.limits import MAX_LOG_BYTES
from wakehub.locks import live_holder
from wakehub.paths import Paths
from wakehub.processes import pid_namespace


class World:
    """One instance that is set up and in which nothing runs; what is started in it is ended behind the test."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environ = {"HOME": str(home / "user"), "PATH": os.environ["PATH"], "WAKEHUB_HOME": str(home), "OTHER": "x"}
        self.config: Config = configuration.load(self.environ)
        self.paths: Paths = self.config.paths
        ensure_home(self.config)
        self.said: list[str] = []

    def start(self, config: Config | None = None, **environ: str | None) -> bool:
        values = {name: value for name, value in {**self.environ, **environ}.items() if value is not None}
        return background.start(config or self.config, self.said.append, values)

    def pid(self) -> int:
        holder = live_holder(self.paths.lock("up"))
        assert holder is not None
        return holder.pid

    def left_alone(self) -> bool:
        """Whether nothing was even tried: the log is made before anything is started."""
        return not self.paths.log.exists() and self.said == []

    def close(self) -> None:
        for name in ("up", "hub", "publish"):
            holder = live_holder(self.paths.lock(name))
            if holder is not None and holder.pid != os.getpid():
                with contextlib.suppress(ProcessLookupError):  # the hub ends with `up`
                    os.kill(holder.pid, signal.SIGTERM)
                until(lambda pid=holder.pid: not is_alive(pid), f"{name} has ended")


@pytest.fixture
def world(run_directory: Path) -> Iterator[World]:
    made = World(run_directory)
    yield made
    made.close()


# --- how ---


def test_hub_and_publisher_answer_once_it_returns(world: World) -> None:
    assert world.start()
    assert list(poke(world.paths.publish_socket, ["m_1"])) == [("m_1", Answer("m_1", "refused", 404, False))]
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(os.fspath(world.config.hub_socket))
        assert sock.recv(1)


def test_it_says_so_and_how_to_stop_it(world: World) -> None:
    world.start()
    (line,) = world.said
    assert f"pid {world.pid()}" in line
    assert str(world.paths.log) in line
    assert "it ends 15 min after the last listener left" in line
    os.kill(int(line.rpartition("kill ")[2]), signal.SIGTERM)
    until(lambda: live_holder(world.paths.lock("up")) is None, "`up` has ended")
    assert "up: stopped" in world.paths.log.read_text()


def test_it_is_not_started_twice(world: World) -> None:
    assert background.running(world.paths) is None
    world.start()
    pid = world.pid()
    assert background.running(world.paths) == pid
    assert world.start()
    assert (world.pid(), len(world.said)) == (pid, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_it_is_nobodys_child_has_no_terminal_and_inherits_nothing(world: World) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    world.start()
    os.close(writer)
    assert select.select([reader], [], [], 0)[0], "another process still has the pipe"
    os.close(reader)
    about = Path(f"/proc/{world.pid()}")
    parent, group, session, terminal = about.joinpath("stat").read_text().rpartition(")")[2].split()[1:5]
    assert int(parent) != os.getpid()
    assert int(session) != os.getsid(0)
    assert int(session) != world.pid()  # a leader could get a terminal by opening one
    assert (group, terminal) == (session, "0")
    assert os.readlink(about / "cwd") == "/"
    assert [os.readlink(about / "fd" / number) for number in "012"] == ["/dev/null", *[str(world.paths.log)] * 2]


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_its_environment_is_reduced(world: World) -> None:
    world.start(LANG="C.UTF-8")
    found = Path(f"/proc/{world.pid()}/environ").read_bytes().decode().rstrip("\0").split("\0")
    assert dict(entry.split("=", 1) for entry in found) == {
        "HOME": world.environ["HOME"],
        "PATH": world.environ["PATH"],
        "LANG": "C.UTF-8",
        "WAKEHUB_HOME": str(world.home),
    }


def test_it_finds_an_instance_that_only_config_toml_leads_to(run_directory: Path) -> None:
    """Where WAKEHUB_HOME was not set, the environment that chose the directories is not handed on."""
    environ = {
        "HOME": str(run_directory),
        "XDG_CONFIG_HOME": str(run_directory / "c"),
        "XDG_RUNTIME_DIR": str(run_directory / "r"),
    }
    script = """
import os, sys
from wakehub import config
from wakehub.client import background
from wakehub.client.supervisor import installed_units
from wakehub.client.home import ensure_home
found = config.load()
ensure_home(found)
print(background.start(found, lambda line: None), found.paths.state)
"""
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    started, state = done.stdout.split()
    assert started == "True"
    up = live_holder(Path(state) / "up.lock")
    assert up is not None
    os.kill(up.pid, signal.SIGTERM)
    until(lambda: not is_alive(up.pid), "`up` has ended")


def test_the_instance_of_the_flags_is_the_one_that_is_started(world: World) -> None:
    other = world.config.changed(hub_id="other", hub_socket=world.paths.run / "other.sock")
    assert world.start(other)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(os.fspath(other.hub_socket))
        assert b"other" in sock.recv(100)


def test_it_is_stopped_by_who_takes_over_its_work(world: World) -> None:
    assert background.stop(world.paths) is None
    world.start()
    pid = world.pid()
    assert background.stop(world.paths) == pid
    assert not is_alive(pid)
    with stand_in_for_up(world.paths):
        assert background.stop(world.paths) is None  # what a person started, a person ends


def test_one_that_ended_just_before_it_is_stopped(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with started([sys.executable, "-c", ""]) as ended:
        ended.wait()
    answers = iter([ended.pid, None])
    monkeypatch.setattr(background, "running", lambda where: next(answers))
    assert background.stop(world.paths) == ended.pid


def test_a_log_that_grew_begins_anew(world: World) -> None:
    files.create(world.paths.log, b"x" * (MAX_LOG_BYTES + 1))
    world.start()
    assert 0 < world.paths.log.stat().st_size < MAX_LOG_BYTES


def test_many_first_commands_start_one(world: World) -> None:
    script = """
import sys
from wakehub import config
from wakehub.client import background
from wakehub.client.supervisor import installed_units
sys.stdin.read()
print(background.start(config.load(), lambda line: print("said", flush=True)))
"""
    pipes = {"env": world.environ, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with contextlib.ExitStack() as running:
        processes = [running.enter_context(started([sys.executable, "-c", script], **pipes)) for _ in range(6)]
        outputs = [process.communicate()[0] for process in reversed(processes)]
    assert sum("said" in output for output in outputs) == 1
    assert all("True" in output for output in outputs)
    assert "already running" not in world.paths.log.read_text()


def test_one_that_cannot_run_is_said_with_its_log(world: World) -> None:
    world.paths.run.chmod(0o755)
    assert not world.start()
    (line,) = world.said
    assert "does not come up" in line
    assert str(world.paths.log) in line
    assert "0755" in world.paths.log.read_text()


def test_a_log_that_is_not_ours_is_not_written(world: World) -> None:
    world.paths.log.symlink_to(world.home / "elsewhere")
    assert not world.start()
    assert "cannot be started in the background" in world.said[0]
    assert not (world.home / "elsewhere").exists()


def test_it_knows_itself_by_where_it_writes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not background.is_background(world.paths)
    files.create(world.paths.log, b"")
    assert not background.is_background(world.paths)
    script = """
from wakehub import config
from wakehub.client import background
from wakehub.client.supervisor import installed_units
print(background.is_background(config.load().paths), flush=True)
"""
    with world.paths.log.open("ab") as log:
        subprocess.run([sys.executable, "-c", script], env=world.environ, stdout=log, check=True)
    assert world.paths.log.read_text() == "True\n"


# --- when not ---


def test_while_up_runs(world: World) -> None:
    with stand_in_for_up(world.paths):
        assert not world.start()
        assert background.running(world.paths) is None  # it runs, but not in the background
    assert world.left_alone()


@pytest.mark.parametrize(("command", "ready"), [("serve", "hub ready"), ("publish", "publisher ready")])
def test_while_a_part_of_it_runs(world: World, command: str, ready: str) -> None:
    with Daemon(world.home, command) as daemon:
        daemon.logs(ready)
        assert not world.start()
        daemon.stop()
    assert world.left_alone()


@contextmanager
def served(path: Path) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(os.fspath(path))
        sock.listen(1)
        yield


@pytest.mark.parametrize("which", ["publish_socket", "hub_socket"])
def test_while_somebody_serves_a_socket(world: World, which: str) -> None:
    """A hub of another state directory, or one whose lock cannot be judged from here."""
    with served(getattr(world.paths, which)):
        assert not world.start()
    assert world.left_alone()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the kernel refuses at once, and only the lock tells")
def test_while_the_process_behind_a_socket_is_too_busy_to_take_connections(world: World) -> None:
    with served(world.paths.publish_socket), ExitStack() as waiting:
        for _ in range(2):
            sock = waiting.enter_context(socket.socket(socket.AF_UNIX))
            sock.setblocking(False)
            sock.connect(os.fspath(world.paths.publish_socket))
        assert not world.start()
    assert world.left_alone()


def test_what_is_hidden_by_a_sandbox_is_not_absent() -> None:
    """F57."""
    for error in (PermissionError(1, "Operation not permitted"), PermissionError(13, "Permission denied")):
        assert not background._proves_absence(error)
    assert not background._proves_absence(TimeoutError())
    assert background._proves_absence(FileNotFoundError(2, "No such file or directory"))


@pytest.mark.skipif(sys.platform != "linux", reason="there are no pid namespaces")
def test_in_another_pid_namespace_than_the_one_it_was_made_in(world: World) -> None:
    lock = world.paths.lock("init")
    made = json.loads(lock.read_text())
    assert made["namespace"] == pid_namespace()
    lock.write_text(json.dumps(made | {"namespace": pid_namespace() + 1}))
    assert not world.start()
    assert world.left_alone()


@pytest.mark.skipif(sys.platform != "linux", reason="there are no pid namespaces")
def test_where_up_last_ran_it_may_be_started_again(world: World) -> None:
    """A container that was made anew has another namespace; once `up` was run in it, that is where it belongs."""
    lock = world.paths.lock("init")
    lock.write_text(json.dumps(json.loads(lock.read_text()) | {"namespace": 7}))
    stand_in_for_up(world.paths).release()
    up = world.paths.lock("up")
    up.write_text(json.dumps(json.loads(up.read_text()) | {"start": "of another"}))
    assert world.start()


def test_without_the_owner_key(world: World) -> None:
    world.paths.owner_key.rename(world.home / "away")
    assert not world.start()
    assert world.left_alone()


def test_where_the_reduced_environment_would_lead_elsewhere(world: World) -> None:
    world.paths.config_file.unlink()
    elsewhere = Paths(world.home / "run2", world.paths.state, world.paths.keys, world.paths.config_file)
    assert not world.start(Config.at(elsewhere))
    assert world.left_alone()


# --- units ---


def unit(world: World, place: str, text: str = "[Service]\n") -> Path:
    path = world.home / "user" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


PLACES = [
    ".config/systemd/user/wakehub.service",
    ".config/systemd/user/wakehub-publish.service",
    ".local/share/systemd/user/wakehub.service",
    "Library/LaunchAgents/wakehub.hub.plist",
]


@pytest.mark.parametrize("place", PLACES)
def test_where_a_unit_of_the_instance_is_installed(world: World, place: str) -> None:
    unit(world, place, f"Environment=CONFIGURATION_DIRECTORY={world.home}\n")
    assert not world.start()
    assert world.left_alone()


@pytest.mark.parametrize("place", PLACES)
def test_a_unit_that_names_no_directory_is_that_of_the_default_instance(world: World, place: str) -> None:
    path = unit(world, place)
    environ = {"HOME": world.environ["HOME"]}
    default = configuration.load(environ).paths
    assert list(installed_units(default, environ)) == [path]
    assert not any(installed_units(world.paths, world.environ))


@pytest.mark.parametrize(
    "text",
    ["ReadWritePaths={state}", "Environment=WAKEHUB_HOME={home}", "exec $HOME/../bin", "%h/.."],
)
def test_what_names_the_instance(world: World, text: str) -> None:
    """`%h` and `$HOME` are the home directory; the instance may lie in it."""
    inside = Path(world.environ["HOME"]) / ".." if ".." in text else world.home
    named = Paths(world.paths.run, inside / "state", world.paths.keys, inside / "config.toml")
    unit(world, PLACES[0], text.format(state=named.state, home=world.home))
    assert any(installed_units(named, world.environ))


def test_a_file_that_adds_to_a_unit_counts(world: World) -> None:
    unit(world, PLACES[0])
    unit(world, f"{PLACES[0]}.d/site.conf", f"[Service]\nEnvironment=CONFIGURATION_DIRECTORY={world.home}\n")
    assert any(installed_units(world.paths, world.environ))


def test_another_configuration_directory_of_systemd_is_looked_at(world: World) -> None:
    place = world.home / "xdg" / "systemd" / "user"
    place.mkdir(parents=True)
    (place / "wakehub.service").write_text(str(world.paths.state))
    assert not any(installed_units(world.paths, world.environ))
    environ = world.environ | {"XDG_CONFIG_HOME": str(world.home / "xdg")}
    assert list(installed_units(world.paths, environ)) == [place / "wakehub.service"]


@pytest.mark.parametrize("spoil", [lambda path: path.mkdir(), lambda path: path.symlink_to("nowhere")])
def test_a_unit_that_cannot_be_read_names_nothing(world: World, spoil: Callable[[Path], None]) -> None:
    path = unit(world, PLACES[0])
    path.unlink()
    spoil(path)
    assert not any(installed_units(world.paths, world.environ))
