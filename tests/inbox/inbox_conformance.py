"""What every implementation of `Inbox` must do, as one test class (wakehub/inbox/store.py, the rules at its head).

A test module of an implementation derives from `InboxConformance` and gives the fixture `store`, which opens the same
record any number of times: two openings stand for two processes.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

import pytest

from wakehub.errors import BadData, Exit, NoRecipient
from wakehub.identity.addresses import PUBLISHER
from wakehub.identity.keys import KeyPair
from wakehub.inbox import ids
from wakehub.inbox.admission import Guard
from wakehub.inbox.clock import Now
from wakehub.inbox.ids import is_row_id, new_group, new_id
from wakehub.inbox.leases import HeldBy, Lease
from wakehub.inbox.refusals import AlreadyStored, LoopGuard
from wakehub.inbox.rows import Arrival, Attachment, NewRow, Row, Seal, Signer, furthest
from wakehub.inbox.signing import row_signing_bytes, signer, verify_row
from wakehub.inbox.store import Activity, BoxCount, Inbox
from wakehub.processes import ProcessId, boot_id

START = Now(1_800_000_000_000, 5_000_000, boot_id())
DAY = 86_400
NOBODY = b"\0" * 16


class Store(Protocol):
    def open(self, guard: Guard | None = None) -> Inbox: ...


def at(seconds: float) -> Now:
    """The moment `seconds` after the tests begin."""
    return START.later(round(seconds * 1000))


def listen(inbox: Inbox, *names: str, now: Now = START, process: ProcessId | None = None, **flags: object) -> Lease:
    lease = inbox.leases.acquire(names, process or ProcessId.own(), names[0], now, **flags)  # type: ignore[arg-type]
    assert isinstance(lease, Lease)
    return lease


def put(inbox: Inbox, sender: str, recipient: str, body: bytes = b"hello", now: Now = START, **fields: object) -> Row:
    (row,) = inbox.append(replace(NewRow(sender, recipient, body), **fields), now)  # type: ignore[arg-type]
    return row


def take(inbox: Inbox, lease: Lease, now: Now = START) -> Row | None:
    """Claim the next row for every name of `lease`, if there is one."""
    head = inbox.next_for(lease.names, lease.token, now)
    return inbox.claim(head.id, lease.token, now) if head is not None else None


def drain(inbox: Inbox, lease: Lease, now: Now = START) -> list[bytes | None]:
    """Hand off whatever may be handed off; the bodies in that order."""
    bodies = []
    while (row := take(inbox, lease, now)) is not None:
        assert inbox.hand_off(row.id, lease.token, "flushed", now)
        bodies.append(row.body)
    return bodies


def kinds(inbox: Inbox, id: str) -> list[str]:
    return [event.kind for event in inbox.events(id)]


class InboxConformance:
    @pytest.fixture
    def inbox(self, store: Store) -> Iterator[Inbox]:
        with store.open() as opened:
            yield opened

    @pytest.fixture
    def other(self, store: Store) -> Iterator[Inbox]:
        """The same record, as another process sees it."""
        with store.open() as opened:
            yield opened

    # --- storing ---

    def test_a_row_is_stored_byte_for_byte_with_what_the_record_adds(self, inbox: Inbox, other: Inbox) -> None:
        body = bytes(range(256))
        new = NewRow("bob", "alice", body, media_type="application/octet-stream", ttl_s=60, origin="intercom")
        (row,) = inbox.append(new, START)
        assert other.row(row.id) == row
        assert row.body == body
        assert is_row_id(row.id)
        assert (row.sender, row.recipient, row.media_type, row.origin) == (
            "bob",
            "alice",
            "application/octet-stream",
            "intercom",
        )
        assert (row.size, row.digest) == (256, hashlib.sha256(body).digest())
        assert (row.created_ms, row.expires_ms, row.stored_ms) == (START.ms, START.ms + 60_000, START.ms)
        assert (row.state, row.rseq, row.generation, row.hops) == ("unread", 1, 1, 0)
        assert (row.attempts, row.failures, row.redelivery, row.is_open) == (0, 0, 0, True)
        (event,) = other.events(row.id)
        assert (event.kind, event.at_ms, event.by, event.proof) == ("stored", START.ms, "bob", "commit")

    def test_defaults_are_utf8_text_kept_for_a_day(self, inbox: Inbox) -> None:
        row = put(inbox, "bob", "alice", "grüße".encode())
        assert row.media_type == "text/plain; charset=utf-8"
        assert row.expires_ms - row.created_ms == DAY * 1000
        assert (row.class_, row.origin, row.re, row.group) == ("normal", "local", None, None)

    def test_rseq_is_dense_for_each_recipient_and_tells_nothing_of_others(self, inbox: Inbox) -> None:
        """F92."""
        rseqs = [put(inbox, "bob", name).rseq for name in ("alice", "carol", "carol", "alice", "dave", "alice")]
        assert rseqs == [1, 1, 2, 2, 1, 3]
        assert [inbox.watermark(name) for name in ("alice", "carol", "dave", "nobody")] == [3, 2, 1, 0]

    def test_ids_and_seq_grow_in_the_order_of_storing(self, inbox: Inbox, other: Inbox) -> None:
        rows = [put(box, "bob", "alice") for box in (inbox, other, inbox, other)]
        assert [row.seq for row in rows] == sorted({row.seq for row in rows})
        assert [row.id for row in rows] == sorted({row.id for row in rows})

    def test_a_broadcast_is_one_transaction(self, inbox: Inbox) -> None:
        group = new_group(START.ms)
        names = [f"acme/{number}" for number in range(5)]
        rows = inbox.append([NewRow("bob", name, b"all", group=group) for name in names], START)
        assert [row.recipient for row in rows] == names
        assert {row.group for row in rows} == {group}
        assert len({row.id for row in rows}) == 5

    def test_of_a_list_with_one_bad_row_nothing_is_stored(self, inbox: Inbox) -> None:
        seal = Seal(new_id(START.ms), START.ms, START.ms + 1000, 0, "k", b"s" * 64)
        put(inbox, "bob", "dave", signed=seal)
        with pytest.raises(AlreadyStored):
            inbox.append([NewRow("bob", "alice", b"1"), NewRow("bob", "dave", b"2", signed=seal)], START)
        assert inbox.count_unread("alice", now=START) == 0
        assert inbox.watermark("alice") == 0
        assert put(inbox, "bob", "alice").rseq == 1

    def test_an_empty_list_stores_nothing(self, inbox: Inbox) -> None:
        assert inbox.append([], START) == []

    @pytest.mark.parametrize(
        "new",
        [
            NewRow("bob", "alice", b"x" * (256 * 1024 + 1)),
            NewRow("bob", "alice", b"x", ttl_s=7 * DAY + 1),
            NewRow("bob", "alice", b"x", ttl_s=0),
            NewRow("bob", "acme/", b"x"),
            NewRow("", "alice", b"x"),
            NewRow("bob", "a" * 129, b"x"),
            NewRow("bob", "\ud800", b"x"),
            NewRow("bob", "alice", b"\xff"),
            NewRow("bob", "alice", b"x", re="m_short"),
        ],
    )
    def test_over_a_limit_is_refused_and_never_cut(self, inbox: Inbox, new: NewRow) -> None:
        with pytest.raises(BadData) as refused:
            inbox.append(new, START)
        assert refused.value.exit == Exit.DATA
        assert inbox.boxes() == []

    def test_the_largest_body_and_the_longest_ttl_are_taken(self, inbox: Inbox) -> None:
        row = put(inbox, "bob", "alice", b"x" * 256 * 1024, ttl_s=7 * DAY)
        assert inbox.unread("alice", now=START)[0].body == b"x" * 256 * 1024
        assert row.size == 256 * 1024

    def test_attachments_come_back_in_order(self, inbox: Inbox) -> None:
        files = (Attachment("b.txt", 3, b"\1" * 32), Attachment("a.txt", 1 << 40, b"\2" * 32))
        row = put(inbox, "bob", "alice", attachments=files)
        assert row.attachments == files
        assert inbox.headers([row.id])[0].attachments == files

    def test_a_file_is_attached_while_a_row_that_has_not_expired_has_it(self, inbox: Inbox) -> None:
        one, two, other = b"\1" * 32, b"\2" * 32, b"\3" * 32
        short = put(inbox, "bob", "alice", attachments=(Attachment("a", 1, one), Attachment("b", 1, two)), ttl_s=60)
        put(inbox, "bob", "carol", attachments=(Attachment("c", 1, two),))
        assert inbox.attached([one, two, other]) == {one, two}
        assert [row.id for row in inbox.expire(at(61))] == [short.id]
        assert inbox.attached([one, two, other]) == {two}
        assert inbox.attached([]) == set()

    # --- signatures ---

    def test_a_row_is_signed_as_it_is_stored(self, inbox: Inbox) -> None:
        pair = KeyPair.generate()
        first = put(inbox, "bob", "alice", signed=signer(pair))
        row = put(inbox, "alice", "bob", signed=signer(pair), re=first.id, attachments=(Attachment("f", 1, b"d" * 32),))
        stored = inbox.row(row.id)
        assert stored is not None
        assert verify_row(stored, pair.public) == "yes"
        assert (stored.hops, stored.signed_hops) == (1, 1)
        assert verify_row(replace(stored, sender="mallory"), pair.public) == "no"

    def test_a_signer_that_fails_stores_nothing(self, inbox: Inbox) -> None:
        def broken(_: bytes) -> bytes:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            put(inbox, "bob", "alice", signed=Signer("k", broken))
        assert inbox.boxes() == []

    def test_an_envelope_keeps_what_its_sender_signed_but_not_its_hops(self, inbox: Inbox) -> None:
        pair = KeyPair.generate()
        asked = put(inbox, "alice", "bob")
        id, created, expires = new_id(START.ms), START.ms - 500, START.ms + 9500
        covered = row_signing_bytes(
            id=id,
            sender="bob",
            recipient="alice",
            re=asked.id,
            group=None,
            class_="normal",
            hops=9,
            created_ms=created,
            expires_ms=expires,
            media_type="text/plain",
            digest=hashlib.sha256(b"late").digest(),
        )
        seal = Seal(id, created, expires, 9, "key", pair.sign(covered))
        row = put(inbox, "bob", "alice", b"late", media_type="text/plain", re=asked.id, signed=seal, origin="spool")
        assert (row.id, row.created_ms, row.expires_ms, row.key_id) == (id, created, expires, "key")
        assert (row.hops, row.signed_hops) == (1, 9)
        assert verify_row(row, pair.public) == "yes"

    def test_an_envelope_is_taken_once_even_after_its_row_is_gone(self, inbox: Inbox, other: Inbox) -> None:
        seal = Seal(new_id(START.ms), START.ms, START.ms + 7 * DAY * 1000, 0, "k", b"s" * 64)
        row = put(inbox, "bob", "alice", signed=seal)
        with pytest.raises(AlreadyStored):
            put(other, "bob", "alice", signed=seal)
        inbox.ack([row.id], "alice", None, START)
        assert inbox.prune(at(1), keep_s=0) == 1
        with pytest.raises(AlreadyStored):
            put(other, "bob", "alice", now=at(2), signed=seal)
        assert inbox.count_unread("alice", now=START) == 0

    def test_an_arrival_is_stored_once_even_after_its_row_is_gone(self, inbox: Inbox, other: Inbox) -> None:
        """F21: what another system calls by one name becomes one row, in whatever process it arrives again."""
        arrival = Arrival("mesh/nova/msg_0123456789ab", START.ms)
        row = put(inbox, "bob", "alice", arrival=arrival)
        with pytest.raises(AlreadyStored):
            put(other, "carol", "alice", b"under the same name", arrival=arrival)
        inbox.ack([row.id], "alice", None, START)
        assert inbox.prune(at(1), keep_s=0) == 1
        with pytest.raises(AlreadyStored):
            put(other, "bob", "alice", now=at(2), arrival=arrival)
        assert put(other, "bob", "alice", now=at(2), arrival=replace(arrival, key="another")).rseq == 2

    def test_an_arrival_is_as_old_as_it_is_where_it_came_from(self, inbox: Inbox) -> None:
        """F20: what was written on Friday is not of today because it came in on Monday; it is kept from today on."""
        friday = START.ms - 3 * DAY * 1000
        row = put(inbox, "bob", "alice", ttl_s=60, arrival=Arrival("friday", friday))
        assert (row.created_ms, row.stored_ms, row.expires_ms) == (friday, START.ms, START.ms + 60_000)
        early = put(inbox, "bob", "alice", arrival=Arrival("from a clock that is ahead", START.ms + 5_000))
        assert early.created_ms == START.ms

    def test_an_envelope_with_the_id_of_a_local_row_is_refused(self, inbox: Inbox) -> None:
        row = put(inbox, "bob", "alice")
        with pytest.raises(AlreadyStored):
            put(inbox, "bob", "alice", signed=Seal(row.id, START.ms, START.ms + 1000, 0, "k", b"s" * 64))

    @pytest.mark.parametrize(
        "change",
        [
            {"expires_ms": START.ms},
            {"expires_ms": START.ms + 8 * DAY * 1000},
            {"created_ms": START.ms + 31_000, "expires_ms": START.ms + 60_000},
            {"id": "../../x"},
            {"signature": b""},
            {"hops": 256},
        ],
    )
    def test_an_envelope_that_cannot_be_is_refused(self, inbox: Inbox, change: dict[str, object]) -> None:
        seal = Seal(new_id(START.ms), START.ms, START.ms + 1000, 0, "k", b"s" * 64)
        with pytest.raises(BadData):
            put(inbox, "bob", "alice", signed=replace(seal, **change))  # type: ignore[arg-type]

    # --- answers and the loop guard ---

    def test_an_answer_is_an_event_of_what_it_answers(self, inbox: Inbox) -> None:
        asked = put(inbox, "bob", "alice")
        answer = put(inbox, "alice", "bob", now=at(3), re=asked.id)
        event = inbox.events(asked.id)[-1]
        assert (event.kind, event.at_ms, event.by, event.detail) == ("answered", at(3).ms, "alice", answer.id)
        assert furthest(inbox.events(asked.id)) == "answered"

    def test_only_the_recipient_answers_and_only_to_the_sender(self, inbox: Inbox) -> None:
        asked = put(inbox, "bob", "alice")
        put(inbox, "mallory", "bob", re=asked.id)
        put(inbox, "alice", "carol", re=asked.id)
        put(inbox, "bob", "alice", re=asked.id)
        assert kinds(inbox, asked.id) == ["stored"]

    def test_an_unknown_re_is_kept_and_begins_a_chain(self, inbox: Inbox) -> None:
        unknown = new_id(START.ms)
        row = put(inbox, "bob", "alice", re=unknown)
        assert (row.re, row.hops) == (unknown, 0)

    def test_a_chain_of_answers_ends_at_sixteen(self, inbox: Inbox) -> None:
        row = put(inbox, "a", "b")
        for hop in range(1, 17):
            row = put(inbox, row.recipient, row.sender, re=row.id)
            assert row.hops == hop
        with pytest.raises(LoopGuard) as refused:
            put(inbox, row.recipient, row.sender, re=row.id)
        assert (refused.value.exit, refused.value.code) == (Exit.UNAVAILABLE, 429)
        assert "429" in str(refused.value)

    def test_a_triangle_is_a_chain_as_well(self, inbox: Inbox) -> None:
        names = ["a", "b", "c"]
        row = put(inbox, "c", "a")
        for step in range(16):
            row = put(inbox, names[step % 3], names[(step + 1) % 3], re=row.id)
        with pytest.raises(LoopGuard):
            put(inbox, "b", "c", re=row.id)

    def test_a_pair_stores_sixty_rows_a_minute(self, inbox: Inbox) -> None:
        inbox.append([NewRow("a", "b", b"x") for _ in range(60)], START)
        with pytest.raises(LoopGuard):
            put(inbox, "a", "b", now=at(59))
        put(inbox, "b", "a")
        put(inbox, "a", "c")
        put(inbox, "a", "b", now=at(60))

    def test_a_list_counts_as_its_rows(self, inbox: Inbox) -> None:
        with pytest.raises(LoopGuard):
            inbox.append([NewRow("a", "b", b"x") for _ in range(61)], START)
        assert inbox.count_unread("b", now=START) == 0

    def test_the_guard_is_configurable(self, store: Store) -> None:
        with store.open(Guard(max_hops=1, pair_per_minute=2)) as inbox:
            first = put(inbox, "a", "b")
            second = put(inbox, "b", "a", re=first.id)
            with pytest.raises(LoopGuard):
                put(inbox, "a", "b", re=second.id)
            put(inbox, "a", "b")
            with pytest.raises(LoopGuard):
                put(inbox, "a", "b")

    def test_a_clock_that_was_set_back_refuses_nobody(self, inbox: Inbox) -> None:
        inbox.append([NewRow("a", "b", b"x") for _ in range(60)], at(3600))
        put(inbox, "a", "b")

    # --- reading ---

    def test_unread_is_filtered_first_and_then_limited_oldest_first(self, inbox: Inbox) -> None:
        for number in range(10):
            put(inbox, "bob" if number % 2 else "carol", "alice", str(number).encode())
        assert [row.body for row in inbox.unread("alice", senders=["bob"], limit=3, now=START)] == [b"1", b"3", b"5"]
        assert [row.body for row in inbox.unread("alice", after=8, now=START)] == [b"8", b"9"]
        assert inbox.count_unread("alice", now=START) == 10
        assert inbox.count_unread("alice", senders=["bob"], now=START) == 5
        assert inbox.unread("alice", senders=[], now=START) == []

    def test_reading_acknowledges_nothing(self, inbox: Inbox) -> None:
        row = put(inbox, "bob", "alice")
        for _ in range(2):
            assert [found.id for found in inbox.unread("alice", now=START)] == [row.id]
        assert kinds(inbox, row.id) == ["stored"]

    def test_a_claimed_row_still_counts_as_unread(self, inbox: Inbox) -> None:
        row = put(inbox, "bob", "alice")
        take(inbox, listen(inbox, "alice"))
        assert [(found.id, found.state) for found in inbox.unread("alice", now=START)] == [(row.id, "claimed")]
        assert inbox.count_unread("alice", now=START) == 1

    def test_boxes_with_unread_name_what_waits_and_since_when(self, inbox: Inbox) -> None:
        put(inbox, "bob", "carol", now=at(1))
        put(inbox, "bob", "carol", now=at(2))
        put(inbox, "bob", "alice", now=at(3))
        done = put(inbox, "bob", "zoe")
        inbox.ack([done.id], "zoe", None, at(4))
        assert inbox.boxes_with_unread(now=START) == [BoxCount("alice", 1, at(3).ms), BoxCount("carol", 2, at(1).ms)]
        assert inbox.boxes() == ["alice", "carol", "zoe"]

    def test_ids_near_a_beginning_and_near_a_slip(self, inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ids, "_series", ids._Series())  # other tests lived later: no id is less than one before it
        early, *same = (put(inbox, "bob", "alice", now=at(seconds)).id for seconds in (0, 90_000, 90_000))
        assert inbox.near_ids(early[:10]) == [early]
        assert inbox.near_ids(same[0][:12]) == same
        assert inbox.near_ids(same[0][:12], limit=1) == same[:1]
        assert inbox.near_ids(early[:20] + "uuuuuuuu") == [early]
        assert early not in inbox.near_ids(early)
        assert inbox.near_ids("zzz") == []

    def test_activity_is_counted_as_it_happens_and_outlives_the_rows(self, inbox: Inbox, other: Inbox) -> None:
        assert inbox.activity() == []
        rows = [put(inbox, "bob", name) for name in ("alice", "alice", "alice", "carol")]
        assert inbox.activity() == []
        inbox.record_hint([row.id for row in rows], None, at(1))
        inbox.record_hint([rows[0].id], 404, at(2))
        lease = listen(inbox, "alice")
        for seconds, reason in ((3, "wake"), (4, "backstop"), (5, "wake")):
            row = take(inbox, lease, at(seconds))
            assert row
            inbox.hand_off(row.id, lease.token, "flushed", at(seconds), woken_by=reason)
            inbox.hand_off(row.id, lease.token, "flushed", at(seconds), woken_by=reason)
        inbox.ack([rows[3].id], "carol", None, at(6))
        inbox.prune(at(9 * DAY))
        assert other.activity() == [
            Activity("alice", at(1).ms, at(5).ms, {"wake": 2, "backstop": 1}),
            Activity("carol", at(1).ms, at(6).ms, {}),
        ]

    def test_what_is_not_there_is_none(self, inbox: Inbox) -> None:
        id = new_id(START.ms)
        assert inbox.row(id) is None
        assert inbox.headers([id]) == []
        assert inbox.events(id) == []

    def test_text_that_is_no_unicode_finds_nothing_and_breaks_nothing(self, inbox: Inbox) -> None:
        stray = "caf\udce9"
        put(inbox, "bob", "alice")
        assert (inbox.row(stray), inbox.headers([stray]), inbox.events(stray)) == (None, [], [])
        assert (inbox.unread(stray, now=START), inbox.watermark(stray)) == ([], 0)
        assert inbox.leases.resolve(stray, START) is None
        assert inbox.ack([stray], stray, stray, START)[0].outcome == "unknown"
        assert inbox.near_ids(stray) == []
        listen(inbox, "alice", session=stray, host=stray)
        assert inbox.ack([inbox.unread("alice", now=START)[0].id], stray, stray, START)[0].outcome == "acknowledged"

    def test_headers_come_in_the_order_of_storing_and_once(self, inbox: Inbox) -> None:
        ids = [put(inbox, "bob", name).id for name in ("b", "a", "c")]
        assert [header.id for header in inbox.headers([ids[2], ids[0], ids[2], ids[1]])] == ids

    def test_housekeeping_with_nothing_to_do_changes_nothing(self, inbox: Inbox) -> None:
        put(inbox, "bob", "alice")
        inbox.open_box("alice", 1, START)
        listen(inbox, "alice")
        before = inbox.changed()
        inbox.expire(START)
        inbox.prune(START)
        inbox.leases.sweep(START)
        inbox.open_box("alice", 1, START)
        inbox.record_hint([], None, START)
        assert inbox.changed() == before

    def test_changed_differs_after_any_commit_and_only_then(self, inbox: Inbox, other: Inbox) -> None:
        tokens = [inbox.changed()]
        assert inbox.changed() == tokens[0]
        inbox.unread("alice", now=START)
        inbox.leases.resolve("alice", START)
        assert inbox.changed() == tokens[0]
        put(other, "bob", "alice")
        tokens.append(inbox.changed())
        put(inbox, "bob", "alice")
        tokens.append(inbox.changed())
        assert len(set(tokens)) == 3

    # --- the life of a row ---

    def test_claim_and_hand_off(self, inbox: Inbox) -> None:
        stored = put(inbox, "bob", "alice")
        lease = listen(inbox, "alice")
        row = take(inbox, lease, at(1))
        assert row is not None
        assert (row.id, row.state, row.redelivery, row.claimed_ms) == (stored.id, "claimed", 0, at(1).ms)
        assert inbox.hand_off(row.id, lease.token, "flushed", at(2), woken_by="backstop")
        done = inbox.row(row.id)
        assert done is not None
        assert (done.state, done.done_ms, done.is_open) == ("handed_off", at(2).ms, False)
        claimed, handed_off = inbox.events(row.id)[1:]
        assert (claimed.kind, claimed.by, claimed.at_ms) == ("claimed", "alice", at(1).ms)
        assert (handed_off.proof, handed_off.woken_by, handed_off.by) == ("flushed", "backstop", "alice")
        assert inbox.count_unread("alice", now=START) == 0
        assert take(inbox, lease, at(3)) is None

    def test_every_step_wants_the_token_of_the_claim(self, inbox: Inbox) -> None:
        put(inbox, "bob", "alice")
        lease = listen(inbox, "alice")
        stranger = listen(inbox, "mallory")
        row = take(inbox, lease)
        assert row is not None
        for token in (stranger.token, NOBODY):
            assert not inbox.hand_off(row.id, token, "flushed", START)
            assert not inbox.attempt_failed(row.id, token, "no", START.ms, START)
            assert not inbox.fail(row.id, token, 65, "no", START)
            assert not inbox.release(row.id, token, START)
            assert inbox.claim(row.id, token, START) is None
            assert inbox.next_for(["alice"], token, START) is None
        assert kinds(inbox, row.id) == ["stored", "claimed"]
        assert inbox.hand_off(row.id, lease.token, "flushed", START)

    def test_an_unclaimed_row_cannot_be_acknowledged(self, inbox: Inbox) -> None:
        row = put(inbox, "bob", "alice")
        lease = listen(inbox, "alice")
        assert not inbox.hand_off(row.id, lease.token, "flushed", START)
        assert kinds(inbox, row.id) == ["stored"]

    def test_a_row_is_acknowledged_once(self, inbox: Inbox) -> None:
        put(inbox, "bob", "alice")
        lease = listen(inbox, "alice")
        row = take(inbox, lease)
        assert row is not None
        assert inbox.hand_off(row.id, lease.token, "flushed", START)
        assert not inbox.hand_off(row.id, lease.token, "flushed", START)
        assert inbox.claim(row.id, lease.token, START) is None
        assert kinds(inbox, row.id).count("handed_off") == 1

    def test_a_row_is_claimed_once(self, inbox: Inbox) -> None:
        put(inbox, "bob", "alice")
        lease = listen(inbox, "alice")
        row = take(inbox, lease)
        assert row is not None
        assert inbox.claim(row.id, lease.token, START) is None
        assert take(inbox, lease) is None

    def test_release_leaves_no_mark_unless_in_doubt(self, inbox: Inbox) -> None:
        put(inbox, "bob", "alice")
        lease = listen(inbox, "alice")
        for in_doubt, expected in ((False, 0), (True, 1), (False, 1)):
            row = take(inbox, lease)
            assert row is not None
            assert inbox.release(row.id, lease.token, START, in_doubt=in_doubt)
            found = inbox.row(row.id)
            assert found is not None
            assert (found.state, found.redelivery, found.attempts) == ("unread", expected, 0)

    def test_fail_ends_a_row_with_its_reason(self, inbox: Inbox) -> None:
        put(inbox, "bob", "alice")
        lease = listen(inbox, "alice")
        row = take(inbox, lease)
        assert row is not None
        assert inbox.fail(row.id, lease.token, 65, "the hook said never", at(1))
        event = inbox.events(row.id)[-1]
        assert (event.kind, event.code, event.detail) == ("failed", 65, "the hook said never")
        assert inbox.count_unread("alice", now=START) == 0
        assert inbox.row(row.id).state == "failed"  # type: ignore[union-attr]

    def test_a_failed_attempt_waits_for_its_next_try(self, inbox: Inbox) -> None:
        put(inbox, "bob", "alice")
        lease = listen(inbox, "alice")
        row = take(inbox, lease)
        assert row is not None
        assert inbox.attempt_failed(row.id, lease.token, "exit 1", at(10).ms, at(1))
        assert take(inbox, lease, at(9.999)) is None
        assert inbox.next_due(["alice"], lease.token, at(1)) == at(10).ms
        again = take(inbox, lease, at(10))
        assert again is not None
        assert (again.attempts, again.failures, again.redelivery) == (1, 1, 0)
        event = inbox.events(row.id)[2]
        assert (event.kind, event.detail, event.retry_ms) == ("attempt_failed", "exit 1", at(10).ms)

    def test_a_reason_is_kept_to_512_bytes(self, inbox: Inbox) -> None:
        put(inbox, "bob", "alice")
        lease = listen(inbox, "alice")
        row = take(inbox, lease)
        assert row is not None
        assert inbox.attempt_failed(row.id, lease.token, "é\ud800" * 1000, at(1).ms, START, in_doubt=True)
        assert len(inbox.events(row.id)[-1].detail.encode()) <= 512
        assert inbox.row(row.id).redelivery == 1  # type: ignore[union-attr]

    def test_a_next_try_beyond_every_backoff_was_set_by_another_clock(self, inbox: Inbox) -> None:
        put(inbox, "bob", "alice", now=at(3600))
        lease = listen(inbox, "alice")
        row = take(inbox, lease)
        assert row is not None
        assert inbox.attempt_failed(row.id, lease.token, "busy", at(3601).ms, START)
        assert take(inbox, lease) is not None

    # --- void claims and redelivery ---

    def test_a_claim_whose_lease_is_lost_is_void_and_marks_the_next(self, inbox: Inbox, other: Inbox) -> None:
        put(inbox, "bob", "alice")
        old = listen(inbox, "alice")
        claimed = take(inbox, old)
        assert claimed is not None
        new = listen(other, "alice", take_over=True)
        again = take(other, new)
        assert again is not None
        assert (again.id, again.redelivery) == (claimed.id, 1)
        assert not inbox.hand_off(claimed.id, old.token, "flushed", START)
        assert other.hand_off(again.id, new.token, "flushed", START)
        assert kinds(inbox, claimed.id) == ["stored", "claimed", "claimed", "handed_off"]

    def test_a_claim_is_void_thirty_seconds_after_the_deadline(self, inbox: Inbox) -> None:
        put(inbox, "bob", "alice")
        lease = listen(inbox, "alice")
        head = inbox.next_for(["alice"], lease.token, START)
        assert head is not None
        assert inbox.claim(head.id, lease.token, START, deadline_s=10) is not None
        assert take(inbox, lease, at(39.999)) is None
        assert inbox.next_due(["alice"], lease.token, at(1)) == at(40).ms
        again = take(inbox, lease, at(40))
        assert again is not None
        assert again.redelivery == 1

    def test_a_claim_from_before_the_clock_was_set_back_is_void(self, inbox: Inbox) -> None:
        put(inbox, "bob", "alice", ttl_s=7 * DAY)
        lease = listen(inbox, "alice")
        assert take(inbox, lease, Now(at(8 * 3600).ms, START.mono_ms, START.boot)) is not None
        again = take(inbox, lease)
        assert again is not None
        assert again.redelivery == 1

    def test_a_claim_of_a_dead_process_is_void_at_once(
        self, inbox: Inbox, other: Inbox, start_process: Callable[[], tuple[ProcessId, Callable[[], None]]]
    ) -> None:
        process, kill = start_process()
        row = put(inbox, "bob", "alice")
        old = listen(inbox, "alice", process=process)
        assert take(inbox, old) is not None
        kill()
        again = take(other, listen(other, "alice"))
        assert again is not None
        assert (again.id, again.redelivery) == (row.id, 1)
        assert not inbox.hand_off(row.id, old.token, "flushed", START)

    def test_a_lease_that_ran_out_claims_nothing_until_renewed(self, inbox: Inbox) -> None:
        row = put(inbox, "bob", "alice")
        lease = listen(inbox, "alice")
        assert inbox.next_for(["alice"], lease.token, at(300)) is None
        assert inbox.claim(row.id, lease.token, at(300)) is None
        assert inbox.leases.renew(lease.token, at(300)) is not None
        assert inbox.claim(row.id, lease.token, at(300)) is not None

    def test_released_names_keep_their_rows(self, inbox: Inbox) -> None:
        row = put(inbox, "bob", "alice")
        lease = listen(inbox, "alice")
        take(inbox, lease)
        inbox.leases.release(lease.token, START)
        assert not inbox.hand_off(row.id, lease.token, "flushed", START)
        assert drain(inbox, listen(inbox, "alice")) == [b"hello"]

    # --- order ---

    def test_rows_go_in_the_order_they_came(self, inbox: Inbox) -> None:
        for number in range(6):
            put(inbox, f"sender-{number % 3}", "alice", str(number).encode())
        assert drain(inbox, listen(inbox, "alice")) == [b"0", b"1", b"2", b"3", b"4", b"5"]

    def test_what_was_there_before_the_listener_is_handed_off(self, inbox: Inbox) -> None:
        for number in range(3):
            put(inbox, "bob", "alice", str(number).encode())
        assert drain(inbox, listen(inbox, "alice", now=at(5)), at(5)) == [b"0", b"1", b"2"]

    def test_a_row_that_must_wait_holds_back_its_sender_only(self, inbox: Inbox) -> None:
        put(inbox, "bob", "alice", b"bob 1")
        put(inbox, "bob", "alice", b"bob 2")
        put(inbox, "carol", "alice", b"carol 1")
        put(inbox, "bob", "dave", b"to dave")
        lease = listen(inbox, "alice", "dave")
        first = take(inbox, lease)
        assert first is not None
        assert first.body == b"bob 1"
        assert inbox.attempt_failed(first.id, lease.token, "busy", at(10).ms, START, busy=True)
        assert drain(inbox, lease, at(1)) == [b"carol 1", b"to dave"]
        assert drain(inbox, lease, at(10)) == [b"bob 1", b"bob 2"]

    def test_a_claimed_row_holds_back_its_sender(self, inbox: Inbox) -> None:
        put(inbox, "bob", "alice", b"1")
        put(inbox, "bob", "alice", b"2")
        lease = listen(inbox, "alice")
        row = take(inbox, lease)
        assert row is not None
        assert take(inbox, lease) is None
        assert inbox.hand_off(row.id, lease.token, "flushed", START)
        assert drain(inbox, lease) == [b"2"]

    def test_after_three_failures_later_rows_pass(self, inbox: Inbox) -> None:
        put(inbox, "bob", "alice", b"stuck")
        put(inbox, "bob", "alice", b"later")
        lease = listen(inbox, "alice")
        for attempt in range(3):
            row = take(inbox, lease, at(attempt * 10))
            assert row is not None
            assert (row.body, row.is_out_of_order) == (b"stuck", False)
            assert inbox.attempt_failed(row.id, lease.token, "exit 1", at(attempt * 10 + 10).ms, at(attempt * 10))
        assert drain(inbox, lease, at(29)) == [b"later"]
        stuck = take(inbox, lease, at(30))
        assert stuck is not None
        assert (stuck.attempts, stuck.failures, stuck.is_out_of_order) == (3, 3, True)

    def test_what_failed_is_in_order_until_a_later_row_of_its_sender_passed(self, inbox: Inbox) -> None:
        put(inbox, "bob", "alice", b"stuck")
        lease = listen(inbox, "alice")
        for attempt in range(3):
            row = take(inbox, lease, at(attempt * 10))
            assert row is not None
            assert inbox.attempt_failed(row.id, lease.token, "exit 1", at(attempt * 10 + 10).ms, at(attempt * 10))

        def is_marked() -> bool:
            (stuck,) = [row for row in inbox.unread("alice", now=at(25)) if row.body == b"stuck"]
            return stuck.is_out_of_order

        assert not is_marked()
        put(inbox, "carol", "alice", b"of another")
        assert drain(inbox, lease, at(25)) == [b"of another"]
        later = put(inbox, "bob", "alice", b"later")
        assert not is_marked()
        assert inbox.claim(later.id, lease.token, at(25)) is not None
        assert inbox.hand_off(later.id, lease.token, "flushed", at(25))
        assert is_marked()

    def test_why_rows_are_left_is_entered_once_for_each_reason_and_lease(self, inbox: Inbox) -> None:
        rows = [put(inbox, sender, "acme/bob") for sender in ("alice", "carol")]
        lease = listen(inbox, "acme/")
        ids = [row.id for row in rows]

        def reasons(row_id: str) -> list[tuple[str, str, int | None]]:
            return [(each.by, each.detail, each.retry_ms) for each in inbox.events(row_id)[1:]]

        assert inbox.leave("acme/bob", lease.token, "asleep", at(1), senders=["carol"]) == ids[1:]
        assert inbox.leave("acme/bob", lease.token, "asleep", at(2)) == ids[:1]
        before = inbox.changed()
        assert inbox.leave("acme/bob", lease.token, "asleep", at(3)) == []
        assert inbox.changed() == before
        assert inbox.leave("acme/bob", lease.token, "gone", at(4)) == ids
        assert inbox.leave("acme/bob", lease.token, "asleep", at(5)) == ids
        assert reasons(ids[0]) == [("acme/", why, None) for why in ("asleep", "gone", "asleep")]
        (first, _) = inbox.headers(ids)
        assert (first.state, first.attempts, first.failures, first.retry_ms) == ("unread", 0, 0, 0)
        row = take(inbox, lease, at(6))
        assert row is not None
        assert inbox.leave("acme/bob", lease.token, "gone", at(6)) == ids[1:]  # not the one in hand

    def test_only_the_holder_to_whom_they_go_says_why_rows_are_left(self, inbox: Inbox) -> None:
        row = put(inbox, "alice", "acme/bob")
        above, other = listen(inbox, "acme/"), listen(inbox, "beta/")
        assert inbox.leave("acme/bob", other.token, "asleep", at(1)) == []
        bob = listen(inbox, "acme/bob")
        assert inbox.leave("acme/bob", above.token, "asleep", at(1)) == []
        assert inbox.leave("acme/bob", NOBODY, "asleep", at(1)) == []
        assert len(inbox.events(row.id)) == 1
        assert inbox.leave("acme/bob", bob.token, "asleep", at(1)) == [row.id]

    def test_busy_is_not_failure_and_lets_nobody_pass(self, inbox: Inbox) -> None:
        put(inbox, "bob", "alice", b"1")
        put(inbox, "bob", "alice", b"2")
        lease = listen(inbox, "alice")
        for attempt in range(10):
            row = take(inbox, lease, at(attempt * 10))
            assert row is not None
            assert row.body == b"1"
            assert inbox.attempt_failed(
                row.id, lease.token, "busy", at(attempt * 10 + 10).ms, at(attempt * 10), busy=True
            )
        assert take(inbox, lease, at(99)) is None
        found = inbox.unread("alice", now=START)[0]
        assert (found.attempts, found.failures) == (10, 0)
        assert drain(inbox, lease, at(100)) == [b"1", b"2"]

    def test_an_expired_row_holds_nobody_back(self, inbox: Inbox) -> None:
        put(inbox, "bob", "alice", b"1", ttl_s=5)
        put(inbox, "bob", "alice", b"2")
        lease = listen(inbox, "alice")
        row = take(inbox, lease)
        assert row is not None
        assert inbox.attempt_failed(row.id, lease.token, "busy", at(60).ms, START, busy=True)
        assert take(inbox, lease, at(4)) is None
        assert drain(inbox, lease, at(5)) == [b"2"]

    def test_senders_are_picked_and_the_rest_is_left(self, inbox: Inbox) -> None:
        put(inbox, "bob", "alice", b"bob")
        put(inbox, "carol", "alice", b"carol")
        lease = listen(inbox, "alice")
        head = inbox.next_for(["alice"], lease.token, START, senders=["carol"])
        assert head is not None
        assert head.sender == "carol"
        assert inbox.next_for(["alice"], lease.token, START, senders=["dave"]) is None
        assert inbox.count_unread("alice", now=START) == 2

    def test_nothing_is_due_when_nothing_waits(self, inbox: Inbox) -> None:
        lease = listen(inbox, "alice")
        assert inbox.next_due(["alice"], lease.token, START) is None
        put(inbox, "bob", "alice")
        assert inbox.next_due(["alice"], lease.token, START) is None

    # --- routing ---

    def test_a_row_goes_to_the_most_specific_holder(self, inbox: Inbox) -> None:
        for recipient in ("acme", "acme/x", "acme/eng/x", "acme/eng/deep/x", "acmeish/x"):
            put(inbox, "bob", recipient, recipient.encode())
        wide, narrow, exact = listen(inbox, "acme/"), listen(inbox, "acme/eng/"), listen(inbox, "acme/eng/x")
        assert drain(inbox, wide) == [b"acme/x"]
        assert drain(inbox, exact) == [b"acme/eng/x"]
        assert drain(inbox, narrow) == [b"acme/eng/deep/x"]
        assert {box.name for box in inbox.boxes_with_unread(now=START)} == {"acme", "acmeish/x"}

    def test_the_less_specific_holder_cannot_claim_past_the_other(self, inbox: Inbox) -> None:
        row = put(inbox, "bob", "acme/x")
        wide = listen(inbox, "acme/")
        exact = listen(inbox, "acme/x")
        assert inbox.claim(row.id, wide.token, START) is None
        inbox.leases.release(exact.token, START)
        assert inbox.claim(row.id, wide.token, START) is not None

    def test_a_claim_outlives_a_more_specific_listener_that_comes_later(self, inbox: Inbox) -> None:
        row = put(inbox, "bob", "acme/x")
        wide = listen(inbox, "acme/")
        assert take(inbox, wide) is not None
        exact = listen(inbox, "acme/x")
        assert take(inbox, exact) is None
        assert not inbox.hand_off(row.id, exact.token, "flushed", START)
        assert inbox.hand_off(row.id, wide.token, "flushed", START)

    def test_a_namespace_goes_on_when_its_specific_listener_dies(
        self, inbox: Inbox, start_process: Callable[[], tuple[ProcessId, Callable[[], None]]]
    ) -> None:
        process, kill = start_process()
        put(inbox, "bob", "acme/x", b"1")
        wide = listen(inbox, "acme/")
        listen(inbox, "acme/x", process=process)
        assert take(inbox, wide) is None
        kill()
        assert drain(inbox, wide) == [b"1"]

    def test_names_pick_within_a_lease(self, inbox: Inbox) -> None:
        put(inbox, "bob", "acme/x", b"x")
        put(inbox, "bob", "acme/y", b"y")
        put(inbox, "bob", "acmeish/z", b"z")
        wide = listen(inbox, "acme/", "acmeish/z")
        for name in ("acme/y", "acmeish/z"):
            head = inbox.next_for([name], wide.token, START)
            assert head is not None
            assert head.recipient == name
        for row in inbox.unread("acme/x", now=START) + inbox.unread("acme/y", now=START):
            inbox.claim(row.id, wide.token, START)
        assert inbox.next_for(["acme/"], wide.token, START) is None

    def test_a_listener_with_many_names_takes_the_oldest_of_all(self, inbox: Inbox) -> None:
        for recipient in ("b", "ns/z", "a", "ns/y"):
            put(inbox, "bob", recipient, recipient.encode())
        assert drain(inbox, listen(inbox, "a", "b", "ns/")) == [b"b", b"ns/z", b"a", b"ns/y"]

    # --- acknowledging by hand ---

    def test_ack_takes_rows_of_a_free_name(self, inbox: Inbox) -> None:
        rows = [put(inbox, "bob", "alice") for _ in range(2)]
        unknown = new_id(START.ms)
        acks = inbox.ack([rows[0].id, unknown, rows[0].id], "carol", None, at(1))
        assert [(ack.id, ack.outcome) for ack in acks] == [
            (rows[0].id, "acknowledged"),
            (unknown, "unknown"),
            (rows[0].id, "already"),
        ]
        event = inbox.events(rows[0].id)[-1]
        assert (event.kind, event.proof, event.by) == ("handed_off", "manual", "carol")
        assert inbox.count_unread("alice", now=START) == 1

    def test_ack_of_a_held_name_wants_the_holders_session(self, inbox: Inbox) -> None:
        row = put(inbox, "bob", "alice")
        lease = listen(inbox, "alice", session="S1")
        for session in (None, "", "S2"):
            (ack,) = inbox.ack([row.id], "alice", session, START)
            assert (ack.outcome, ack.holder) == ("held", lease)
        assert inbox.ack([row.id], "alice", "S1", START)[0].outcome == "acknowledged"

    def test_ack_of_a_holder_without_a_session_is_refused(self, inbox: Inbox) -> None:
        row = put(inbox, "bob", "alice")
        listen(inbox, "alice")
        assert [inbox.ack([row.id], "alice", session, START)[0].outcome for session in (None, "", "S")] == ["held"] * 3

    def test_ack_counts_the_namespace_that_covers_the_name(self, inbox: Inbox) -> None:
        row = put(inbox, "bob", "acme/x")
        listen(inbox, "acme/", session="S1")
        assert inbox.ack([row.id], "x", None, START)[0].outcome == "held"
        assert inbox.ack([row.id], "x", None, at(300))[0].outcome == "acknowledged"

    def test_ack_of_a_row_in_hand_makes_the_hand_off_do_nothing(self, inbox: Inbox) -> None:
        row = put(inbox, "bob", "alice")
        lease = listen(inbox, "alice", session="S")
        take(inbox, lease)
        assert inbox.ack([row.id], "alice", "S", START)[0].outcome == "acknowledged"
        assert not inbox.hand_off(row.id, lease.token, "flushed", START)

    # --- hints ---

    def test_unhinted_rows_are_those_the_hub_has_not_taken_a_wake_for(self, inbox: Inbox) -> None:
        normal = [put(inbox, "bob", "alice") for _ in range(3)]
        fyi = put(inbox, "bob", "alice", class_="fyi")
        done = put(inbox, "bob", "carol")
        inbox.ack([done.id], "carol", None, START)
        assert [row.id for row in inbox.unhinted()] == [row.id for row in normal]
        assert [row.id for row in inbox.unhinted(limit=1)] == [normal[0].id]
        inbox.record_hint([normal[0].id], None, at(1))
        inbox.record_hint([normal[1].id], 404, at(1), detail="unknown")
        assert [row.id for row in inbox.unhinted()] == [normal[2].id]
        assert [row.id for row in inbox.unhinted(refused=True)] == [normal[1].id, normal[2].id]
        assert kinds(inbox, fyi.id) == ["stored"]

    def test_hints_are_events_and_a_late_one_does_not_outrank_the_hand_off(self, inbox: Inbox) -> None:
        row = put(inbox, "bob", "alice")
        inbox.record_hint([row.id], 507, at(1))
        drain(inbox, listen(inbox, "alice"), at(2))
        inbox.record_hint([row.id, new_id(START.ms)], None, at(3))
        events = inbox.events(row.id)
        assert [(event.kind, event.code) for event in events if event.by == "hub"] == [
            ("hint_refused", 507),
            ("hinted", None),
        ]
        assert furthest(events) == "handed_off"
        found = inbox.row(row.id)
        assert found is not None
        assert (found.hinted_ms, found.hint_code) == (at(3).ms, None)

    # --- the end of time ---

    def test_expiry_takes_the_body_and_leaves_tombstone_and_events(self, inbox: Inbox) -> None:
        row = put(inbox, "bob", "alice", ttl_s=60)
        assert inbox.expire(at(59.999)) == []
        (expired,) = inbox.expire(at(60))
        assert (expired.id, expired.state, expired.done_ms) == (row.id, "expired", at(60).ms)
        tomb = inbox.row(row.id)
        assert tomb is not None
        assert (tomb.body, tomb.size, tomb.digest) == (None, row.size, row.digest)
        assert kinds(inbox, row.id) == ["stored", "expired"]
        assert inbox.count_unread("alice", now=START) == 0

    def test_the_sender_gets_a_notice_that_wakes_nobody(self, inbox: Inbox) -> None:
        pair = KeyPair.generate()
        row = put(inbox, "bob", "alice", ttl_s=60)
        inbox.expire(at(60), signed=signer(pair))
        (notice,) = inbox.unread("bob", now=START)
        assert (notice.sender, notice.class_, notice.re) == (PUBLISHER, "fyi", row.id)
        assert row.id in (notice.body or b"").decode()
        assert verify_row(notice, pair.public) == "yes"
        assert inbox.unhinted() == []

    def test_notices_are_never_noticed(self, inbox: Inbox) -> None:
        put(inbox, "bob", "alice", ttl_s=60)
        inbox.expire(at(60))
        assert [row.sender for row in inbox.expire(at(8 * DAY))] == [PUBLISHER]
        assert inbox.boxes_with_unread(now=START) == []

    def test_a_sender_that_was_enrolled_anew_keeps_no_message_from_expiring(self, inbox: Inbox) -> None:
        inbox.open_box("bob", 2, START)
        rows = [put(inbox, "bob", "alice", ttl_s=60), put(inbox, "carl", "alice", ttl_s=60)]
        assert [row.id for row in inbox.expire(at(60))] == [row.id for row in rows]
        (notice,) = inbox.unread("bob", now=START)
        assert (notice.re, notice.generation) == (rows[0].id, 2)

    def test_no_guard_stops_a_notice(self, inbox: Inbox) -> None:
        rows = [put(inbox, "bob", f"a{number}", ttl_s=60) for number in range(100)]
        assert len(inbox.expire(at(60))) == 100
        assert inbox.count_unread("bob", now=START) == len(rows)

    def test_an_expired_row_is_not_handed_off(self, inbox: Inbox) -> None:
        row = put(inbox, "bob", "alice", ttl_s=60)
        lease = listen(inbox, "alice")
        assert inbox.next_for(["alice"], lease.token, at(60)) is None
        assert inbox.claim(row.id, lease.token, at(60)) is None

    def test_an_expired_row_is_unread_nowhere_although_nobody_ended_it(self, inbox: Inbox) -> None:
        """No publisher runs; what is listed and counted is what may be handed off."""
        put(inbox, "bob", "alice", ttl_s=60)
        later = put(inbox, "bob", "alice", ttl_s=90)
        lease = listen(inbox, "alice")
        for now, count in ((at(59.999), 2), (at(60), 1), (at(89.999), 1), (at(90), 0)):
            assert len(inbox.unread("alice", now=now)) == inbox.count_unread("alice", now=now) == count
            assert [box.unread for box in inbox.boxes_with_unread(now=now)] == ([count] if count else [])
            assert (inbox.next_for(["alice"], lease.token, now) is not None) == bool(count)
        assert [row.id for row in inbox.unread("alice", now=at(60))] == [later.id]

    def test_a_row_in_hand_does_not_expire_before_its_claim_ends(self, inbox: Inbox) -> None:
        row = put(inbox, "bob", "alice", ttl_s=60)
        lease = listen(inbox, "alice")
        assert take(inbox, lease, at(59)) is not None
        assert inbox.expire(at(61)) == []
        assert inbox.hand_off(row.id, lease.token, "flushed", at(62))
        assert inbox.expire(at(63)) == []
        late = put(inbox, "bob", "alice", ttl_s=60)
        assert take(inbox, lease, at(59)) is not None
        assert [expired.id for expired in inbox.expire(at(119))] == [late.id]
        assert not inbox.hand_off(late.id, lease.token, "flushed", at(119))

    def test_expiry_goes_in_portions(self, inbox: Inbox) -> None:
        for _ in range(5):
            put(inbox, "bob", "alice", ttl_s=1)
        assert [len(inbox.expire(at(2), limit=2)) for _ in range(4)] == [2, 2, 1, 0]

    def test_prune_removes_what_ended_long_ago_and_never_an_open_row(self, inbox: Inbox) -> None:
        done = put(inbox, "bob", "alice")
        inbox.ack([done.id], "alice", None, START)
        waiting = put(inbox, "bob", "alice", ttl_s=7 * DAY)
        claimed = put(inbox, "carol", "zoe", ttl_s=7 * DAY)
        take(inbox, listen(inbox, "zoe"))
        assert inbox.prune(at(7 * DAY - 1)) == 0
        assert inbox.prune(at(7 * DAY)) == 1
        assert (inbox.row(done.id), inbox.events(done.id)) == (None, [])
        assert inbox.prune(at(1000 * DAY)) == 0
        assert inbox.row(waiting.id) is not None
        assert inbox.row(claimed.id) is not None

    def test_numbers_are_not_reused_after_pruning(self, inbox: Inbox) -> None:
        row = put(inbox, "bob", "alice")
        inbox.ack([row.id], "alice", None, START)
        inbox.prune(at(1), keep_s=0)
        after = put(inbox, "bob", "alice", now=at(2))
        assert after.rseq == 2
        assert after.seq > row.seq
        assert inbox.watermark("alice") == 2

    def test_a_sweep_of_leases_never_touches_rows(self, inbox: Inbox) -> None:
        """F3."""
        rows = [put(inbox, "bob", "alice") for _ in range(3)]
        lease = listen(inbox, "alice")
        take(inbox, lease)
        assert [past.name for past in inbox.leases.sweep(at(301))] == ["alice"]
        assert [row.id for row in inbox.unread("alice", now=START)] == [row.id for row in rows]
        assert drain(inbox, listen(inbox, "alice", now=at(302)), at(302)) == [b"hello"] * 3

    # --- enrolments of one name ---

    def test_the_first_enrolment_inherits_what_was_sent_before(self, inbox: Inbox) -> None:
        put(inbox, "bob", "alice")
        put(inbox, "bob", "alice", generation=0)
        assert inbox.open_box("alice", 1, at(1)) == 0
        assert inbox.count_unread("alice", now=START) == 2

    def test_a_name_enrolled_anew_does_not_inherit(self, inbox: Inbox) -> None:
        old = [put(inbox, "bob", "alice") for _ in range(2)]
        lease = listen(inbox, "alice")
        take(inbox, lease)
        assert inbox.open_box("alice", 2, at(1)) == 2
        assert inbox.unread("alice", now=START) == []
        assert not inbox.hand_off(old[0].id, lease.token, "flushed", at(1))
        for row in old:
            event = inbox.events(row.id)[-1]
            assert (event.kind, event.code) == ("failed", 67)
        with pytest.raises(NoRecipient):
            put(inbox, "bob", "alice", generation=1)
        new = put(inbox, "bob", "alice", generation=2)
        assert (new.generation, new.rseq) == (2, 3)
        assert inbox.open_box("alice", 1, at(2)) == 0
        assert inbox.count_unread("alice", now=START) == 1

    def test_a_sender_that_knows_of_the_new_enrolment_opens_its_box(self, inbox: Inbox) -> None:
        old = put(inbox, "bob", "alice")
        new = put(inbox, "bob", "alice", generation=2)
        assert [row.id for row in inbox.unread("alice", now=START)] == [new.id]
        assert kinds(inbox, old.id) == ["stored", "failed"]

    # --- leases ---

    def test_one_process_for_each_name(self, inbox: Inbox, other: Inbox) -> None:
        lease = listen(inbox, "reviewer", session="S")
        refused = other.leases.acquire(["reviewer"], ProcessId.own(), "reviewer", START)
        assert refused == HeldBy("reviewer", lease, "reviewer-2")
        listen(inbox, "reviewer-2")
        again = other.leases.acquire(["reviewer"], ProcessId.own(), "reviewer", START)
        assert isinstance(again, HeldBy)
        assert again.alternative == "reviewer-3"

    def test_all_names_or_none(self, inbox: Inbox) -> None:
        listen(inbox, "b")
        assert isinstance(inbox.leases.acquire(["a", "b"], ProcessId.own(), "a", START), HeldBy)
        assert inbox.leases.holder("a", START) is None

    @pytest.mark.parametrize("names", [[], [""], ["a" * 129]])
    def test_names_that_cannot_be_are_refused(self, inbox: Inbox, names: list[str]) -> None:
        with pytest.raises(BadData):
            inbox.leases.acquire(names, ProcessId.own(), "a", START)

    def test_a_lease_tells_who_holds_it(self, inbox: Inbox, other: Inbox) -> None:
        lease = listen(inbox, "b", "a", "b", "ns/", session="S", host="here")
        assert lease.names == ("b", "a", "ns/")
        assert len(lease.token) == 16
        assert (lease.agent_id, lease.session, lease.host, lease.process) == ("b", "S", "here", ProcessId.own())
        assert (lease.since_ms, lease.renewed_ms) == (START.ms, START.ms)
        for name in lease.names:
            assert other.leases.holder(name, START) == lease
        assert other.leases.find(lease.token) == lease
        assert other.leases.live(START) == [lease]

    def test_a_listener_says_what_it_says_until_it_ends(self, inbox: Inbox, other: Inbox) -> None:
        lease = listen(inbox, "alice", "acme/", status="running")
        assert listen(inbox, "bob").status == ""
        for found in (other.leases.find(lease.token), other.leases.holder("alice", START), *other.leases.live(START)):
            assert found is not None
            assert found.status == ("" if "bob" in found.names else "running")
        renewed = inbox.leases.renew(lease.token, at(1))
        assert renewed is not None
        assert renewed.status == "running"
        inbox.leases.release(lease.token, at(2))
        assert listen(inbox, "alice", now=at(2)).status == ""

    def test_a_take_over_displaces_at_once_and_tells_by_whom(self, inbox: Inbox, other: Inbox) -> None:
        old = listen(inbox, "alice", "bob")
        new = listen(other, "alice", now=at(5), take_over=True)
        assert new.token != old.token
        left = inbox.leases.renew(old.token, at(6))
        assert left is not None
        assert left.names == ("bob",)
        (lost,) = inbox.leases.lost(old.token)
        assert (lost.name, lost.reason, lost.ended_ms, lost.by_pid) == (
            "alice",
            "displaced",
            at(5).ms,
            ProcessId.own().pid,
        )

    def test_a_restarted_session_takes_its_own_name_back(self, inbox: Inbox, other: Inbox) -> None:
        old = listen(inbox, "alice", session="S")
        new = listen(other, "alice", session="S")
        assert inbox.leases.renew(old.token, START) is None
        assert other.leases.find(new.token) == new
        assert isinstance(other.leases.acquire(["alice"], ProcessId.own(), "alice", START, session="T"), HeldBy)

    @pytest.mark.parametrize("session", [None, ""])
    def test_no_session_is_nobodys_session(self, inbox: Inbox, session: str | None) -> None:
        listen(inbox, "alice", session=session)
        assert isinstance(inbox.leases.acquire(["alice"], ProcessId.own(), "alice", START, session=session), HeldBy)

    def test_a_lease_lasts_300_seconds_from_its_last_renewal(self, inbox: Inbox) -> None:
        lease = listen(inbox, "alice")
        renewed = inbox.leases.renew(lease.token, at(200))
        assert renewed is not None
        assert (renewed.since_ms, renewed.renewed_ms) == (START.ms, at(200).ms)
        assert inbox.leases.holder("alice", at(499.999)) is not None
        assert inbox.leases.holder("alice", at(500)) is None
        assert listen(inbox, "alice", now=at(500)).token != lease.token
        assert inbox.leases.renew(lease.token, at(501)) is None

    def test_a_lease_that_ran_out_but_was_not_taken_is_renewed(self, inbox: Inbox) -> None:
        lease = listen(inbox, "alice")
        assert inbox.leases.renew(lease.token, at(1000)) is not None
        assert inbox.leases.holder("alice", at(1000)) is not None

    def test_setting_the_wall_clock_moves_no_lease_of_this_boot(self, inbox: Inbox) -> None:
        listen(inbox, "alice")
        for step in (8 * 3600_000, -8 * 3600_000):
            stepped = Now(START.ms + step, START.mono_ms + 1000, START.boot)
            assert inbox.leases.holder("alice", stepped) is not None
            late = Now(START.ms + step, START.mono_ms + 300_000, START.boot)
            assert inbox.leases.holder("alice", late) is None

    @pytest.mark.parametrize("seen_by", ["acquire", "sweep"])
    def test_a_renewal_in_the_future_of_another_boot_counts_from_when_it_is_seen(
        self, inbox: Inbox, seen_by: str
    ) -> None:
        elsewhere = ProcessId.own()._replace(boot="another")
        listen(inbox, "alice", now=at(8 * 3600), process=elsewhere)
        if seen_by == "acquire":
            assert isinstance(inbox.leases.acquire(["alice"], ProcessId.own(), "alice", START), HeldBy)
        else:
            assert inbox.leases.sweep(START) == []
        assert inbox.leases.holder("alice", at(299)) is not None
        assert inbox.leases.holder("alice", at(300)) is None

    def test_a_dead_holder_is_displaced_without_waiting(
        self, inbox: Inbox, start_process: Callable[[], tuple[ProcessId, Callable[[], None]]]
    ) -> None:
        process, kill = start_process()
        old = listen(inbox, "alice", process=process)
        assert inbox.leases.resolve("alice", at(1)) == old
        kill()
        assert inbox.leases.resolve("alice", at(1)) is None
        last = inbox.leases.last_holder("alice", at(1))
        assert last is not None
        assert (last.pid, last.reason, last.ended_ms) == (process.pid, "died", START.ms)
        listen(inbox, "alice", now=at(2))
        (lost,) = inbox.leases.lost(old.token)
        assert (lost.reason, lost.by_pid) == ("died", None)

    def test_a_pid_that_belongs_to_another_process_now_holds_nothing(self, inbox: Inbox) -> None:
        reused = ProcessId.own()._replace(started="1")
        listen(inbox, "alice", process=reused)
        assert inbox.leases.holder("alice", START) is None

    @pytest.mark.parametrize("field", ["boot", "namespace"])
    def test_a_process_of_another_boot_or_namespace_is_not_provably_dead(self, inbox: Inbox, field: str) -> None:
        foreign = ProcessId.own()._replace(pid=2**22 + 1, **{field: "another" if field == "boot" else 1})
        listen(inbox, "alice", process=foreign)
        assert inbox.leases.holder("alice", at(299)) is not None
        assert inbox.leases.holder("alice", at(300)) is None

    def test_a_released_name_is_free_at_once_and_remembered(self, inbox: Inbox) -> None:
        lease = listen(inbox, "alice", host="here")
        inbox.leases.release(lease.token, at(7))
        inbox.leases.release(lease.token, at(8))
        assert inbox.leases.resolve("alice", at(7)) is None
        last = inbox.leases.last_holder("alice", at(7))
        assert last is not None
        assert (last.reason, last.ended_ms, last.since_ms, last.host) == ("released", at(7).ms, START.ms, "here")
        assert inbox.leases.last_holder("bob", at(7)) is None

    def test_the_last_holder_of_an_address_may_have_held_its_namespace(self, inbox: Inbox) -> None:
        for name, second in (("acme/x", 1), ("acme/", 2), ("other", 3)):
            inbox.leases.release(listen(inbox, name).token, at(second))
        last = inbox.leases.last_holder("acme/x", at(4))
        assert last is not None
        assert last.name == "acme/"

    def test_resolving_goes_by_whole_segments(self, inbox: Inbox) -> None:
        root, deep = listen(inbox, "acme/"), listen(inbox, "acme/eng/")
        resolved = {
            address: inbox.leases.resolve(address, START)
            for address in ("acme/x", "acme/eng", "acme/eng/x", "acme/eng/y/z", "acmes/x", "acme")
        }
        assert resolved == {
            "acme/x": root,
            "acme/eng": root,
            "acme/eng/x": deep,
            "acme/eng/y/z": deep,
            "acmes/x": None,
            "acme": None,
        }

    def test_a_sweep_ends_what_is_not_live(
        self, inbox: Inbox, start_process: Callable[[], tuple[ProcessId, Callable[[], None]]]
    ) -> None:
        process, kill = start_process()
        listen(inbox, "dead", process=process)
        listen(inbox, "old")
        alive = listen(inbox, "alive", now=at(300))
        kill()
        assert {(past.name, past.reason) for past in inbox.leases.sweep(at(301))} == {
            ("dead", "died"),
            ("old", "expired"),
        }
        assert inbox.leases.live(at(301)) == [alive]
        assert inbox.leases.sweep(at(302)) == []

    def test_prune_forgets_ended_leases_but_for_the_last_of_each_name(self, inbox: Inbox) -> None:
        tokens = []
        for second in range(3):
            tokens.append(listen(inbox, "alice", now=at(second)).token)
            inbox.leases.release(tokens[-1], at(second))
        inbox.prune(at(8 * DAY))
        assert [len(inbox.leases.lost(token)) for token in tokens] == [0, 0, 1]
