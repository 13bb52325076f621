"""The life of a message in every state it can be in, and the next step in words (receive.md §1, Receipts)."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_process import Daemon, until

from wakehub import config as configuration
from wakehub.client import spool
from wakehub.client.home import ensure_agent
from wakehub.config import Config
from wakehub.errors import BadData, Exit
from wakehub.identity import enrolment
from wakehub.inbox import ids
from wakehub.inbox.clock import Now
from wakehub.inbox.envelope import Envelope
from wakehub.inbox.leases import Lease
from wakehub.inbox.rows import NewRow
from wakehub.inbox.signing import signer
from wakehub.inbox.store import Inbox
from wakehub.limits import KEEP_HANDED_OFF_SECONDS, OVERDUE_SECONDS
from wakehub.ops.why import Spooled, trace
from wakehub.ops.why.life import JSON_KEYS, Life, _after
from wakehub.processes import ProcessId


def put(inbox: Inbox, ago_s: float = 0, **fields: object) -> str:
    new = replace(NewRow("bob", "alice", b"hello"), **fields)  # type: ignore[arg-type]
    (row,) = inbox.append(new, Now.read().later(-round(ago_s * 1000)))
    return row.id


def hold(inbox: Inbox, name: str = "alice", ago_s: float = 0, process: ProcessId | None = None) -> Lease:
    now = Now.read()
    lease = inbox.leases.acquire([name], process or ProcessId.own(), name, now.later(-round(ago_s * 1000)))
    assert isinstance(lease, Lease)
    inbox.leases.renew(lease.token, now)
    return lease


def claimed(inbox: Inbox, row_id: str, lease: Lease | None = None) -> Lease:
    lease = lease or hold(inbox)
    assert inbox.claim(row_id, lease.token, Now.read())
    return lease


def life(config: Config, row_id: str) -> Life:
    found = trace(config, row_id)
    assert isinstance(found, Life)
    return found


def next_step(config: Config, row_id: str) -> str:
    return life(config, row_id).next_step


# --- the table ---


def lived(config: Config, inbox: Inbox) -> Life:
    """A message that was hinted, tried in vain, handed off and answered."""
    pair = ensure_agent(config, "bob").pair
    row_id = put(inbox, signed=signer(pair))
    now = Now.read()
    inbox.record_hint([row_id], 507, now.later(1))
    inbox.record_hint([row_id], None, now.later(2))
    lease = hold(inbox)
    assert inbox.claim(row_id, lease.token, now.later(3))
    inbox.attempt_failed(row_id, lease.token, "busy", now.ms + 1000, now.later(4))
    assert inbox.claim(row_id, lease.token, now.later(1000))
    inbox.hand_off(row_id, lease.token, "flushed", now.later(1500), woken_by="retry")
    inbox.append(NewRow("alice", "bob", b"yes", re=row_id), now.later(20_000))
    return life(config, row_id)


def test_every_event_is_a_line_with_its_time_its_author_and_its_proof(config: Config, inbox: Inbox) -> None:
    title, head, *lines, last = lived(config, inbox).to_text().splitlines()
    assert " from bob to alice · 5 B · sha256 2cf24dba5fb0 · verified · handed off" in title
    assert head.split() == ["time", "(UTC)", "after", "event", "by", "proof"]
    assert [line.split("  ")[3 if "ms" in line else 2] != "" for line in lines]
    for line, (event, by, says) in zip(
        lines,
        [
            ("stored", "bob", "commit"),
            ("hint refused", "hub", "507"),
            ("hinted", "hub", "pong"),
            ("claimed", "alice", f"pid {os.getpid()}"),
            ("attempt failed", "alice", "busy · next try at "),
            ("claimed", "alice", f"pid {os.getpid()}"),
            ("handed off", "alice", "flushed · woken by retry"),
            ("answered", "alice", "m_"),
        ],
        strict=True,
    ):
        assert f"  {event} " in line
        assert f"  {by} " in line
        assert says in line
    assert "+0 ms" in lines[0]
    assert "+20 s" in lines[-1]
    assert last.startswith("next: nothing: it was answered by m_")


def test_events_are_told_by_their_times(config: Config, inbox: Inbox) -> None:
    """A hint that is entered late was taken before; the report for programs keeps the order of entry."""
    row_id = put(inbox)
    now = Now.read()
    inbox.ack([row_id], "alice", None, now.later(20))
    inbox.record_hint([row_id], None, now.later(10))
    found = life(config, row_id)
    assert re.findall(r"ms +([a-z ]+?)  ", found.to_text()) == ["stored", "hinted", "handed off"]
    assert [event["event"] for event in found.to_json()["events"]] == ["stored", "handed_off", "hinted"]
    assert found.to_json()["furthest"] == "handed_off"


def test_the_columns_stand_under_one_another(config: Config, inbox: Inbox) -> None:
    _, head, *lines, _ = lived(config, inbox).to_text().splitlines()
    for column, words in (("event", ("stored", "handed off")), ("by", ("bob", "alice"))):
        found = {line.index(word) for line in lines for word in words if f"  {word} " in line}
        assert found == {head.index(column)}


def test_a_registry_that_cannot_be_read_is_no_fault_of_the_signature(config: Config, inbox: Inbox) -> None:
    row_id = put(inbox, signed=signer(ensure_agent(config, "bob").pair))
    assert life(config, row_id).to_json()["note"] == ""
    config.paths.audit.write_bytes(b"damaged")
    found = life(config, row_id)
    assert (found.verified, "no signature can be verified" in found.to_json()["note"]) == ("no", True)
    assert f"! {found.note}\nnext: " in found.to_text()


def test_the_keys_of_the_report_are_what_is_promised(config: Config, inbox: Inbox) -> None:
    found = lived(config, inbox).to_json()
    assert tuple(found) == JSON_KEYS
    assert json.loads(json.dumps(found)) == found
    assert (found["state"], found["furthest"], found["verified"]) == ("handed_off", "answered", "yes")
    assert [event["event"] for event in found["events"]][-2:] == ["handed_off", "answered"]


def test_text_of_others_is_made_visible(config: Config, inbox: Inbox) -> None:
    row_id = put(inbox, sender="b\x1b[2K\u202e\n")
    lease = claimed(inbox, row_id)
    inbox.fail(row_id, lease.token, 65, "no\x1b]52;c;\x07", Now.read())
    text = trace(config, row_id).to_text()
    assert not set("\x1b\u202e\x07") & set(text)
    assert "b\\x1b[2K\\u202e\\n" in text


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (0, "+0 ms"),
        (9_999, "+9999 ms"),
        (-5, "-5 ms"),
        (60_000, "+60 s"),
        (3_600_000, "+1 h 0 min"),
        (9e6, "+2 h 30 min"),
    ],
)
def test_spans(ms: float, said: str) -> None:
    assert _after(int(ms)) == said


# --- every state and what comes next ---


def test_nobody_listened_yet(config: Config, inbox: Inbox) -> None:
    said = next_step(config, put(inbox))
    assert said.startswith("nobody has listened for alice yet; it is kept until 20")
    assert said.endswith("wakehub listen --as alice")


def test_nobody_listens_any_more(config: Config, inbox: Inbox) -> None:
    inbox.leases.release(hold(inbox).token, Now.read())
    assert next_step(config, put(inbox)).startswith("nobody is listening for alice since 20")


def test_the_listener_died(config: Config, inbox: Inbox) -> None:
    hold(inbox, process=ProcessId.own()._replace(started="of another"))
    row_id = put(inbox)
    assert f"(pid {os.getpid()} died); it is kept" in next_step(config, row_id)
    inbox.record_hint([row_id], None, Now.read())
    assert f"(pid {os.getpid()} died); that the hub took the wake brings no reader; it is" in next_step(config, row_id)


def test_a_listener_that_was_woken(config: Config, inbox: Inbox) -> None:
    hold(inbox)
    row_id = put(inbox)
    assert "was not woken yet" in next_step(config, row_id)
    inbox.record_hint([row_id], 404, Now.read())
    assert "is not connected to the hub" in next_step(config, row_id)
    inbox.record_hint([row_id], 507, Now.read())
    assert "could not be woken (507)" in next_step(config, row_id)
    inbox.record_hint([row_id], None, Now.read())
    assert f"pid {os.getpid()}, which listens for alice, was woken" in next_step(config, row_id)


def test_fyi_wakes_nobody(config: Config, inbox: Inbox) -> None:
    hold(inbox)
    assert "fyi wakes nobody" in next_step(config, put(inbox, class_="fyi"))


def test_in_hand(config: Config, inbox: Inbox) -> None:
    row_id = put(inbox)
    lease = claimed(inbox, row_id)
    assert "has it in hand; if that process dies, the message comes again" in next_step(config, row_id)
    inbox.leases.release(lease.token, Now.read())
    assert "nobody is listening for alice since" in next_step(config, row_id)


def test_in_the_hand_of_a_process_that_was_displaced(config: Config, inbox: Inbox) -> None:
    row_id = put(inbox)
    claimed(inbox, row_id)
    other = ProcessId.own()._replace(pid=os.getppid(), started="of another", namespace=7)
    assert isinstance(inbox.leases.acquire(["alice"], other, "alice", Now.read(), take_over=True), Lease)
    assert "has it in hand" not in next_step(config, row_id)


def test_waiting_for_the_next_try(config: Config, inbox: Inbox) -> None:
    row_id = put(inbox)
    now = Now.read()
    inbox.attempt_failed(row_id, claimed(inbox, row_id).token, "exit status 1", now.ms + 60_000, now)
    assert "tries again in 60 s (exit status 1)" in next_step(config, row_id)


def test_behind_an_earlier_message_of_the_same_sender(config: Config, inbox: Inbox) -> None:
    first, second = put(inbox), put(inbox)
    now = Now.read()
    inbox.attempt_failed(first, claimed(inbox, first).token, "no", now.ms + 60_000, now)
    assert next_step(config, second).startswith(f"it waits behind {first}, an earlier message of bob")


def test_for_an_agent_that_is_not_there(config: Config, inbox: Inbox) -> None:
    """F37: the relay is there and was woken, and takes it nevertheless not."""
    row_id = put(inbox, recipient="cl/absent")
    lease = hold(inbox, "cl/")
    inbox.record_hint([row_id], None, Now.read())
    assert "was woken; it takes it now" in next_step(config, row_id)
    inbox.leave("cl/absent", lease.token, "no session called absent is running", Now.read())
    assert next_step(config, row_id).endswith("hands it over as soon as it can: no session called absent is running")
    assert "no session called absent is running" in life(config, row_id).to_text().splitlines()[-2]


def test_left_for_far_too_long(config: Config, inbox: Inbox) -> None:
    """F9."""
    hold(inbox, ago_s=OVERDUE_SECONDS + 20)
    assert "should have taken it long ago" in next_step(config, put(inbox, ago_s=OVERDUE_SECONDS + 10))


def test_over_but_not_yet_swept_and_then_expired(config: Config, inbox: Inbox) -> None:
    row_id = put(inbox, ago_s=10, ttl_s=5)
    assert "its time is over; the publisher ends it" in next_step(config, row_id)
    inbox.expire(Now.read())
    found = life(config, row_id)
    assert (found.row.state, found.row.body) == ("expired", None)
    assert "its time was over, and its text is gone" in found.next_step


def test_never_deliverable(config: Config, inbox: Inbox) -> None:
    row_id = put(inbox)
    inbox.fail(row_id, claimed(inbox, row_id).token, 65, "refused by the hook", Now.read())
    assert "it can never be handed off (65: refused by the hook)" in next_step(config, row_id)


def test_for_a_name_that_was_closed(config: Config, inbox: Inbox) -> None:
    ensure_agent(config, "alice")
    row_id = put(inbox)
    enrolment.close(config.paths, "alice", Now.read().ms / 1000)
    assert next_step(config, row_id).startswith("alice was closed on 20")


def test_for_a_name_that_was_enrolled_anew(config: Config, inbox: Inbox) -> None:
    row_id = put(inbox)
    inbox.open_box("alice", 2, Now.read())
    assert "it can never be handed off (67: alice was removed" in next_step(config, row_id)


def test_acknowledged_by_hand(config: Config, inbox: Inbox) -> None:
    row_id = put(inbox)
    inbox.ack([row_id], "alice", None, Now.read())
    found = trace(config, row_id)
    assert "manual" in found.to_text()
    assert found.next_step.startswith("nothing: alice has it")


def test_nothing_short_of_a_hand_off_is_told_as_an_arrival(config: Config, inbox: Inbox) -> None:
    row_id = put(inbox)
    inbox.record_hint([row_id], None, Now.read())
    claimed(inbox, row_id)
    text = trace(config, row_id).to_text()
    assert "deliver" not in text
    assert "has it, and" not in text
    assert trace(config, row_id).to_json()["furthest"] == "claimed"


def test_who_may_not_read_the_registry_is_told_all_the_same(config: Config, inbox: Inbox) -> None:
    row_id = put(inbox)
    config.paths.audit.write_bytes(b"nonsense\n")
    assert life(config, row_id).presence.state == "never"


# --- in a spool ---


def envelope(config: Config) -> Envelope:
    pair = ensure_agent(config, "bob").pair
    return Envelope.seal(NewRow("bob", "alice", b"hello"), signer(pair), Now.read())


def test_what_was_spooled_is_found_where_it_was_left(config: Config, inbox: Inbox) -> None:
    left = envelope(config)
    (path,) = spool.drop(config.spool_dirs, [left])
    found = trace(config, left.id)
    assert isinstance(found, Spooled)
    assert (found.path, found.to_json()["state"]) == (path, "spooled")
    assert f"{left.id} · spooled · at 20" in found.to_text()
    assert "the publisher takes it in" in found.next_step


def test_once_it_is_taken_in_the_record_tells(config: Config, inbox: Inbox) -> None:
    left = envelope(config)
    spool.drop(config.spool_dirs, [left])
    inbox.append(left.row(1), Now.read())
    assert isinstance(trace(config, left.id), Life)


def test_what_was_refused_is_found_with_the_reason(config: Config, inbox: Inbox) -> None:
    left = envelope(config)
    (path,) = spool.drop(config.spool_dirs, [left])
    enrolment.close(config.paths, "bob", Now.read().ms / 1000)
    with Daemon(config.paths.run.parent, "publish"):
        until(lambda: not path.exists(), "the envelope is judged")
        found = until(lambda: trace(config, left.id), "it was put aside")
    assert isinstance(found, Spooled)
    assert found.to_json()["state"] == "refused"
    assert found.reason in found.to_text()
    assert "it is never taken in" in found.next_step


def test_an_envelope_without_a_reason_is_refused_all_the_same(config: Config) -> None:
    left = envelope(config)
    (path,) = spool.drop([config.paths.spool / "bad"], [left])
    found = trace(config, left.id)
    assert isinstance(found, Spooled)
    assert (found.path, found.reason) == (path, "the reason cannot be read")


# --- no such message ---


def id_of(ms: int) -> str:
    """An id that another process made at that time."""
    return "m_" + ids._text(ids._Series().next(ms))


def refused(config: Config, id: str) -> BadData:
    with pytest.raises(BadData) as caught:
        trace(config, id)
    assert caught.value.exit is Exit.DATA
    return caught.value


def test_the_beginning_of_an_id_is_answered_with_those_that_begin_so(config: Config, inbox: Inbox) -> None:
    first, second = put(inbox), put(inbox)
    assert refused(config, first[:9]).remedy == f"did you mean {first} or {second}?"


def test_a_slip_of_the_finger(config: Config, inbox: Inbox) -> None:
    row_id = put(inbox)
    typed = row_id[:-1] + ("0" if row_id[-1] != "0" else "1")
    assert refused(config, typed).remedy == f"did you mean {row_id}?"


def test_an_id_of_another_time_is_not_guessed_at(config: Config, inbox: Inbox) -> None:
    put(inbox)
    found = refused(config, id_of(Now.read().ms - (KEEP_HANDED_OFF_SECONDS + 86_400) * 1000))
    assert "its id was made 8 d ago, and what ended 7 d ago is removed" in found.why


def test_an_id_of_another_instance(config: Config) -> None:
    found = refused(config, id_of(Now.read().ms))
    assert found.why == "it was never stored in this record"
    assert "WAKEHUB_HOME" in found.remedy


@pytest.mark.parametrize("text", ["", "x", "m_", "../../etc/passwd", "m_\x1b[2K", "caf\udce9", "m_" + "z" * 26])
def test_what_is_no_id(config: Config, inbox: Inbox, text: str) -> None:
    put(inbox)
    assert "\x1b" not in str(refused(config, text))


def test_without_a_record_there_is_no_message(short: Path) -> None:
    refused(configuration.load({"WAKEHUB_HOME": str(short / "nowhere")}), id_of(0))
