"""Who a project is on a channel: chosen once, kept, told apart from others, and never at the cost of a file."""

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from wakehub.errors import CannotCreate, Held, Misconfigured, Unsafe
from wakehub.intercom import identity
from wakehub.intercom.channels import Channel
from wakehub.intercom.identity import ROSTER, Identity, settle
from wakehub.intercom.spool import Inbox


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    return made


def written(project: Path) -> dict:
    return json.loads((project / ".intercom" / "session.json").read_bytes())


# --- one project, one id ---


def test_the_first_command_chooses_and_every_later_one_keeps(project, channel):
    first = settle(project, channel)
    assert first.is_new
    assert first.session in ROSTER
    again = settle(project, channel)
    assert again == Identity(first.session, first.token, is_new=False, is_active=False)


def test_each_channel_has_an_id_of_its_own(project, channel, base):
    with Channel.open(base, "ops") as other:
        ids = {each.name: settle(project, each).session for each in (channel, other)}
        assert {each.name: settle(project, each).session for each in (other, channel)} == ids


def test_a_second_project_avoids_ids_that_are_connected_or_have_mail(tmp_path, channel):
    free = ROSTER[7]
    channel.write_peers(1, ROSTER[:4])
    for name in ROSTER[4:]:
        if name != free:
            (channel.path / f"inbox_{name}.ndjson").touch()
    for number in (1, 2):
        (tmp_path / f"p{number}").mkdir()
    assert settle(tmp_path / "p1", channel).session == free
    second = settle(tmp_path / "p2", channel).session
    assert second.endswith("-2")
    assert second.removesuffix("-2") in ROSTER


def test_active_and_active_by_me_are_two_things(project, channel):
    own = settle(project, channel)
    channel.write_peers(1, [own.session])
    here = settle(project, channel)
    assert (here.session, here.is_active) == (own.session, True)
    stolen = {"offset": 0, "owner": identity.mark("another token")}
    channel.replace(f"offset_{own.session}.json", stolen)
    moved_on = settle(project, channel)
    assert moved_on.session != own.session
    assert moved_on.replaced == own.session
    assert "another owner" in moved_on.why


def test_a_mark_that_another_tool_wrote_over_is_set_again(project, channel):
    own = settle(project, channel)
    (channel.path / f"offset_{own.session}.json").write_text('{"offset": 7, "updated_at": "2026-11-30T00:00:00+00:00"}')
    assert settle(project, channel).session == own.session
    found = Inbox(channel, own.session).document()
    assert (found["owner"], found["offset"]) == (identity.mark(own.token), 7)


def test_a_new_id_can_be_asked_for(project, channel):
    first = settle(project, channel)
    second = settle(project, channel, force_new=True)
    assert second.session != first.session
    assert (second.is_new, second.replaced) == (True, first.session)
    assert settle(project, channel).session == second.session


def test_the_token_is_told_to_nobody(project, channel):
    own = settle(project, channel)
    assert own.token not in repr(own)
    assert own.token.encode() not in b"".join(path.read_bytes() for path in channel.path.iterdir())


def test_of_many_first_commands_one_chooses(project, channel):
    barrier, ids, errors = threading.Barrier(12), set(), []

    def first() -> None:
        barrier.wait()
        try:
            ids.add(settle(project, channel).session)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=first) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(ids) == 1


def test_of_many_projects_no_two_get_one_name(tmp_path, channel, monkeypatch):
    monkeypatch.setattr(identity, "ROSTER", ("nova", "wren"))
    projects = [tmp_path / f"p{number}" for number in range(12)]
    barrier, ids = threading.Barrier(12), []

    def first(project: Path) -> None:
        project.mkdir()
        barrier.wait()
        ids.append(settle(project, channel).session)

    threads = [threading.Thread(target=first, args=(project,)) for project in projects]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 12


# --- moved and copied ---


def test_a_copied_project_is_another_one(project, channel, tmp_path):
    own = settle(project, channel)
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-R", str(project), str(copy)], check=True)
    copied = settle(copy, channel)
    assert copied.session != own.session
    assert copied.token != own.token
    assert str(project) in copied.why
    assert settle(project, channel).session == own.session


def test_a_moved_project_keeps_its_id(project, channel, tmp_path):
    own = settle(project, channel)
    subprocess.run(["cp", "-R", str(project), str(tmp_path / "elsewhere")], check=True)  # as across file systems
    subprocess.run(["rm", "-r", str(project)], check=True)
    assert settle(tmp_path / "elsewhere", channel).session == own.session


# --- the file ---


def test_the_file_is_private_and_holds_what_others_put_there(project, channel):
    (project / ".intercom").mkdir()
    (project / ".intercom" / "session.json").write_text('{"theirs": [1.5, null], "channels": {"other": {"x": 1}}}')
    own = settle(project, channel)
    found = written(project)
    assert (found["theirs"], found["channels"]["other"]) == ([1.5, None], {"x": 1})
    assert found["channels"]["room"]["session"] == own.session
    assert stat.S_IMODE((project / ".intercom" / "session.json").stat().st_mode) == 0o600
    assert [path.name for path in (project / ".intercom").iterdir()] == ["session.json"]


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"null",
        b"[" * 60_000,
        b'{"channels": []}',
        b'{"channels": {"room": null}}',
        b'{"channels": {"room": {"session": "nova"}}}',
        b'{"channels": {"room": {"session": 7, "token": "", "since": "", "project": "", "device": 1, "inode": 1}}}',
        b'{"channels": {"room": {"session": "../x", "token": "", "since": "", "project": "", "device": 1,"inode":1}}}',
        b'{"channels": {"room": {"session": "a", "token":"","since": "", "project": "", "device": 1, "inode": true}}}',
        b'{"channels": {"room": {"session": "a", "token": "\\ud800", "since": "", "project": "", "device": 1, '
        b'"inode": 1}}}',
    ],
)
def test_a_damaged_file_is_said_and_left_as_it_is(project, channel, damage):
    """F43 among them: an id that is a path is refused before any file call."""
    path = project / ".intercom" / "session.json"
    path.parent.mkdir()
    path.write_bytes(damage)
    with pytest.raises(Misconfigured, match=r"session\.json cannot be understood") as refused:
        settle(project, channel)
    assert "mv " in refused.value.remedy
    assert path.read_bytes() == damage
    assert list(channel.path.iterdir()) == []


def test_what_follows_the_advice_gets_a_new_id(tmp_path, channel):
    """As a shell takes it, whatever is in the project's name."""
    project = tmp_path / "it's a $project"
    path = project / ".intercom" / "session.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"{")
    with pytest.raises(Misconfigured) as refused:
        settle(project, channel)
    (move,) = (part for part in refused.value.remedy.split(": ") if part.startswith("mv "))
    subprocess.run(["sh", "-c", move.split(";")[0]], check=True)
    assert settle(project, channel).is_new
    assert path.with_name("session.json.bad").read_bytes() == b"{"


def test_links_and_what_is_no_file_are_not_followed(project, channel, tmp_path):
    """F58."""
    directory = project / ".intercom"
    directory.mkdir()
    target = tmp_path / "target"
    target.write_text("{}")
    for make in (
        lambda path: path.symlink_to(target),
        lambda path: os.mkfifo(path),
        lambda path: path.mkdir(),
    ):
        path = directory / "session.json"
        make(path)
        with pytest.raises(Unsafe, match=r"session\.json"):
            settle(project, channel)
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    directory.rmdir()
    directory.symlink_to(tmp_path / "channel")
    with pytest.raises(Unsafe, match="symbolic link"):
        settle(project, channel)
    assert target.read_text() == "{}"
    assert list(channel.path.iterdir()) == []


@pytest.mark.parametrize("what", [".intercom", ".intercom/session.json"])
def test_what_others_could_write_is_refused_and_not_mended(project, channel, what):
    """F53."""
    settle(project, channel)
    (project / what).chmod(0o777)
    with pytest.raises(Unsafe, match="0777") as refused:
        settle(project, channel)
    assert refused.value.remedy.startswith("chmod")
    assert stat.S_IMODE((project / what).stat().st_mode) == 0o777


def test_a_project_that_is_none_is_named(tmp_path, channel):
    with pytest.raises(Misconfigured, match="--project-dir"):
        settle(tmp_path / "nowhere", channel)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_project_that_may_not_be_written_is_named(project, channel):
    project.chmod(0o500)
    with pytest.raises(CannotCreate, match=r"\.intercom"):
        settle(project, channel)


def test_a_file_that_cannot_be_written_is_as_it_was(project, channel, base):
    """F63: no room for the new one."""
    own = settle(project, channel)
    before = (project / ".intercom" / "session.json").read_bytes()
    script = f"""
import resource, signal
from pathlib import Path
from wakehub.errors import CannotCreate
from wakehub.intercom.channels import Channel
from wakehub.intercom.identity import settle
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with Channel.open(Path({str(base)!r}), "ops") as channel:
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
    try:
        settle(Path({str(project)!r}), channel)
    except CannotCreate as error:
        print(error.what)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "session.json" in done.stdout
    assert (project / ".intercom" / "session.json").read_bytes() == before
    assert [path.name for path in (project / ".intercom").iterdir()] == ["session.json"]
    assert settle(project, channel).session == own.session


def test_a_directory_that_stays_locked_is_said(project, channel, monkeypatch):
    settle(project, channel)
    monkeypatch.setattr(identity, "MESH_PROJECT_LOCK_MS", 0)
    with identity._opened(project), pytest.raises(Held, match="locked"):
        settle(project, channel)
