"""`doctor --repair`: the bad file is kept, what can be read is saved, nobody is repaired under (fault F68)."""

import contextlib
import json
import os
import random
import re
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_process import PATIENCE_S, Daemon, environment, has_open, started, until

from wakehub.client.home import ensure_agent, ensure_home
from wakehub.config import Config
from wakehub.errors import Exit, Held, Misconfigured
from wakehub.identity.keys import KeyPair
from wakehub.inbox.admission import Guard
from wakehub.inbox.clock import Now
from wakehub.inbox.refusals import NoRecord
from wakehub.inbox.rows import NewRow
from wakehub.inbox.signing import signer
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.locks import Lock
from wakehub.ops import salvage
from wakehub.ops.salvage import JSON_KEYS, Repair, repair
from wakehub.paths import Paths
from wakehub.processes import ProcessId

PAGE = 4096


class World:
    """An instance whose record holds some unread rows and some that were handed off."""

    def __init__(self, config: Config) -> None:
        ensure_home(config, explicit=True)
        self.config = config
        self.record = config.paths.record
        self.pair: KeyPair = ensure_agent(config, "bob").pair
        rng = random.Random(1)
        with SqliteInbox.open(self.record, guard=Guard(pair_per_minute=1_000)) as inbox:
            rows = [
                NewRow("bob", f"agent-{number % 4}", rng.randbytes(rng.choice([20, 3_000])), signed=signer(self.pair))
                for number in range(40)
            ]
            stored = inbox.append([replace(row, media_type="application/octet-stream") for row in rows], Now.read())
            inbox.ack([row.id for row in stored[::3]], "me", None, Now.read())
        self.ids = [row.id for row in stored]
        self.unread = {row.id for number, row in enumerate(stored) if number % 3}
        self.data = self.record.read_bytes()

    @property
    def pages(self) -> range:
        return range(len(self.data) // PAGE)

    def flip(self, page: int) -> bytes:
        """Turn every bit of a page of the record; the file as it is then."""
        start = page * PAGE
        bad = bytes(byte ^ 0xFF for byte in self.data[start : start + PAGE])
        self.put(self.data[:start] + bad + self.data[start + PAGE :])
        return self.record.read_bytes()

    def flip_in_place(self, page: int) -> None:
        """The same under the eyes of those who have it open."""
        with self.record.open("r+b") as file:
            file.seek(page * PAGE)
            bad = bytes(byte ^ 0xFF for byte in file.read(PAGE))
            file.seek(page * PAGE)
            file.write(bad)

    def put(self, data: bytes) -> None:
        for path in (*self.kept(), self.record, *self.sidecars()):
            path.unlink(missing_ok=True)
        self.record.touch(0o600)
        self.record.write_bytes(data)

    def sidecars(self) -> list[Path]:
        return [self.record.with_name(self.record.name + end) for end in ("-wal", "-shm")]

    def kept(self) -> list[Path]:
        return sorted(self.record.parent.glob("record.db.bad-*"))

    def found(self) -> set[str]:
        """The ids of the rows that are unread now."""
        with SqliteInbox.open(self.record, create=False) as inbox:
            assert inbox.damage() == []
            names = [f"agent-{number}" for number in range(4)]
            return {row.id for name in names for row in inbox.unread(name, limit=1_000)}


@pytest.fixture
def config(short: Path) -> Config:
    home = short / "home"
    return Config.at(Paths(home / "run", home / "state", home / "keys", home / "config.toml"))


@pytest.fixture
def world(config: Config) -> World:
    return World(config)


def doctor(world: World, *flags: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-P", "-m", "wakehub", "doctor", *flags],
        env=environment(world.config.paths.config_file.parent),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S * 3,
    )


# --- what is repaired ---


def test_a_whole_record_is_left_alone(world: World) -> None:
    before = os.stat(world.record)
    found = repair(world.config)
    assert found == Repair("")
    assert found.exit is Exit.DONE
    assert "nothing to repair" in found.to_text()
    assert os.stat(world.record).st_mtime_ns == before.st_mtime_ns
    assert world.kept() == []


def test_every_page_in_turn(world: World) -> None:
    """Whichever page it is, it is told, kept, and nothing is missing that is not called lost."""
    some_lost = False
    for page in world.pages:
        bad = world.flip(page)
        assert salvage.damage(world.record), page
        found = repair(world.config)
        assert found.rebuilt is not None
        (kept,) = world.kept()
        assert found.kept_as == kept
        assert kept.read_bytes() == bad
        rescued = world.found()
        assert rescued <= world.unread
        assert world.unread - rescued <= set(found.rebuilt.lost), page
        assert found.rebuilt.signatures
        assert found.exit == (Exit.FAILED if found.rebuilt.lost else Exit.DONE)
        some_lost = some_lost or bool(found.rebuilt.lost)
        assert stat.S_IMODE(world.record.stat().st_mode) == stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert repair(world.config) == Repair("")
    assert some_lost


def test_damage_of_many_lines_is_told_in_one(world: World) -> None:
    """Pages that nothing leads to: SQLite finds one line for each, under a heading."""
    count = len(world.data) // PAGE + 4
    world.put(world.data[:28] + count.to_bytes(4, "big") + world.data[32:] + bytes(4 * PAGE))
    with SqliteInbox.open(world.record, create=False) as inbox:
        assert "\n" in inbox.damage()[0]
    assert re.fullmatch(
        rf"Page {count - 3}( is|:) never used", salvage.damage(world.record)
    )  # as SQLite's version says
    assert repr("\n")[1:-1] not in doctor(world, "--repair").stdout


def test_a_few_bytes_anywhere_that_are_told_are_repaired(world: World) -> None:
    rng = random.Random(5)
    for _ in range(25):
        at = rng.randrange(100, len(world.data))
        world.put(world.data[:at] + bytes([world.data[at] ^ 0xFF]) + world.data[at + 1 :])
        if not salvage.damage(world.record):
            continue  # bytes that nobody reads
        found = repair(world.config)
        assert found.rebuilt is not None
        assert world.unread - world.found() <= set(found.rebuilt.lost)


def test_what_stands_in_the_log_only_is_saved_too(world: World) -> None:
    """A process was killed before its log was written back; then pages of the file were flipped."""
    script = """if True:
        import os, signal, sys
        from pathlib import Path
        from wakehub.inbox.clock import Now
        from wakehub.inbox.sqlite import SqliteInbox
        from wakehub.inbox.rows import NewRow
        inbox = SqliteInbox.open(Path(sys.argv[1]))
        for number in range(3):
            print(inbox.append(NewRow("bob", f"late-{number}", b"late"), Now.read())[0].id, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", script, world.record], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    late = done.stdout.split()
    assert world.sidecars()[0].exists()
    for page in world.pages[2:]:  # whatever the log does not have anew
        world.flip_in_place(page)
    found = repair(world.config)
    assert found.rebuilt is not None
    with SqliteInbox.open(world.record, create=False) as inbox:
        assert [row.id for number in range(3) for row in inbox.unread(f"late-{number}")] == late


def test_the_fresh_record_is_used_on_at_once(world: World) -> None:
    world.flip(3)
    repair(world.config)
    with SqliteInbox.open(world.record) as inbox:
        (row,) = inbox.append(NewRow("bob", "agent-1", b"next", signed=signer(world.pair)), Now.read())
        assert row.rseq == inbox.watermark("agent-1")


def test_without_a_registry_digests_decide_and_it_says_so(world: World) -> None:
    world.flip(2)
    world.config.paths.audit.write_bytes(b"nonsense\n")
    found = repair(world.config)
    assert found.rebuilt is not None
    assert not found.rebuilt.signatures
    assert "signatures were not checked" in found.to_text()


@pytest.mark.parametrize("make", [bytes, random.Random(2).randbytes, lambda _: b""])
def test_where_nothing_can_be_read_it_does_not_say_that_all_is_well(world: World, make: Callable[[int], bytes]) -> None:
    bad = make(len(world.data))
    world.put(bad)
    said = doctor(world, "--repair")
    assert said.returncode == 1, said.stderr
    assert "✗ saved: 0 messages: nothing could be read; how many are lost is not known" in said.stdout
    assert "✓" not in said.stdout
    assert [path.read_bytes() for path in world.kept()] == [bad]
    assert world.found() == set()


def test_there_is_nothing_to_repair_where_there_is_no_record(world: World) -> None:
    world.record.unlink()
    with pytest.raises(NoRecord):
        repair(world.config)


def test_another_programs_database_is_not_touched(world: World) -> None:
    data = bytearray(world.data)
    data[68:72] = b"else"  # the application's id
    world.put(bytes(data))
    with pytest.raises(Misconfigured):
        repair(world.config)
    assert world.kept() == []


# --- who uses it ---


def _publisher(world: World) -> Iterator[str]:
    with Lock.acquire(world.config.paths.lock("publish"), what="a publisher"):
        yield f"pid {os.getpid()}"


def _up(world: World) -> Iterator[str]:
    with Lock.acquire(world.config.paths.lock("up"), what="wakehub up"):
        yield f"pid {os.getpid()}"


_OPENS = """if True:
    import sys
    from pathlib import Path
    from wakehub.inbox.sqlite import SqliteInbox
    with SqliteInbox.open(Path(sys.argv[1])) as inbox:
        print("open", flush=True)
        sys.stdin.read()
"""


def _process(world: World) -> Iterator[str]:
    """Whoever has the record open, idle, be it a listener that lost its name."""
    world.put(world.data)
    words = [sys.executable, "-c", _OPENS, world.record]
    with started(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"open\n"
        world.flip_in_place(world.pages[-1])
        yield f"pid {child.pid}"
        child.communicate()


@pytest.mark.parametrize("user", [_publisher, _up, _process])
def test_under_somebody_who_uses_it_nothing_is_repaired(world: World, user: Callable[[World], Iterator[str]]) -> None:
    world.flip(world.pages[-1])
    using = user(world)
    who = next(using)
    before = world.record.read_bytes()
    with pytest.raises(Held) as refused:
        repair(world.config)
    assert who in refused.value.why
    assert "not repaired" in refused.value.what
    assert world.record.read_bytes() == before
    assert world.kept() == []
    assert next(using, None) is None
    assert repair(world.config).kept_as is not None


@pytest.mark.parametrize("schema", [2, 3])
def test_a_live_lease_is_somebody_too(world: World, schema: int) -> None:
    """A listener of which no lock tells: its lease does, for as long as it counts; also one of an older release."""
    world.put(world.data)
    with SqliteInbox.open(world.record) as inbox:
        inbox.leases.acquire(["agent-1"], ProcessId.own(), "agent-1", Now.read())
    if schema == 2:
        with contextlib.closing(sqlite3.connect(world.record, isolation_level=None)) as raw:
            raw.execute("ALTER TABLE lease DROP COLUMN status")
            raw.execute("PRAGMA user_version = 2")
    world.data = world.record.read_bytes()
    world.flip(3)
    with pytest.raises(Held, match=rf"pid {os.getpid()}, which listens as agent-1"):
        repair(world.config)
    assert world.kept() == []


def test_whoever_comes_meanwhile_waits_and_finds_the_fresh_one(world: World) -> None:
    """The lock is SQLite's own: a sender that starts while it is held stores its row behind it."""
    world.flip(3)
    script = """if True:
        import sys
        from wakehub.ops import salvage
        rebuild = salvage.rebuild
        def slowly(*arguments):
            print("locked", flush=True)
            sys.stdin.readline()
            return rebuild(*arguments)
        salvage.rebuild = slowly
        from wakehub.__main__ import main
        sys.argv[1:] = ["doctor", "--repair"]
        sys.exit(main())
    """
    home = environment(world.config.paths.config_file.parent)
    pipes = {"env": home, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    send = [sys.executable, "-P", "-m", "wakehub", "send", "--as", "bob", "--to", "agent-1", "meanwhile"]
    with (
        Lock.acquire(world.config.paths.lock("hub"), what="a hub"),  # so that no daemons are started for the sender
        started([sys.executable, "-c", script], **pipes) as repairing,
    ):
        assert repairing.stdin is not None
        assert repairing.stdout is not None
        assert repairing.stdout.readline() == b"locked\n"
        with started(send, **pipes) as sending:
            until(lambda: has_open(sending.pid, world.record), "the sender has the record open")
            _, trouble = repairing.communicate(b"\n", timeout=PATIENCE_S)
            assert repairing.returncode in (0, 1), trouble
            out, trouble = sending.communicate(timeout=PATIENCE_S)
    assert sending.returncode == 0, trouble
    assert out.split()[1].decode() in world.found()


# --- killed on the way ---

_KILLED = """
import os, signal, sys
from pathlib import Path
from wakehub import config
from wakehub.ops import salvage
left = int(sys.argv[1])
def killed(event, arguments):
    global left
    is_ours = "state" in str(arguments[:1]) or event == "os.truncate"
    if is_ours and event in ("os.link", "os.remove", "os.rename", "os.truncate", "open"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
found = config.load()
sys.addaudithook(killed)
salvage.repair(found)
"""


def test_killed_at_any_step_it_can_be_run_again(world: World) -> None:
    """Before each of its file operations in turn: what can be read is there behind the next run."""
    step, half_written, status = 0, 0, -signal.SIGKILL
    while status == -signal.SIGKILL:
        step += 1
        world.flip(3)
        status = subprocess.run(
            [sys.executable, "-c", _KILLED, str(step)],
            env=environment(world.config.paths.config_file.parent),
            capture_output=True,
            check=False,
        ).returncode
        half_written += world.record.read_bytes().startswith(b"wakehub: repair")
        found = repair(world.config)
        rescued = world.found()
        assert len(rescued) > len(world.unread) // 2, step
        if found.rebuilt is not None:
            assert world.unread - rescued <= set(found.rebuilt.lost)
        assert world.kept(), step
        assert world.found() == rescued
    assert status == 0
    assert half_written > 0


# --- as a command ---


def test_doctor_tells_the_damage_and_repairs_it(world: World) -> None:
    world.flip(3)
    told = doctor(world)
    assert told.returncode == 1
    assert "✗ record: " in told.stdout
    assert "damaged" in told.stdout
    assert "wakehub doctor --repair" in told.stdout
    repaired = doctor(world, "--repair", "--json")
    report = json.loads(repaired.stdout)
    assert tuple(report) == JSON_KEYS
    assert report["kept"] + len(report["lost"]) + report["lost_ended"] >= len(world.ids)
    assert Path(report["kept_as"]).exists()
    assert repaired.returncode == (1 if report["lost"] else 0)
    again = doctor(world, "--repair")
    assert (again.returncode, again.stdout) == (0, "✓ record: whole, nothing to repair\n")
    assert "✓ record: whole" in doctor(world).stdout


def test_doctor_repairs_nothing_under_a_running_publisher(world: World) -> None:
    with Daemon(world.config.paths.config_file.parent, "publish") as daemon:
        daemon.logs("publisher ready")
        world.flip_in_place(4)
        refused = doctor(world, "--repair")
        assert refused.returncode == 75
        assert str(daemon.process.pid) in refused.stderr
        assert world.kept() == []
