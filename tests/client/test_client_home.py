"""Implied init and enrolment on first use (formats.md, Implied init; receive.md §6).

What permissions and a kill -9 do is shown on processes of their own.
"""

import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon_process import started

from wakehub import config as configuration
from wakehub import files
from wakehub.client.home import elsewhere, ensure_agent, ensure_home
from wakehub.config import Config
from wakehub.errors import BadData, Misconfigured, Unsafe
from wakehub.identity import enrolment, keys
from wakehub.identity.audit import AuditLog
from wakehub.identity.owner import load_owner, read_registry
from wakehub.locks import Lock
from wakehub.paths import Paths

NOBODY = 65534


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="wh") as name:
        yield Path(name) / "home"


@pytest.fixture
def config(home: Path) -> Config:
    return Config.at(Paths(home / "run", home / "state", home / "keys", home / "config.toml"))


def tree(home: Path) -> dict[str, str]:
    """Every path under `home` with its mode."""
    return {
        str(path.relative_to(home)): f"{stat.S_IMODE(os.lstat(path).st_mode):04o}" for path in sorted(home.rglob("*"))
    }


def test_the_first_call_makes_everything_private_and_says_so(config: Config, home: Path) -> None:
    made = ensure_home(config)
    assert tree(home) == {
        "config.toml": "0600",
        "keys": "0700",
        "keys/agents": "0700",
        "keys/agents/wakehub-publisher.key": "0600",
        "keys/owner.key": "0600",
        "keys/owner.pub": "0600",
        "run": "0700",
        "state": "0700",
        "state/audit.jsonl": "0600",
        "state/init.lock": "0600",
    }
    assert [f"made {home / name}" in made for name in ("keys/owner.key", "config.toml")] == [True, True]
    assert len(made) == len(set(made)) == 8


def test_the_second_call_makes_and_says_nothing(config: Config, home: Path) -> None:
    ensure_home(config)
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    assert ensure_home(config) == []
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before


def test_config_toml_names_the_directories_whatever_the_environment_says_later(home: Path) -> None:
    state = home / "elsewhere"
    chosen = configuration.load({"WAKEHUB_HOME": str(home)}).changed(
        paths=Paths(home / "r", state, home / "k", home / "config.toml")
    )
    ensure_home(chosen)
    assert configuration.load({"WAKEHUB_HOME": str(home), "STATE_DIRECTORY": "/nowhere"}).paths.state == state


@pytest.mark.parametrize(
    "there", ["keys/owner.key", "keys/owner.pub", "keys/agents/x", "state/record.db", "config.toml"]
)
def test_where_anything_is_nothing_is_made(config: Config, home: Path, there: str) -> None:
    path = home / there
    files.private_directory(path.parent)
    path.touch(0o600)
    before = tree(home)
    assert ensure_home(config) == []
    assert tree(home) == before


@pytest.mark.parametrize("which", ["keys", "keys/agents", "state", "run"])
@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_a_directory_that_is_open_to_others_is_refused(config: Config, home: Path, which: str, mode: int) -> None:
    ensure_home(config)
    (home / which).chmod(mode)
    with pytest.raises(Unsafe) as refusal:
        ensure_home(config)
    assert refusal.value.remedy.startswith(f"chmod 700 {home / which}")


def test_wakehub_init_completes_what_is_missing_and_changes_nothing_else(config: Config) -> None:
    ensure_home(config)
    owner = config.paths.owner_key.read_bytes()
    config.paths.config_file.unlink()
    assert ensure_home(config) == []
    assert ensure_home(config, explicit=True) == [f"made {config.paths.config_file}"]
    assert config.paths.owner_key.read_bytes() == owner
    assert ensure_home(config, explicit=True) == []


def test_a_copied_home_says_where_it_works(config: Config, home: Path) -> None:
    ensure_home(config)
    copy = home.with_name("copy")
    shutil.copytree(home, copy)
    environ = {"WAKEHUB_HOME": str(copy)}
    said = elsewhere(configuration.load(environ), environ)
    assert said == f"config.toml there names other directories: {home / 'run'}, {home / 'state'}, {home / 'keys'}"
    assert elsewhere(config, {"WAKEHUB_HOME": str(home)}) == ""
    assert elsewhere(config, {}) == ""
    linked = home.with_name("linked")
    linked.symlink_to(home)
    environ = {"WAKEHUB_HOME": str(linked)}
    assert elsewhere(configuration.load(environ), environ) == ""


@pytest.mark.parametrize("keys_too", [True, False])
@pytest.mark.parametrize("lose", [Path.unlink, lambda audit: audit.write_bytes(b"")])
def test_wakehub_init_does_not_make_a_lost_registry_anew(
    config: Config, home: Path, lose: Callable[[Path], object], keys_too: bool
) -> None:
    ensure_home(config)
    ensure_agent(config, "alice")
    before = config.paths.audit.read_bytes()
    lose(config.paths.audit)
    if not keys_too:
        for key in config.paths.agents.iterdir():
            key.unlink()
    left = tree(home)
    for _ in range(2):
        with pytest.raises(Unsafe, match=r"the registry is gone.*from a backup"):
            ensure_home(config, explicit=True)
        assert tree(home) == left
    files.replace(config.paths.audit, before)
    assert read_registry(config.paths).names() == ["alice"]


def test_a_directory_too_long_for_sockets_is_refused_before_anything_is_made(home: Path) -> None:
    run = home / ("я" * 40)  # 80 bytes, 40 characters
    long = Config.at(Paths(run, home / "state", home / "keys", home / "config.toml"))
    with pytest.raises(Misconfigured, match="bytes long") as caught:
        ensure_home(long)
    assert "[paths] run" in caught.value.remedy
    assert not home.exists()


# --- what is hidden is not absent ---


AS_NOBODY = """
import json, os, sys
from pathlib import Path
from wakehub.client.home import ensure_agent, ensure_home
from wakehub.config import Config
from wakehub.errors import WakehubError
from wakehub.paths import Paths

config = Config.at(Paths(*map(Path, json.loads(sys.argv[1]))))
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
try:
    exec(sys.argv[3])
except WakehubError as error:
    print(error)
    sys.exit(error.exit)
"""


def places(config: Config) -> str:
    where = config.paths
    return json.dumps([str(path) for path in (where.run, where.state, where.keys, where.config_file)])


def run_as_nobody(config: Config, body: str) -> subprocess.CompletedProcess[str]:
    """Run `body` with `config` in a process that permissions apply to, whoever runs the tests."""
    return subprocess.run(
        [sys.executable, "-c", AS_NOBODY, places(config), str(NOBODY), body],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def give_away(home: Path) -> None:
    if os.geteuid() == 0:
        os.chmod(home.parent, 0o755)
        for path in (home, *home.rglob("*")):
            os.chown(path, NOBODY, NOBODY)


@pytest.mark.parametrize("hidden", ["keys", "state"])
def test_what_a_sandbox_hides_is_not_absent(config: Config, home: Path, hidden: str) -> None:
    (home / hidden).mkdir(mode=0o700, parents=True)
    give_away(home)
    os.chmod(home / hidden, 0)
    before = tree(home)
    done = run_as_nobody(config, "ensure_home(config)")
    assert done.returncode == 77, done
    assert str(home / hidden) in done.stdout
    assert "sandbox" in done.stdout
    assert tree(home) == before


def test_a_hidden_owner_key_lets_known_names_work_and_refuses_new_ones_naming_it(config: Config, home: Path) -> None:
    ensure_home(config)
    ensure_agent(config, "alice")
    give_away(home)
    os.chmod(config.paths.owner_key, 0)
    known = run_as_nobody(config, "print(ensure_agent(config, 'alice').agent_id)")
    assert (known.returncode, known.stdout) == (0, "alice\n")
    new = run_as_nobody(config, "ensure_agent(config, 'bob')")
    assert new.returncode == 77, new
    assert str(config.paths.owner_key) in new.stdout


# --- killed anywhere, then run again ---

KILLED = """
import itertools, os, signal, sys
from pathlib import Path
from wakehub.client.home import ensure_home
from wakehub.config import Config
from wakehub.paths import Paths

STEPS = {"open", "os.mkdir", "os.rename", "os.link", "os.remove", "os.truncate", "fcntl.flock"}

def run(home, left):
    def count(event, args):
        nonlocal left
        if event in STEPS:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(count)
    ensure_home(Config.at(Paths(home / "run", home / "state", home / "keys", home / "config.toml")))
    os._exit(0)

for step in itertools.count():
    child = os.fork()
    if child == 0:
        run(Path(sys.argv[1]) / str(step), step)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(ended)
    if ended != -signal.SIGKILL:
        break
"""


def test_killed_before_any_step_and_run_again_it_completes() -> None:
    """Every system call that may change a file is a step, and there is a run that got as far as each."""
    with tempfile.TemporaryDirectory(prefix="wh") as name:
        done = subprocess.run(
            [sys.executable, "-c", KILLED, name], check=True, capture_output=True, text=True, timeout=120
        )
        *killed, last = done.stdout.split()
        assert (set(killed), last) == ({"-9"}, "0"), done.stderr
        assert len(killed) > 30
        for step in range(len(killed) + 1):
            home = Path(name) / str(step)
            config = Config.at(Paths(home / "run", home / "state", home / "keys", home / "config.toml"))
            ensure_home(config)
            check_whole(config, home)


def check_whole(config: Config, home: Path) -> None:
    owner = load_owner(config.paths)
    registry = read_registry(config.paths)
    publisher = registry.agents["wakehub-publisher"].key
    assert publisher is not None
    pair = keys.load_key(config.paths.agent_key("wakehub-publisher"), "wakehub-publisher")
    assert publisher.public == pair.public
    assert AuditLog(config.paths.audit, owner.public).verify()[0].event == "init"
    assert configuration.load({"WAKEHUB_HOME": str(home)}).paths == config.paths
    assert not (config.paths.state / "init.unfinished").exists()
    assert ensure_home(config) == []


FIRST = """
from wakehub import config
from wakehub.client.home import ensure_home
print(len(ensure_home(config.load())))
"""


def test_of_many_first_commands_one_makes_it(config: Config, home: Path) -> None:
    environ = {**os.environ, "WAKEHUB_HOME": str(home)}
    pipes = {"env": environ, "stdout": subprocess.PIPE, "text": True}
    with contextlib.ExitStack() as running:
        first = [running.enter_context(started([sys.executable, "-c", FIRST], **pipes)) for _ in range(6)]
        made = sorted(int(process.communicate(timeout=60)[0]) for process in first)
    assert made == [0, 0, 0, 0, 0, 8]
    check_whole(config, home)


def test_it_waits_for_the_one_that_is_at_it(config: Config) -> None:
    config.paths.state.mkdir(mode=0o700, parents=True)
    environ = {**os.environ, "WAKEHUB_HOME": str(config.paths.config_file.parent)}
    with contextlib.ExitStack() as running:
        with Lock.acquire(config.paths.lock("init"), what="a test"):
            second = running.enter_context(
                started([sys.executable, "-c", FIRST], env=environ, stdout=subprocess.PIPE, text=True)
            )
            config.paths.record.touch(0o600)
        assert second.communicate(timeout=60)[0] == "0\n"
        assert second.returncode == 0


# --- names ---


@pytest.fixture
def whole(config: Config) -> Config:
    ensure_home(config)
    return config


def test_a_new_name_is_enrolled_and_the_same_ever_after(whole: Config) -> None:
    first = ensure_agent(whole, "acme/deploy")
    again = ensure_agent(whole, "acme/deploy")
    assert (first.newly_enrolled, again.newly_enrolled) == (True, False)
    assert (first.pair, first.generation, first.agent_id) == (again.pair, 1, "acme/deploy")
    assert read_registry(whole.paths).names() == ["acme/deploy"]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("owner", BadData),
        ("wakehub-x", BadData),
        ("wakehub", BadData),
        ("ALICE", BadData),
        ("../x", BadData),
        ("", BadData),
    ],
)
def test_names_that_are_refused(whole: Config, name: str, error: type[Exception]) -> None:
    ensure_agent(whole, "alice")
    with pytest.raises(error):
        ensure_agent(whole, name)
    assert read_registry(whole.paths).names() == ["alice"]


@pytest.mark.parametrize(("act", "word"), [(enrolment.close, "closed"), (enrolment.revoke, "revoked")])
def test_a_name_that_ended_is_not_enrolled_anew_by_using_it(whole: Config, act: object, word: str) -> None:
    ensure_agent(whole, "alice")
    act(whole.paths, "alice", 1_900_000_000)  # type: ignore[operator]
    with pytest.raises(Unsafe, match=f"alice was {word} on 2030-03-17 17:46 UTC") as caught:
        ensure_agent(whole, "alice")
    assert "wakehub enroll alice" in caught.value.remedy
    enrolment.enroll(whole.paths, "alice", whole.hub_id, 1_900_000_001)
    assert ensure_agent(whole, "alice").generation == (2 if word == "closed" else 1)


def test_a_missing_or_foreign_key_file_is_named(whole: Config) -> None:
    pair = ensure_agent(whole, "alice").pair
    path = whole.paths.agent_key("alice")
    path.unlink()
    with pytest.raises(Unsafe, match="the key of alice cannot be read") as caught:
        ensure_agent(whole, "alice")
    assert str(path) in str(caught.value)
    keys.write_key(path, "alice", keys.KeyPair.generate())
    with pytest.raises(Unsafe, match="is not the enrolled key of alice"):
        ensure_agent(whole, "alice")
    keys.replace_key(path, "alice", pair)
    assert ensure_agent(whole, "alice").pair == pair


def test_without_an_instance_there_is_no_name(config: Config) -> None:
    with pytest.raises(Unsafe, match="init"):
        ensure_agent(config, "alice")
