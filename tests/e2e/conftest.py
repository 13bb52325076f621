"""A real hub in a short home of its own, for tests of real processes.

    def test_something(hub):
        hub.home.enroll("alice", "bob")
        hub.start()                            # returns once the log says "hub ready"
        alice, bob = hub.connect("alice"), hub.connect("bob")
        alice.wake("bob", "m_1")
        assert bob.recv_wake().wake.row_id == "m_1"

`home` is a directory for WAKEHUB_HOME with an owner key and a signed allowlist that is written by the independent
client's code, not by the package. `hub` is one hub process in it; `make_hub` makes more, in the same home or another.
Whatever a test starts is ended and whatever it connects is closed behind it. Every line a hub wrote is searched for
the secrets of its home then.
"""

import base64
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import daemon_process
import pytest
from independent_client import Agent, Bundle, Client, b64, sign, write_allowlist, write_owner_public

PATIENCE_S = 20.0
"""How long a wait for something that must happen goes on before the test fails (never slept through)."""


class Home:
    """A WAKEHUB_HOME: owner key, agents, and an allowlist that is signed anew at every change of them."""

    def __init__(self, hub_id: str = "wakehub") -> None:
        self.path = Path(tempfile.mkdtemp(prefix="wh", dir="/tmp"))
        self.hub_id = hub_id
        self.run = self.path / "run"
        self.state = self.path / "state"
        self.keys = self.path / "keys"
        for directory in (self.run, self.state, self.keys):
            directory.mkdir(mode=0o700)
        self.hub_socket = self.run / "hub.sock"
        self.stats_socket = self.run / "stats.sock"
        self.allowlist = self.run / "allowlist.jws"
        self.hub_lock = self.state / "hub.lock"
        self.owner_seed = os.urandom(32)
        self.agents: dict[str, Agent] = {}
        self.secrets: set[bytes] = {self.owner_seed}
        self._entries: dict[str, dict[str, Any]] = {}
        self._bundles: dict[str, Bundle] = {}
        write_owner_public(self.keys / "owner.pub", self.owner_seed)
        self.sign_allowlist()

    def enroll(self, *names: str, **entry: Any) -> None:
        """Put agents with fresh keys into the allowlist; `entry` replaces fields of their entries."""
        for name in names:
            agent = self.agents[name] = Agent(name)
            self.secrets.add(agent.seed)
            self._entries[name] = agent.entry(**entry)
            self._bundles.pop(name, None)
        self.sign_allowlist()

    def revoke(self, name: str) -> None:
        """Take an agent out of the allowlist."""
        del self._entries[name]
        self.sign_allowlist()

    def sign_allowlist(self, **options: Any) -> None:
        """Write the allowlist as of now; `options` as of `independent_client.allowlist_jws`."""
        write_allowlist(self.allowlist, self.owner_seed, self._entries.values(), **options)

    def bundle(self, name: str, **options: Any) -> Bundle:
        """The agent's delegation: one for all connections, or with `options` (of `Agent.bundle`) a fresh one."""
        bundle = None if options else self._bundles.get(name)
        if bundle is None:
            bundle = self.agents[name].bundle(self.hub_id, **options)
            self.secrets |= {bundle.delegate_seed, bundle.certificate[-64:]}
            if not options:
                self._bundles[name] = bundle
        return bundle

    def configure(self, text: str) -> None:
        """Write config.toml."""
        path = self.path / "config.toml"
        path.write_text(text)
        path.chmod(0o600)

    def environment(self) -> dict[str, str]:
        """This process's environment with WAKEHUB_HOME, and without what would lead a hub elsewhere."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("WAKEHUB_", "LISTEN_", "WATCHDOG_")) and name != "NOTIFY_SOCKET"
        }
        return kept | {"WAKEHUB_HOME": str(self.path)}

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class HubProcess:
    """One `wakehub serve`; may be started again after it ended. `client_timeout` bounds each call of its clients."""

    client_timeout = 10.0

    def __init__(self, home: Home) -> None:
        self.home = home
        self.process: subprocess.Popen[str] | None = None
        self.lines: list[str] = []
        """Every line of standard error, of all its runs."""
        self._news = threading.Condition()
        self._reader: threading.Thread | None = None
        self._clients: list[Client] = []
        self._run_began_at = 0

    # its life

    def start(
        self,
        *arguments: str,
        environ: Mapping[str, str] | None = None,
        wait: bool = True,
        command: Sequence[str] = (sys.executable, "-m", "wakehub"),
        **popen: Any,
    ) -> subprocess.Popen[str]:
        """Start it, `arguments` behind `serve`; wait until it is ready unless told otherwise."""
        assert self.process is None or self.process.poll() is not None, "it still runs"
        self._reap()
        self._run_began_at = len(self.lines)
        self.process = subprocess.Popen(
            [*command, "serve", *arguments],
            env=self.home.environment() | dict(environ or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            **popen,
        )
        self._reader = threading.Thread(target=self._read, args=(self.process.stderr,), daemon=True)
        self._reader.start()
        if wait:
            self.wait_log("hub ready")
        return self.process

    def start_refused(self, *arguments: str, **options: Any) -> tuple[int, str]:
        """Start it where it must end by itself; its exit status and all it wrote in this run."""
        self.start(*arguments, wait=False, **options)
        status = self.wait_exit()
        return status, "\n".join(self.lines[self._run_began_at :])

    def send_signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait_exit(self) -> int:
        """Its exit status, once it has ended and all it wrote has been read; negative: by that signal."""
        assert self.process is not None
        status = self.process.wait(PATIENCE_S)
        self._reap()
        return status

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.send_signal(number)
        return self.wait_exit()

    def kill9(self) -> None:
        assert self.stop(signal.SIGKILL) == -signal.SIGKILL

    def restart(self, *arguments: str, number: int = signal.SIGKILL, **options: Any) -> None:
        """End it by a signal, and start it again."""
        self.stop(number)
        self.start(*arguments, **options)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    # what it says

    until = staticmethod(daemon_process.until)

    def logs(self, event: str = "", **fields: Any) -> list[dict[str, Any]]:
        """The log entries of this run with that event and those fields, in order."""
        found = []
        for line in self.lines[self._run_began_at :]:
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if (not event or entry["event"] == event) and fields.items() <= entry.items():
                    found.append(entry)
        return found

    def wait_log(self, event: str, **fields: Any) -> dict[str, Any]:
        """The first entry of this run with that event and those fields, waited for."""
        deadline = time.monotonic() + PATIENCE_S
        with self._news:
            while not (found := self.logs(event, **fields)):
                ended = self.process is not None and self.process.poll() is not None and not self._is_reading()
                left = deadline - time.monotonic()
                if ended or left <= 0:
                    pytest.fail(f"no {event!r} {fields} in:\n" + "\n".join(self.lines))
                self._news.wait(min(left, 0.1))
        return found[0]

    def stats_text(self) -> str:
        """What the stats socket gives."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(self.client_timeout)
            sock.connect(os.fspath(self.home.stats_socket))
            return b"".join(iter(lambda: sock.recv(65536), b"")).decode()

    def stats(self) -> dict[str, float]:
        """The samples of the stats socket by name (without ``wakehub_``) and labels, as written there:
        ``wakes_routed_total``, ``overflow_total{cause="egress"}``; one that is not there counts as 0."""
        samples = Samples()
        for line in self.stats_text().splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                samples[name.removeprefix("wakehub_")] = float(value)
        return samples

    # its clients

    def open(self) -> Client:
        """A connection on which nothing was read yet; closed behind the test."""
        client = Client.open(self.home.hub_socket, self.client_timeout)
        self._clients.append(client)
        return client

    def connect(self, name: str, topics: Sequence[str] = (), bundle: Bundle | None = None) -> Client:
        """A session of an enrolled agent; closed behind the test. Raises as `Client.connect` does."""
        client = self.open()
        self.home.secrets.add(client.challenge())
        client.hello(bundle or self.home.bundle(name), topics)
        self.home.secrets.add(sign(client._seed, client.nonce))
        return client

    # its end

    def end(self) -> None:
        """Close every client and kill the process, if it still runs."""
        for client in self._clients:
            client.close()
        if self.process is not None:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait(PATIENCE_S)
            self._reap()

    def secrets_written(self) -> list[str]:
        """The lines that hold a secret of the home, in any of the ways in which bytes are usually written."""
        forms = {form for secret in self.home.secrets for form in written_forms(secret)}
        return [line for line in self.lines if any(form in line for form in forms)]

    def _read(self, stream: Any) -> None:
        for line in stream:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()

    def _is_reading(self) -> bool:
        return self._reader is not None and self._reader.is_alive()

    def _reap(self) -> None:
        if self._reader is not None:
            self._reader.join(PATIENCE_S)
            self._reader = None
        if self.process is not None and self.process.stderr is not None:
            self.process.stderr.close()


class Samples(dict[str, float]):
    """Samples by name and labels; what was never counted is 0."""

    def __missing__(self, name: str) -> float:
        return 0.0


def written_forms(secret: bytes) -> set[str]:
    """How `secret` would look in a text: hex, base64 of either alphabet, Python's and JSON's escapes."""
    return {
        secret.hex(),
        b64(secret),
        base64.b64encode(secret).decode().rstrip("="),
        repr(secret)[2:-1],
        json.dumps(repr(secret)[2:-1])[1:-1],
    }


@pytest.fixture
def home() -> Iterator[Home]:
    made = Home()
    yield made
    made.remove()


@pytest.fixture
def make_home() -> Iterator[Callable[..., Home]]:
    """Makes more homes, for a second instance."""
    made: list[Home] = []

    def make(hub_id: str = "wakehub") -> Home:
        made.append(Home(hub_id))
        return made[-1]

    yield make
    for each in made:
        each.remove()


@pytest.fixture
def make_hub(home: Home) -> Iterator[Callable[..., HubProcess]]:
    """Makes a `HubProcess` that is not started yet, in the test's home unless another is given."""
    made: list[HubProcess] = []

    def make(where: Home | None = None) -> HubProcess:
        made.append(HubProcess(where or home))
        return made[-1]

    yield make
    for hub in made:
        hub.end()
    for hub in made:
        assert hub.secrets_written() == []


@pytest.fixture
def hub(make_hub: Callable[..., HubProcess]) -> HubProcess:
    """A hub process, not started yet: a test first enrols agents and configures the home."""
    return make_hub()
