"""What `wakehub doctor` finds, and that it never says "fine" when it is not (faults F9, F28, F62,
F65, F66, F68, F77, F84)."""

import contextlib
import json
import os
import re
import resource
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_process import Daemon, environment, started, until

from wakehub import __version__, files, locks
from wakehub.client.home import ensure_agent, ensure_home
from wakehub.config import Config
from wakehub.errors import Exit, Unsafe
from wakehub.identity import enrolment
from wakehub.identity.allowlist import sign
from wakehub.identity.delegation import Bundle
from wakehub.identity.owner import load_owner, read_registry
from wakehub.identity.registry import to_allowlist
from wakehub.inbox import filesystem
from wakehub.inbox.clock import Now
from wakehub.inbox.filesystem import Mount
from wakehub.inbox.leases import Lease
from wakehub.inbox.rows import NewRow
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.locks import Lock
from wakehub.ops import doctor
from wakehub.ops.doctor import report
from wakehub.ops.doctor.report import Diagnosis, Line
from wakehub.ops.status import survey, words
from wakehub.paths import choose
from wakehub.processes import ProcessId, boot_id, pid_namespace, start_time

MINUTE_MS = 60_000
CHECKS = [
    "round trip", "hub", "publisher", "version", "supervisor", "limits", "safety", "sockets", "record", "admission",
    "delegations", "overdue", "unheard", "leftovers",
]  # fmt: skip


@pytest.fixture
def config(short: Path) -> Config:
    """An instance that is set up, with alice; nothing runs."""
    config = Config.at(choose({"WAKEHUB_HOME": str(short)}))
    ensure_home(config, explicit=True)
    SqliteInbox.open(config.paths.record).close()
    ensure_agent(config, "alice")
    return config


def line(config: Config, check: str) -> Line:
    """What that check finds; every line that is not ok must say what to do."""
    found = doctor.examine(config).lines
    assert [each.check for each in found] == CHECKS
    assert all(each.remedy for each in found if each.mark != "ok"), found
    return next(each for each in found if each.check == check)


def marks(found: Diagnosis) -> dict[str, str]:
    return {each.check: each.mark for each in found.lines}


def publish(config: Config, now_s: float | None = None) -> None:
    allowlist = to_allowlist(read_registry(config.paths), now_s or time.time())
    files.replace(config.allowlist, sign(allowlist, load_owner(config.paths)))


def wakehub(config: Config, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "wakehub", *words]
    return subprocess.run(
        command, env=environment(config.paths.config_file.parent), capture_output=True, text=True, check=False
    )


def contents(directory: Path) -> dict[str, tuple[int, int]]:
    """Every file; of the directories SQLite's log, which comes and goes with a reader, moves the time."""
    there = [path for path in sorted(directory.rglob("*")) if not path.is_dir()]
    return {str(path): (path.lstat().st_ino, path.lstat().st_mtime_ns) for path in there}


# --- all is well ---


def test_a_healthy_instance(running: Config) -> None:
    found = doctor.examine(running)
    assert marks(found) == dict.fromkeys(CHECKS, "ok"), found.to_text()
    assert found.exit(fail_on_warn=True) is Exit.DONE
    assert found.trip is not None
    assert found.trip.arrived


def test_at_most_fifteen_lines_each_with_its_mark_and_what_it_rests_on(running: Config) -> None:
    lines = doctor.examine(running).to_text().splitlines()
    assert len(lines) <= 15
    assert all(re.fullmatch(r"[✓!✗] [a-z ]+: .+ \((measured|configured)\)", text) for text in lines[:-1])
    assert lines[-1] == "✓ nothing found"
    for leg in ("row", "poke", "wake", "hand-off", "acknowledgement"):
        assert re.search(rf"{leg} \d+\.\d ms", lines[0])


def test_the_command_and_its_json(running: Config) -> None:
    said = wakehub(running, "doctor", "--json", "--fail-on-warn")
    assert (said.returncode, said.stderr) == (0, "")
    told = json.loads(said.stdout)
    assert tuple(told) == report.JSON_KEYS
    assert told["healthy"] is True
    assert list(told["round_trip"]["legs"]) == ["row", "poke", "wake", "hand-off", "acknowledgement"]
    assert [check["check"] for check in told["checks"]] == CHECKS
    assert {check["basis"] for check in told["checks"]} <= {"measured", "configured"}
    assert wakehub(running, "doctor").stdout.count("\n") <= 15


# --- the wake path is stopped, and the socket still answers (F84) ---


@contextlib.contextmanager
def stopped(config: Config, lock: str) -> Iterator[None]:
    """SIGSTOP the holder of that lock meanwhile, and wait until messages arrive again afterwards."""
    holder = locks.live_holder(config.paths.lock(lock))
    assert holder is not None
    os.kill(holder.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(holder.pid, signal.SIGCONT)
    until(lambda: doctor.examine(config).exit(fail_on_warn=True) is Exit.DONE, "all is well again")


def test_a_stopped_publisher_fails_although_both_sockets_take_connections(running: Config) -> None:
    with stopped(running, "publish"):
        found = doctor.examine(running)
    assert found.exit() is Exit.FAILED
    assert {check for check, mark in marks(found).items() if mark == "critical"} == {"round trip", "publisher"}
    assert marks(found)["hub"] == "ok"
    assert "stopped at poke" in found.to_text()
    assert "✗ 2 critical, 0 to look at" in found.to_text()


def test_a_stopped_hub_is_not_called_absent(running: Config) -> None:
    with stopped(running, "hub"):
        said = wakehub(running, "doctor")
        health = wakehub(running, "--health")
    assert said.returncode == 1
    assert "✗ round trip" in said.stdout
    assert "✗ hub: timeout" in said.stdout
    assert health.returncode == 2
    for text in (said.stdout, health.stdout):
        assert re.search(r"the hub, pid \d+, is stopped", text)
        assert "not running" not in text


def test_a_hub_without_a_publisher(config: Config) -> None:
    with Daemon(config.paths.config_file.parent, "serve") as hub:
        hub.logs("hub ready")
        enrolment.enroll_doctor(config.paths, time.time())
        publish(config)
        found = doctor.examine(config)
    assert found.exit() is Exit.FAILED
    assert {"round trip", "publisher"} <= {check for check, mark in marks(found).items() if mark == "critical"}
    assert marks(found)["hub"] == "ok"
    assert marks(found)["supervisor"] == "warning"
    assert "nobody starts it again" in found.to_text()


def test_a_hub_that_admits_nobody(config: Config) -> None:
    """Everything answers, and nobody gets in: the allowlist is stale, and signed by nobody any more."""
    with Daemon(config.paths.config_file.parent, "serve") as hub:
        hub.logs("hub ready")
        enrolment.enroll_doctor(config.paths, time.time())
        publish(config, time.time() - 61)
        found = doctor.examine(config)
    assert {"round trip", "admission"} <= {check for check, mark in marks(found).items() if mark == "critical"}
    assert "the allowlist is stale" in found.to_text()


def test_without_an_identity_the_round_trip_is_not_called_measured(config: Config) -> None:
    config.paths.owner_key.unlink()
    with Daemon(config.paths.config_file.parent, "serve") as hub:
        hub.logs("hub ready")
        found = line(config, "round trip")
    assert (found.mark, found.basis) == ("warning", "configured")
    assert found.detail.startswith("not measured: ")


def test_a_record_that_takes_no_row_is_critical(config: Config) -> None:
    """As on a full disk: no file can grow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Daemon(config.paths.config_file.parent, "serve") as hub, SqliteInbox.open(config.paths.record):
        hub.logs("hub ready")
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
        try:
            found = line(config, "round trip")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (found.mark, found.basis) == ("critical", "measured")
    assert found.detail.startswith("no message arrives: stopped at row: ")
    assert "free space" in found.remedy


def test_one_cause_is_said_once(config: Config) -> None:
    """A registry that cannot be used is met by the round trip and the admission."""
    with Daemon(config.paths.config_file.parent, "serve") as hub:
        hub.logs("hub ready")
        config.paths.audit.chmod(0o644)
        found = doctor.examine(config)
    lines = {each.check: each for each in found.lines}
    assert f"{config.paths.audit} has mode 0644" in lines["round trip"].detail
    assert lines["admission"].detail == "not checked, see round trip"
    assert found.to_text().count("chmod 600") == 1


def test_a_remedy_that_is_long_is_told_once_to_people_and_each_time_to_programs(config: Config) -> None:
    found = doctor.examine(config)
    remedies = [each.remedy for each in found.lines if each.check in ("round trip", "hub", "publisher")]
    assert len(set(remedies)) == 1
    assert found.to_text().count(remedies[0]) == 1
    assert found.to_text().count("next: as for round trip") >= 2


# --- nothing is there ---


def test_a_machine_without_an_instance(short: Path) -> None:
    config = Config.at(choose({"WAKEHUB_HOME": str(short / "home")}))
    found = doctor.examine(config)
    assert found.exit() is Exit.FAILED
    assert marks(found) == dict.fromkeys(CHECKS, "critical") | {
        "version": "ok", "supervisor": "warning", "limits": "warning", "safety": "ok", "sockets": "ok",
        "delegations": "ok", "overdue": "ok",
        "unheard": "ok", "leftovers": "ok",
    }  # fmt: skip
    assert list(short.iterdir()) == []
    assert wakehub(config, "doctor").returncode == 1


def test_nothing_is_changed_where_no_message_can_go(config: Config) -> None:
    home = config.paths.config_file.parent
    before = contents(home)
    doctor.examine(config)
    assert contents(home) == before


def test_a_configuration_that_cannot_be_read(config: Config) -> None:
    config.paths.config_file.chmod(0o644)
    said = wakehub(config, "doctor")
    assert said.returncode == 1
    assert said.stdout.startswith("✗ configuration: ")
    found = doctor.unreadable(Unsafe("config.toml has mode 0644", remedy="chmod 600"))
    assert tuple(json.loads(json.dumps(found.to_json()))) == report.JSON_KEYS
    assert found.exit() is Exit.FAILED


# --- versions (F66) ---

OLD = (
    "import wakehub; wakehub.__version__ = '0.0.1'\n"
    "import sys; from wakehub.cli import run; raise SystemExit(run(sys.argv[1:]))\n"
)


def test_a_daemon_of_another_version_needs_a_restart(config: Config) -> None:
    home = config.paths.config_file.parent
    with Daemon(home, argv=[sys.executable, "-c", OLD, "serve"]) as hub, Daemon(home, "publish") as publisher:
        hub.logs("hub ready")
        publisher.logs("publisher ready")
        found = line(config, "version")
    assert (found.mark, found.basis) == ("warning", "measured")
    assert "hub runs 0.0.1" in found.detail
    assert f"{__version__} is installed: restart needed" in found.detail
    assert "publisher" not in found.detail


def test_a_publisher_of_another_version_needs_a_restart(config: Config) -> None:
    with Daemon(config.paths.config_file.parent, argv=[sys.executable, "-c", OLD, "publish"]) as publisher:
        publisher.logs("publisher ready")
        found = line(config, "version")
    assert (found.mark, "publisher runs 0.0.1" in found.detail) == ("warning", True)


# --- limits ---


def test_a_hub_that_is_nearly_full(config: Config) -> None:
    home = config.paths.config_file.parent
    other = config.changed(hub_id="other")  # to which no message is sent
    with Daemon(home, "serve", "--max-connections", "8") as hub, contextlib.ExitStack() as opened:
        hub.logs("hub ready")

        def connect(count: int) -> None:
            for _ in range(count):
                opened.enter_context(socket.socket(socket.AF_UNIX)).connect(str(config.hub_socket))

        assert line(other, "limits").mark == "warning"  # fewer than the configured 256
        connect(7)
        found = until(lambda: "7 of 8 connections" in (found := line(other, "limits")).detail and found, "7 of 8")
        assert found.mark == "warning"
        connect(1)
        found = until(lambda: "8 of 8 connections" in (found := line(other, "limits")).detail and found, "8 of 8")
        assert found.mark == "critical"
        assert "max_connections" in found.remedy


def test_a_hub_that_tells_nothing_of_its_limits_is_not_called_well(config: Config, serve: Callable[..., Path]) -> None:
    """As one of another version may be."""
    stats = serve(lambda connection: connection.sendall(b'wakehub_build_info{version="9.0"} 1\n# EOF\n'))
    found = doctor.examine(config.changed(stats_socket=stats)).lines
    by_check = {each.check: each for each in found}
    assert by_check["limits"].mark == "warning"
    assert "hub runs 9.0" in by_check["version"].detail


@pytest.mark.parametrize("check", ["limits", "supervisor"])
def test_what_a_hub_that_does_not_run_would_tell_is_not_called_well(config: Config, check: str) -> None:
    """That it does not run is said once, by its own line."""
    found = line(config, check)
    assert (found.mark, found.basis, found.detail) == ("warning", "configured", "not checked, see hub")


# --- places ---


def test_an_open_directory_is_critical(config: Config) -> None:
    config.paths.keys.chmod(0o755)
    found = line(config, "safety")
    assert found.mark == "critical"
    assert "0755" in found.detail
    assert f"chmod 700 {config.paths.keys}" in found.remedy


def test_a_key_of_an_agent_that_is_none_is_worth_a_look(config: Config) -> None:
    enrolment.enroll(config.paths, "alice", config.hub_id, time.time())
    path = config.paths.agent_key("alice")
    path.write_bytes(b"")
    found = line(config, "safety")
    assert (found.mark, found.detail.startswith(f"{path} is not a key file")) == ("warning", True)
    assert found.remedy == f"restore it, or make another key: rm {path} && wakehub enroll alice"


def test_a_parent_that_others_write_to_is_worth_a_look(config: Config, tmp_path: Path) -> None:
    """As WSLg's runtime directory is (F54): path, mode, reason, and another place."""
    others = tmp_path / "others"
    others.mkdir()
    others.chmod(0o777)
    (others / "thing").touch()
    inner = others / "inner"
    inner.mkdir(mode=0o700)
    found = line(Config.at(choose({"WAKEHUB_HOME": str(inner)})), "safety")
    assert found.mark == "warning"
    assert all(part in found.detail for part in (str(others), "0777", "move away"))
    assert "WAKEHUB_HOME=" in found.remedy


def test_a_home_that_others_write_to_is_closed(config: Config, short: Path) -> None:
    short.chmod(0o777)
    found = line(config, "safety")
    assert (found.mark, found.remedy) == ("warning", f"chmod 700 {short}")
    short.chmod(0o700)
    assert line(config, "safety").mark == "ok"


def test_sockets_and_record_on_a_shared_file_system(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "_mounts", lambda: [Mount("/", "virtiofs")])
    for check in ("sockets", "record"):
        found = line(config, check)
        assert found.mark == "critical"
        assert "virtiofs" in found.detail


def test_mounts_that_cannot_be_read_are_not_called_good(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "_mounts", list)
    assert line(config, "sockets").mark == "warning"


def test_a_directory_too_long_for_sockets(config: Config, short: Path) -> None:
    found = line(config.changed(hub_socket=short / ("x" * 90) / "hub.sock"), "sockets")
    assert found.mark == "critical"
    assert "87" in found.detail


# --- the record and the registry ---


def test_a_damaged_record_is_told_apart_from_a_busy_or_missing_one(config: Config) -> None:
    data = bytearray(config.paths.record.read_bytes())
    data[4096:8192] = bytes(4096)
    config.paths.record.write_bytes(data)
    found = line(config, "record")
    assert found.mark == "critical"
    assert "damaged" in found.detail
    before = config.paths.record.read_bytes()
    assert config.paths.record.read_bytes() == before
    config.paths.record.write_bytes(b"x" * 8192)
    assert "damaged" in line(config, "record").detail
    config.paths.record.unlink()
    assert "there is no record" in line(config, "record").detail
    assert not config.paths.record.exists()


def test_a_registry_that_is_not_proven(config: Config) -> None:
    publish(config)
    assert line(config, "admission").mark == "ok"
    with config.paths.audit.open("ab") as chain:
        chain.write(b'{"n":')
    assert line(config, "admission").mark == "warning"
    lines = config.paths.audit.read_bytes().splitlines(keepends=True)
    config.paths.audit.write_bytes(b"".join([lines[0], *lines[2:-1]]))
    assert line(config, "admission").mark == "critical"


def test_an_empty_registry_proves_nothing(config: Config) -> None:
    publish(config)
    config.paths.audit.write_bytes(b"")
    found = line(config, "admission")
    assert found.mark == "critical"
    assert f"{config.paths.audit} is broken at line 1" in found.detail
    assert "backup" in found.remedy


def test_a_publisher_that_runs_and_does_not_sign_is_not_to_be_started(config: Config) -> None:
    publish(config, time.time() - 61)
    assert "wakehub up" in line(config, "admission").remedy
    with Lock.acquire(config.paths.lock("publish"), what="a publisher"):
        remedy = line(config, "admission").remedy
    assert remedy.startswith(f"wait: the publisher, pid {os.getpid()}, signs it anew within 20 s; why, if it does not")
    assert "wakehub up" not in remedy


@pytest.mark.parametrize("age_s", [61, -120])  # far beyond 30 s ahead, however slow the machine
def test_an_allowlist_that_is_old_or_from_the_future(config: Config, age_s: float) -> None:
    publish(config, time.time() - age_s)
    found = line(config, "admission")
    assert found.mark == "critical"
    assert "nobody is admitted" in found.detail


# --- delegations ---


def give_bundle(config: Config, *, ttl_s: int, began_s: float = 0.0, hub_id: str = "wakehub") -> None:
    pair = ensure_agent(config, "alice").pair
    Bundle.make("alice", pair, hub_id, time.time() + began_s, ttl_s).write(config.paths.bundle("alice"))


@pytest.mark.parametrize(
    ("bundle", "said"),
    [
        ({"ttl_s": 300}, "ends in "),
        ({"ttl_s": 60, "began_s": -3600}, "the delegation ended at"),
        ({"ttl_s": 3600, "began_s": 900}, "this clock is behind"),
        ({"ttl_s": 3600, "began_s": -1800}, "older than the enrolment"),
        ({"ttl_s": 3600, "hub_id": "other"}, "for hub other"),
    ],
)
def test_a_bundle_that_admits_nobody_or_soon_will_not(config: Config, bundle: dict[str, object], said: str) -> None:
    publish(config)
    give_bundle(config, **bundle)  # type: ignore[arg-type]
    found = line(config, "delegations")
    assert found.mark == "warning"
    assert said in found.detail


def test_a_bundle_that_is_good_for_a_while(config: Config) -> None:
    publish(config)
    give_bundle(config, ttl_s=3600)
    assert line(config, "delegations").detail.startswith("1 given out")
    publish(config, time.time() - 61)
    assert line(config, "delegations").mark == "ok", "that nobody is admitted is said once"


def test_a_bundle_of_an_agent_that_was_revoked(config: Config) -> None:
    give_bundle(config, ttl_s=3600)
    enrolment.revoke(config.paths, "alice", time.time())
    publish(config)
    found = line(config, "delegations")
    assert (found.mark, "does not show alice" in found.detail) == ("warning", True)
    assert "rm " in found.remedy


def test_bundles_that_are_none(config: Config) -> None:
    publish(config)
    files.replace(config.paths.bundle("alice"), b"{}")
    files.replace(config.paths.bundle("bob"), b"{}")
    found = line(config, "delegations")
    assert (found.mark, found.detail.endswith("1 more")) == ("warning", True)


# --- leftovers ---


def age_by(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2, follow_symlinks=False)


@pytest.mark.parametrize(
    "name", ["run/hub.sock~", "run/.0123456789abcdef~", "state/.record.db.00~", "state/.record.db.00~-wal", "keys/.ab~"]
)
def test_temporary_files_of_dead_processes(config: Config, name: str) -> None:
    path = config.paths.config_file.parent / name
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path)) if name.endswith("sock~") else path.touch(0o600)
        assert line(config, "leftovers").mark == "ok", "it may be in use"
        age_by(path, 61)
        found = line(config, "leftovers")
    assert (found.mark, found.remedy) == ("warning", f"rm {shlex.quote(str(path))}")
    assert path.exists(), "it is for a person to remove"


def test_a_name_that_a_shell_would_misread_is_quoted(config: Config) -> None:
    path = config.paths.run / ".x; touch y~"
    path.touch(0o600)
    age_by(path, 61)
    assert line(config, "leftovers").remedy == f"rm '{path}'"


def test_a_set_up_that_was_interrupted(config: Config) -> None:
    (config.paths.state / "init.unfinished").touch(0o600)
    config.paths.lock("init").write_text("")  # this process, which ran it, is alive
    found = line(config, "leftovers")
    assert (found.mark, found.remedy) == ("warning", "wakehub init")
    with Lock.acquire(config.paths.lock("init"), what="init"):
        assert line(config, "leftovers").mark == "ok", "it is at work"


def test_fail_on_warn(config: Config) -> None:
    found = doctor.examine(config)
    well = replace(found, lines=tuple(each for each in found.lines if each.mark == "ok"))
    warned = replace(found, lines=(*well.lines, Line("x", "warning", "y", "z")))
    assert (well.exit(), well.exit(fail_on_warn=True)) == (Exit.DONE, Exit.DONE)
    assert (warned.exit(), warned.exit(fail_on_warn=True)) == (Exit.DONE, Exit.FAILED)
    assert warned.to_text().splitlines()[-2:] == ["! x: y (measured) · next: z", "! 0 critical, 1 to look at"]


# --- what waits (F9, F28) ---


@pytest.fixture
def inbox(config: Config) -> Iterator[SqliteInbox]:
    with SqliteInbox.open(config.paths.record) as opened:
        yield opened


def put(inbox: SqliteInbox, to: str, minutes_ago: float) -> None:
    inbox.append(NewRow("bob", to, b"hello"), Now.read().later(round(-minutes_ago * MINUTE_MS)))


def listen(inbox: SqliteInbox, name: str, minutes_ago: float, process: ProcessId | None = None) -> Lease:
    """Hold the name since then, renewed just now."""
    began = Now.read().later(round(-minutes_ago * MINUTE_MS))
    lease = inbox.leases.acquire([name], process or ProcessId.own(), name, began)
    assert isinstance(lease, Lease)
    inbox.leases.renew(lease.token, Now.read())
    return lease


@pytest.mark.parametrize(
    ("stored", "held", "mark"),
    [(21, 60, "critical"), (19, 60, "ok"), (60, 19, "ok"), (60, 21, "critical")],
)
def test_rows_that_a_live_listener_leaves(
    config: Config, inbox: SqliteInbox, stored: float, held: float, mark: str
) -> None:
    put(inbox, "alice", stored)
    listen(inbox, "alice", held)
    found = line(config, "overdue")
    assert found.mark == mark
    assert (f"pid {os.getpid()}" in found.detail) == (mark == "critical")
    assert line(config, "unheard").mark == "ok"


@pytest.mark.parametrize("in_hand", [False, True])
def test_rows_under_a_namespace_that_is_held(config: Config, inbox: SqliteInbox, in_hand: bool) -> None:
    """A relay leaves those of an agent without a session alone; only what it has in hand can be overdue."""
    put(inbox, "acme/ops", 30)
    lease = listen(inbox, "acme/", 30)
    (row,) = inbox.unread("acme/ops")
    if in_hand:
        assert inbox.claim(row.id, lease.token, Now.read()) is not None
    found = line(config, "overdue")
    assert found.mark == ("critical" if in_hand else "ok")
    assert ("acme/ops" in found.detail) == in_hand
    assert line(config, "unheard").mark == "ok"


def test_rows_that_a_listener_tries_in_vain_are_not_put_down_to_one_that_hangs(
    config: Config, inbox: SqliteInbox
) -> None:
    put(inbox, "alice", 30)
    lease = listen(inbox, "alice", 30)
    (row,) = inbox.unread("alice")
    for _ in range(3):
        now = Now.read()
        assert inbox.claim(row.id, lease.token, now)
        inbox.attempt_failed(row.id, lease.token, "the hook is busy (exit 75)", now.ms, now, busy=True)
    found = line(config, "overdue")
    assert (found.mark, found.remedy) == ("critical", f"wakehub why {row.id}")
    assert found.detail.endswith("the hook is busy (exit 75)")
    (name,) = [box for box in survey(config).troubled if box.name == "alice"]
    assert words(name, Now.read())[0] == f"OVERDUE: pid {os.getpid()} tries in vain; next: wakehub why {row.id}"


def test_rows_of_an_agent_that_is_not_there_are_named_with_the_reason(config: Config, inbox: SqliteInbox) -> None:
    put(inbox, "acme/ops", 30)
    lease = listen(inbox, "acme/", 30)
    (row_id,) = inbox.leave("acme/ops", lease.token, "no session called ops is running", Now.read())
    found = line(config, "overdue")
    assert (found.mark, found.remedy) == ("warning", f"wakehub why {row_id}")
    assert found.detail == "1 unread for acme/ops: no session called ops is running"


def test_a_session_that_is_set_to_hold_messages_is_worth_a_look(config: Config, no_sessions: Path) -> None:
    (no_sessions / "sessions").mkdir(parents=True)
    record = {"pid": os.getpid(), "sessionId": "s", "name": "review", "messagingSocketPath": "/s"}
    (no_sessions / "sessions" / f"{os.getpid()}.json").write_text(json.dumps(record))
    assert line(config, "overdue").mark == "ok"
    (no_sessions / "settings.json").write_text('{"crossSessionInbound": "hold"}')
    found = line(config, "overdue")
    assert (found.mark, found.basis) == ("warning", "configured")
    assert f"session review (pid {os.getpid()}) is set to hold messages" in found.detail
    assert '"crossSessionInbound": "accept"' in found.remedy


def dead_process() -> ProcessId:
    with started([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        return ProcessId(child.pid, start_time(child.pid) or "", boot_id(), pid_namespace())


@pytest.mark.parametrize("sweep", [False, True])
def test_rows_of_a_listener_that_died(config: Config, inbox: SqliteInbox, sweep: bool) -> None:
    put(inbox, "alice", 0)
    process = dead_process()
    listen(inbox, "alice", 60, process)
    if sweep:
        inbox.leases.sweep(Now.read())
    found = line(config, "unheard")
    assert found.mark == "critical"
    assert all(part in found.detail for part in ("1 unread for alice", f"pid {process.pid}", "died"))
    assert found.remedy == "wakehub listen --as alice"
    assert (line(config, "leftovers").mark == "ok") == sweep


def test_a_dead_listener_without_rows_is_no_trouble(config: Config, inbox: SqliteInbox) -> None:
    listen(inbox, "alice", 60, dead_process())
    inbox.leases.sweep(Now.read())
    assert line(config, "unheard").mark == "ok"


@pytest.mark.parametrize(("minutes", "mark"), [(1, "ok"), (21, "warning")])
def test_rows_for_a_name_that_nobody_holds(config: Config, inbox: SqliteInbox, minutes: float, mark: str) -> None:
    lease = listen(inbox, "alice", 60)
    inbox.leases.release(lease.token, Now.read())
    put(inbox, "alice", minutes)
    put(inbox, "carol", minutes)
    found = line(config, "unheard")
    assert found.mark == mark
    assert ("2 message(s) wait" in found.detail) == (mark == "ok")
    assert ("1 more such names" in found.detail) == (mark == "warning")


# --- what others wrote ---


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir])
def test_names_of_files_cannot_reach_the_terminal(config: Config, make: Callable[[Path], None]) -> None:
    path = config.paths.run / ".\x1b[2J\u202e~"
    make(path)
    age_by(path, 61)
    assert "\x1b" not in doctor.examine(config).to_text()
    assert "\u202e" not in doctor.examine(config).to_text()
