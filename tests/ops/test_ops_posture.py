"""`--posture` says what is unsafe and whom it admits, and changes nothing (faults F53, F54)."""

import json
import os
import resource
import shutil
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from daemon_process import started

from wakehub import files
from wakehub.cli import run
from wakehub.client.home import ensure_home
from wakehub.config import Config, load
from wakehub.errors import Exit, Unsafe
from wakehub.identity import enrolment
from wakehub.identity.allowlist import sign
from wakehub.identity.audit import AuditLog
from wakehub.identity.initialisation import init_owner
from wakehub.identity.keys import KeyPair, key_document
from wakehub.identity.owner import load_owner, read_registry, unfinished_mark
from wakehub.identity.registry import to_allowlist
from wakehub.locks import Lock
from wakehub.ops import doctor, health, posture
from wakehub.ops.status import survey
from wakehub.paths import choose


@pytest.fixture
def config(short: Path) -> Config:
    return Config.at(choose({"WAKEHUB_HOME": str(short / "home")}))


@pytest.fixture
def made(config: Config) -> Config:
    """An instance that is set up, with one agent."""
    ensure_home(config, explicit=True)
    enrolment.enroll(config.paths, "alice", config.hub_id, time.time())
    return config


def publish(config: Config, *, now_s: float | None = None, owner: KeyPair | None = None) -> None:
    """Write the allowlist as the publisher would at `now_s`."""
    allowlist = to_allowlist(read_registry(config.paths), now_s or time.time())
    files.replace(config.allowlist, sign(allowlist, owner or load_owner(config.paths)))


def faults(found: posture.Posture) -> list[posture.Finding]:
    return [finding for finding in found.findings if finding.level == "fault"]


def only_fault(config: Config) -> posture.Finding:
    found = posture.examine(config)
    assert found.exit(require_admits=False) is Exit.FAILED
    assert not found.to_json()["safe"]
    (fault,) = faults(found)
    assert fault.remedy
    return fault


def contents(directory: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.lstat().st_mode, path.lstat().st_mtime_ns)
        for path in sorted([directory, *directory.rglob("*")])
    }


def test_before_anything_exists(config, short):
    found = posture.examine(config)
    assert not faults(found)
    assert found.exit(require_admits=False) is Exit.DONE
    assert found.exit(require_admits=True) is Exit.NOTHING
    assert found.facts["verifier"] == "deny_all"
    assert list(short.iterdir()) == []


def test_an_instance_without_a_publisher_is_safe_and_admits_nobody(made):
    found = posture.examine(made)
    assert not faults(found)
    assert found.facts["allowlist"]["state"] == "absent"
    assert found.exit(require_admits=True) is Exit.NOTHING
    assert "admits nobody" in found.to_text()


def test_a_published_allowlist_admits(made):
    publish(made)
    found = posture.examine(made)
    assert found.exit(require_admits=True) is Exit.DONE
    assert (found.facts["admits"], found.facts["agents"]) == (True, 1)
    assert found.facts["allowlist"]["agents"] == ["alice"]


def test_the_publisher_alone_is_nobody(config):
    ensure_home(config, explicit=True)
    publish(config)
    found = posture.examine(config)
    assert found.facts["allowlist"]["state"] == "usable"
    assert found.exit(require_admits=True) is Exit.NOTHING


def test_an_old_allowlist_admits_nobody(made):
    publish(made, now_s=time.time() - 61)
    found = posture.examine(made)
    assert found.facts["allowlist"]["state"] == "stale"
    assert found.exit(require_admits=True) is Exit.NOTHING


def test_an_allowlist_of_another_owner_admits_nobody(made):
    publish(made, owner=KeyPair.generate())
    assert posture.examine(made).facts["allowlist"]["state"] == "bad_signature"


@pytest.mark.parametrize(("content", "label"), [(b"", "unsigned"), (b"a.b.c", "unsigned"), (b"{}", "unsigned")])
def test_an_allowlist_that_is_none(made, content, label):
    files.replace(made.allowlist, content)
    assert posture.examine(made).facts["allowlist"]["state"] == label


@pytest.mark.parametrize(
    ("spoil", "said", "remedy"),
    [
        (Path.unlink, "is missing", "put audit.jsonl back from a backup"),
        (lambda audit: audit.write_bytes(b""), "is empty", "put audit.jsonl back from a backup"),
        (lambda audit: audit.write_bytes(audit.read_bytes().replace(b"alice", b"malic")), "broken at line 3", "backup"),
    ],
)
def test_a_registry_that_is_lost_or_broken_is_a_fault(made, spoil, said, remedy):
    publish(made)
    assert "✓ registry: every line is signed; 1 name(s) in it" in posture.examine(made).to_text()
    spoil(made.paths.audit)
    fault = only_fault(made)
    assert fault.check == "registry"
    assert said in fault.detail
    assert remedy in fault.remedy


def test_a_copied_home_that_works_on_the_old_one_is_a_note(made, short, monkeypatch):
    shutil.copytree(short / "home", short / "copy")
    monkeypatch.setenv("WAKEHUB_HOME", str(short / "copy"))
    found = posture.examine(load())
    assert not faults(found)
    assert f"! home: {short / 'copy'}: config.toml there names other directories: {made.paths.run}" in found.to_text()
    monkeypatch.setenv("WAKEHUB_HOME", str(short / "home"))
    assert "other directories" not in posture.examine(load()).to_text()


def test_an_unfinished_set_up_is_a_note(made):
    made.paths.audit.unlink()
    unfinished_mark(made.paths).touch(0o600)
    found = posture.examine(made)
    assert not faults(found)
    assert "! registry" in found.to_text()


def test_an_unsafe_allowlist_is_a_fault(made):
    publish(made)
    made.allowlist.chmod(0o644)
    found = posture.examine(made)
    assert {finding.check for finding in faults(found)} == {"allowlist"}, "said once"


def test_an_owner_key_that_keeps_a_publisher_from_starting_is_a_note(made):
    """It may lie elsewhere on purpose; one that is open to others is a fault, and said once."""
    publish(made)
    key = made.paths.owner_key
    seen = posture.examine(made)
    assert "owner key" not in {finding.check for finding in seen.findings}
    key.chmod(0o644)
    found = posture.examine(made)
    assert [finding.check for finding in faults(found)] == ["file"]
    assert "owner key" not in {finding.check for finding in found.findings}
    key.unlink()
    notes = [finding for finding in posture.examine(made).findings if finding.check == "owner key"]
    assert [(note.level, "no publisher can be started" in note.detail) for note in notes] == [("note", True)]


def of_another(path):
    path.write_bytes(key_document(json.loads(path.read_bytes())["agent_id"], KeyPair.generate()))


@pytest.mark.parametrize("name", ["alice", "wakehub-publisher"])
@pytest.mark.parametrize("spoil", [lambda path: path.write_bytes(b""), of_another])
def test_a_key_of_an_agent_that_is_none_is_a_note_whose_remedy_helps(made, monkeypatch, name, spoil):
    assert "agent key" not in {finding.check for finding in posture.examine(made).findings}
    path = made.paths.agent_key(name)
    spoil(path)
    (note,) = [finding for finding in posture.examine(made).findings if finding.check == "agent key"]
    assert (note.level, str(path) in note.detail) == ("note", True)
    removing, command = note.remedy.removeprefix("restore it, or make another key: ").split(" && ")
    assert removing == f"rm {path}"
    path.unlink()
    monkeypatch.setenv("WAKEHUB_HOME", str(made.paths.config_file.parent))
    assert run(command.split()[1:]) == Exit.DONE
    assert "agent key" not in {finding.check for finding in posture.examine(made).findings}


def test_a_publisher_without_a_key_is_named_by_all_who_look(made):
    owner = load_owner(made.paths)
    key = read_registry(made.paths).agents["wakehub-publisher"].key
    with AuditLog(made.paths.audit, owner.public).writing() as writer:
        writer.append(owner, "revoke", "wakehub-publisher", key.public, {}, time.time())
    (note,) = [finding for finding in posture.examine(made).findings if finding.check == "agent key"]
    assert "the key of wakehub-publisher was revoked" in note.detail
    assert note.remedy == "wakehub up"
    assert survey(made).note == f"{note.detail}; next: {note.remedy}"
    safety = next(line for line in doctor.examine(made).lines if line.check == "safety")
    assert (safety.detail, safety.remedy) == (note.detail, note.remedy)
    with Lock.acquire(made.paths.lock("publish"), what="a publisher"):
        assert f"kill {os.getpid()}, then: wakehub publish" in survey(made).note
    init_owner(made.paths, time.time())  # as that does
    assert "agent key" not in {finding.check for finding in posture.examine(made).findings}
    assert not survey(made).note


def test_a_key_that_is_not_here_may_be_meant(made):
    made.paths.agent_key("alice").unlink()
    assert "agent key" not in {finding.check for finding in posture.examine(made).findings}


@pytest.mark.parametrize("mode", [0o777, 0o750, 0o701])
@pytest.mark.parametrize("which", ["run", "state", "keys"])
def test_an_open_directory(made, which, mode):
    directory = getattr(made.paths, which)
    directory.chmod(mode)
    fault = only_fault(made)
    assert f"{mode:04o}" in fault.detail
    assert fault.remedy.startswith(f"chmod 700 {directory}, or set WAKEHUB_HOME")


def test_a_linked_directory(made, short):
    made.paths.run.rename(short / "real")
    made.paths.run.symlink_to(short / "real")
    assert "symbolic link" in only_fault(made).detail


def test_a_file_in_the_place_of_a_directory(config, short):
    (short / "home").mkdir(mode=0o700)
    config.paths.keys.touch()
    assert any("not a directory" in fault.detail for fault in faults(posture.examine(config)))


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, lambda path: path.symlink_to("/dev/null")])
def test_something_else_in_the_place_of_the_socket(made, make):
    make(made.hub_socket)
    assert "not a socket" in only_fault(made).detail


def test_an_open_socket(made):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(made.hub_socket))
        made.hub_socket.chmod(0o666)
        assert "0666" in only_fault(made).detail


@pytest.mark.parametrize("name", ["owner.key", "owner.pub", "agents/alice.key"])
def test_a_key_that_others_can_read(made, name):
    (made.paths.keys / name).chmod(0o640)
    found = faults(posture.examine(made))
    assert found
    assert all("0640" in fault.detail for fault in found)


def test_files_of_another_user(made, monkeypatch):
    """Only root could make them; so we are somebody else instead."""
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    found = faults(posture.examine(made))
    assert {"directory", "file", "key"} <= {fault.check for fault in found}
    assert all(fault.remedy for fault in found)


def test_a_parent_that_others_write_to_is_a_note(config, short):
    home = short / "home"
    home.mkdir()
    home.chmod(0o777)
    found = posture.examine(config)
    assert not faults(found)
    notes = [finding for finding in found.findings if finding.level == "note" and "0777" in finding.detail]
    assert notes
    assert all(note.remedy for note in notes)


def test_a_directory_too_long_for_sockets(short):
    config = Config.at(choose({"WAKEHUB_HOME": str(short / ("é" * 40))}))
    fault = only_fault(config)
    assert fault.check == "path length"
    assert "87" in fault.detail


def test_limits_of_the_machine(made):
    """In a process of its own, since the limit cannot be raised again."""
    script = (
        "import resource, sys, json\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)\n"
        "from wakehub.cli import run\n"
        "raise SystemExit(run(['--posture', '--json']))\n"
    )

    def look(limit: int) -> tuple[int, dict[str, object]]:
        environ = {**os.environ, "WAKEHUB_HOME": str(made.paths.config_file.parent)}
        done = subprocess.run([sys.executable, "-c", script, str(limit)], env=environ, capture_output=True, check=False)
        return done.returncode, json.loads(done.stdout)["descriptors"]

    assert look(39) == (1, {"soft": 39, "hard": 39, "ceiling": 0})
    assert look(40) == (0, {"soft": 40, "hard": 40, "ceiling": 8})


def test_a_ceiling_below_the_configured_one_is_a_note(made, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (100, 100))
    (finding,) = [finding for finding in posture.examine(made).findings if finding.check == "descriptors"]
    assert finding.level == "note"
    assert "68" in finding.detail


def test_a_kernel_without_peer_credentials(made, monkeypatch):
    def refuse(sock: socket.socket) -> None:
        raise OSError("not told")

    monkeypatch.setattr(posture.peercred, "read", refuse)
    found = posture.examine(made)
    assert found.facts["peer_credentials"] is False
    assert [fault.check for fault in faults(found)] == ["peer credentials"]


def test_the_budget_of_a_running_hub_is_its_own(made):
    assert "hub_open" not in posture.examine(made).facts["descriptors"]
    with Lock.acquire(made.paths.lock("hub"), what="a hub"):
        found = posture.examine(made).facts["descriptors"]
    if sys.platform == "linux":
        assert 0 < found["hub_open"] < found["hub_soft"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_the_ceiling_of_a_running_hub_is_its_own(made):
    script = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (42, 42))\n"
        "from wakehub.cli import run\n"
        "raise SystemExit(run(['serve']))\n"
    )
    environ = {**os.environ, "WAKEHUB_HOME": str(made.paths.config_file.parent)}
    with subprocess.Popen([sys.executable, "-c", script], env=environ, stderr=subprocess.DEVNULL) as hub:
        try:
            while health.check(made.hub_socket, made.hub_id).state != "answers":
                assert hub.poll() is None
            found = posture.examine(made)
        finally:
            hub.terminate()
    (finding,) = [finding for finding in found.findings if finding.check == "descriptors"]
    if sys.platform == "linux":  # elsewhere nobody tells the limit of another process
        assert found.facts["descriptors"]["ceiling"] == 10
        assert (finding.level, "ceiling of 10 connections in the running hub" in finding.detail) == ("note", True)


def test_a_running_hub_is_named(made):
    with Lock.acquire(made.paths.lock("hub"), what="a hub"):
        assert posture.examine(made).facts["hub"] == os.getpid()
    with Lock.acquire(made.paths.lock("up"), what="up"):
        assert posture.examine(made).facts["supervisor"] == f"wakehub up, pid {os.getpid()}"


def test_a_lock_file_of_a_dead_hub_names_nobody(made):
    with started([sys.executable, "-c", ""]) as child:
        child.wait()
    holder = {"pid": child.pid, "start": "1", "since": "2026-01-01T00:00:00Z"}
    files.replace(made.paths.lock("hub"), json.dumps(holder).encode())
    found = posture.examine(made)
    assert found.facts["hub"] is None
    assert found.facts["supervisor"] is None


def test_nothing_is_changed(made, short):
    publish(made)
    before = contents(short)
    posture.examine(made)
    assert contents(short) == before


def test_no_lock_is_tried(made):
    """A hub that starts at this very moment must not find its lock taken by a look."""
    with Lock.acquire(made.paths.lock("hub"), what="a hub"):
        content = made.paths.lock("hub").read_bytes()
        posture.examine(made)
        assert made.paths.lock("hub").read_bytes() == content


def test_the_json_has_the_documented_keys_whatever_was_found(config, made):
    publish(made)
    for found in (posture.examine(config), posture.examine(made), posture.unreadable(Unsafe("no", why="because"))):
        assert tuple(json.loads(json.dumps(found.to_json()))) == posture.JSON_KEYS


def test_an_unreadable_configuration_is_a_fault():
    found = posture.unreadable(Unsafe("config.toml has mode 0644", why="it must be exactly 0600", remedy="chmod 600"))
    assert found.exit(require_admits=True) is Exit.FAILED
    assert "NOT SAFE · admits nobody" in found.to_text()


def test_everything_made_here_is_private(made):
    """The checks above would be idle if the set-up itself left something open."""
    for path in made.paths.config_file.parent.rglob("*"):
        assert not stat.S_IMODE(path.lstat().st_mode) & 0o077
