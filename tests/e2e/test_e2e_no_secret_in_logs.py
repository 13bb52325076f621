"""Nothing that any process says holds a secret: no seed, private key, signature, nonce, bundle, token or
message, in whatever way bytes are usually written; a message only where it is the output.

The whole story is told by real processes: set up, enrol, delegate, listen, send, be refused, be killed, diagnose,
revoke, close. Everything they print is kept, with Python's development mode on, which says the most that can be said.
Between hub and clients lies a tap, from which the nonces, signatures and certificates are taken that no file has.
"""

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_process import environment, until
from independent_client import DEPART, HEADER, HELLO, JOIN, Bundle, Client, Refused, unb64

BODIES = {
    name: f"the {name} message holds the word {os.urandom(12).hex()}"
    for name in ("first", "second", "piped", "filed", "late", "lost", "unwanted")
}


class Tap:
    """A socket that leads to the hub's, and what went through it: for each connection the bytes to and from the hub."""

    def __init__(self, path: Path, target: Path) -> None:
        self.heard: list[tuple[bytearray, bytearray]] = []
        self._target = target
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        path.chmod(0o600)
        self._listener.listen(64)
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(20)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._carry, args=(client,)))
            self._threads[-1].start()

    def _carry(self, client: socket.socket) -> None:
        to_hub, to_client = bytearray(), bytearray()
        self.heard.append((to_hub, to_client))
        with client, socket.socket(socket.AF_UNIX) as hub:
            try:
                hub.connect(str(self._target))
                while True:
                    ready, _, _ = select.select([client, hub], [], [])
                    for source, target, kept in ((client, hub, to_hub), (hub, client, to_client)):
                        if source in ready:
                            data = source.recv(65536)
                            if not data:
                                return
                            kept += data
                            target.sendall(data)
            except OSError:
                return

    def payloads(self) -> Iterator[tuple[int, bool, bytes]]:
        """Each whole frame's kind, whether a client sent it, and its payload."""
        for to_hub, to_client in self.heard:
            for from_client, stream in ((True, bytes(to_hub)), (False, bytes(to_client))):
                while len(stream) >= 4:
                    (size,) = struct.unpack_from(">I", stream)
                    body, stream = stream[4 : 4 + size], stream[4 + size :]
                    if len(body) == size >= HEADER.size:
                        _, _, kind, _, sender, target, *_ = HEADER.unpack_from(body)
                        yield kind, from_client, body[HEADER.size + sender + target :]


class Story:
    """An instance and everything that its processes have said: on standard error, and on standard output unless that is
    where messages go."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.run_directory, self.state, self.keys = home / "run", home / "state", home / "keys"
        self.said: dict[str, bytes] = {}
        self.handed_over = b""
        self.secrets: dict[str, bytes] = {}
        self._files: list[tuple[str, Path, Path]] = []
        self._processes: list[subprocess.Popen[bytes]] = []

    def environment(self) -> dict[str, str]:
        return environment(self.home) | {"PYTHONDEVMODE": "1", "PYTHONWARNINGS": "default", "PYTHONUNBUFFERED": "1"}

    def tell(self, *words: str, stdin: str = "", shows_messages: bool = False, **environ: str) -> tuple[int, bytes]:
        """Run one command to its end; its status and standard output."""
        done = subprocess.run(
            [sys.executable, "-m", "wakehub", *words],
            env=self.environment() | environ,
            input=stdin.encode(),
            capture_output=True,
            check=False,
            timeout=60,
        )
        self._keep(f"wakehub {' '.join(words)}", done.stderr, done.stdout, shows_messages)
        return done.returncode, done.stdout

    def begin(self, *words: str, shows_messages: bool = False, **environ: str) -> "subprocess.Popen[bytes]":
        """Start a command that stays; what it says is kept when it ends."""
        name = f"{len(self._files)} wakehub {' '.join(words)}"
        out, err = self.home / f"{len(self._files)}.out", self.home / f"{len(self._files)}.err"
        self._files.append((name if not shows_messages else "", out, err))
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "wakehub", *words],
                env=self.environment() | environ,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )
        self._processes.append(process)
        return process

    def until_said(self, process: "subprocess.Popen[bytes]", text: str) -> None:
        _, out, err = self._files[self._processes.index(process)]
        until(lambda: text.encode() in out.read_bytes() + err.read_bytes(), f"it says {text!r}")

    def end(self) -> None:
        for process in reversed(self._processes):
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            process.wait(30)
        for number, (name, out, err) in enumerate(self._files):
            self._keep(name or f"listener {number}", err.read_bytes(), out.read_bytes(), not name)

    def _keep(self, name: str, stderr: bytes, stdout: bytes, shows_messages: bool) -> None:
        self.said[f"{name}, stderr"] = stderr
        if shows_messages:
            self.handed_over += stdout
            for body in BODIES.values():
                stdout = stdout.replace(body.encode(), b"")
        self.said[f"{name}, stdout"] = stdout

    def learn_files(self) -> None:
        """Take the secrets from the key files and bundles as they are now."""
        for path in self.keys.rglob("*.key"):
            self.secrets[f"seed in {path.name}"] = unb64(json.loads(path.read_text())["seed_b64"])
        for path in self.keys.rglob("*.a2a-hub.json"):
            bundle = json.loads(path.read_text())
            self.secrets[f"session key in {path.name}"] = unb64(bundle["delegate_private_b64"])
            self.secrets[f"certificate in {path.name}"] = unb64(bundle["delegation_b64"])
            self.secrets[f"signature in {path.name}"] = unb64(bundle["delegation_b64"])[-64:]

    def learn_record(self) -> None:
        """Take the tokens and signatures from the record as it is now."""
        columns = {"message": ("signature", "claim_token"), "lease": ("token",), "past_lease": ("token",)}
        with contextlib.closing(sqlite3.connect(self.state / "record.db")) as record:
            for table, names in columns.items():
                for name in names:
                    for (value,) in record.execute(f"SELECT {name} FROM {table} WHERE {name} IS NOT NULL"):
                        self.secrets[f"{name} of a {table} {value.hex()[:8]}"] = value

    def learn_signatures(self) -> None:
        """Take the owner's signatures: of the registry, and of the allowlist."""
        for line in (self.state / "audit.jsonl").read_text().splitlines():
            found = json.loads(line)
            self.secrets[f"signature of line {found['n']}"] = unb64(found["sig_b64"])
        allowlist = self.run_directory / "allowlist.jws"
        self.secrets["signature of the allowlist"] = unb64(allowlist.read_text().split(".")[2])

    def learn_wire(self, tap: Tap) -> None:
        """Take nonces, signatures and certificates from what went through the tap."""
        for number, (kind, from_client, payload) in enumerate(tap.payloads()):
            if kind == HELLO and not from_client:
                self.secrets[f"nonce {number}"] = payload
            elif kind == HELLO:
                (size,) = struct.unpack_from(">H", payload, 96)
                self.secrets[f"hello signature {number}"] = payload[32:96]
                if size:
                    self.secrets[f"certificate {number}"] = payload[98 : 98 + size]
                    self.secrets[f"certificate signature {number}"] = payload[98 + size - 64 : 98 + size]
            elif kind in (JOIN, DEPART) and from_client:
                self.secrets[f"signature {number}"] = payload


def traces(secret: bytes) -> set[bytes]:
    """The ways in which `secret` may be found in a text: as it is, in hexadecimal, in base64 of both alphabets wherever
    in a longer text it stands, as Python or JSON would write it, and as numbers."""
    found = {secret, secret.hex().encode(), secret.hex().upper().encode()}
    for shift in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            whole = encode(bytes(shift) + secret).rstrip(b"=")
            found.add(whole[(shift * 8 + 5) // 6 : -1])
    written = repr(secret)[2:-1]
    found |= {written.encode(), json.dumps(written)[1:-1].encode()}
    if not secret.isascii():
        found |= {", ".join(map(str, secret)).encode(), ",".join(map(str, secret)).encode()}
        found |= {secret.decode("utf-8", "backslashreplace").encode()}
    return found


@pytest.fixture(scope="module")
def story() -> Iterator[Story]:
    home = Path(tempfile.mkdtemp(prefix="ws", dir="/tmp"))
    told = Story(home)
    tell(told)
    yield told
    shutil.rmtree(home, ignore_errors=True)  # what ends behind its parent may still write


def tell(story: Story) -> None:
    tapped = story.run_directory / "tap.sock"
    to = ("--socket", str(tapped))
    story.tell("init")
    with (story.home / "config.toml").open("a") as file:
        file.write(f'\n[hub]\nsocket = "{story.run_directory}/real.sock"\n')
    up = story.begin("up")
    story.until_said(up, "ready: the hub answers")
    tap = Tap(tapped, story.run_directory / "real.sock")
    try:
        people(story)
        alice = messages(story, to)
        refusals(story, to, tap)
        checks(story, to)
        endings(story, to, alice)
        story.learn_record()
        story.learn_files()
        up.send_signal(signal.SIGTERM)
        up.wait(30)
        story.end()
        story.learn_signatures()
    finally:
        story.end()
        tap.close()
    story.learn_wire(tap)
    for log in story.state.glob("*.log"):
        story.said[log.name] = log.read_bytes()


def people(story: Story) -> None:
    for name in ("alice", "bob", "carol", "dan"):
        assert story.tell("enroll", name)[0] == 0
    assert story.tell("enroll", "alice", "--json")[0] == 0
    assert story.tell("enroll", "wakehub-x")[0] == 65
    assert story.tell("delegate", "alice", "--ttl", "1h")[0] == 0
    assert story.tell("delegate", "carol", "--ttl", "1h", "--json")[0] == 0
    story.learn_files()


def messages(story: Story, to: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    """Two listeners, one with a key and one with a bundle, and messages to both; returns the first of them."""
    alice = story.begin("listen", "--as", "alice", "--format", "json", *to, shows_messages=True)
    story.until_said(alice, "listening as alice")
    bundle = (story.keys / "agents" / "carol.a2a-hub.json").read_bytes().strip()
    in_environment = base64.urlsafe_b64encode(bundle).rstrip(b"=").decode()
    story.secrets["bundle in the environment"] = in_environment.encode()
    carol = story.begin("listen", "--as", "carol", *to, shows_messages=True, WAKEHUB_BUNDLE=in_environment)
    story.until_said(carol, "listening as carol")
    wait = ("--wait", "handed-off", "--timeout", "20")
    assert story.tell("send", "--as", "bob", "--to", "alice", *wait, BODIES["first"])[0] == 0
    assert story.tell("send", "--as", "bob", "--to", "carol", *wait, "--json", BODIES["second"])[0] == 0
    assert story.tell("send", "--as", "bob", "--to", "alice", *wait, "--stdin", stdin=BODIES["piped"])[0] == 0
    (story.home / "body").write_text(BODIES["filed"])
    assert story.tell("send", "--as", "bob", "--to", "alice", *wait, "--file", str(story.home / "body"))[0] == 0
    story.learn_record()  # the listeners' tokens, while they have them
    hub = int(json.loads((story.state / "hub.lock").read_text())["pid"])
    os.kill(hub, signal.SIGKILL)
    assert story.tell("send", "--as", "bob", "--to", "alice", *wait, BODIES["late"])[0] == 0
    return alice


def refusals(story: Story, to: tuple[str, ...], tap: Tap) -> None:
    """Whatever is refused is refused with words, and words are where a secret slips out."""
    assert story.tell("send", "--as", "bob", "--to", "alise", BODIES["unwanted"])[0] == 67
    assert story.tell("send", "--as", "bob", "--to", "acme/nobody/", BODIES["unwanted"])[0] == 67
    assert story.tell("send", "--as", "bob", "--to", "alice", "--stdin", stdin=BODIES["unwanted"] * 6000)[0] == 65
    assert story.tell("listen", "--as", "alice", "--once", *to, shows_messages=True)[0] == 75
    key = story.keys / "agents" / "dan.key"
    whole = key.read_text()
    for broken in (whole.replace('"seed_b64"', '"seed_b64x"'), whole[:-10], whole.replace('"dan"', '"eve"')):
        key.write_text(broken)
        assert story.tell("send", "--as", "dan", "--to", "alice", BODIES["unwanted"])[0] == 77
    key.write_text(whole)
    bundle = story.keys / "agents" / "carol.a2a-hub.json"
    for broken in (bundle.read_text()[:-20], bundle.read_text().replace("carol", "alice"), "x"):
        given = base64.urlsafe_b64encode(broken.encode()).rstrip(b"=").decode()
        story.tell("listen", "--as", "carol", "--take-over", "--once", "--wait", "1", *to, WAKEHUB_BUNDLE=given)
    _strange_hellos(story, tap)


def _strange_hellos(story: Story, tap: Tap) -> None:
    """Hellos that the hub refuses, and says why in its log: a wrong key, a broken certificate, garbage."""
    good = Bundle.load(story.keys / "agents" / "alice.a2a-hub.json")
    tapped = story.run_directory / "tap.sock"
    until(lambda: story.tell("--health", "--socket", str(tapped))[0] == 0, "the hub is back")
    wrong_key = replace(good, delegate_seed=os.urandom(32))
    broken = replace(good, certificate=good.certificate[:-1] + bytes([good.certificate[-1] ^ 1]))
    for bundle in (wrong_key, broken):
        with Client.open(tapped) as client:
            client.challenge()
            with pytest.raises(Refused):
                client.hello(bundle)
    with Client.open(tapped) as client:
        client.challenge()
        client.send_bytes(os.urandom(64))
        client.wait_closed()


def checks(story: Story, to: tuple[str, ...]) -> None:
    status, said = story.tell("doctor", *to)
    assert status == 0, said.decode()
    story.tell("doctor", "--json", *to)
    story.tell("--posture")
    story.tell("--posture", "--json")
    story.tell("--health", "--json", *to)
    story.tell("metrics", *to)
    story.tell("agents", "--json")
    story.tell("status", "--json")
    story.tell("status")
    story.tell("audit", "verify")
    story.tell("audit", "verify", "--json")
    with contextlib.closing(sqlite3.connect(story.state / "record.db")) as record:
        ((first,),) = record.execute("SELECT id FROM message LIMIT 1")
    story.tell("why", first)
    story.tell("why", first, "--json")


def endings(story: Story, to: tuple[str, ...], alice: "subprocess.Popen[bytes]") -> None:
    delegated = json.loads(story.tell("delegate", "bob", "--ttl", "1h", "--json")[1])
    assert story.tell("revoke", "bob", f"--key={delegated['delegate_key_b64']}")[0] == 0
    revoked = (story.keys / "agents" / "bob.a2a-hub.json").read_bytes()
    given = base64.urlsafe_b64encode(revoked).rstrip(b"=").decode()
    story.tell("listen", "--as", "bob", "--from", "dan", "--once", "--wait", "2", *to, WAKEHUB_BUNDLE=given)  # a 401
    assert story.tell("revoke", "alice")[0] == 0
    story.until_said(alice, "alice was revoked on")
    assert story.tell("send", "--as", "bob", "--to", "alice", BODIES["lost"])[0] == 0
    assert story.tell("close", "dan")[0] == 0
    assert story.tell("send", "--as", "bob", "--to", "dan", BODIES["unwanted"])[0] == 67
    assert story.tell("listen", "--as", "dan", "--once", *to, shows_messages=True)[0] == 77
    story.tell("inbox", "--as", "alice", "--json", shows_messages=True)
    story.tell("doctor", *to)


def test_no_secret_is_said_by_anybody(story: Story) -> None:
    kinds = {name.split()[0] for name in story.secrets}
    assert {"seed", "session", "certificate", "signature", "nonce", "hello", "token", "bundle"} <= kinds
    assert sum(name.startswith("nonce") for name in story.secrets) >= 6
    found = [
        f"{secret} in {where}"
        for secret, value in story.secrets.items()
        for trace in traces(value)
        for where, text in story.said.items()
        if trace in text
    ]
    assert found == []


def test_a_message_is_said_only_where_it_is_the_output(story: Story) -> None:
    found = [
        f"the {name} message in {where}"
        for name, body in BODIES.items()
        for trace in traces(body.encode())
        for where, text in story.said.items()
        if trace in text
    ]
    assert found == []
    for name in ("first", "second", "piped", "filed", "late", "lost"):
        assert BODIES[name].encode() in story.handed_over, "it did arrive"


def test_much_was_said(story: Story) -> None:
    """Else nothing would be shown: each process has spoken, and of what the secrets belong to."""
    everything = b"\n".join(story.said.values())
    for text in (b"hub ready", b"agent connected", b"refused", b"wakehub-publisher", b"wakehub-doctor", b"401"):
        assert text in everything, text
    assert len(story.said) > 60


@pytest.mark.parametrize("shift", range(3))
def test_a_secret_would_be_found(shift: int) -> None:
    secret = os.urandom(32)
    around = os.urandom(shift) + secret + os.urandom(5)
    for text in (
        around,
        around.hex().encode(),
        base64.b64encode(around),
        base64.urlsafe_b64encode(around),
        repr(around).encode(),
        json.dumps(repr(around)).encode(),
        str(list(around)).encode(),
        str(tuple(around)).encode(),
    ):
        assert any(trace in text for trace in traces(secret)), text
    assert not any(trace in os.urandom(4096) for trace in traces(secret))
