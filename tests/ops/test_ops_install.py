"""What `install` writes where, and that `uninstall` takes exactly that out again."""

import json
import os
import plistlib
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from daemon_process import environment, stand_in_for_up

from wakehub import config
from wakehub.client.supervisor import installed_units
from wakehub.errors import BadData, Held, Misconfigured, Unsafe
from wakehub.invocation import program
from wakehub.locks import live_holder
from wakehub.ops.install import Change, carry_out, plan, plan_removal

OWN = '{\n    "model": "x",\n    "hooks": {"Stop": [ {"hooks": []} ]}\n}\n'
UNITS = ["wakehub-publish.service", "wakehub.service"]


class Place:
    """An instance and a user's home; installs and removes in it."""

    def __init__(self, base: Path) -> None:
        self.environ = environment(base / "home") | {
            "HOME": str(base / "user"),
            "XDG_CONFIG_HOME": str(base / "config"),
            "CLAUDE_CONFIG_DIR": str(base / "claude"),
        }
        self.environ.pop("XDG_RUNTIME_DIR", None)
        (base / "claude").mkdir()
        self.settings = base / "claude" / "settings.json"
        self.units = base / "config" / "systemd" / "user"
        self.agents = base / "user" / "Library" / "LaunchAgents"
        self.config = config.load(self.environ)

    def install(self, target) -> list[str]:
        return carry_out(plan(target, self.config, self.environ), self.config)

    def uninstall(self, target) -> tuple[str, ...]:
        made = plan_removal(target, self.config, self.environ)
        carry_out(made, self.config)
        return made.notes

    def hooks(self) -> dict:
        return json.loads(self.settings.read_text())["hooks"]


@pytest.fixture
def place(short) -> Place:
    (short / "p").mkdir()
    return Place(short / "p")


def our_commands(hooks: dict) -> list[str]:
    entries = [hook for found in hooks.values() for entry in found for hook in entry["hooks"]]
    return [hook["command"] for hook in entries]


# --- Claude Code ---


def test_the_hooks_run_this_very_installation(place):
    place.install("claude")
    hooks = place.hooks()
    assert list(hooks) == ["SessionStart", "UserPromptSubmit", "Stop"]
    for line in our_commands(hooks):
        done = subprocess.run(
            ["sh", "-c", line], env={"PATH": os.environ["PATH"]}, input="{}", capture_output=True, text=True, check=True
        )
        assert (done.stdout, done.stderr) == ("", "")
        assert f"WAKEHUB_HOME={place.environ['WAKEHUB_HOME']}" in line


@pytest.mark.parametrize("before", [OWN, "{}", "", None])
def test_settings_become_again_what_they_were_byte_for_byte(place, before):
    if before is not None:
        place.settings.write_text(before)
        place.settings.chmod(0o640)
    place.install("claude")
    assert len(our_commands(place.hooks())) == 3
    if before is not None:
        assert stat.S_IMODE(place.settings.stat().st_mode) == 0o640
    place.uninstall("claude")
    assert (place.settings.read_text() if place.settings.exists() else None) == before
    assert plan_removal("claude", place.config, place.environ).changes == ()


def test_out_of_settings_that_were_changed_since_only_the_hooks_go(place):
    place.settings.write_text(OWN)
    place.install("claude")
    place.settings.write_text(place.settings.read_text().replace('"x"', '"y"'))
    place.uninstall("claude")
    assert place.settings.read_text() == OWN.replace('"x"', '"y"')


def test_to_install_again_changes_nothing(place):
    place.settings.write_text(OWN)
    place.install("claude")
    assert plan("claude", place.config, place.environ).changes == ()
    place.settings.write_text(place.settings.read_text().replace('"x"', '"y"'))
    place.install("claude")
    assert len(our_commands(place.hooks())) == 3
    place.uninstall("claude")
    assert place.settings.read_text() == OWN.replace('"x"', '"y"')


def test_what_cannot_be_read_is_left_alone(place):
    for text in ("// mine\n{}", '{"hooks": []}', '{"hooks": {"Stop": {}}}'):
        place.settings.write_text(text)
        with pytest.raises(BadData):
            plan("claude", place.config, place.environ)
        assert place.settings.read_text() == text


def test_a_link_stays_a_link(place, tmp_path):
    (tmp_path / "real.json").write_text("{}")
    place.settings.symlink_to(tmp_path / "real.json")
    place.install("claude")
    assert place.settings.is_symlink()
    assert len(our_commands(place.hooks())) == 3
    place.uninstall("claude")
    assert (tmp_path / "real.json").read_text() == "{}"


def test_a_change_between_showing_and_doing_is_not_overwritten(place):
    place.settings.write_text(OWN)
    made = plan("claude", place.config, place.environ)
    place.settings.write_text("{}")
    with pytest.raises(Held, match="changed meanwhile"):
        carry_out(made, place.config)
    assert place.settings.read_text() == "{}"


def test_a_session_that_is_set_to_refuse_messages_is_named(place):
    place.settings.write_text('{"crossSessionInbound": "refuse"}')
    record = {"pid": os.getpid(), "sessionId": "s1", "cwd": "/", "name": "review", "messagingSocketPath": "/none.sock"}
    (place.settings.parent / "sessions").mkdir()
    (place.settings.parent / "sessions" / f"{os.getpid()}.json").write_text(json.dumps(record))
    (note,) = plan("claude", place.config, place.environ).notes
    assert "session review" in note
    assert '"crossSessionInbound": "accept"' in note


def test_what_is_no_file_is_neither_waited_for_nor_passed_over(place):
    os.mkfifo(place.settings)
    refused_both(place, "no regular file")
    place.settings.unlink()
    place.settings.mkdir()
    refused_both(place, "")
    place.settings.rmdir()
    place.settings.symlink_to(place.settings)
    refused_both(place, "")


def refused_both(place: Place, why: str) -> None:
    for make in (plan, plan_removal):
        with pytest.raises(Unsafe, match=f"settings.json cannot be read.*{why}"):
            make("claude", place.config, place.environ)


def test_settings_that_run_no_hooks_are_named(place):
    place.settings.write_text('{"disableAllHooks": true}')
    made = plan("claude", place.config, place.environ)
    assert "no hook runs" in made.notes[0]
    assert made.next == ()
    place.settings.write_text('{"disableAllHooks": false}')
    assert plan("claude", place.config, place.environ).notes == ()


@pytest.mark.parametrize(
    ("data", "why"), [(b"\xef\xbb\xbf{}", "byte order mark"), (b'{"model": "\xe9"}', "not UTF-8, at byte 11")]
)
def test_settings_in_another_encoding_are_called_that(place, data, why):
    place.settings.write_bytes(data)
    with pytest.raises(BadData, match=why) as refused:
        plan("claude", place.config, place.environ)
    assert "save it as UTF-8" in refused.value.remedy


def test_directories_that_were_made_go_again_if_nothing_else_is_in_them(place):
    place.settings.parent.rmdir()
    place.install("claude")
    place.settings.write_text(place.settings.read_text() + "\n")
    place.install("claude")  # again, when the directory is there
    (place.settings.parent / "theirs").touch()
    place.uninstall("claude")
    assert sorted(os.listdir(place.settings.parent)) == ["settings.json", "theirs"]
    os.remove(place.settings)
    os.remove(place.settings.parent / "theirs")
    place.install("launchd")
    place.uninstall("launchd")
    assert not (place.agents.parent).exists()
    place.install("claude")
    place.uninstall("claude")
    assert place.settings.parent.exists(), "it was there before"


# --- services ---


def test_services_of_another_system_are_called_that(place):
    foreign = "systemd" if sys.platform == "darwin" else "launchd"
    assert plan(foreign, place.config, place.environ).notes == (f"this system has no {foreign}",)
    assert plan("systemd" if foreign == "launchd" else "launchd", place.config, place.environ).notes == ()


def test_the_units_name_the_real_places(place):
    place.install("systemd")
    assert sorted(os.listdir(place.units)) == UNITS
    paths = place.config.paths
    for name in UNITS:
        text = (place.units / name).read_text()
        code = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
        assert "%h" not in code
        assert "%t" not in code
        assert f"ReadWritePaths={paths.run} {paths.state}" in code
        assert f"Environment=CONFIGURATION_DIRECTORY={paths.config_file.parent}" in code
        assert f"ExecStart={shlex.join(program())} " in code
        assert "RuntimeDirectory" not in code, "it is not below the user's own run directory"
    assert any(installed_units(place.config.paths, place.environ))


def test_the_usual_run_directory_is_left_to_systemd(place):
    run = Path(place.environ["HOME"]) / "wakehub"
    found = place.config._replace(paths=place.config.paths._replace(run=run))
    made = plan("systemd", found, place.environ | {"XDG_RUNTIME_DIR": str(run.parent)})
    assert all(b"RuntimeDirectory=wakehub" in change.after for change in made.changes)


def test_the_agents_name_the_real_places(place):
    place.install("launchd")
    for name, verb in (("wakehub.hub", "serve"), ("wakehub.publisher", "publish")):
        found = plistlib.loads((place.agents / f"{name}.plist").read_bytes())
        line = found["ProgramArguments"][2]
        assert f"exec {shlex.join(program())} {verb} " in line
        assert f"CONFIGURATION_DIRECTORY={place.config.paths.config_file.parent};" in line
    place.uninstall("launchd")
    assert not place.agents.exists()


def test_units_go_again_but_not_one_that_was_changed(place):
    place.install("systemd")
    (place.units / UNITS[0]).write_text("mine now")
    (note,) = place.uninstall("systemd")
    assert "was changed since, and stays" in note
    assert os.listdir(place.units) == [UNITS[0]]


def test_a_unit_that_is_not_ours_is_never_replaced(place):
    place.units.mkdir(parents=True)
    (place.units / UNITS[1]).write_text("mine")
    with pytest.raises(Held, match="is not what wakehub wrote"):
        plan("systemd", place.config, place.environ)


def test_a_unit_that_is_switched_on_is_not_removed(place):
    place.install("systemd")
    (place.units / "default.target.wants").mkdir()
    (place.units / "default.target.wants" / UNITS[1]).symlink_to(place.units / UNITS[1])
    with pytest.raises(Held) as refused:
        plan_removal("systemd", place.config, place.environ)
    assert "disable --now" in refused.value.remedy


def test_a_path_that_means_something_in_a_unit_is_refused(place):
    strange = place.config._replace(paths=place.config.paths._replace(state=Path("/x/a b%h")))
    for target in ("systemd", "launchd"):
        with pytest.raises(Misconfigured):
            plan(target, strange, place.environ)


def test_an_up_of_the_background_is_stopped_first(place):
    words = [sys.executable, "-P", "-m", "wakehub", "send", "--as", "bob", "--to", "alice", "hello"]
    said = subprocess.run(words, env=place.environ, cwd="/", capture_output=True, text=True, check=True)
    up = live_holder(place.config.paths.lock("up"))
    assert up is not None, said.stderr
    (told,) = place.install("systemd")
    assert f"(pid {up.pid})" in told
    assert live_holder(place.config.paths.lock("up")) is None


def test_any_other_up_is_left_alone(place):
    place.install("claude")  # makes the instance
    with stand_in_for_up(place.config.paths):
        assert place.install("systemd") == []


def test_a_diff_shows_what_is_not_visible():
    made = Change(Path("/x"), b"a\n", b"a\n\x1b[2K\n").diff()
    assert "+" in made
    assert "\x1b" not in made
    assert Change(Path("/x"), b"a", None).diff().splitlines()[:2] == ["--- /x", "+++ /dev/null"]
