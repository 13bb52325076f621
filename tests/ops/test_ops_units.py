"""The shipped systemd units and launchd agents: what they say, and that hub and publisher work under it (F69, F70,
F72, F73)."""

import json
import os
import plistlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_process import Daemon, environment, started, until

from wakehub.config import Config
from wakehub.errors import Exit
from wakehub.limits import DRAIN_MS, STOP_GRACE_MS, WANTED_DESCRIPTORS
from wakehub.ops import doctor
from wakehub.paths import choose

ROOT = Path(__file__).resolve().parents[2]
UNITS = ("wakehub.service", "wakehub-publish.service")
AGENTS = {"wakehub.hub": "serve", "wakehub.publisher": "publish"}
GUIDE = ROOT / "wakehub" / "guide" / "operate.md"
MOST_EXPOSED = 1.0
"""What `systemd-analyze security` may find at most, of 10; up to 2 it calls safe."""

Unit = dict[str, list[str]]


def settings(text: str) -> Unit:
    """Every setting of a unit file, its values in order; an empty one takes back those before it."""
    found: Unit = {}
    for line in text.splitlines():
        if line and not line.startswith(("#", "[")):
            key, _, value = line.partition("=")
            found[key] = [*found.get(key, []), value] if value else []
    return found


def unit(name: str) -> Unit:
    return settings((ROOT / "systemd" / name).read_text())


def drop_in(name: str) -> str:
    """What the guide puts beside a unit to have it run for the whole machine, as it tells to change it."""
    found = re.search(r"^```ini\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    if name == "wakehub.service":
        return found[1]
    kept = [line for line in found[1].splitlines() if not line.startswith(("ExecStartPost=", "InaccessiblePaths="))]
    return "\n".join(kept).replace("wakehub serve", "wakehub publish") + "\n"


# --- what the units say ---


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_is_supervised_as_the_daemons_expect(name: str) -> None:
    found = unit(name)
    assert found["Type"] == ["notify"]
    assert found["Restart"] == ["on-failure"]
    assert found["RestartPreventExitStatus"] == [f"{Exit.HELD:d} {Exit.PERMISSION:d} {Exit.CONFIG:d}"]
    assert found["StartLimitIntervalSec"] == ["0"], "it never gives up on what may pass by itself"
    assert found["LimitNOFILE"] == [str(WANTED_DESCRIPTORS)]
    assert found["UMask"] == ["0077"]
    assert int(found["WatchdogSec"][0]) * 1000 > DRAIN_MS
    assert int(found["TimeoutStopSec"][0]) * 1000 > STOP_GRACE_MS


def test_the_hub_is_asked_for_an_answer_before_it_counts_as_started() -> None:
    assert unit("wakehub.service")["ExecStartPost"] == ["%h/.local/bin/wakehub --health"]


def test_both_are_shut_off_in_the_same_way_but_for_what_each_needs() -> None:
    hub, publisher = map(unit, UNITS)
    differing = {key for key in hub.keys() | publisher.keys() if hub.get(key) != publisher.get(key)}
    assert differing == {
        "Description", "After", "Wants", "Also", "ExecStart", "ExecStartPost", "InaccessiblePaths", "ProtectProc",
        "ProcSubset",
    }  # fmt: skip
    for found in (hub, publisher):
        assert found["RestrictAddressFamilies"] == ["AF_UNIX"]
        assert found["ProtectSystem"] == ["strict"]
        assert found["NoNewPrivileges"] == found["MemoryDenyWriteExecute"] == ["yes"]
        assert found["CapabilityBoundingSet"] == found["AmbientCapabilities"] == []
        assert found["SystemCallFilter"] == ["@system-service", "~@privileged @resources"]


def test_the_publisher_sees_the_processes_that_it_must_judge() -> None:
    """One that cannot see a listener would free its name: no hidden processes, no namespace of its own for pids."""
    assert not {"ProtectProc", "ProcSubset", "PrivatePIDs"} & unit("wakehub-publish.service").keys()


def test_their_paths_are_the_commands_own(short: Path) -> None:
    """What `wakehub init` chooses for a user is what the units let the daemons write, and nothing else (F69)."""
    home, runtime = short / "home", short / "runtime"
    for directory in (home, runtime):
        directory.mkdir(mode=0o700)
    environ = {name: value for name, value in environment(short).items() if not name.startswith(("WAKEHUB_", "XDG_"))}
    said = subprocess.run(
        [sys.executable, "-m", "wakehub", "init", "--json"],
        env=environ | {"HOME": str(home), "XDG_RUNTIME_DIR": str(runtime)},
        capture_output=True,
        check=True,
    )
    if sys.platform != "linux":
        return
    chosen = json.loads(said.stdout)

    def expanded(values: list[str]) -> list[str]:
        return [part.lstrip("-") for part in values[0].replace("%h", str(home)).replace("%t", str(runtime)).split()]

    for name in UNITS:
        found = unit(name)
        assert expanded(found["ReadWritePaths"]) == [chosen["run"], chosen["state"]]
        assert expanded(found["AssertPathExists"]) == [chosen["config"]]
        assert expanded(found["Environment"]) == [f"CONFIGURATION_DIRECTORY={Path(chosen['config']).parent}"]
        assert f"{runtime}/{found['RuntimeDirectory'][0]}" == chosen["run"]
        assert (found["RuntimeDirectoryMode"], found["RuntimeDirectoryPreserve"]) == (["0700"], ["yes"])
    hidden = expanded(unit("wakehub.service")["InaccessiblePaths"])
    assert hidden == [f"{chosen['keys']}/owner.key", f"{chosen['keys']}/agents"]
    assert all(Path(path).exists() for path in hidden)


@pytest.mark.parametrize("name", UNITS)
def test_for_the_whole_machine_every_path_of_a_user_is_replaced(name: str) -> None:
    found = settings((ROOT / "systemd" / name).read_text() + drop_in(name))
    assert found["User"] == ["agents"]
    assert found["RuntimeDirectory"] == []
    left = {key: values for key, values in found.items() if any("%h" in value or "%t" in value for value in values)}
    assert left.keys() <= {"Environment"}, "the later assignment of a variable counts"
    assert found["Environment"][-1] == "CONFIGURATION_DIRECTORY=/srv/wakehub"
    assert found["ReadWritePaths"] == ["/srv/wakehub/run /srv/wakehub/state"]


if shutil.which("systemd-analyze"):  # .ci/run sees to it; without it the rest is tested all the same

    @pytest.fixture
    def installed(short: Path) -> Path:
        """The units in a directory of their own, with a command that is there."""
        (short / "wakehub").write_text("#!/bin/sh\n")
        (short / "wakehub").chmod(0o755)
        for name in UNITS:
            text = (ROOT / "systemd" / name).read_text()
            (short / name).write_text(text.replace("%h/.local/bin/wakehub", str(short / "wakehub")))
        return short

    def analyze(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
        environ = environment(cwd) | {"XDG_RUNTIME_DIR": str(cwd)}
        return subprocess.run(
            ["systemd-analyze", *words], cwd=cwd, env=environ, capture_output=True, text=True, check=False
        )

    @pytest.mark.parametrize("manager", ["--user", "--system"])
    def test_systemd_has_nothing_to_say_against_them(installed: Path, manager: str) -> None:
        found = analyze(manager, "--man=no", "verify", *(f"./{name}" for name in UNITS), cwd=installed)
        assert (found.returncode, found.stdout, found.stderr) == (0, "", "")

    def test_nor_against_what_the_guide_adds(installed: Path) -> None:
        for name in UNITS:
            beside = installed / f"{name}.d"
            beside.mkdir()
            command = str(installed / "wakehub")
            (beside / "site.conf").write_text(drop_in(name).replace("/usr/local/bin/wakehub", command))
        found = analyze("--man=no", "verify", *(f"./{name}" for name in UNITS), cwd=installed)
        assert (found.returncode, found.stdout, found.stderr) == (0, "", "")

    @pytest.mark.parametrize("name", UNITS)
    def test_they_are_hardly_exposed(installed: Path, name: str) -> None:
        threshold = f"--threshold={round(MOST_EXPOSED * 10)}"
        found = analyze("security", "--offline=yes", "--no-pager", threshold, f"./{name}", cwd=installed)
        assert found.returncode == 0, found.stdout

    def test_a_misspelt_setting_would_be_found(installed: Path) -> None:
        path = installed / UNITS[0]
        path.write_text(path.read_text().replace("WatchdogSec", "WatchdogSeconds"))
        assert "WatchdogSeconds" in analyze("--man=no", "verify", f"./{UNITS[0]}", cwd=installed).stderr


# --- hub and publisher under the same restrictions ---


def restricted(config: Config, command: str) -> list[str]:
    paths = config.paths
    writable = f"{paths.run}:{paths.state}"
    script = [sys.executable, str(Path(__file__).with_name("restricted.py")), str(paths.config_file.parent), writable]
    return [*script, sys.executable, "-m", "wakehub", command]


@pytest.fixture
def config(short: Path) -> Config:
    """An instance that is set up, as the units demand."""
    config = Config.at(choose({"WAKEHUB_HOME": str(short)}))
    subprocess.run([sys.executable, "-m", "wakehub", "init"], env=environment(short), check=True, capture_output=True)
    return config


@pytest.fixture
def shut_off(config: Config) -> Iterator[list[Daemon]]:
    home = config.paths.config_file.parent
    with Daemon(home, argv=restricted(config, "serve")) as hub, Daemon(home, argv=restricted(config, "publish")) as pub:
        hub.logs("hub ready")
        pub.logs("session with the hub")
        yield [hub, pub]


def test_a_message_arrives_through_daemons_that_are_shut_off(shut_off: list[Daemon], config: Config) -> None:
    for daemon in shut_off:
        in_force = json.loads(daemon.lines[0])
        if sys.platform == "linux":
            assert in_force["privileges"]
            status = Path(f"/proc/{daemon.process.pid}/status").read_text()
            assert "NoNewPrivs:\t1" in status
            assert "Umask:\t0077" in status
            assert ("Seccomp:\t2" in status) == in_force["calls"]
            assert ("CapBnd:\t0000000000000000" in status) == in_force["capabilities"]
    found = doctor.examine(config)
    assert found.trip is not None
    assert found.trip.arrived, found.to_text()
    assert {line.check for line in found.lines if line.mark == "critical"} == set(), found.to_text()
    limits = next(line for line in found.lines if line.check == "limits")
    assert sys.platform != "linux" or f"of {WANTED_DESCRIPTORS} descriptors" in limits.detail


def test_they_free_the_names_of_the_dead_and_of_nobody_else(shut_off: list[Daemon], config: Config) -> None:
    """Under these restrictions the publisher must still be able to tell a live listener from a dead one."""
    home = config.paths.config_file.parent

    def holders() -> dict[str, int | None]:
        said = subprocess.run(
            [sys.executable, "-m", "wakehub", "agents", "--json"],
            env=environment(home),
            capture_output=True,
            check=True,
        )
        return {
            agent["name"]: agent["listener"] and agent["listener"]["pid"] for agent in json.loads(said.stdout)["agents"]
        }

    with Daemon(home, "listen", "--as", "alive") as alive, Daemon(home, "listen", "--as", "dead") as dead:
        alive.says("listening as")
        dead.says("listening as")
        dead.stop(signal.SIGKILL)
        swept = config.paths.record
        began = time.time()
        until(lambda: swept.with_name(swept.name + "-wal").stat().st_mtime > began, "the publisher swept")
        assert holders() == {"alive": alive.process.pid, "dead": None}


def test_what_the_restrictions_forbid_is_forbidden(config: Config) -> None:
    """Else the tests above would show nothing."""
    probe = (
        "import json, mmap, socket, sys\n"
        "def tried(act):\n"
        "    try: act()\n"
        "    except OSError as error: return error.errno\n"
        "    return 0\n"
        "keys, state = sys.argv[1:]\n"
        "print(json.dumps([tried(lambda: socket.socket(socket.AF_INET)),\n"
        "    tried(lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)),\n"
        "    tried(lambda: open(keys, 'w')), tried(lambda: open(state, 'w'))]))\n"
    )
    command = [*restricted(config, "")[:4], sys.executable, "-c", probe]
    said = subprocess.run(
        [*command, f"{config.paths.keys}/x", f"{config.paths.state}/x"], capture_output=True, text=True, check=True
    )
    in_force = json.loads(said.stderr.splitlines()[0])
    inet, write_execute, keys, state = json.loads(said.stdout)
    assert (bool(inet), bool(write_execute)) == (in_force["calls"], in_force["calls"])
    assert bool(keys) == in_force["read_only"]
    assert state == 0


def test_a_state_directory_that_is_read_only_is_refused_in_words(config: Config) -> None:
    """F69 the other way round: the record's directory is not writable, so nothing may seem to work."""
    words = restricted(config, "publish")
    words[3] = str(config.paths.run)
    done = subprocess.run(
        words, env=environment(config.paths.config_file.parent), capture_output=True, text=True, check=False
    )
    in_force = json.loads(done.stderr.splitlines()[0])
    if in_force["read_only"]:
        assert done.returncode == Exit.CANNOT_CREATE
        assert str(config.paths.lock("publish")) in done.stderr
        assert "EROFS" in done.stderr


# --- the notify protocol (F72) ---


@pytest.fixture
def supervisor(short: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(short / "notify"))
        sock.settimeout(20)
        yield sock


@pytest.mark.parametrize("command", ["serve", "publish"])
def test_a_daemon_says_that_it_is_ready_alive_and_stopping(
    config: Config, supervisor: socket.socket, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    home = config.paths.config_file.parent
    argv = ["/usr/bin/env", f"NOTIFY_SOCKET={supervisor.getsockname()}", "WATCHDOG_USEC=20000000", sys.executable]
    with Daemon(home, argv=[*argv, "-m", "wakehub", command]) as daemon:
        told = []
        while "READY=1" not in told:
            told.append(supervisor.recv(1000).decode())
        answering = config.hub_socket if command == "serve" else config.paths.publish_socket
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(answering))
        while "WATCHDOG=1" not in told:
            told.append(supervisor.recv(1000).decode())
        assert daemon.stop() == 0
        while "STOPPING=1" not in told:
            told.append(supervisor.recv(1000).decode())


def test_a_daemon_whose_supervisor_cannot_be_reached_works_all_the_same(config: Config) -> None:
    argv = ["/usr/bin/env", "NOTIFY_SOCKET=/nowhere/notify", sys.executable, "-m", "wakehub", "publish"]
    with Daemon(config.paths.config_file.parent, argv=argv) as daemon:
        daemon.logs("supervisor cannot be notified")
        daemon.logs("publisher ready")
        assert daemon.stop() == 0


def test_a_daemon_beside_one_that_was_started_by_hand_ends_with_75(config: Config) -> None:
    """The status that both units take as final: no crash loop (F73)."""
    home = config.paths.config_file.parent
    with Daemon(home, "serve") as hub, Daemon(home, "publish") as publisher:
        hub.logs("hub ready")
        publisher.logs("publisher ready")
        for command in ("serve", "publish"):
            with Daemon(home, command) as second:
                assert second.ends() == Exit.HELD


# --- launchd ---


@pytest.mark.parametrize(("label", "command"), AGENTS.items())
def test_an_agent_is_kept_alive_after_failures_only_and_has_its_limits(label: str, command: str) -> None:
    found = plistlib.loads((ROOT / "launchd" / f"{label}.plist").read_bytes())
    assert found["Label"] == label
    assert found["KeepAlive"] == {"SuccessfulExit": False}
    assert found["RunAtLoad"] is True
    assert found["ProcessType"] == "Interactive"
    for limits in ("SoftResourceLimits", "HardResourceLimits"):
        assert found[limits] == {"NumberOfFiles": WANTED_DESCRIPTORS}
    assert found["Umask"] == 0o077
    assert found["ThrottleInterval"] >= 30, "a daemon that ends at once with 75, 77 or 78 must not spin"
    assert found["ExitTimeOut"] * 1000 > STOP_GRACE_MS
    assert found["ProgramArguments"][:2] == ["/bin/sh", "-c"]
    assert f'exec "$HOME/.local/bin/wakehub" {command} ' in found["ProgramArguments"][2]


def test_there_is_nothing_else() -> None:
    assert sorted(path.name for path in (ROOT / "systemd").iterdir()) == sorted(UNITS)
    assert sorted(path.name for path in (ROOT / "launchd").iterdir()) == sorted(f"{label}.plist" for label in AGENTS)


def test_an_agents_command_becomes_the_daemon_itself(short: Path) -> None:
    """The shell that expands $HOME is replaced, so that launchd's SIGTERM reaches the hub, which drains."""
    home = short / "a home"
    (home / ".local" / "bin").mkdir(parents=True, mode=0o700)
    (home / "Library" / "Logs").mkdir(parents=True)
    wakehub = home / ".local" / "bin" / "wakehub"
    wakehub.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m wakehub "$@"\n')
    wakehub.chmod(0o755)
    argv = plistlib.loads((ROOT / "launchd" / "wakehub.hub.plist").read_bytes())["ProgramArguments"]
    environ = {name: value for name, value in environment(short).items() if not name.startswith(("WAKEHUB_", "XDG_"))}
    log = home / "Library" / "Logs" / "wakehub.hub.log"
    with started(argv, env=environ | {"HOME": str(home), "XDG_RUNTIME_DIR": str(short)}) as process:
        until(lambda: log.exists() and '"hub ready"' in log.read_text(), "the hub is ready")
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(20) == 0
    assert '"hub stopped"' in log.read_text()
