"""Which records of sessions are believed, and what is read of them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wakehub.client import claude_sessions as sessions
from wakehub.client.claude_sessions import directory
from wakehub.errors import Unsafe
from wakehub.limits import MAX_SESSION_FILE_BYTES
from wakehub.processes import start_time

PID = os.getpid()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "sessions").mkdir()
    return tmp_path


def path_of(config: Path, pid: int = PID) -> Path:
    return config / "sessions" / f"{pid}.json"


def record(**changes: Any) -> dict[str, Any]:
    return {
        "pid": PID,
        "name": "review",
        "nameSource": "user",
        "kind": "interactive",
        "cwd": "/home/someone/x",
        "sessionId": "0a1b-2c",
        "startedAt": 1_800_000_000_000,
        "messagingSocketPath": "/tmp/x.sock",
        "peerProtocol": 1,
        "procStart": start_time(PID),
        "somethingElse": [1, {"a": None}],
    } | changes


def write(config: Path, **changes: Any) -> None:
    path_of(config).write_text(json.dumps(record(**changes)))


def test_everything_that_is_used_is_read(config: Path) -> None:
    write(config)
    (session,) = sessions.scan(config)
    assert (session.pid, session.started, session.session_id) == (PID, start_time(PID), "0a1b-2c")
    assert (session.name, session.name_source, session.cwd) == ("review", "user", "/home/someone/x")
    assert (session.started_at, session.socket, session.protocol) == (1.8e12, Path("/tmp/x.sock"), "1")
    assert session.is_interactive
    assert str(session) == f"session review (pid {PID})"


def test_most_of_it_may_be_absent(config: Path) -> None:
    path_of(config).write_text(json.dumps({"pid": PID, "sessionId": "x"}))
    (session,) = sessions.scan(config)
    assert (session.name, session.kind, session.cwd, session.started_at, session.socket) == ("", "", "", 0.0, None)
    assert not session.is_interactive
    assert "without a name" in str(session)


@pytest.mark.parametrize(
    "changes",
    [
        {"pid": PID + 1},
        {"pid": str(PID)},
        {"pid": True},
        {"pid": None},
        {"sessionId": None},
        {"sessionId": ""},
        {"sessionId": "../../x"},
        {"sessionId": "*"},
        {"sessionId": "x" * 129},
        {"procStart": "1"},
        {"procStart": 1},
        {"procStart": "Mon Jan  4 08:00:00 2027"},
    ],
)
def test_a_record_that_is_not_of_that_process_is_none(config: Path, changes: dict[str, Any]) -> None:
    write(config, **changes)
    assert sessions.scan(config) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "\ud800", "cwd": 7, "kind": None, "startedAt": "now", "messagingSocketPath": "relative"},
        {"name": ["x"], "cwd": {}, "kind": 1.5, "startedAt": True, "messagingSocketPath": "/a\0b"},
    ],
)
def test_what_is_not_as_it_should_be_counts_as_absent(config: Path, changes: dict[str, Any]) -> None:
    write(config, **changes)
    (session,) = sessions.scan(config)
    assert (session.name, session.kind, session.cwd, session.started_at, session.socket) == ("", "", "", 0.0, None)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"[" * 20_000, b"\xff"])
def test_what_is_no_record_is_passed_over(config: Path, data: bytes) -> None:
    path_of(config).write_bytes(data)
    assert sessions.scan(config) == []


def large(path: Path) -> None:
    path.write_text(json.dumps(record(cwd="/" + "x" * MAX_SESSION_FILE_BYTES)))


def linked(path: Path) -> None:
    path.with_name("real").write_text(json.dumps(record()))
    path.symlink_to("real")


@pytest.mark.parametrize("make", [large, linked, os.mkfifo, Path.mkdir])
def test_what_is_no_small_file_of_its_own_is_passed_over(config: Path, make: Callable[[Path], None]) -> None:
    make(path_of(config))
    assert sessions.scan(config) == []


def test_a_file_of_another_user_is_passed_over(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(config)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert sessions.scan(config) == []


def test_other_names_are_not_even_opened(config: Path) -> None:
    for name in (f"{PID}.json~", f"0{PID}.json", f"x{PID}.json", ".json", "12345678901.json", f"{PID}.key"):
        (config / "sessions" / name).write_text(json.dumps(record()))
    assert sessions.scan(config) == []


def test_a_process_that_is_gone_has_no_session(config: Path) -> None:
    pid = (1 << 22) + 1  # over the highest pid there is
    path_of(config, pid).write_text(json.dumps(record(pid=pid, procStart=None)))
    assert sessions.scan(config) == []


def test_without_a_directory_there_is_no_session(tmp_path: Path) -> None:
    assert sessions.scan(tmp_path / "absent") == []
    (tmp_path / "file").touch()
    assert sessions.scan(tmp_path / "file") == []


def test_a_directory_that_is_hidden_is_not_an_absent_one(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden(path: Path) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", hidden)
    with pytest.raises(Unsafe, match="sandbox") as refused:
        sessions.scan(config)
    assert refused.value.exit == 77


@pytest.mark.parametrize(
    ("told", "started", "same"),
    [
        (None, "123", True),
        ("", "123", True),
        ("123", "", True),
        ("123", "123", True),
        (123, "123", True),
        ("124", "123", False),
        ("Mon Jan  4 08:00:00 2027", "Mon Jan  4 08:00:00 2027", True),
        ("Mon Jan  4 09:45:00 2027", "Mon Jan  4 08:00:00 2027", True),  # another time zone
        ("Mon Jan  4 22:00:00 2027", "Mon Jan  4 08:00:00 2027", True),
        ("Mon Jan  4 22:15:00 2027", "Mon Jan  4 08:00:00 2027", False),
        ("Mon Jan  4 08:00:01 2027", "Mon Jan  4 08:00:00 2027", False),
        ("Mon Jan  4 08:00:00 2027", "123", False),
        ([], "123", True),
    ],
)
def test_start_times(told: object, started: str, same: bool) -> None:
    assert sessions._is_same_start(told, started) is same


def test_where_claude_code_keeps_its_things() -> None:
    assert directory({"CLAUDE_CONFIG_DIR": "/c", "HOME": "/h"}) == Path("/c")
    assert directory({"CLAUDE_CONFIG_DIR": "", "HOME": "/h"}) == Path("/h/.claude")
    assert directory({}) == Path.home() / ".claude"


# --- the own one ---


def test_the_nearest_session_among_the_ancestors_is_the_own_one(config: Path) -> None:
    write(config, name="outer", procStart=None)
    inner = json.dumps(record(name="inner", procStart=None)).replace(f'"pid": {PID}', '"pid": $$')
    script = (
        "from os import environ; from wakehub.client import claude_sessions; print(claude_sessions.own(environ).name)"
    )
    shell = f"""
        "$0" -c "$1"
        cat > {config}/sessions/$$.json <<END
{inner}
END
        "$0" -c "$1"
        rm {config}/sessions/$$.json
        "$0" -c "$1"
    """
    done = subprocess.run(
        ["/bin/sh", "-c", shell, sys.executable, script],
        env={"CLAUDE_CONFIG_DIR": str(config)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["outer", "inner", "outer"]


def test_outside_of_any_session_there_is_none(config: Path) -> None:
    assert sessions.own({"CLAUDE_CONFIG_DIR": str(config)}) is None
    write(config, procStart="of another process")
    assert sessions.own({"CLAUDE_CONFIG_DIR": str(config), "CLAUDE_CODE_SESSION_ID": "0a1b-2c"}) is None
    assert sessions.own({"CLAUDE_CONFIG_DIR": str(config / "nowhere")}) is None


def test_only_a_name_that_the_user_gave_is_the_users(config: Path) -> None:
    for source, name in (("user", "review"), ("auto", ""), ("", "")):
        write(config, nameSource=source)
        assert sessions.scan(config)[0].users_name == name
