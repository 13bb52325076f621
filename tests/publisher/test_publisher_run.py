"""The publisher as a process: its lock, its start and end, and its work beside the real hub."""

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from daemon_process import Daemon, environment, until
from trio.testing import MockClock

from wakehub.client.connection import HubSession, connect
from wakehub.client.home import ensure_agent, ensure_home
from wakehub.client.poke import Answer, poke
from wakehub.config import Config
from wakehub.errors import CannotCreate
from wakehub.identity import keys
from wakehub.identity.allowlist import Allowlist, AllowlistFile
from wakehub.identity.audit import AuditLog
from wakehub.identity.delegation import Bundle
from wakehub.identity.owner import load_owner, load_owner_public, read_registry
from wakehub.inbox.clock import Now
from wakehub.inbox.rows import NewRow, Row
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.limits import SOCKET_CHECK_SECONDS
from wakehub.locks import Lock
from wakehub.log import configure
from wakehub.publisher.run import Publisher
from wakehub.wire.protocol import Woken


def agents(config: Config) -> set[str]:
    """Whom the signed allowlist admits now."""
    public = load_owner_public(config.paths)
    found = AllowlistFile(config.allowlist, public).current(time.time(), time.monotonic())
    return set(found.agents) if isinstance(found, Allowlist) else set()


@pytest.fixture
def publisher(config: Config, home: Path) -> Iterator[Daemon]:
    ensure_home(config)
    with Daemon(home, "publish") as daemon:
        daemon.logs("publisher ready")
        yield daemon


@pytest.fixture
def hub(config: Config, home: Path) -> Iterator[Daemon]:
    ensure_home(config)
    with Daemon(home, "serve") as daemon:
        daemon.logs("hub ready")
        yield daemon


@pytest.fixture
def record(config: Config, publisher: Daemon) -> Iterator[SqliteInbox]:
    with SqliteInbox.open(config.paths.record, create=False) as inbox:
        yield inbox


@asynccontextmanager
async def session(config: Config, name: str) -> AsyncIterator[HubSession]:
    """The hub session of an enrolled agent, as its listener would hold it."""
    key = ensure_agent(config, name).pair
    until(lambda: name in agents(config), f"{name} is in the allowlist")
    bundle = Bundle.make(name, key, config.hub_id, time.time(), 3600)
    async with connect(config.hub_socket, bundle) as found:
        yield found


async def next_wake(session: HubSession) -> str:
    while not isinstance(event := await session.receive(), Woken):
        pass
    assert event.from_id == b"wakehub-publisher"
    return event.wake.row_id.decode()


def store(record: SqliteInbox, recipient: str) -> Row:
    (row,) = record.append(NewRow("bob", recipient, b"hi"), Now.read())
    return row


def is_hinted(record: SqliteInbox, row: Row) -> bool:
    return "hinted" in [event.kind for event in record.events(row.id)]


# --- start and end ---


def test_the_first_start_makes_the_instance_and_sigterm_ends_it_clean(config: Config, home: Path) -> None:
    with Daemon(home, "publish") as daemon:
        daemon.logs("publisher ready")
        assert agents(config) == {"wakehub-publisher"}
        assert stat.S_IMODE(os.lstat(config.paths.publish_socket).st_mode) == 0o600
        assert daemon.stop(signal.SIGTERM) == 0
    assert not config.paths.publish_socket.exists()
    assert config.paths.lock("publish").exists()


def test_a_second_publisher_is_refused_with_the_holder_and_the_first_untouched(
    publisher: Daemon, config: Config, home: Path
) -> None:
    bound = os.lstat(config.paths.publish_socket).st_ino
    with Daemon(home, "publish") as second:
        assert second.ends() == 75
        assert f"pid {publisher.process.pid}" in "\n".join(second.lines)
    assert os.lstat(config.paths.publish_socket).st_ino == bound
    assert publisher.process.poll() is None


def test_kill_9_leaves_nothing_that_stops_the_next_one(publisher: Daemon, config: Config, home: Path) -> None:
    assert publisher.stop(signal.SIGKILL) == -signal.SIGKILL
    assert config.paths.publish_socket.exists()
    with Daemon(home, "publish") as second:
        second.logs("publisher ready")
        assert list(poke(config.paths.publish_socket, ["m_1"])) == [("m_1", Answer("m_1", "refused", 404, False))]
        assert second.stop(signal.SIGINT) == 0


def test_without_the_owner_key_it_ends_with_77_and_names_it(config: Config, home: Path) -> None:
    ensure_home(config)
    config.paths.owner_key.rename(home / "away")
    with Daemon(home, "publish") as daemon:
        assert daemon.ends() == 77
        assert str(config.paths.owner_key) in "\n".join(daemon.lines)
    assert not config.allowlist.exists()


def test_its_own_key_is_made_anew_when_it_is_missing(config: Config, home: Path) -> None:
    ensure_home(config)
    config.paths.agent_key("wakehub-publisher").unlink()
    with Daemon(home, "publish") as daemon:
        daemon.logs("publisher ready")
        pair = keys.load_key(config.paths.agent_key("wakehub-publisher"), "wakehub-publisher")
        registered = read_registry(config.paths).agents["wakehub-publisher"].key
        assert registered is not None
        assert registered.public == pair.public
        assert agents(config) == {"wakehub-publisher"}


def test_it_ends_when_the_record_is_replaced_so_that_the_next_one_sees_the_new(
    publisher: Daemon, config: Config, home: Path
) -> None:
    for part in config.paths.state.glob("record.db*"):
        part.unlink()
    with SqliteInbox.open(config.paths.record) as inbox:
        (row,) = inbox.append(NewRow("bob", "alice", b"hi", ttl_s=1), Now.read())
        assert publisher.ends() == 69
        assert "was removed or replaced" in "".join(publisher.lines)
        with Daemon(home, "publish") as again:
            again.logs("publisher ready")
            until(lambda: inbox.headers([row.id])[0].state == "expired", "the new record is swept")
            assert again.stop() == 0


def test_it_ends_when_its_own_key_does_not_stand_and_the_next_one_has_another(
    publisher: Daemon, config: Config, home: Path
) -> None:
    owner = load_owner(config.paths)
    first = read_registry(config.paths).agents["wakehub-publisher"].key
    assert first is not None
    with AuditLog(config.paths.audit, owner.public).writing() as writer:
        writer.append(owner, "revoke", "wakehub-publisher", first.public, {}, time.time())
    assert publisher.ends() == 69
    assert "was revoked or exchanged" in "".join(publisher.lines)
    with Daemon(home, "publish") as again:
        again.logs("publisher ready")
        later = read_registry(config.paths).agents["wakehub-publisher"].key
        assert later is not None
        assert later.public != first.public
        until(lambda: agents(config) == {"wakehub-publisher"}, "the new key is in the allowlist")
        assert again.stop() == 0


async def test_it_ends_when_its_lock_is_no_longer_at_its_place(
    config: Config, inbox: SqliteInbox, mock_clock: MockClock
) -> None:
    ensure_home(config, explicit=True)
    owner = load_owner(config.paths)
    key = keys.load_key(config.paths.agent_key("wakehub-publisher"), "wakehub-publisher")
    with Lock.acquire(config.paths.lock("publish"), what="a test") as lock:
        publisher = Publisher(config, lock, owner, key, inbox, inbox, configure("publisher"))

        async def remove_the_lock() -> None:
            while not os.listdir(config.paths.run):
                await trio.lowlevel.checkpoint()
            os.unlink(lock.path)
            while True:
                mock_clock.jump(SOCKET_CHECK_SECONDS)
                await trio.lowlevel.checkpoint()

        gone = pytest.RaisesExc(CannotCreate, match="no longer the lock")
        with pytest.RaisesGroup(gone, flatten_subgroups=True):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(remove_the_lock)
                await publisher.run()


# --- beside the real hub ---


async def test_a_poke_wakes_the_recipient_through_the_real_hub(
    hub: Daemon, publisher: Daemon, config: Config, record: SqliteInbox
) -> None:
    async with session(config, "alice") as alice:
        row = store(record, "alice")
        found = await trio.to_thread.run_sync(lambda: list(poke(config.paths.publish_socket, [row.id])))
        assert found == [(row.id, Answer(row.id, "hinted", None, holder=False))]
        assert await next_wake(alice) == row.id
        assert [event.kind for event in record.events(row.id)] == ["stored", "hinted"]


async def test_who_was_never_there_is_a_404_and_stays_readable(
    hub: Daemon, publisher: Daemon, config: Config, record: SqliteInbox
) -> None:
    row = store(record, "carol")
    found = await trio.to_thread.run_sync(lambda: list(poke(config.paths.publish_socket, [row.id])))
    assert found == [(row.id, Answer(row.id, "refused", 404, holder=False))]
    assert [found.id for found in record.unread("carol")] == [row.id]


async def test_a_row_stored_while_the_publisher_is_dead_is_hinted_by_the_next_one(
    hub: Daemon, publisher: Daemon, config: Config, record: SqliteInbox, home: Path
) -> None:
    async with session(config, "alice") as alice:
        early = store(record, "alice")
        assert await next_wake(alice) == early.id
        publisher.stop(signal.SIGKILL)
        late = store(record, "alice")
        with Daemon(home, "publish"):
            assert await next_wake(alice) in {early.id, late.id}  # early again if it died before the receipt
            until(lambda: is_hinted(record, late), "the row is hinted")
    assert [row.id for row in record.unread("alice")] == [early.id, late.id]


async def test_kill_9_of_the_hub_costs_no_row_its_hint(
    hub: Daemon, publisher: Daemon, config: Config, record: SqliteInbox, home: Path
) -> None:
    publisher.logs("session with the hub")
    hub.stop(signal.SIGKILL)
    publisher.logs("no session with the hub")
    row = store(record, "alice")
    found = await trio.to_thread.run_sync(lambda: list(poke(config.paths.publish_socket, [row.id])))
    assert found == [(row.id, Answer(row.id, "hub_down", None, holder=False))]
    assert not is_hinted(record, row)
    ensure_agent(config, "alice")
    with Daemon(home, "serve") as second:
        second.logs("hub ready")
        publisher.logs("session with the hub")
        async with session(config, "alice") as alice:
            late = store(record, "alice")
            while await next_wake(alice) != late.id:
                pass  # for the earlier row, if alice was faster
            until(lambda: is_hinted(record, late), "the row is hinted")


def test_enrolling_and_revoking_reach_the_allowlist_by_themselves(
    publisher: Daemon, config: Config, home: Path
) -> None:
    def wakehub(*words: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "wakehub", *words], env=environment(home), check=True, capture_output=True
        )

    wakehub("enroll", "alice")
    until(lambda: agents(config) == {"alice", "wakehub-publisher"}, "alice is admitted")
    wakehub("revoke", "alice")
    until(lambda: agents(config) == {"wakehub-publisher"}, "alice is not admitted any more")
