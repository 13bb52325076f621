"""Commands run in this process (`wakehub`) or as a real one (`process`), in a short home of their own."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from wakehub.cli import run

Wakehub = Callable[..., "Result"]


@dataclass(frozen=True)
class Result:
    """How a command ended and what it printed."""

    status: int
    out: str
    err: str


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A WAKEHUB_HOME that does not exist yet, and no other word about where things lie.

    A unit of systemd is installed for it, so that `listen` and `send` leave it to that to start hub and publisher.
    """
    for name in list(os.environ):
        if name.startswith(("WAKEHUB_", "XDG_")) or name.endswith("_DIRECTORY"):
            monkeypatch.delenv(name)
    base = Path(tempfile.mkdtemp(prefix="wc", dir="/tmp"))
    monkeypatch.setenv("WAKEHUB_HOME", str(base / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(base / "config"))
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(base / "claude"))  # no session names us
    units = base / "config" / "systemd" / "user"
    units.mkdir(parents=True)
    (units / "wakehub.service").write_text(f"[Service]\nEnvironment=CONFIGURATION_DIRECTORY={base / 'home'}\n")
    monkeypatch.chdir(base)
    umask = os.umask(0o022)
    yield base / "home"
    os.umask(umask)
    shutil.rmtree(base, ignore_errors=True)  # what ends behind its parent may still write


@pytest.fixture
def wakehub(home: Path, capfd: pytest.CaptureFixture[str]) -> Wakehub:
    """Run a command line here."""

    def call(*argv: str) -> Result:
        capfd.readouterr()
        status = run(list(argv))
        out, err = capfd.readouterr()
        return Result(status, out, err)

    return call


@pytest.fixture
def process(home: Path) -> Wakehub:
    """Run a command line as a process; keywords are those of `subprocess.run`, `argv` may be bytes."""

    def call(*argv: str | bytes, env: dict[str, str | None] | None = None, **options: object) -> Result:
        environ = {**os.environ, **(env or {})}
        done = subprocess.run(
            [sys.executable, "-P", "-m", "wakehub", *argv],
            env={name: value for name, value in environ.items() if value is not None},
            **({"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options),
            check=False,
            timeout=60,
        )
        return Result(done.returncode, (done.stdout or b"").decode(), (done.stderr or b"").decode())

    return call


@pytest.fixture
def shell(home: Path) -> Callable[[str], Result]:
    """Run a line of `sh` in which ``wakehub`` is the command; for redirections that only a shell can make."""

    def call(line: str, *words: Sequence[str]) -> Result:
        script = f'wakehub() {{ "{sys.executable}" -P -m wakehub "$@"; }}\n{line}\n'
        done = subprocess.run(["bash", "-c", script, "bash", *words], capture_output=True, check=False, timeout=60)
        return Result(done.returncode, done.stdout.decode(), done.stderr.decode())

    return call


@pytest.fixture
def up(home: Path) -> Iterator[Path]:
    """A running `wakehub up` in `home`, ready."""
    words = [sys.executable, "-P", "-m", "wakehub", "up"]
    running = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0
    )
    try:
        assert running.stdout is not None
        assert any(line.startswith(b"ready:") for line in running.stdout), "`wakehub up` ended before it was ready"
        yield home
    finally:
        running.terminate()
        running.communicate()
