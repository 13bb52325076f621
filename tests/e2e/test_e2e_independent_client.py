"""A program written from the specification alone comes in with a bundle of `delegate` and is woken by `send`."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import independent_client
import pytest
from daemon_process import PATIENCE_S, Daemon, environment, until


@pytest.fixture
def home() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="wi", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)  # what ends behind its parent may still write


def wakehub(home: Path, *argv: str) -> str:
    command = [sys.executable, "-m", "wakehub", *argv]
    done = subprocess.run(
        command, env=environment(home), capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    return done.stdout


def admitted(home: Path) -> str:
    """The content of the signed allowlist."""
    return independent_client.unb64((home / "run/allowlist.jws").read_text().split(".")[1]).decode()


def test_an_independent_client_is_woken_by_send(home: Path) -> None:
    with Daemon(home, "up") as up:
        up.says("ready:")
        wakehub(home, "enroll", "team/carol")
        bundle = json.loads(wakehub(home, "delegate", "team/carol", "--json"))["bundle"]
        until(lambda: "team/carol" in admitted(home), "the signed allowlist shows it")
        script = [independent_client.__file__, str(home / "run/hub.sock"), bundle]
        command = [
            sys.executable,
            *script,
            "--topic",
            "#_inbox/team/carol",
            "--wakes",
            "1",
            "--timeout",
            str(PATIENCE_S),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            welcome = json.loads(client.stdout.readline())
            assert welcome["kind"] == "welcome"
            sent = json.loads(wakehub(home, "send", "--as", "bob", "--to", "team/carol", "--json", "hello"))
            woken = json.loads(client.stdout.readline())
            assert client.wait(PATIENCE_S) == 0
        assert woken["kind"] == "wake"
        assert json.dumps(sent).count(woken["row_id"]) >= 1
        assert (woken["from"], woken["namespace"], woken["sender"]) == ("wakehub-publisher", "_inbox/team/carol", "bob")
        up.stop()
