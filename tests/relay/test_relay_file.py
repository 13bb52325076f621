"""Messages at the end of a file: what is acknowledged is on disk, where the path leads to (fault F58)."""

import fcntl
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from relay_world import KILLED_BEFORE_ACKNOWLEDGING, World, ended, message, stopped

from wakehub import files
from wakehub.errors import CannotCreate, Unsafe
from wakehub.relay.backends import HandedOff, NotNow
from wakehub.relay.backends.file import Mailbox
from wakehub.relay.render import render

SYNCED = HandedOff("synced")


async def test_each_message_is_one_block_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "inbox"
    mailbox = Mailbox(path, "agent")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first, second = message("one\n"), message("two")
    assert await mailbox.deliver(first) == await mailbox.deliver(second) == SYNCED
    assert path.read_bytes() == render(first, "agent") + render(second, "agent")


async def test_what_was_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "inbox"
    files.create(path, b"before\n")
    assert await Mailbox(path, "json").deliver(message()) == SYNCED
    assert path.read_bytes() == b"before\n" + render(message(), "json")


async def test_it_is_on_disk_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[bool, int]] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        found = os.fstat(fd)
        synced.append((stat.S_ISREG(found.st_mode), found.st_size))
        real(fd)

    mailbox = Mailbox(tmp_path / "inbox", "agent")
    monkeypatch.setattr(os, "fsync", fsync)
    await mailbox.deliver(message())
    size = len(render(message(), "agent"))
    assert synced[0] == (True, size)
    assert [is_file for is_file, _ in synced] == [True, False]  # the name of a new file must last, too
    await mailbox.deliver(message())
    assert synced[2:] == [(True, 2 * size)]


async def test_a_file_that_was_taken_away_is_made_anew(tmp_path: Path) -> None:
    """It survives rotation, by renaming and by removing."""
    path = tmp_path / "inbox"
    mailbox = Mailbox(path, "agent")
    await mailbox.deliver(message("one"))
    path.rename(tmp_path / "inbox.1")
    assert await mailbox.deliver(message("two")) == SYNCED
    path.unlink()
    assert await mailbox.deliver(message("three")) == SYNCED
    assert path.read_bytes() == render(message("three"), "agent")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (tmp_path / "inbox.1").read_bytes() == render(message("one"), "agent")


@pytest.mark.parametrize("take", [lambda path: path.rename(path.with_name("taken")), lambda path: path.unlink()])
async def test_one_that_is_taken_away_in_the_middle_is_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, take: Callable[[Path], Any]
) -> None:
    """Who took the file may have read it before the message was in it."""
    path = tmp_path / "inbox"
    mailbox = Mailbox(path, "agent")
    real = files.write_all

    def write(fd: int, data: bytes) -> None:
        if path.exists():
            take(path)
        real(fd, data)

    monkeypatch.setattr(files, "write_all", write)
    assert await mailbox.deliver(message()) == NotNow(f"{path} was taken away while it was written", in_doubt=True)
    monkeypatch.setattr(files, "write_all", real)
    assert await mailbox.deliver(message()) == SYNCED


async def test_no_half_of_a_block_stays_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "inbox"
    mailbox = Mailbox(path, "agent")
    await mailbox.deliver(message("one"))

    def write(fd: int, data: bytes) -> None:
        os.write(fd, data[:20])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_all", write)
    assert await mailbox.deliver(message("two")) == NotNow(
        f"cannot write {path}: No space left on device", in_doubt=True
    )
    assert path.read_bytes() == render(message("one"), "agent")


@pytest.mark.parametrize("torn", [b"[wakehub m_0 from bob", b"| half a li"])
async def test_behind_a_crash_the_next_block_is_a_block(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "inbox"
    files.create(path, render(message("one"), "agent") + torn)
    assert await Mailbox(path, "agent").deliver(message("two")) == SYNCED
    blocks = path.read_text().split("\n---\n")
    assert blocks[1] == torn.decode()
    assert blocks[2] + "\n---\n" == render(message("two"), "agent").decode()


async def test_a_file_that_another_has_locked_is_busy(tmp_path: Path) -> None:
    path = tmp_path / "inbox"
    mailbox = Mailbox(path, "agent")
    with path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        Mailbox(path, "agent")
        assert await mailbox.deliver(message()) == NotNow(f"another process has {path} locked", busy=True)
    assert await mailbox.deliver(message()) == SYNCED


def make_link(path: Path) -> None:
    path.symlink_to(path.with_name("elsewhere"))


def make_open(path: Path) -> None:
    path.touch()
    path.chmod(0o644)


@pytest.mark.parametrize("make", [make_link, make_open, lambda path: os.mkfifo(path, 0o600), lambda path: path.mkdir()])
async def test_only_a_file_that_is_ours_alone(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """At the start it is refused; later it is a failed attempt, since it can be put right."""
    path = tmp_path / "inbox"
    mailbox = Mailbox(path, "agent")
    path.unlink()
    make(path)
    with pytest.raises(Unsafe):
        Mailbox(path, "agent")
    outcome = await mailbox.deliver(message())
    assert isinstance(outcome, NotNow)
    assert str(path) in outcome.reason
    assert not (tmp_path / "elsewhere").exists()


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotCreate):
        Mailbox(tmp_path / "absent" / "inbox", "agent")


# --- with the loop ---


def test_a_listener_that_fills_a_file(world: World, tmp_path: Path) -> None:
    path = tmp_path / "inbox"
    listener = world.listen("--as", "alice", "--poll", "1", "--backend", "file", "--opt", f"path={path}")
    world.until_held()
    (first,) = world.store("one")
    world.until_state(first, "handed_off")
    assert world.event(first, "handed_off").proof == "synced"
    path.rename(tmp_path / "inbox.1")
    (second,) = world.store("two")
    world.until_state(second, "handed_off")
    status, said = stopped(listener)
    assert status == 0
    assert f"each message to the end of {path}, acknowledged once it is on disk; format agent" in said
    assert "| one" in (tmp_path / "inbox.1").read_text()
    assert "| two" in path.read_text()


def test_killed_behind_the_write_the_row_comes_again_with_its_mark(world: World, tmp_path: Path) -> None:
    """F17."""
    path = tmp_path / "inbox"
    (row_id,) = world.store("x")
    arguments = ("--as", "alice", "--once", "--backend", "file", "--opt", f"path={path}")
    assert world.listen(*arguments, command=KILLED_BEFORE_ACKNOWLEDGING).wait(20) == -signal.SIGKILL
    assert world.states([row_id]) == ["claimed"]
    assert ended(world.listen(*arguments))[0] == 0
    assert world.states([row_id]) == ["handed_off"]
    headers = [line for line in path.read_text().splitlines() if line.startswith(f"[wakehub {row_id} from bob")]
    assert [header.endswith("· redelivery 1]") for header in headers] == [False, True]


def test_json_is_one_line_each(world: World, tmp_path: Path) -> None:
    world.store("one", "two")
    path = tmp_path / "inbox"
    options = ("--backend", "file", "--opt", f"path={path}", "--opt", "format=json")
    assert ended(world.listen("--as", "alice", "--once", *options))[0] == 0
    assert len(path.read_text().splitlines()) == 2
