"""Sending: what is stored, what is said about it, what is refused, and how long is waited (faults F2, F15, F32)."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from daemon_process import stand_in_for_up
from scripted_publisher import answer, publisher

from wakehub import config
from wakehub.client.home import ensure_agent, ensure_home
from wakehub.client.receipts import Receipt, SendRequest, Sent, State
from wakehub.client.send import send, waiting
from wakehub.errors import BadData, Exit, NoRecipient, Unsafe, WakehubError
from wakehub.identity import enrolment
from wakehub.identity.delegation import Bundle
from wakehub.identity.keys import b64
from wakehub.inbox.clock import Now
from wakehub.inbox.leases import Lease
from wakehub.inbox.refusals import LoopGuard, RecordBusy
from wakehub.inbox.rows import Event, NewRow
from wakehub.inbox.signing import verify_row
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.inbox.sqlite.leases import SqliteLeases
from wakehub.locks import Lock
from wakehub.processes import ProcessId


class World:
    """One instance, and bob in it, who sends."""

    def __init__(self, directory: Path) -> None:
        self.config = config.load({"WAKEHUB_HOME": str(directory)})
        ensure_home(self.config)
        self.stand_in = stand_in_for_up(self.config.paths)
        self.inbox = SqliteInbox.open(self.config.paths.record)
        self.told: list[Receipt] = []
        self.bob = ensure_agent(self.config, "bob")

    @property
    def socket(self) -> Path:
        return self.config.paths.publish_socket

    def enroll(self, *names: str) -> None:
        for name in names:
            ensure_agent(self.config, name)

    def send(
        self, to: str = "alice", body: bytes = b"hello", environ: dict[str, str] | None = None, **more: Any
    ) -> Sent:
        request = SendRequest(to, body, **({"sender": "bob"} | more))
        no_session = {"CLAUDE_CONFIG_DIR": str(self.config.paths.run / "no-claude")}
        return send(self.config, request, self.told.append, environ=no_session | (environ or {}))

    def notes(self) -> list[str]:
        return [receipt.detail for receipt in self.told if receipt.state is State.NOTE]

    def states(self) -> list[State]:
        return [receipt.state for receipt in self.told if receipt.state is not State.NOTE]

    def hold(self, name: str, process: ProcessId | None = None) -> Lease:
        lease = self.inbox.leases.acquire([name], process or ProcessId.own(), name, Now.read())
        assert isinstance(lease, Lease)
        return lease

    def hand_off(self, row_id: str, lease: Lease) -> None:
        assert self.inbox.claim(row_id, lease.token, Now.read())
        assert self.inbox.hand_off(row_id, lease.token, "read", Now.read())

    def rows(self, to: str = "alice") -> list[bytes | None]:
        return [row.body for row in self.inbox.unread(to)]


@pytest.fixture
def world(run_directory: Path) -> Iterator[World]:
    made = World(run_directory)
    yield made
    made.inbox.close()
    made.stand_in.release()


def test_the_row_is_stored_as_it_is_and_signed(world: World) -> None:
    body = "exactly\n\x00 ünd `so` $(id)\n".encode()
    sent = world.send(body=body)
    (row,) = world.inbox.unread("alice")
    assert row.id == sent.row_ids[0]
    assert (row.sender, row.recipient, row.body) == ("bob", "alice", body)
    assert verify_row(row, world.bob.pair.public) == "yes"
    assert (sent.sender, sent.size, sent.digest, sent.exit) == ("bob", len(body), row.digest.hex(), Exit.DONE)


def test_with_a_publisher_it_is_hinted_and_each_receipt_has_its_milliseconds(world: World) -> None:
    world.enroll("alice")
    world.hold("alice")
    with publisher(world.socket) as asked:
        sent = world.send()
    assert asked == [list(sent.row_ids)]
    assert world.states() == [State.STORED, State.HINTED]
    assert world.notes() == []
    stored, hinted = sent.receipts
    assert 0 < stored.after_ms <= hinted.after_ms
    assert tuple(world.told) == sent.receipts


def test_a_wake_that_only_the_hub_took_is_said_as_that(world: World) -> None:
    """F2, F28: a listener that was killed leaves the hub a wake, and nobody who heeds it."""
    world.enroll("alice")
    with publisher(world.socket):
        world.send()
        world.hold("alice", ProcessId.own()._replace(started="of another"))
        world.send()
    hinted = [each.detail for each in world.told if each.state is State.HINTED]
    assert hinted == ["only the hub took it; read when alice listens"] * 2


@pytest.mark.parametrize(
    ("held", "words"),
    [(True, "read within 60 s by the backstop"), (False, "read when alice listens")],
)
def test_without_a_publisher_it_says_what_happens_instead(world: World, held: bool, words: str) -> None:
    if held:
        world.hold("alice")
    sent = world.send()
    assert sent.exit is Exit.DONE
    assert world.states() == [State.STORED, State.NOT_HINTED]
    assert world.told[-2].detail == f"publisher not running; {words}"
    assert world.told[-1].detail.startswith(f"next: wait: wakehub up, pid {os.getpid()}, starts the publisher again")


_IN_60_S = "read within 60 s by the backstop"


@pytest.mark.parametrize(
    ("answered", "state", "held", "words"),
    [
        ({"state": "hub_down"}, State.NOT_HINTED, True, f"the hub is down; {_IN_60_S}"),
        ({"state": "hub_down"}, State.NOT_HINTED, False, "the hub is down; read when alice listens"),
        (
            {"state": "refused", "code": 404},
            State.NOT_HINTED,
            True,
            "the listener of alice is not connected to the hub yet; read when it is",
        ),
        (
            {"state": "refused", "code": 404},
            State.NOT_HINTED,
            False,
            "alice has not connected since the hub started; read when it listens",
        ),
        ({"state": "refused", "code": 507}, State.HINT_REFUSED, True, f"507; {_IN_60_S}"),
        ({"state": "refused", "code": 507}, State.HINT_REFUSED, False, "507; read when alice listens"),
    ],
)
def test_what_the_publisher_answers_is_told(
    world: World, answered: dict[str, Any], state: State, held: bool, words: str
) -> None:
    if held:
        world.hold("alice")
    with publisher(world.socket, lambda ids, connection: answer(connection, ids[0], **answered)):
        assert world.send().exit is Exit.DONE
    assert world.states() == [State.STORED, state]
    assert words == next(each.detail for each in world.told if each.state is state)


def test_a_record_that_is_busy_behind_the_storing_does_not_undo_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is told that it failed sends it again."""

    def busy(*_: object) -> Lease:
        raise RecordBusy("busy")

    monkeypatch.setattr(SqliteLeases, "resolve", busy)
    assert world.send().exit is Exit.DONE
    assert world.states() == [State.STORED, State.NOT_HINTED]
    assert world.rows() == [b"hello"]


def test_fyi_wakes_nobody(world: World) -> None:
    """F31."""
    with publisher(world.socket) as asked:
        world.send(row_class="fyi")
        assert world.notes()[-1] == "fyi wakes nobody; read when alice listens"
        world.hold("alice")
        world.send(row_class="fyi")
        assert world.notes()[-1] == f"fyi wakes nobody; {_IN_60_S}"
    assert asked == []
    assert world.states() == [State.STORED] * 2


def test_a_broadcast_for_your_information_promises_a_look_only_to_those_who_listen(world: World) -> None:
    world.enroll("acme/a", "acme/b")
    world.hold("acme/a")
    world.send("acme/", row_class="fyi")
    assert world.notes()[-1].endswith("read within 60 s by those who listen, by the others when they do")


def test_nobody_is_listening_and_since_when(world: World) -> None:
    """F2."""
    world.enroll("alice")
    world.send()
    assert "nobody is listening for alice yet" in world.notes()
    lease = world.hold("alice")
    world.told.clear()
    world.send()
    assert not any("nobody is listening" in note for note in world.notes())
    world.inbox.leases.release(lease.token, Now.read())
    world.told.clear()
    world.send()
    assert world.notes()[0].startswith("nobody is listening for alice since 20")


def test_a_listener_that_died_is_told_and_never_waited_for_in_vain(world: World) -> None:
    """F2, F28: its registration remains, but a registration proves nothing."""
    world.enroll("alice")
    world.hold("alice", ProcessId.own()._replace(started="of another"))
    sent = world.send(wait="handed-off", timeout_s=0.1)
    assert sent.exit is Exit.NOT_REACHED
    assert State.HANDED_OFF not in world.states()
    assert world.notes()[0].startswith("nobody is listening for alice since 20")
    assert world.notes()[0].endswith(f"its listener, pid {os.getpid()}, died")


def test_a_new_own_name_that_may_be_a_slip_is_remarked_on(world: World) -> None:
    world.enroll("alice")
    world.send(to="bob", sender="alcie")
    world.send(to="bob", sender="zoe")
    assert [note for note in world.notes() if "enrolled" in note] == [
        "enrolled alcie; did you mean alice?",
        "enrolled zoe",
    ]


def test_a_name_never_seen_is_kept_and_one_seen_before_is_not_remarked_on(world: World) -> None:
    world.send(ttl_s=3600)
    assert "alice has never been seen; kept for 1 h" in world.notes()
    world.told.clear()
    world.send()
    assert not any("never been seen" in note for note in world.notes())


@pytest.mark.parametrize(
    ("ttl_s", "words"),
    [(86_400, "24 h"), (172_800, "2 d"), (90, "90 s"), (900, "15 min"), (5400, "90 min"), (1, "1 s"), (604_800, "7 d")],
)
def test_the_time_to_live_in_words(world: World, ttl_s: int, words: str) -> None:
    world.send(ttl_s=ttl_s)
    assert f"alice has never been seen; kept for {words}" in world.notes()


def test_a_slip_is_refused_with_the_name_that_was_meant(world: World) -> None:
    """F15."""
    world.enroll("alice")
    with pytest.raises(NoRecipient) as caught:
        world.send("alise")
    assert "did you mean alice?" in caught.value.what
    assert "--create" in caught.value.remedy
    assert caught.value.exit == Exit.NO_RECIPIENT
    assert world.inbox.boxes() in ([], ["alice"], ["bob"])
    assert world.send("alise", create=True).exit is Exit.DONE
    assert world.rows("alise") == [b"hello"]


def test_a_closed_name_is_refused_with_the_date(world: World) -> None:
    world.enroll("alice")
    enrolment.close(world.config.paths, "alice", time.time())
    with pytest.raises(NoRecipient, match="alice was closed on 20"):
        world.send()
    with pytest.raises(NoRecipient):
        world.send(create=True)
    assert world.rows() == []


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("to", ["wakehub-publisher", "wakehub", "Wakehub", "owner", "ALICE", "Bob"])
def test_who_can_never_be_enrolled_gets_no_mail(world: World, to: str, create: bool) -> None:
    """The system's own names, the hub's, and another agent's in other letters."""
    world.enroll("alice")
    with pytest.raises(NoRecipient, match="no mailbox"):
        world.send(to, create=create)
    with pytest.raises(BadData):
        world.enroll(to)
    assert to not in world.inbox.boxes()


def test_a_hub_that_is_there_and_mute_is_not_called_down(world: World) -> None:
    with Lock.acquire(world.config.paths.lock("hub"), what="a hub"):
        with publisher(world.socket, lambda ids, connection: answer(connection, ids[0], "hub_down")):
            world.send()
    pid = os.getpid()
    why = f"the hub, pid {pid}, does not answer the publisher"
    assert [each.detail for each in world.told[-2:]] == [
        f"{why}; read when alice listens",
        "next: wakehub doctor",
    ]


@pytest.mark.parametrize("to", ["../x", "a b", "", "/", "acme//x/", "é"])
def test_what_is_no_address_is_refused(world: World, to: str) -> None:
    with pytest.raises(BadData):
        world.send(to)


@pytest.mark.parametrize("bad", [{"body": b"x" * (256 * 1024 + 1)}, {"ttl_s": 0}, {"ttl_s": 604_801}, {"re": "m_1"}])
def test_what_is_over_a_limit_is_refused_whole(world: World, bad: dict[str, Any]) -> None:
    with pytest.raises(BadData):
        world.send(**bad)
    assert world.rows() == []


def test_a_broadcast_is_one_row_for_each_agent_but_the_sender(world: World) -> None:
    world.enroll("acme/a", "acme/b", "acme/c/d", "acmes/x", "acme/me")
    with publisher(world.socket) as asked:
        sent = world.send("acme/", sender="acme/me")
    assert len(sent.row_ids) == 3
    assert asked == [list(sent.row_ids)]
    rows = [world.inbox.row(row_id) for row_id in sent.row_ids]
    assert [row.recipient for row in rows if row] == ["acme/a", "acme/b", "acme/c/d"]
    assert len({row.group for row in rows if row}) == 1
    stored = [receipt for receipt in world.told if receipt.state is State.STORED]
    assert [receipt.detail for receipt in stored] == ["for acme/a", "for acme/b", "for acme/c/d"]


def test_a_broadcast_to_nobody_is_refused(world: World) -> None:
    with pytest.raises(NoRecipient, match="nobody else is enrolled under acme/"):
        world.send("acme/")


def test_the_loop_guard_is_said_as_it_is(world: World) -> None:
    """F31."""
    for _ in range(60):
        world.inbox.append(NewRow("bob", "alice", b"x"), Now.read())
    with pytest.raises(LoopGuard, match="429"):
        world.send()


def test_a_new_sender_is_enrolled_and_told_so(world: World) -> None:
    sent = world.send(sender=None, environ={"WAKEHUB_AGENT": "carl"})
    assert sent.sender == "carl"
    assert world.notes()[:2] == ["sending as carl, from $WAKEHUB_AGENT", "enrolled carl"]


def test_a_first_send_makes_the_home(tmp_path: Path, run_directory: Path) -> None:
    settings = config.load({"WAKEHUB_HOME": str(run_directory / "new")})
    told: list[Receipt] = []
    sent = send(settings, SendRequest("alice", b"hi", sender="bob"), told.append, environ={})
    assert sent.exit is Exit.DONE
    assert any("config.toml" in receipt.detail for receipt in told)


def test_with_a_bundle_only_the_row_is_unsigned_and_that_is_said(world: World) -> None:
    bundle = Bundle.make("bob", world.bob.pair, "wakehub", time.time(), 60)
    world.config.paths.agent_key("bob").unlink()
    with pytest.raises(Unsafe):
        world.send()
    world.send(environ={"WAKEHUB_BUNDLE": b64(bundle.to_json())})
    (row,) = world.inbox.unread("alice")
    assert row.signature is None
    assert any("not signed" in note for note in world.notes())


# --- waiting ---


def in_the_background(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def until_stored(world: World, to: str = "alice") -> str:
    deadline = time.monotonic() + 20
    while not (rows := world.inbox.unread(to)):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return rows[0].id


@pytest.mark.parametrize(("wait", "ends_in"), [("handed-off", State.HANDED_OFF), ("hinted", State.HANDED_OFF)])
def test_waiting_ends_when_the_state_is_reached(world: World, wait: str, ends_in: State) -> None:
    world.enroll("alice")
    lease = world.hold("alice")
    taking = in_the_background(lambda: world.hand_off(until_stored(world), lease))
    sent = world.send(wait=wait, timeout_s=20)
    taking.join()
    assert sent.exit is Exit.DONE
    assert world.told[-1].state is ends_in
    assert world.told[-1].detail == "read"


def test_what_happens_while_it_looks_is_seen_by_the_next_look(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.enroll("alice")
    lease, real, pauses = world.hold("alice"), SqliteInbox.events, list[float]()

    def events(inbox: SqliteInbox, row_id: str) -> list[Event]:
        found = real(inbox, row_id)
        if len(found) < 2:  # it is stored, and perhaps hinted
            world.hand_off(row_id, lease)
        return found

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        assert len(pauses) < 3, "it was not seen"

    monkeypatch.setattr(SqliteInbox, "events", events)
    monkeypatch.setattr(waiting, "time", SimpleNamespace(sleep=pause))
    assert world.send(wait="handed-off", timeout_s=20).exit is Exit.DONE
    assert len(pauses) == 1


def test_a_record_that_is_busy_while_it_waits_is_asked_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.enroll("alice")
    lease, real, trouble = world.hold("alice"), SqliteInbox.events, [RecordBusy("busy")] * 2

    def events(inbox: SqliteInbox, row_id: str) -> list[Event]:
        if trouble:
            raise trouble.pop()
        if inbox.headers([row_id])[0].is_open:
            world.hand_off(row_id, lease)
        return real(inbox, row_id)

    monkeypatch.setattr(SqliteInbox, "events", events)
    assert world.send(wait="handed-off", timeout_s=20).exit is Exit.DONE
    assert trouble == []


def test_waiting_for_an_answer(world: World) -> None:
    world.enroll("alice")
    lease = world.hold("alice")

    def answer_it() -> None:
        row_id = until_stored(world)
        world.hand_off(row_id, lease)
        world.inbox.append(NewRow("alice", "bob", b"yes", re=row_id), Now.read())

    taking = in_the_background(answer_it)
    world.hold("bob")
    sent = world.send(wait="answered", timeout_s=20)
    taking.join()
    assert sent.exit is Exit.DONE
    assert world.states()[-2:] == [State.HANDED_OFF, State.ANSWERED]
    (reply,) = world.inbox.unread("bob")
    assert world.told[-1].detail == reply.id


@pytest.mark.parametrize("wait", ["hinted", "handed-off", "answered"])
def test_a_state_that_is_not_reached_exits_4_and_says_the_last_one(world: World, wait: str) -> None:
    """F2."""
    sent = world.send(wait=wait, timeout_s=0.2)
    assert sent.exit is Exit.NOT_REACHED
    assert world.states() == [State.STORED, State.NOT_HINTED]
    assert world.notes()[-2:] == [f"{wait} was not reached within 0.2 s", f"next: wakehub why {sent.row_ids[0]}"]


def test_stored_is_reached_at_once(world: World) -> None:
    assert world.send(wait="stored", timeout_s=0).exit is Exit.DONE


def test_a_row_that_ends_otherwise_ends_the_waiting(world: World) -> None:
    lease = world.hold("alice")

    def fail() -> None:
        row_id = until_stored(world)
        world.inbox.claim(row_id, lease.token, Now.read())
        world.inbox.fail(row_id, lease.token, 65, "cannot be shown", Now.read())

    taking = in_the_background(fail)
    sent = world.send(wait="handed-off", timeout_s=20)
    taking.join()
    assert sent.exit is Exit.NOT_REACHED
    assert (world.told[-2].state, world.told[-2].detail) == (State.FAILED, "cannot be shown")
    assert world.told[-1].detail == f"next: wakehub why {sent.row_ids[0]}"


def test_what_kept_it_is_said_when_time_is_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lease, real = world.hold("alice"), SqliteInbox.events

    def events(inbox: SqliteInbox, row_id: str) -> list[Event]:
        now = Now.read()
        if inbox.claim(row_id, lease.token, now):
            inbox.attempt_failed(row_id, lease.token, "exit status 3", now.ms + 60_000, now)
        return real(inbox, row_id)

    monkeypatch.setattr(SqliteInbox, "events", events)
    sent = world.send(wait="handed-off", timeout_s=0.2)
    assert sent.exit is Exit.NOT_REACHED
    assert world.notes()[-2] == "handed-off was not reached within 0.2 s; the last reason: exit status 3"


@pytest.mark.parametrize("reason", ["", "exit status 3"])
def test_a_row_that_expired_says_why(world: World, reason: str) -> None:
    lease = world.hold("alice")

    def end_it() -> None:
        row_id, now = until_stored(world), Now.read()
        if reason:
            world.inbox.claim(row_id, lease.token, now)
            world.inbox.attempt_failed(row_id, lease.token, reason, now.ms, now)
        world.inbox.expire(now.later(86_400_000))

    taking = in_the_background(end_it)
    assert world.send(wait="handed-off", timeout_s=20).exit is Exit.NOT_REACHED
    taking.join()
    (expired,) = [receipt for receipt in world.told if receipt.state is State.EXPIRED]
    assert expired.detail == (reason or "nobody took it in time")


def test_a_name_that_is_closed_ends_the_waiting(world: World) -> None:
    world.enroll("alice")

    def close() -> None:
        until_stored(world)
        enrolment.close(world.config.paths, "alice", time.time())

    closing = in_the_background(close)
    sent = world.send(wait="handed-off", timeout_s=600)
    closing.join()
    assert sent.exit is Exit.NOT_REACHED
    assert world.notes()[-2].startswith("handed-off is not reached: alice was closed on ")
    assert world.notes()[-1] == f"next: wakehub why {sent.row_ids[0]}"


def test_a_broadcast_waits_for_all(world: World) -> None:
    world.enroll("acme/a", "acme/b")
    lease = world.hold("acme/a")
    taking = in_the_background(lambda: world.hand_off(until_stored(world, "acme/a"), lease))
    sent = world.send("acme/", wait="handed-off", timeout_s=0.5)
    taking.join()
    assert sent.exit is Exit.NOT_REACHED
    assert State.HANDED_OFF in world.states()
    assert world.notes()[-1] == f"next: wakehub why {sent.row_ids[1]}", "the one that was not handed off"


def test_mail_from_the_other_side_ends_the_waiting(world: World) -> None:
    """F32: both wait for each other."""
    world.enroll("alice")
    (waiting,) = world.inbox.append(NewRow("alice", "bob", b"and I for you"), Now.read())
    sent = world.send(wait="answered", timeout_s=20)
    assert sent.exit is Exit.NOT_REACHED
    assert world.notes()[-2:] == [
        f"{waiting.id} from alice waits for you; read it first",
        "next: wakehub listen --as bob --once",
    ]
    assert world.rows("bob") == [b"and I for you"]


def test_mail_that_our_own_listener_takes_does_not(world: World) -> None:
    world.enroll("alice")
    mine, theirs = world.hold("bob"), world.hold("alice")
    (mail,) = world.inbox.append(NewRow("alice", "bob", b"by the way"), Now.read())

    def take_both() -> None:
        world.hand_off(mail.id, mine)
        world.hand_off(until_stored(world), theirs)

    taking = in_the_background(take_both)
    sent = world.send(wait="handed-off", timeout_s=20)
    taking.join()
    assert sent.exit is Exit.DONE


def test_mail_that_our_own_listener_leaves_lying_does(world: World) -> None:
    world.hold("bob")
    world.inbox.append(NewRow("alice", "bob", b"hello?"), Now.read())
    sent = world.send(wait="answered", timeout_s=20)
    assert sent.exit is Exit.NOT_REACHED
    assert "waits for you" in world.notes()[-2]


def test_an_error_of_the_record_is_not_hidden(world: World) -> None:
    world.inbox.close()
    world.config.paths.record.write_bytes(b"x" * 8192)
    with pytest.raises(WakehubError):
        world.send()
    world.inbox = SqliteInbox.open(world.config.paths.state / "other.db")
