"""The own name, and that one session has one (faults F35, F37)."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from daemon_process import until

from wakehub.client.names import OwnName, choose
from wakehub.errors import BadData, Exit, Unsafe, WakehubError
from wakehub.identity.delegation import Bundle
from wakehub.identity.keys import KeyPair, b64
from wakehub.processes import start_time


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment in which no session runs."""
    return {"CLAUDE_CONFIG_DIR": str(tmp_path / "claude")}


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "alice project"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


def test_what_is_given_comes_before_the_variable_and_that_before_the_directory(
    environ: dict[str, str], there: Path
) -> None:
    with_variable = environ | {"WAKEHUB_AGENT": "bob"}
    assert choose("carl", with_variable) == OwnName("carl", "--as")
    assert choose(None, with_variable) == OwnName("bob", "$WAKEHUB_AGENT")
    assert choose(None, environ) == OwnName("alice-project", "this directory")
    assert choose(None, environ | {"WAKEHUB_AGENT": ""}).name == "alice-project"


def test_a_directory_of_sessions_that_cannot_be_looked_at_names_nobody(there: Path) -> None:
    assert choose(None, {"CLAUDE_CONFIG_DIR": f"/{'x' * 300}"}).source == "this directory"


def test_a_bundle_says_whose_it_is(environ: dict[str, str], there: Path) -> None:
    given = Bundle.make("acme/bun", KeyPair.generate(), "wakehub", 1_800_000_000, 3600)
    environ["WAKEHUB_BUNDLE"] = b64(given.to_json())
    assert choose(None, environ) == OwnName("acme/bun", "$WAKEHUB_BUNDLE")
    assert choose(None, environ | {"WAKEHUB_AGENT": "bob"}).name == "bob"
    with pytest.raises(Unsafe):
        choose(None, environ | {"WAKEHUB_BUNDLE": "e30"})


@pytest.mark.parametrize("bad", ["", "../x", "a b", "é", "a/", "a" * 129, "x\x1b"])
def test_a_name_that_was_given_is_never_mended(environ: dict[str, str], bad: str) -> None:
    with pytest.raises(BadData):
        choose(bad, environ)
    if bad:  # an empty variable is none, as one that is not set
        with pytest.raises(BadData):
            choose(None, environ | {"WAKEHUB_AGENT": bad})


@pytest.mark.parametrize("name", ["ü", "---", "owner", "wakehub-publisher", "é" * 100])
def test_a_directory_that_gives_no_name_asks_for_one(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    with pytest.raises(WakehubError) as caught:
        choose(None, environ)
    assert caught.value.exit == Exit.USAGE
    assert "--as" in caught.value.remedy


def test_a_directory_that_is_gone_asks_for_a_name(environ: dict[str, str], there: Path) -> None:
    there.rmdir()
    with pytest.raises(WakehubError) as caught:
        choose(None, environ)
    assert caught.value.exit == Exit.USAGE


# --- inside a session ---


class Session:
    """A session that has this process's pid, so that whatever this process runs runs in it."""

    def __init__(self, directory: Path, **fields: Any) -> None:
        self.path = directory / "sessions" / f"{os.getpid()}.json"
        self.path.parent.mkdir(parents=True)
        self.fields: dict[str, Any] = {}
        self.write(
            pid=os.getpid(), procStart=start_time(os.getpid()), sessionId="first", cwd="/home/u/the project", **fields
        )

    def write(self, **fields: Any) -> None:
        self.fields |= fields
        self.path.write_text(json.dumps(self.fields))


SHOW = "from wakehub.client.names import choose; found = choose(None); print(found.name, '|', found.source)"


def run(environ: dict[str, str], *around: str, cwd: Path | None = None) -> str:
    command = [*around, sys.executable, "-c", SHOW]
    done = subprocess.run(command, env=environ, cwd=cwd, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def claude(environ: dict[str, str]) -> Path:
    return Path(environ["CLAUDE_CONFIG_DIR"])


def test_the_name_that_the_user_gave_the_session(environ: dict[str, str], claude: Path) -> None:
    Session(claude, name="fix auth", nameSource="user")
    assert run(environ) == "fix-auth | the name of this session"
    assert run(environ | {"WAKEHUB_AGENT": "bob"}) == "bob | $WAKEHUB_AGENT"


@pytest.mark.parametrize("fields", [{}, {"name": "made up", "nameSource": "auto"}, {"name": "who knows"}])
def test_a_name_that_the_session_made_up_may_change_and_is_not_taken(
    environ: dict[str, str], claude: Path, fields: dict[str, str]
) -> None:
    Session(claude, **fields)
    assert run(environ) == "the-project | the directory of this session"


@pytest.mark.parametrize("name", ["owner", "wakehub-publisher", "---", "é" * 100])
def test_a_name_that_no_agent_may_have_is_passed_over(environ: dict[str, str], claude: Path, name: str) -> None:
    Session(claude, name=name, nameSource="user")
    assert run(environ).startswith("the-project |")


def test_one_session_is_one_agent_from_wherever_it_calls(
    environ: dict[str, str], claude: Path, tmp_path: Path, there: Path
) -> None:
    """F35: in a shell in a shell, in a hook with another environment, in another worktree."""
    Session(claude)
    shell = ("/bin/sh", "-c", '"$@"; exit $?', "sh")
    found = {
        run(environ),
        run(environ, *shell),
        run(environ, *shell, *shell),
        run(environ, cwd=there),
        run(environ | {"CLAUDE_CODE_SESSION_ID": "of another one"}, cwd=tmp_path),
    }
    assert found == {"the-project | the directory of this session"}


def test_the_name_stays_when_the_session_forgets_everything(environ: dict[str, str], claude: Path) -> None:
    """F37: `/clear` gives the session another id, in its record but not in the environment of what runs already."""
    session = Session(claude, name="review", nameSource="user")
    in_session = environ | {"CLAUDE_CODE_SESSION_ID": "first"}
    before = run(in_session)
    session.write(sessionId="second")
    assert run(in_session) == before == "review | the name of this session"


def test_what_was_orphaned_is_known_by_the_id_of_its_session(
    environ: dict[str, str], claude: Path, tmp_path: Path
) -> None:
    Session(claude, name="review", nameSource="user")
    told = tmp_path / "told"
    parent = f"""
import os, subprocess, sys
parent = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == parent:
    pass
subprocess.run([sys.executable, "-c", {SHOW!r}], stdout=open({str(told) + "~"!r}, "w"))
os.rename({str(told) + "~"!r}, {str(told)!r})
"""
    subprocess.run([sys.executable, "-c", parent], env=environ | {"CLAUDE_CODE_SESSION_ID": "first"}, check=True)
    until(told.exists, "the orphan has told its name")
    assert told.read_text().strip() == "review | the name of this session"


def test_a_session_that_is_over_names_nobody(environ: dict[str, str], claude: Path, there: Path) -> None:
    session = Session(claude, name="review", nameSource="user")
    session.write(procStart="of another process")
    assert run(environ, cwd=there) == "alice-project | this directory"
    shutil.rmtree(claude / "sessions")
    assert run(environ, cwd=there) == "alice-project | this directory"


def test_a_session_without_a_name_in_a_directory_that_gives_none_asks_for_one(
    environ: dict[str, str], claude: Path
) -> None:
    Session(claude).write(cwd="/")
    done = subprocess.run([sys.executable, "-c", SHOW], env=environ, capture_output=True, text=True, check=False)
    assert "no name to act under" in done.stderr
