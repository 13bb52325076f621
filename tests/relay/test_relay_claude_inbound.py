"""Which sessions are set to hold or refuse messages, by the settings in their order of rank."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon_process import until

from wakehub.client.claude_sessions import Session
from wakehub.processes import arguments
from wakehub.relay.backends.claude.inbound import findings, look


class Place:
    """A configuration directory, a project, rules of the machine's manager, and processes as sessions."""

    def __init__(self, base: Path) -> None:
        self.config, self.project, self.managed = base / "c", base / "p", base / "managed.json"
        self.config.mkdir()
        (self.project / ".claude").mkdir(parents=True)
        self.processes: list[subprocess.Popen[bytes]] = []

    def set(self, path: Path, value: str | None = None, **more: Any) -> None:
        own = {} if value is None else {"crossSessionInbound": value}
        path.write_text(json.dumps(own | more))

    def user(self, value: str | None = None, **more: Any) -> None:
        self.set(self.config / "settings.json", value, **more)

    def of_project(self, value: str | None = None, *, name: str = "settings.json", **more: Any) -> None:
        self.set(self.project / ".claude" / name, value, **more)

    def session(self, *flags: str) -> Session:
        """A session that was started with these flags."""
        words = [sys.executable, "-c", "import sys; sys.stdin.read()", *flags]
        process = subprocess.Popen(words, stdin=subprocess.PIPE)
        self.processes.append(process)
        until(lambda: arguments(process.pid)[3:] == list(flags), "it is no copy of this process any more")
        socket = Path("/s")
        return Session(process.pid, "1", "s1", str(self.project), "interactive", "x", "user", 0.0, socket, "1")

    def found(self, *flags: str) -> list[tuple[str, str]]:
        session = self.session(*flags)
        made = findings(self.config, [session], self.managed)
        assert all(finding.session == session for finding in made)
        return [(finding.detail.removeprefix(str(session)), finding.remedy) for finding in made]

    def detail(self, *flags: str) -> str:
        return "".join(detail for detail, _ in self.found(*flags))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.parametrize("value", [None, "accept", "whatever"])
def test_nothing_in_the_way(place: Place, value: str | None) -> None:
    place.user(value)
    assert place.found() == []


@pytest.mark.parametrize("value", ["hold", "refuse"])
def test_the_user_has_set_it(place: Place, value: str) -> None:
    place.user(value)
    settings = place.config / "settings.json"
    assert place.found() == [
        (
            f" is set to {value} messages ({settings})",
            f'set "crossSessionInbound": "accept" in {settings}, and start the session again',
        )
    ]


def test_a_flag_ranks_over_the_user_and_the_manager_over_both(place: Place) -> None:
    place.user("hold")
    given = json.dumps({"crossSessionInbound": "accept"})
    assert place.found("--settings", given) == place.found(f"--settings={given}") == []
    (place.project / "other.json").write_text(json.dumps({"crossSessionInbound": "refuse"}))
    assert "refuse messages (--settings)" in place.detail("--settings", "other.json")
    place.set(place.managed, "hold")
    assert place.found("--settings", given) == [
        (
            " is set to hold messages (managed settings)",
            "ask who manages this machine to allow messages between sessions",
        )
    ]
    place.set(place.managed, "accept")
    assert place.found() == []


@pytest.mark.parametrize("name", ["settings.json", "settings.local.json"])
def test_a_project_may_make_it_stricter_and_never_laxer(place: Place, name: str) -> None:
    place.user("accept")
    place.of_project("hold", name=name)
    assert f"hold messages ({place.project}/.claude/{name})" in place.detail()
    place.user("refuse")
    assert f"refuse messages ({place.config}" in place.detail()
    place.user("hold")
    place.of_project("accept", name=name)
    assert f"hold messages ({place.config}" in place.detail()


@pytest.mark.parametrize(
    "flags",
    [
        ("--dangerously-skip-permissions",),
        ("--permission-mode", "bypassPermissions"),
        ("--permission-mode=bypassPermissions",),
        ("--settings", '{"permissions": {"defaultMode": "bypassPermissions"}}'),
    ],
)
def test_unset_in_a_session_that_bypasses_prompts(place: Place, flags: tuple[str, ...]) -> None:
    ((detail, remedy),) = place.found(*flags)
    assert detail == " bypasses permission prompts, and so holds messages"
    assert f'"crossSessionInbound": "accept" in {place.config}' in remedy
    place.user("accept")
    assert place.found(*flags) == []


def test_a_mode_in_settings_counts_as_well(place: Place) -> None:
    place.user(permissions={"defaultMode": "plan"})
    assert place.found() == []
    place.of_project(permissions={"defaultMode": "bypassPermissions"})
    assert "bypasses permission prompts" in place.detail()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'{"crossSessionInbound": 7, "permissions": []}'])
def test_settings_that_cannot_be_used_are_none(place: Place, data: bytes) -> None:
    for path in (place.managed, place.config / "settings.json", place.project / ".claude" / "settings.json"):
        path.write_bytes(data)
    assert place.found("--settings", "absent.json") == []


def test_a_session_that_cannot_be_reached_is_not_judged(place: Place) -> None:
    place.user("refuse")
    assert findings(place.config, [place.session()._replace(socket=None)], place.managed) == []


def test_looking_at_a_directory_without_sessions(place: Place) -> None:
    assert look(place.config) == ([], [])
