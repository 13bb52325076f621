"""The inbox (intercom.md §4): nothing lost, nothing twice, whoever truncates, tears, locks or reads beside us."""

import contextlib
import fcntl
import itertools
import json
import os
import resource
import shutil
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wakehub.errors import CannotCreate, Held, Unsafe
from wakehub.intercom import ndjson
from wakehub.intercom.channels import Channel
from wakehub.intercom.ndjson import Refusal
from wakehub.intercom.spool import Inbox, sessions
from wakehub.limits import MAX_MESH_LINE_BYTES, MESH_COMPACT_BYTES


def line(text: str, sender: str = "ann") -> bytes:
    return ndjson.chat(sender, "bob", text, "room").line()


def taken(inbox: Inbox, most: int = 256) -> list[str]:
    with inbox.taking(most) as batch:
        return [each.text for each in batch.envelopes]


def offset_file(channel: Channel) -> Path:
    return channel.path / "offset_bob.json"


def inbox_file(channel: Channel) -> Path:
    return channel.path / "inbox_bob.ndjson"


@pytest.fixture
def inbox(channel: Channel) -> Inbox:
    return Inbox(channel, "bob")


def test_what_is_appended_is_taken_once_in_order(channel, inbox):
    inbox.append([line("1"), line("2")])
    inbox.append([line("3")])
    assert [each.text for each in inbox.peek().envelopes] == ["1", "2", "3"]
    assert taken(inbox, 2) == ["1", "2"]
    assert taken(Inbox(channel, "bob")) == ["3"]
    assert taken(inbox) == []
    for path in channel.path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_what_was_not_handed_over_stays_unread(inbox):
    inbox.append([line("1")])
    with pytest.raises(ZeroDivisionError):
        with inbox.taking():
            raise ZeroDivisionError
    assert taken(inbox) == ["1"]


def test_the_offset_has_the_keys_others_know_and_keeps_theirs(channel, inbox):
    assert inbox.claim({"owner": "o"})
    assert not inbox.claim({"owner": "p"})
    inbox.append([line("1")])
    assert taken(inbox) == ["1"]
    found = json.loads(offset_file(channel).read_bytes())
    assert found["offset"] == inbox_file(channel).stat().st_size
    assert found["updated_at"].endswith("+00:00")
    assert found["owner"] == "o"
    inbox.annotate({"owner": None, "more": [1]})
    assert inbox.document()["offset"] == found["offset"]
    inbox.reset()
    assert inbox.document()["more"] == [1]
    assert "owner" not in inbox.document()


@pytest.mark.parametrize("name", ["../bob", "a/b", "bob\0", "x" * 300, "hub", "*", ""])
def test_f43_no_file_is_touched_for_an_id_that_is_none(channel, name):
    with pytest.raises(Refusal):
        Inbox(channel, name)
    assert not list(channel.path.iterdir())


# --- what others leave there ---


def test_a_torn_tail_costs_only_the_torn_record(channel, inbox):
    torn = line("torn")[:-20]
    inbox.append([line("1")])
    with inbox_file(channel).open("ab") as file:
        file.write(torn)
    assert taken(inbox) == ["1"]
    assert taken(inbox) == []
    inbox.append([line("2"), line("3")])
    with inbox.taking() as batch:
        assert ([each.text for each in batch.envelopes], len(batch.spoiled)) == (["2", "3"], 1)
    assert (channel.path / "inbox_bob.bad").read_bytes() == torn + b"\n"


def test_a_tail_that_is_still_being_written_is_not_taken(channel, inbox):
    whole = line("1")
    inbox_file(channel).write_bytes(whole[:-1])
    assert taken(inbox) == []
    with inbox_file(channel).open("ab") as file:
        file.write(b"\n")
    assert taken(inbox) == ["1"]


BAD = [b"\xff\xfe\n", b"[]\n", b"{\n", b'{"type":"chat"}\n', b"x" * (MAX_MESH_LINE_BYTES * 2 + 5) + b"\n"]


def test_bad_lines_are_skipped_counted_and_kept_aside(channel, inbox):
    inbox_file(channel).write_bytes(line("1") + b"".join(BAD) + b"\n  \n" + line("2"))
    found, bad = [], 0
    for _ in range(9):
        with inbox.taking() as batch:
            found += [each.text for each in batch.envelopes]
            bad += len(batch.spoiled)
    assert (found, bad) == (["1", "2"], len(BAD))
    aside = (channel.path / "inbox_bob.bad").read_bytes()
    assert aside.startswith(b"".join(BAD[:-1]))
    assert len(aside) == sum(map(len, BAD[:-1])) + MAX_MESH_LINE_BYTES


def test_an_endless_tail_is_neither_taken_nor_in_the_way(channel, inbox):
    inbox_file(channel).write_bytes(line("1") + b"x" * (3 * MAX_MESH_LINE_BYTES))
    assert taken(inbox) == ["1"]
    inbox.append([line("2")])
    assert [taken(inbox), taken(inbox)].count(["2"]) == 1


@pytest.mark.parametrize("text", ["", "[]", "{", '{"offset":-4}', '{"offset":true}', '{"offset":"9"}', "\xff"])
def test_an_offset_that_is_none_begins_at_the_start(channel, inbox, text):
    inbox.append([line("1")])
    offset_file(channel).write_text(text, encoding="latin-1")
    assert taken(inbox) == ["1"]
    assert taken(inbox) == []


def test_an_offset_beyond_the_file_begins_at_the_start(channel, inbox):
    inbox.append([line("1")])
    offset_file(channel).write_text('{"offset": 99999, "mine": 1}')
    assert taken(inbox) == ["1"]
    assert inbox.document()["mine"] == 1


def test_an_offset_inside_a_line_goes_back_to_its_start(channel, inbox):
    lines = [line("1"), line("2"), line("3")]
    inbox.append(lines)
    for inside in range(len(lines[0]) + 1, len(lines[0]) + len(lines[1])):
        offset_file(channel).write_text(json.dumps({"offset": inside}))
        assert [each.text for each in inbox.peek().envelopes] == ["2", "3"], inside


def test_a_file_that_was_begun_anew_and_grew_past_the_offset_is_read_from_its_start(channel, inbox):
    inbox.append([line("old")])
    assert taken(inbox) == ["old"]
    inbox_file(channel).write_bytes(b"".join(line(f"new {number}") for number in range(9)))
    assert taken(inbox) == [f"new {number}" for number in range(9)]


def test_an_offset_that_another_tool_set_is_followed(channel, inbox):
    first = line("1")
    inbox.append([first, line("2")])
    assert taken(inbox) == ["1", "2"]
    document = inbox.document()
    offset_file(channel).write_text(json.dumps(document | {"offset": len(first), "seen": []}))
    assert taken(inbox) == ["2"]


def test_what_others_spooled_twice_is_read_once_also_by_the_next_reader(channel, inbox):
    """Fault F21."""
    one, other = line("1"), line("2")
    again = json.dumps(dict(reversed(json.loads(one).items()))).encode() + b"\n"
    inbox.append([one, again])
    assert taken(inbox) == ["1"]
    inbox.append([one, other])
    with Inbox(channel, "bob").taking() as batch:
        assert ([each.text for each in batch.envelopes], batch.doubled) == (["2"], 1)


def test_a_sender_that_gives_all_its_messages_one_id_loses_none(channel, inbox):
    for text in "abc":
        inbox.append(
            [json.dumps({"id": "m", "type": "chat", "from_session": "a", "payload": {"text": text}}).encode() + b"\n"]
        )
    assert taken(inbox) == ["a", "b", "c"]


# --- beside others ---


def test_no_reader_keeps_a_sender_out(inbox):
    inbox.append([line("1")])
    with inbox.taking() as batch:
        inbox.append([line("2")])
    assert [each.text for each in batch.envelopes] == ["1"]
    assert taken(inbox) == ["2"]


def test_a_second_reader_is_told_while_the_first_hands_over(channel, inbox):
    inbox.append([line("1")])
    with inbox.taking():
        with pytest.raises(Held, match="the reading of the inbox of bob is locked"):
            with Inbox(channel, "bob", patience_ms=10).taking():
                pass
        with pytest.raises(Held):
            Inbox(channel, "bob", patience_ms=10).reset()


def test_a_named_reader_has_a_place_of_its_own(channel, inbox):
    bridge = Inbox(channel, "bob", "bridge")
    inbox.append([line("1"), line("2")])
    with bridge.taking(1):
        assert taken(inbox) == ["1", "2"]
    assert taken(bridge) == ["2"]
    assert taken(bridge) == []
    assert (channel.path / "offset_bob@bridge.json").exists()


def test_a_lock_that_is_held_ends_in_an_error_not_in_waiting(channel, inbox):
    inbox.append([line("1")])
    with inbox_file(channel).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(Held, match="the inbox of bob is locked"):
            Inbox(channel, "bob", patience_ms=10).append([line("2")])
    inbox.append([line("3")])
    assert taken(inbox) == ["1", "3"]


@pytest.mark.parametrize("name", ["inbox_bob.ndjson", "offset_bob.lock", "offset_bob.json"])
def test_a_fifo_at_the_path_ends_in_an_error_not_in_waiting(channel, inbox, name):
    os.mkfifo(channel.path / name)
    with pytest.raises(Unsafe, match=name):
        taken(inbox)


def test_a_full_disk_leaves_nothing_half_written(channel, inbox):
    """A real limit of the file's size makes the write a short one."""
    inbox.append([line("1")])
    before = inbox_file(channel).read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, hard))
    try:
        with pytest.raises(CannotCreate, match=r"cannot append to the inbox of bob: File too large \(EFBIG\)"):
            inbox.append([line("2"), line("3")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert inbox_file(channel).read_bytes() == before
    inbox.append([line("4")])
    assert taken(inbox) == ["1", "4"]


@contextlib.contextmanager
def no_room() -> Iterator[None]:
    """Not a byte can be written to any file; new ones can still be made."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_on_a_full_disk_a_reader_says_so_and_gets_nothing_twice(channel, inbox):
    """The offset cannot be moved; whoever reads on knows where they are, and notes it once there is room."""
    inbox.append([line("1"), line("2")])
    for expected in (["1"], ["2"], []):
        found = []
        with no_room(), pytest.raises(CannotCreate, match=r"of bob is not noted as read.*EFBIG"):
            with inbox.taking(1) as batch:
                found += [each.text for each in batch.envelopes]
        assert found == expected
        assert inbox.is_ahead
    assert inbox.document().get("offset", 0) == 0
    assert taken(inbox) == []
    assert not inbox.is_ahead
    inbox.append([line("3")])
    assert taken(Inbox(channel, "bob")) == ["3"]


def test_what_cannot_be_noted_for_a_lock_is_said_and_not_given_twice(channel):
    inbox = Inbox(channel, "bob", patience_ms=10)
    inbox.append([line("1")])
    with inbox_file(channel).open("rb") as file:
        with pytest.raises(Held, match=r"of bob is not noted as read: .*locked.*once more"), inbox.taking() as batch:
            fcntl.flock(file, fcntl.LOCK_EX)
        assert [each.text for each in batch.envelopes] == ["1"]
        assert inbox.is_ahead
    inbox.append([line("2")])
    assert taken(inbox) == ["2"]
    assert not inbox.is_ahead
    assert taken(Inbox(channel, "bob")) == []


def test_a_file_that_was_begun_anew_while_mail_was_handed_over_is_read_from_its_start(channel, inbox):
    inbox.append([line("old" * 200)])
    with inbox.taking() as batch:
        inbox_file(channel).write_bytes(b"".join(line(f"new {number}") for number in range(9)))
    assert [each.text for each in batch.envelopes] == ["old" * 200]
    assert taken(inbox) == [f"new {number}" for number in range(9)]


def test_what_another_reader_noted_meanwhile_counts_for_one_whom_a_full_disk_kept(channel, inbox):
    inbox.append([line("1")])
    with no_room(), pytest.raises(CannotCreate):
        taken(inbox)
    other = Inbox(channel, "bob")
    inbox.append([line("2")])
    assert taken(other) == ["1", "2"]
    assert taken(inbox) == []
    other.reset()
    inbox.append([line("3")])
    assert taken(inbox) == ["3"]


def test_a_directory_that_was_taken_away_is_told_and_made_anew(channel, inbox):
    inbox.append([line("1")])
    shutil.rmtree(channel.path)
    with pytest.raises(CannotCreate, match=r"inbox_bob.ndjson.*No such file"):
        inbox.append([line("2")])
    with pytest.raises(CannotCreate, match=r"offset_bob.lock.*No such file"):
        taken(inbox)
    channel.reopen()
    inbox.append([line("3")])
    assert taken(inbox) == ["3"]


# --- reset, compaction ---


def test_a_reset_says_how_many_unread_ones_it_dropped(channel, inbox):
    inbox.append([line(str(number)) for number in range(600)])
    assert len(taken(inbox, 10)) == 10
    assert inbox.reset() == 590
    assert inbox_file(channel).stat().st_size == 0
    assert inbox.document()["offset"] == 0
    assert inbox.reset() == 0
    inbox.append([line("after")])
    assert taken(inbox) == ["after"]


def test_a_read_inbox_is_compacted_past_a_mebibyte(channel, inbox):
    body = "x" * 300_000
    for number in range(4):
        inbox.append([line(f"{number}{body}")])
    size = inbox_file(channel).stat().st_size
    assert size > MESH_COMPACT_BYTES
    assert len(taken(inbox, 2)) == 2
    assert inbox_file(channel).stat().st_size == size
    assert len(taken(inbox)) == 2
    assert inbox_file(channel).stat().st_size == 0
    inbox.append([line("after")])
    assert taken(inbox) == ["after"]


def test_what_one_of_two_readers_has_not_read_is_not_compacted(channel, inbox):
    bridge = Inbox(channel, "bob", "bridge")
    assert taken(bridge) == []
    bridge.claim({})
    inbox.append([line("x" * 600_000), line("y" * 600_000)])
    assert len(taken(inbox)) == 2
    assert len(taken(bridge, 1)) == 1
    assert inbox_file(channel).stat().st_size > MESH_COMPACT_BYTES
    assert len(taken(bridge)) == 1
    assert inbox_file(channel).stat().st_size == 0
    inbox.append([line("z")])
    assert taken(bridge) == ["z"] == taken(inbox)


def test_an_id_is_found_read_or_unread(inbox):
    one = ndjson.chat("ann", "bob", "1", "room")
    inbox.append([one.line(), line(f'says "{one.id}x"')])
    assert inbox.find(one.id) == one
    assert len(taken(inbox)) == 2
    assert inbox.find(one.id) == one
    assert not inbox.find(f"{one.id}x")
    assert not inbox.find("")


def test_what_is_to_be_there_once_is_left_out_where_it_lies(inbox):
    """A sender that gave up on a hub, and the hub that was only slow, store one message once."""
    one = ndjson.chat("ann", "bob", "1", "room")
    asked = replace(one, extra={"receipt": True}).line()
    other = replace(one, payload={"text": "another under the same id"}).line()
    inbox.append([one.line()])
    inbox.append([line("2"), asked, other, line("3")], {asked, other})
    inbox.append([asked], {asked})
    assert taken(inbox) == ["1", "2", "another under the same id", "3"]
    inbox.append([asked])
    assert taken(inbox) == []  # a reader knows it, too
    inbox.append([line("x" * 1000) for _ in range(1100)])
    size = inbox.stamp().size
    inbox.append([asked], {asked})
    assert inbox.stamp().size > size, "only the end is looked at"


def test_a_second_reader_may_begin_where_the_first_one_is(channel, inbox):
    inbox.append([line("1"), line("2")])
    assert taken(inbox, 1) == ["1"]
    second = Inbox(channel, "bob", "bridge")
    assert second.begin_like(inbox)
    assert not second.begin_like(inbox)
    assert taken(second) == ["2"]
    assert taken(inbox) == ["2"]


def test_a_stamp_tells_that_something_was_appended(inbox):
    assert inbox.stamp() is None
    inbox.append([line("1")])
    before = inbox.stamp()
    assert inbox.stamp() == before
    inbox.append([line("2")])
    assert inbox.stamp() != before


def test_what_is_unread_is_counted(inbox):
    inbox.append([line(str(number)) for number in range(300)])
    assert inbox.count_unread() == 300
    assert len(taken(inbox)) == 256
    assert inbox.count_unread() == 44


def test_sessions_are_those_with_a_mailbox_or_an_offset(channel, inbox):
    inbox.append([line("1")])
    assert Inbox(channel, "ann.x").claim({})
    assert Inbox(channel, "carol", "bridge").claim({})
    for name in (
        "inbox_dave.bad",
        "offset_eve.lock",
        "inbox_all.ndjson",
        "inbox_-.ndjson",
        "inbox_fay.json",
        "offset_",
    ):
        (channel.path / name).touch()
    assert sessions(channel) == ["ann.x", "bob"]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(["append", "take", "take one", "tear", "fail", "offset in line", "blank"]), max_size=24)
)
def test_nothing_is_lost_or_read_twice_whatever_happens_in_between(base, steps):
    for old in itertools.chain(base.glob("room/*")):
        old.unlink()
    with Channel.open(base, "room") as channel:
        inbox, sent, read = Inbox(channel, "bob"), [], []
        for step in steps:
            if step == "append":
                sent += [str(len(sent)), str(len(sent) + 1)]
                inbox.append([line(text) for text in sent[-2:]])
            elif step == "take":
                read += taken(inbox)
            elif step == "take one":
                read += taken(inbox, 1)
            elif step in ("tear", "blank"):
                with inbox_file(channel).open("ab") as file:
                    file.write(b'{"torn' if step == "tear" else b"\n")
            elif step == "fail":
                with pytest.raises(ZeroDivisionError), inbox.taking():
                    raise ZeroDivisionError
            elif (document := inbox.document()).get("offset", 0) > 9:
                channel.replace("offset_bob.json", document | {"offset": document["offset"] - 9})
        while more := taken(inbox):
            read += more
        assert read == sent


# --- many processes at once ---

ACTOR = """
import sys, json
from pathlib import Path
from wakehub.errors import Held
from wakehub.intercom import ndjson
from wakehub.intercom.channels import Channel
from wakehub.intercom.spool import Inbox, sessions

def patiently(act):
    while True:
        try:
            return act()
        except Held:
            continue

channel = Channel.open(Path(sys.argv[1]), "room")
inbox = Inbox(channel, "bob")
"""


def actor(base: Path, body: str, *words: str) -> subprocess.Popen[str]:
    script = ACTOR + textwrap.dedent(body)
    command = [sys.executable, "-c", script, str(base), *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


POLLER = """
    while True:
        def take():
            with inbox.taking(7) as batch:
                for each in batch.envelopes:
                    print(each.text, flush=True)
        patiently(take)
        if Path(sys.argv[2]).exists() and not inbox.peek().envelopes:
            break
"""


def test_polls_in_parallel_are_disjoint_and_lose_nothing(base, channel, inbox, tmp_path):
    done = tmp_path / "done"
    with actor(base, POLLER, str(done)) as one, actor(base, POLLER, str(done)) as other:
        for number in range(300):
            inbox.append([line(f"{number}")])
        done.touch()
        outputs = [each.communicate(timeout=120)[0].split() for each in (one, other)]
    assert sorted(map(int, itertools.chain(*outputs))) == list(range(300))
    for output in outputs:
        assert output == sorted(output, key=int)


SENDER = """
    number = 0
    while not Path(sys.argv[2]).exists():
        patiently(lambda: inbox.append([ndjson.chat("ann", "bob", str(number), "room").line()]))
        print(number, flush=True)
        number += 1
"""
RESETTER = """
    import os
    while not Path(sys.argv[2]).exists():
        def reset():
            dropped = inbox.reset()
            print(dropped, flush=True)
        patiently(reset)
        # Others are to have their turns: until something new was appended.
        while not Path(sys.argv[2]).exists() and not (channel.path / "inbox_bob.ndjson").stat().st_size:
            pass
"""


def test_reset_beside_poll_beside_append(base, channel, inbox, tmp_path):
    """No stuck offset, and what was sent was either read once or reset. WAKEHUB_SPOOL_SECONDS=30 for a long run."""
    done = tmp_path / "done"
    seconds = float(os.environ.get("WAKEHUB_SPOOL_SECONDS", "3"))
    with (
        actor(base, SENDER, str(done)) as sender,
        actor(base, POLLER, str(done)) as poller,
        actor(base, RESETTER, str(done)) as resetter,
    ):
        time.sleep(seconds)  # how long they contend; nothing is judged by it
        done.touch()
        sent, read, reset = (
            [int(word) for word in each.communicate(timeout=120)[0].split()] for each in (sender, poller, resetter)
        )
    read += map(int, taken(inbox))  # what was sent behind the poller's last look
    assert read == sorted(set(read)), "twice, or out of order"
    assert set(read) <= set(sent)
    assert len(read) + sum(reset) == len(sent)
    assert taken(inbox) == []
    inbox.append([line("after")])
    assert taken(inbox) == ["after"]
