"""A sender in a real sandbox, and a publisher that is killed while it takes its messages in (faults F21, F57, F58)."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import sandboxed
from daemon_process import Daemon, environment, stand_in_for_up, until

from wakehub import config as configuration
from wakehub.client.home import ensure_agent, ensure_home
from wakehub.client.spool import drop
from wakehub.config import Config
from wakehub.identity.delegation import Bundle
from wakehub.identity.keys import KeyPair, b64
from wakehub.inbox.clock import Now
from wakehub.inbox.envelope import Envelope
from wakehub.inbox.rows import NewRow
from wakehub.inbox.signing import signer
from wakehub.inbox.sqlite import SqliteInbox

landlock = pytest.mark.skipif(sandboxed.landlock_version() < 1, reason="this kernel has no Landlock")
_LAUNCHER = Path(sandboxed.__file__)
_GUIDE = (resources.files("wakehub.guide") / "sandbox.md").read_text("utf-8")


class World:
    """An instance in which bob is enrolled, and a directory that his sandbox lets him write to."""

    def __init__(self, directory: Path) -> None:
        self.home = directory / "home"
        self.workspace = directory / "workspace"
        self.workspace.mkdir(mode=0o700)
        self.config: Config = configuration.load(environment(self.home))
        ensure_home(self.config)
        self.bob: KeyPair = ensure_agent(self.config, "bob").pair
        self.record = self.config.paths.record
        with SqliteInbox.open(self.record):
            pass

    def spool_in(self, *directories: Path) -> None:
        names = ", ".join(f'"{directory}"' for directory in directories)
        with self.config.paths.config_file.open("a") as file:
            file.write(f"[spool]\ndirs = [{names}]\n")
        self.config = configuration.load(environment(self.home))

    def send(
        self, rules: Sequence[str], body: str = "from inside", *flags: str, **environ: str
    ) -> "subprocess.CompletedProcess[str]":
        """`wakehub send` as bob to alice, under `rules`."""
        send = [sys.executable, "-P", "-m", "wakehub", "send", "--as", "bob", "--to", "alice", *flags, "--stdin"]
        return subprocess.run(
            [sys.executable, str(_LAUNCHER), *rules, "--", *send],
            input=body,
            env=environment(self.home) | environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def listen(self) -> list[dict[str, Any]]:
        """What alice is handed, by one `listen --once`."""
        listen = [sys.executable, "-P", "-m", "wakehub", "listen", "--as", "alice", "--once", "--format", "json"]
        done = subprocess.run(listen, env=environment(self.home), capture_output=True, check=False, timeout=60)
        assert done.returncode in (0, 3), done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def seal(self, body: bytes) -> Envelope:
        return Envelope.seal(NewRow("bob", "alice", body), signer(self.bob), Now.read())

    def ids(self) -> list[str]:
        with SqliteInbox.open(self.record) as inbox:
            return [row.id for row in inbox.unread("alice")]

    def until_taken(self, spool: Path) -> None:
        until(lambda: not [name for name in os.listdir(spool) if name.endswith(".json")], f"{spool} is empty")


@pytest.fixture
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="wh") as name:
        yield World(Path(name))


@pytest.fixture
def publisher(world: World) -> Iterator[Callable[..., Daemon]]:
    """Starts a publisher, of which `ready` tells that it is one that stays."""
    running: list[Daemon] = []

    def start(*, argv: list[str] | None = None, ready: bool = True) -> Daemon:
        running.append(Daemon(world.home, "publish", argv=argv).__enter__())
        if ready:
            running[-1].logs("publisher ready")
        return running[-1]

    yield start
    for daemon in running:
        daemon.__exit__(None, None, None)


# --- the sender ---


@landlock
def test_a_sandboxed_agent_is_heard_by_way_of_its_own_directory(world: World, publisher: Callable[..., Daemon]) -> None:
    world.spool_in(world.home / "state" / "spool", world.workspace / "spool")
    publisher()
    sent = world.send([f"write-only={world.workspace}"], "from inside", "--wait", "handed-off")
    assert sent.returncode == 5, sent.stderr
    assert sent.stdout.startswith("spooled m_")
    assert "nothing is waited for" in sent.stderr
    assert str(world.workspace / "spool") in sent.stdout
    assert "sandbox" in sent.stderr
    assert str(world.record) in sent.stderr
    world.until_taken(world.workspace / "spool")
    (message,) = world.listen()
    assert message["id"] in sent.stdout
    assert (message["text"], message["verified"], message["origin"]) == ("from inside", "yes", "spool")


def test_a_spool_that_is_named_while_the_publisher_runs_is_emptied(
    world: World, publisher: Callable[..., Daemon]
) -> None:
    daemon = publisher()
    world.spool_in(world.workspace / "spool")
    drop(world.config.spool_dirs, [world.seal(b"one")])
    world.until_taken(world.workspace / "spool")
    world.config.paths.config_file.write_text("[spool\n")  # half-edited: those of before stay
    daemon.logs("the spools stay as they were")
    drop(world.config.spool_dirs, [world.seal(b"two")])
    world.until_taken(world.workspace / "spool")
    assert len(world.ids()) == 2


def test_the_guides_line_makes_a_bundle_that_fits_into_the_environment(world: World) -> None:
    assigned = next(line for line in _GUIDE.splitlines() if line.startswith("    WAKEHUB_BUNDLE="))
    bundle = Bundle.make("bob", world.bob, world.config.hub_id, time.time(), 3600)
    bundle.write(world.config.paths.bundle("bob"))
    shell = assigned.rpartition(" wakehub ")[0].replace("BUNDLE |", '"$1" |') + '; printf %s "$WAKEHUB_BUNDLE"'
    made = subprocess.run(
        ["sh", "-c", shell, "sh", str(world.config.paths.bundle("bob"))], capture_output=True, text=True, check=True
    ).stdout
    found = Bundle.from_environment({"WAKEHUB_BUNDLE": made})
    assert found == bundle


@landlock
def test_without_any_directory_to_write_to_it_says_what_to_allow_and_stores_nothing(
    world: World, publisher: Callable[..., Daemon]
) -> None:
    publisher()
    sent = world.send([f"write-only={world.workspace}"])
    assert sent.returncode == 77
    assert "[spool] dirs" in sent.stderr
    assert str(world.home / "state" / "spool") in sent.stderr
    assert sent.stdout == ""
    assert world.ids() == []


@landlock
def test_files_come_along_and_a_new_name_cannot_be_enrolled_from_inside(
    world: World, publisher: Callable[..., Daemon]
) -> None:
    world.spool_in(world.workspace / "spool")
    rules = [f"write-only={world.workspace}"]
    (world.workspace / "f").write_bytes(b"f")
    with stand_in_for_up(world.config.paths):
        with_file = world.send(rules, "x", "--attach", str(world.workspace / "f"))
    assert with_file.returncode == 5, with_file.stderr
    publisher()
    world.until_taken(world.workspace / "spool")
    (message,) = world.listen()
    (file,) = message["attachments"]
    assert (message["verified"], file["name"], Path(file["path"]).read_bytes()) == ("yes", "f", b"f")
    until(lambda: os.listdir(world.workspace / "spool") == [], "nothing is left of it")
    (world.workspace / "spool").rmdir()
    new_name = world.send(rules, "x", "--as", "carol")
    assert new_name.returncode == 77
    assert not (world.workspace / "spool").exists()


@landlock
def test_who_holds_only_a_bundle_is_heard_too(world: World, publisher: Callable[..., Daemon]) -> None:
    """F57: neither the record nor a key can be reached; the message arrives all the same, and is shown as unsigned."""
    world.spool_in(world.workspace / "spool")
    bundle = Bundle.make("bob", world.bob, world.config.hub_id, time.time(), 600)
    world.config.paths.agent_key("bob").unlink()
    rules = [f"write-only={world.workspace}"]
    refused = world.send(rules)
    assert refused.returncode == 77
    sent = world.send(rules, WAKEHUB_BUNDLE=b64(bundle.to_json()))
    assert sent.returncode == 5, sent.stderr
    publisher()
    world.until_taken(world.workspace / "spool")
    (message,) = world.listen()
    assert (message["text"], message["from"], message["verified"]) == ("from inside", "bob", "unsigned")


def test_modes_alone_are_a_sandbox_too_and_nobody_need_be_there_yet(
    world: World, publisher: Callable[..., Daemon]
) -> None:
    """The state directory may not be written to, and no publisher runs; one that is started later finds the message."""
    world.spool_in(world.workspace)
    state = world.config.paths.state
    with stand_in_for_up(world.config.paths):
        state.chmod(0o500)
        try:
            sent = world.send(["no-privilege"])
        finally:
            state.chmod(0o700)
    assert sent.returncode == 5, sent.stderr
    assert world.ids() == []
    publisher()
    world.until_taken(world.workspace)
    assert [message["text"] for message in world.listen()] == ["from inside"]


@pytest.mark.skipif(not sandboxed.can_forbid_sockets(), reason="the filter is written for other machines")
def test_a_socket_that_is_not_allowed_is_never_called_not_running(
    world: World, publisher: Callable[..., Daemon]
) -> None:
    """F57: connect gives EPERM. The record can be written, so the message is stored, and nothing is spooled."""
    publisher()
    sent = world.send(["no-sockets"])
    assert sent.returncode == 0, sent.stderr
    assert "not hinted: not allowed to reach the publisher" in sent.stdout
    assert "sandbox" in sent.stdout
    assert f"allow it Unix socket {world.config.paths.publish_socket}" in sent.stdout
    assert "not running" not in sent.stdout + sent.stderr
    (message,) = world.listen()
    assert (message["text"], message["origin"]) == ("from inside", "local")


def test_a_socket_whose_mode_forbids_it_is_told_apart_too(world: World, publisher: Callable[..., Daemon]) -> None:
    """EACCES."""
    publisher()
    world.config.paths.publish_socket.chmod(0)
    sent = world.send(["no-privilege"])
    assert sent.returncode == 0, sent.stderr
    assert "not allowed to reach the publisher" in sent.stdout
    assert "not running" not in sent.stdout + sent.stderr


# --- the publisher ---

_KILLED = """
import os, signal, sys
from wakehub.__main__ import main
point, name = sys.argv.pop(1), sys.argv[0]
def killed(event, arguments):
    if event == point and str(arguments[0]).startswith("m_"):
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(killed)
sys.argv = [name, "publish"]
sys.exit(main())
"""


@pytest.mark.parametrize("already_stored", [False, True])
def test_killed_between_commit_and_unlink_it_stores_nothing_twice(
    world: World, publisher: Callable[..., Daemon], already_stored: bool
) -> None:
    """The audit hook sees the call of unlink before it happens: the row is committed, the file still there."""
    spool = world.config.paths.spool
    envelope = world.seal(b"once")
    drop([spool], [envelope])
    for _ in range(1 + already_stored):
        killed = publisher(argv=[sys.executable, "-c", _KILLED, "os.remove"], ready=False)
        assert killed.ends() == -9
        assert os.listdir(spool) == [f"{envelope.id}.json"]
        assert world.ids() == [envelope.id]
    publisher()
    world.until_taken(spool)
    assert [message["id"] for message in world.listen()] == [envelope.id]
    assert world.listen() == []


def test_killed_before_it_has_read_it_loses_nothing(world: World, publisher: Callable[..., Daemon]) -> None:
    spool = world.config.paths.spool
    envelope = world.seal(b"once")
    drop([spool], [envelope])
    assert publisher(argv=[sys.executable, "-c", _KILLED, "open"], ready=False).ends() == -9
    assert world.ids() == []
    publisher()
    world.until_taken(spool)
    assert world.ids() == [envelope.id]


def test_the_same_message_by_both_ways_is_handed_off_once_across_restarts(
    world: World, publisher: Callable[..., Daemon]
) -> None:
    """F21: what was stored and poked about is found in a spool as well, before its hand-off and long behind it."""
    spool = world.config.paths.spool
    first = publisher()
    assert world.send([], "both").returncode == 0
    with SqliteInbox.open(world.record) as inbox:
        (row,) = inbox.unread("alice")
    assert row.signature is not None
    assert row.key_id is not None
    twin = Envelope(
        row.id, row.sender, row.recipient, row.re, row.group, row.class_, row.signed_hops,
        row.created_ms, row.expires_ms, row.media_type, b"both", row.key_id, row.signature,
    )  # fmt: skip
    drop([spool], [twin])
    world.until_taken(spool)
    assert [message["id"] for message in world.listen()] == [row.id]
    assert first.stop() == 0
    drop([spool], [twin])
    publisher()
    world.until_taken(spool)
    assert world.listen() == []
    assert not (spool / "bad").exists()
