"""What is taken in from a spool, what is refused, and what waits (formats.md, Spool; faults F21, F43, F58, F63)."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from wakehub.client.home import ensure_agent, ensure_home
from wakehub.client.spool import drop
from wakehub.config import Config
from wakehub.identity import enrolment
from wakehub.identity.delegation import Bundle
from wakehub.identity.keys import KeyPair
from wakehub.identity.owner import read_registry
from wakehub.identity.registry import Registry
from wakehub.inbox.admission import Guard
from wakehub.inbox.attachments import Attachments
from wakehub.inbox.clock import Now
from wakehub.inbox.envelope import Envelope
from wakehub.inbox.ids import new_id
from wakehub.inbox.refusals import RecordBusy
from wakehub.inbox.rows import NewRow, Row, Seal
from wakehub.inbox.signing import signer, verify_row
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.limits import LEFTOVER_AFTER_SECONDS, MAX_ENVELOPE_BYTES, SPOOL_BATCH
from wakehub.publisher import spool as spool_module
from wakehub.publisher.spool import SpoolReader

HOUR_MS = 3_600_000


class World:
    """An instance, bob's key, and a spool that a reader empties into the record."""

    def __init__(self, config: Config, inbox: SqliteInbox, key: KeyPair) -> None:
        ensure_home(config, explicit=True)
        self.config = config
        self.inbox = inbox
        self.spool = config.paths.spool
        self.spool.mkdir(mode=0o700)
        self.bob = ensure_agent(config, "bob").pair
        self.seen: Registry | None = self.registry()
        self.reads = 0
        self.reader = self.reader_of(self.spool, inbox=inbox, key=key)
        self._key = key

    def reader_of(self, *directories: Path, inbox: SqliteInbox, key: KeyPair) -> SpoolReader:
        attachments = Attachments.of(self.config.paths)
        return SpoolReader(
            lambda: directories,
            inbox,
            lambda: self.seen,
            self.read_anew,
            signer(key),
            self.config.hub_id,
            attachments,
        )

    def anew(self) -> None:
        """A publisher that was started again."""
        self.reader = self.reader_of(self.spool, inbox=self.inbox, key=self._key)

    def registry(self) -> Registry:
        return read_registry(self.config.paths)

    def read_anew(self) -> Registry:
        self.reads += 1
        return self.registry()

    def seal(
        self, body: bytes = b"hello", *, pair: KeyPair | None = None, now: Now | None = None, **fields: Any
    ) -> Envelope:
        new = NewRow(**({"sender": "bob", "recipient": "alice", "body": body} | fields))
        return Envelope.seal(new, signer(pair or self.bob), now or Now.read())

    def leave(self, envelope: Envelope) -> Path:
        (path,) = drop([self.spool], [envelope])
        return path

    def put(self, name: str, content: bytes, *, mode: int = 0o600, age_s: float = 2 * LEFTOVER_AFTER_SECONDS) -> Path:
        """A file as a stranger to our formats would write it, some time ago."""
        path = self.spool / name
        path.write_bytes(content)
        path.chmod(mode)
        os.utime(path, (time.time() - age_s,) * 2)
        return path

    def rows(self, to: str = "alice") -> list[Row]:
        return self.inbox.unread(to, limit=1000)

    def left(self) -> list[str]:
        return sorted(name for name in os.listdir(self.spool) if name != "bad")

    def bad(self) -> dict[str, str]:
        """What was put aside, and why."""
        where = self.spool / "bad"
        names = sorted(os.listdir(where)) if where.exists() else []
        return {
            name.removesuffix(".why"): (where / name).read_text().rstrip("\n")
            for name in names
            if name.endswith(".why")
        }


@pytest.fixture
def world(config: Config, inbox: SqliteInbox, key: KeyPair) -> World:
    return World(config, inbox, key)


# --- taken in ---


def test_an_envelope_becomes_a_row_and_goes(world: World) -> None:
    envelope = world.seal("spooled ünd signed".encode())
    world.leave(envelope)
    assert world.reader.take_in() == 1
    (row,) = world.rows()
    assert (row.id, row.body, row.origin, row.hops) == (envelope.id, envelope.body, "spool", 0)
    assert verify_row(row, world.bob.public) == "yes"
    assert [event.kind for event in world.inbox.events(row.id)] == ["stored"]
    assert world.left() == []
    assert world.bad() == {}
    assert world.reader.take_in() == 0
    assert world.inbox.unhinted() == [world.inbox.headers([row.id])[0]], "the forwarder finds it"


def test_how_far_it_came_and_from_where_are_not_believed(world: World) -> None:
    """Whatever the envelope says it signed."""
    (first,) = world.inbox.append(NewRow("alice", "bob", b"?"), Now.read())
    lying = replace(world.seal(re=first.id), hops=9)
    world.leave(replace(lying, signature=world.bob.sign(lying.signed_bytes())))
    world.reader.take_in()
    (row,) = world.rows()
    assert (row.hops, row.signed_hops, row.origin) == (1, 9, "spool")
    assert verify_row(row, world.bob.public) == "yes"
    assert [event.kind for event in world.inbox.events(first.id)] == ["stored", "answered"]


def test_the_order_of_a_sender_is_kept(world: World) -> None:
    sealed = [world.seal(f"{number}".encode()) for number in range(20)]
    for envelope in reversed(sealed):
        world.leave(envelope)
    world.reader.take_in()
    assert [row.id for row in world.rows()] == [envelope.id for envelope in sealed]


def test_a_round_is_bounded_and_the_next_goes_on(world: World) -> None:
    for number in range(SPOOL_BATCH + 5):
        world.leave(world.seal(recipient=f"agent-{number}"))
    assert world.reader.take_in() == SPOOL_BATCH
    assert len(world.left()) == 5
    assert world.reader.take_in() == 5
    assert world.left() == []


def test_every_directory_is_emptied(world: World, config: Config, key: KeyPair, home: Path) -> None:
    absent, other = home / "absent", home / "other"
    for directory in (other, world.spool):
        drop([directory], [world.seal()])
    reader = world.reader_of(absent, other, world.spool, inbox=world.inbox, key=key)
    assert reader.take_in() == 2
    assert len(world.rows()) == 2
    assert not absent.exists()


# --- once ---


def test_an_id_is_taken_once_across_restarts(world: World) -> None:
    """F21."""
    envelope = world.seal()
    for _ in range(3):
        world.leave(envelope)
        world.reader.take_in()
        world.anew()
    assert [row.id for row in world.rows()] == [envelope.id]
    assert world.left() == []
    world.inbox.ack([envelope.id], "alice", None, Now.read())
    world.leave(envelope)
    world.reader.take_in()
    assert world.rows() == []


def test_the_same_message_in_a_spool_and_in_the_record_is_there_once(world: World) -> None:
    """F21: sent by both ways, whichever was first."""
    (row,) = world.inbox.append(NewRow("bob", "alice", b"both", signed=signer(world.bob)), Now.read())
    assert row.signature
    twin = replace(
        world.seal(b"both"), id=row.id, created_ms=row.created_ms, expires_ms=row.expires_ms, signature=row.signature
    )
    world.leave(twin)
    world.reader.take_in()
    assert [found.id for found in world.rows()] == [row.id]
    assert world.left() == []
    other = world.seal(b"the other way round")
    world.leave(other)
    world.reader.take_in()
    seal = Seal(other.id, other.created_ms, other.expires_ms, other.hops, other.key_id, other.signature)
    with pytest.raises(Exception, match="stored already"):
        world.inbox.append(NewRow("bob", "alice", other.body, signed=seal), Now.read())
    assert [found.id for found in world.rows()] == [row.id, other.id]


# --- refused ---


def _unsigned(world: World) -> Envelope:
    return replace(world.seal(), signature=bytes(64))


def _of_another_key(world: World) -> Envelope:
    return world.seal(pair=KeyPair.generate())


def _changed(world: World) -> Envelope:
    return replace(world.seal(), body=b"something else")


def _of_nobody(world: World) -> Envelope:
    return world.seal(sender="mallory")


def _of_the_system(world: World) -> Envelope:
    pair = KeyPair.generate()
    return world.seal(sender="wakehub-publisher", pair=pair)


def _revoked(world: World) -> Envelope:
    envelope = world.seal()
    enrolment.revoke(world.config.paths, "bob", time.time())
    world.seen = world.registry()
    return envelope


@pytest.mark.parametrize("make", [_unsigned, _of_another_key, _changed, _of_nobody, _of_the_system, _revoked])
def test_what_no_enrolled_key_signed_is_put_aside_with_the_reason(
    world: World, make: Callable[[World], Envelope]
) -> None:
    envelope = make(world)
    path = world.leave(envelope)
    world.reader.take_in()
    assert world.rows() == []
    assert world.rows("bob") == [], "nobody is told in another's name"
    assert world.left() == []
    assert "signature" in world.bad()[path.name]
    assert (world.spool / "bad" / path.name).read_bytes() == envelope.encode()


def _expired(world: World) -> Envelope:
    return world.seal(now=Now.read().later(-HOUR_MS), ttl_s=60)


def _from_the_future(world: World) -> Envelope:
    return world.seal(now=Now.read().later(HOUR_MS))


def _closed(world: World) -> Envelope:
    ensure_agent(world.config, "alice")
    enrolment.close(world.config.paths, "alice", time.time())
    world.seen = world.registry()
    return world.seal()


def _enrolled_anew(world: World) -> Envelope:
    """The name became another agent's between writing and taking in."""
    envelope = world.seal(now=Now.read().later(-60_000))
    ensure_agent(world.config, "alice")
    enrolment.close(world.config.paths, "alice", time.time())
    enrolment.enroll(world.config.paths, "alice", "wakehub", time.time())
    world.seen = world.registry()
    return envelope


def _to_the_system(world: World) -> Envelope:
    return world.seal(recipient="wakehub-publisher")


def _to_the_hub(world: World) -> Envelope:
    return world.seal(recipient=world.config.hub_id)


def _to_other_letters(world: World) -> Envelope:
    """Bob is enrolled; nobody can be BOB beside him."""
    return world.seal(recipient="BOB")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (_expired, "its time is over"),
        (_from_the_future, "in the future"),
        (_closed, "was closed"),
        (_enrolled_anew, "another agent now"),
        (_to_the_system, "no mailbox"),
        (_to_the_hub, "no mailbox"),
        (_to_other_letters, "no mailbox"),
    ],
)
def test_a_proven_sender_is_told_what_became_of_it(
    world: World, key: KeyPair, make: Callable[[World], Envelope], why: str
) -> None:
    envelope = make(world)
    path = world.leave(envelope)
    world.reader.take_in()
    assert why in world.bad()[path.name]
    assert world.rows() == []
    (notice,) = world.rows("bob")
    assert (notice.sender, notice.class_, notice.re) == ("wakehub-publisher", "fyi", envelope.id)
    assert why in (notice.body or b"").decode()
    assert verify_row(notice, key.public) == "yes"


def test_an_answer_too_many_is_refused(world: World, config: Config, key: KeyPair) -> None:
    with SqliteInbox.open(config.paths.record, guard=Guard(max_hops=1)) as guarded:
        (first,) = guarded.append(NewRow("alice", "bob", b"1"), Now.read())
        (second,) = guarded.append(NewRow("bob", "alice", b"2", re=first.id), Now.read())
        path = world.leave(world.seal(re=second.id))
        world.reader_of(world.spool, inbox=guarded, key=key).take_in()
    assert "429" in world.bad()[path.name]


def _symlink(world: World, path: Path) -> None:
    outside = world.config.paths.state / "outside"
    outside.write_bytes(world.seal().encode())
    outside.chmod(0o600)
    path.symlink_to(outside)


def _fifo(_: World, path: Path) -> None:
    os.mkfifo(path, 0o600)


def _directory(_: World, path: Path) -> None:
    path.mkdir(mode=0o700)


def _socket(_: World, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(os.path.relpath(path))


def _readable_by_others(world: World, path: Path) -> None:
    path.write_bytes(world.seal().encode())
    path.chmod(0o644)


def _oversized(_: World, path: Path) -> None:
    path.touch(0o600)
    os.truncate(path, MAX_ENVELOPE_BYTES + 1)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (_symlink, "cannot be opened"),
        (_fifo, "not a regular file"),
        (_directory, "not a regular file"),
        (_socket, "cannot be opened"),
        (_readable_by_others, "0644"),
        (_oversized, str(MAX_ENVELOPE_BYTES)),
    ],
)
def test_what_is_no_private_file_of_ours_is_put_aside_unread(
    world: World, monkeypatch: pytest.MonkeyPatch, make: Callable[[World, Path], None], why: str
) -> None:
    """F58. A FIFO holds nobody up, a link leads nowhere."""
    monkeypatch.chdir(world.spool)
    name = f"{new_id(1)}.json"
    make(world, world.spool / name)
    world.reader.take_in()
    assert why in world.bad()[name]
    assert world.left() == []
    assert world.rows() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_a_file_of_another_user_is_put_aside_unread(world: World) -> None:
    path = world.leave(world.seal())
    os.chown(path, 12_345, 12_345)
    world.reader.take_in()
    assert "12345" in world.bad()[path.name]


@pytest.mark.parametrize("name", ["m_0.json", f"{new_id(1)}.txt", "notes.txt", "x" * 250, "\udcff.json", "-rf", "a\nb"])
def test_other_names_are_put_aside_whatever_they_are(world: World, name: str) -> None:
    """F43: a name is a name in that directory and nothing else."""
    content = world.seal().encode()
    path = world.put(name, content)
    world.reader.take_in()
    assert world.left() == []
    assert "name is not its id" in next(iter(world.bad().values()))
    assert (world.spool / "bad" / path.name).read_bytes() == content
    assert world.rows() == []


@pytest.mark.parametrize("content", [b"", b"{", b"\0" * 1000, b"[]"])
def test_a_file_that_may_still_be_being_written_waits_and_then_is_refused(world: World, content: bytes) -> None:
    young = world.put(f"{new_id(1)}.json", content, age_s=0)
    old = world.put(f"{new_id(2)}.json", content)
    world.reader.take_in()
    assert world.left() == [young.name]
    assert "no envelope" in world.bad()[old.name]
    whole = world.seal()
    young.rename(world.spool / f"{whole.id}.json")
    (world.spool / f"{whole.id}.json").write_bytes(whole.encode())
    world.reader.take_in()
    assert [row.id for row in world.rows()] == [whole.id]


def test_hidden_files_are_not_looked_at_and_old_ones_of_killed_senders_go(world: World) -> None:
    old, young, other = world.put(".aa~", b"{"), world.put(".bb~", b"{", age_s=0), world.put(".hidden", b"{")
    world.reader.take_in()
    assert not old.exists()
    assert young.exists()
    assert other.exists()
    assert world.bad() == {}


def test_a_name_that_is_taken_in_the_place_for_refused_ones_holds_nobody_up(world: World) -> None:
    path = world.put(f"{new_id(1)}.json", b"{")
    (world.spool / "bad" / path.name / "full").mkdir(parents=True)
    (world.spool / "bad").chmod(0o700)
    world.leave(world.seal())
    assert world.reader.take_in() == 2
    assert len(world.rows()) == 1
    assert world.left() == [path.name]
    assert world.reader.take_in() == 0


@pytest.mark.parametrize("harm", ["mode", "link", "file"])
def test_a_spool_that_is_not_ours_alone_is_not_used(world: World, key: KeyPair, home: Path, harm: str) -> None:
    other = home / "other"
    drop([other], [world.seal()])
    if harm == "mode":
        other.chmod(0o755)
    else:
        other.rename(home / "moved")
        other.symlink_to(home / "moved") if harm == "link" else other.write_bytes(b"")
    world.leave(world.seal())
    reader = world.reader_of(other, world.spool, inbox=world.inbox, key=key)
    assert reader.take_in() == 1
    assert len(world.rows()) == 1


# --- what waits ---


def test_a_sender_that_was_enrolled_just_now_is_known(world: World) -> None:
    carol = ensure_agent(world.config, "carol").pair
    for _ in range(3):
        world.leave(world.seal(sender="carol", pair=carol))
        world.leave(_unsigned(world))
    world.reader.take_in()
    assert len(world.rows()) == 3
    assert len(world.bad()) == 3
    assert world.reads == 1, "once a round"


def test_without_a_registry_that_verifies_nothing_is_judged(world: World) -> None:
    world.leave(world.seal())
    world.seen = None
    world.reader.take_in()
    assert len(world.left()) == 1
    world.seen = world.registry()
    world.anew()
    world.reader.take_in()
    assert len(world.rows()) == 1


class Troubled(SqliteInbox):
    """A record that is locked as often as `trouble` says."""

    trouble = 1

    def append(self, *arguments: Any, **named: Any) -> list[Row]:
        if self.trouble:
            self.trouble -= 1
            raise RecordBusy("nothing was changed")
        return super().append(*arguments, **named)


@pytest.fixture
def troubled(config: Config) -> Iterator[Troubled]:
    with Troubled.open(config.paths.record) as inbox:
        assert isinstance(inbox, Troubled)
        yield inbox


def test_trouble_with_the_record_leaves_everything_where_it_is(world: World, troubled: Troubled, key: KeyPair) -> None:
    """F63."""
    sealed = [world.seal(), world.seal()]
    for envelope in sealed:
        world.leave(envelope)
    reader = world.reader_of(world.spool, inbox=troubled, key=key)
    with pytest.raises(RecordBusy):
        reader.take_in()
    assert len(world.left()) == 2
    reader.take_in()
    assert [row.id for row in world.rows()] == [envelope.id for envelope in sealed]
    assert world.bad() == {}


def test_who_sends_too_fast_waits_in_order_and_holds_up_nobody_else(
    world: World, config: Config, key: KeyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = [world.seal(f"{number}".encode()) for number in range(5)]
    other = world.seal(b"other", recipient="carol")
    for envelope in [*fast, other]:
        world.leave(envelope)
    monkeypatch.setattr(spool_module, "SPOOL_RETRY_SECONDS", 0)
    with SqliteInbox.open(config.paths.record, guard=Guard(pair_per_minute=2)) as guarded:
        reader = world.reader_of(world.spool, inbox=guarded, key=key)
        assert reader.take_in() == 6
        assert [row.id for row in world.rows()] == [envelope.id for envelope in fast[:2]]
        assert [row.id for row in world.rows("carol")] == [other.id]
        assert world.left() == [f"{envelope.id}.json" for envelope in fast[2:]]
    with SqliteInbox.open(config.paths.record, guard=Guard(pair_per_minute=4)) as guarded:
        world.reader_of(world.spool, inbox=guarded, key=key).take_in()
    assert [row.id for row in world.rows()] == [envelope.id for envelope in fast[:4]]
    assert world.bad() == {}


def test_what_waits_is_not_looked_at_in_every_round(world: World) -> None:
    world.put(f"{new_id(1)}.json", b"{", age_s=0)
    assert world.reader.take_in() == 1
    assert world.reader.take_in() == 0
    assert world.bad() == {}


# --- files ---


def with_files(world: World, *contents: bytes) -> tuple[Envelope, Path]:
    """An envelope with files, as `send` leaves it in the spool, and the directory of its files."""
    sources = [world.config.paths.state / f"file-{number}" for number in range(len(contents))]
    for source, content in zip(sources, contents, strict=True):
        source.write_bytes(content)
    envelope = world.seal(attachments=Attachments.measured(sources))
    (path,) = drop([world.spool], [envelope], sources)
    return envelope, path.with_suffix(".files")


def test_files_come_with_their_envelope(world: World) -> None:
    envelope, beside = with_files(world, b"one", b"", b"one")
    assert len(list(beside.iterdir())) == 2, "the same content lies there once"
    assert world.reader.take_in() == 1
    (row,) = world.rows()
    assert row.attachments == envelope.attachments
    assert verify_row(row, world.bob.public) == "yes"
    copies = Attachments.of(world.config.paths).hand_over(row)
    assert [copy.read_bytes() for copy in copies if copy] == [b"one", b"", b"one"]
    assert world.left() == []


@pytest.mark.parametrize("harm", ["gone", "changed", "longer", "a link", "a pipe"])
def test_files_that_are_not_what_was_signed_are_refused_with_their_envelope(world: World, harm: str) -> None:
    envelope, beside = with_files(world, b"one")
    (file,) = beside.iterdir()
    file.unlink()
    match harm:
        case "changed" | "longer":
            file.write_bytes(b"two" if harm == "changed" else b"one more")
        case "a link":
            file.symlink_to(world.config.paths.state / "file-0")
        case "a pipe":
            os.mkfifo(file)
    world.reader.take_in()
    assert world.rows() == []
    assert set(world.bad()) == {f"{envelope.id}.json"}
    assert world.left() == []
    (notice,) = world.rows("bob")
    assert notice.re == envelope.id


def test_files_without_an_envelope_go_after_a_while(world: World) -> None:
    """A sender that was killed before it wrote the envelope, or a publisher behind its removal; F21: nothing twice."""
    envelope, beside = with_files(world, b"one")
    path = beside.with_suffix(".json")
    whole = path.read_bytes()
    path.unlink()
    assert world.reader.take_in() == 0
    assert world.left() == [beside.name]
    os.utime(beside, (time.time() - 2 * LEFTOVER_AFTER_SECONDS,) * 2)
    world.anew()
    world.reader.take_in()
    assert world.left() == []
    envelope, beside = with_files(world, b"one")
    path, whole = beside.with_suffix(".json"), beside.with_suffix(".json").read_bytes()
    world.reader.take_in()
    world.put(path.name, whole)
    world.reader.take_in()
    assert [row.id for row in world.rows()] == [envelope.id]
    assert world.left() == []


# --- written by who holds only a bundle ---


def bundled(world: World, *, of: str = "bob", key: KeyPair | None = None, hub: str = "", age_s: int = 0) -> Bundle:
    return Bundle.make(of, key or world.bob, hub or world.config.hub_id, time.time() - age_s, 60)


def by_bundle(world: World, bundle: Bundle, **fields: Any) -> Envelope:
    new = NewRow(**({"sender": "bob", "recipient": "alice", "body": b"hello"} | fields))
    return Envelope.seal(new, signer(bundle.delegate), Now.read(), certificate=bundle.certificate)


def test_a_bundle_proves_who_wrote_it_and_the_row_is_unsigned(world: World) -> None:
    envelope = by_bundle(world, bundled(world))
    assert Envelope.decode(envelope.encode()) == envelope
    world.leave(envelope)
    world.reader.take_in()
    (row,) = world.rows()
    assert (row.id, row.created_ms, row.signature, row.key_id) == (envelope.id, envelope.created_ms, None, None)
    assert verify_row(row, world.bob.public) == "unsigned"


def test_a_message_that_waited_longer_than_its_bundle_held_is_taken(world: World) -> None:
    agent = world.registry().agents["bob"]
    assert agent.key is not None
    earlier = replace(agent, keys=(replace(agent.key, since=agent.key.since - 7200),))
    world.seen = Registry({**world.registry().agents, "bob": earlier})
    world.registry = lambda: world.seen or Registry()  # type: ignore[method-assign]
    bundle = bundled(world, age_s=3600)
    world.leave(by_bundle(world, bundle))
    world.reader.take_in()
    assert "did not hold" in next(iter(world.bad().values()))
    then = Now.read().later(-3_590_000)
    new = NewRow("bob", "alice", b"written in time")
    world.leave(Envelope.seal(new, signer(bundle.delegate), then, certificate=bundle.certificate))
    world.reader.take_in()
    assert [row.body for row in world.rows()] == [b"written in time"]


def test_a_bundle_that_does_not_count_proves_nothing(world: World) -> None:
    """Of another agent, another hub, another key; older than the enrolment, revoked, or not the one that signed."""
    other = ensure_agent(world.config, "carol").pair
    world.seen = world.registry()
    good, stolen = bundled(world), bundled(world)
    wrong = [
        by_bundle(world, bundled(world, of="carol", key=other)),
        by_bundle(world, bundled(world, hub="another")),
        by_bundle(world, bundled(world, key=other)),
        by_bundle(world, bundled(world, age_s=30)),
        replace(by_bundle(world, good), certificate=bundled(world).certificate),
        replace(by_bundle(world, good), certificate=b"nonsense"),
        replace(by_bundle(world, good), body=b"changed"),
        by_bundle(world, stolen),
    ]
    enrolment.revoke_key(world.config.paths, "bob", stolen.delegate.public, time.time())
    world.seen = world.registry()
    for envelope in wrong:
        world.leave(envelope)
    world.reader.take_in()
    assert world.rows() == []
    assert world.bad().keys() == {f"{envelope.id}.json" for envelope in wrong}
    world.leave(by_bundle(world, good))
    world.reader.take_in()
    assert len(world.rows()) == 1
