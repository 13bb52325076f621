"""`wakehub.subscribe`: at least once, in order, under a lease, and an end that leaves nothing behind."""

import signal
import subprocess
import sys

import pytest
import trio
from daemon_process import until

import wakehub
from wakehub.errors import Held, WakehubError
from wakehub.inbox.clock import Now

HOLDER = """
import sys, trio, wakehub
async def main():
    async with wakehub.subscribe("alice", poll_s=1) as messages:
        print("held", flush=True)
        async for message in messages:
            print(message.id, message.redelivery, flush=True)
            sys.stdin.readline()
            await message.ack()
            print("acknowledged", flush=True)
trio.run(main)
"""


def post(text: str, to: str = "alice", **options) -> str:
    (row_id,) = wakehub.send(to, text, sender="bob", **options).row_ids
    return row_id


def state(record, row_id: str) -> str:
    return record.headers([row_id])[0].state


@pytest.fixture
def holder(instance):
    """Another program that subscribes as alice, and acknowledges what it got once it is told to."""
    words = [sys.executable, "-P", "-c", HOLDER]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


async def test_messages_come_in_order_with_all_that_belongs_to_them(record):
    before = post("one"), post("two", re=post("zero", to="carol"))
    async with wakehub.subscribe("alice") as messages:
        one = await anext(messages)
        await one.ack()
        two = await anext(messages)
        await two.ack()
    assert (one.id, two.id) == before
    assert (one.sender, one.to, one.text, one.body, one.verified) == ("bob", "alice", "one", b"one", "yes")
    assert (one.redelivery, one.re is None, two.re is None, one.files) == (0, True, False, ())
    assert (one.is_from_outside, one.is_stale, one.row_class) == (False, False, "normal")


async def test_an_acknowledgement_is_recorded_when_it_returns_with_what_proves_it(record):
    row_id = post("hello")
    async with wakehub.subscribe("alice") as messages:
        message = await anext(messages)
        assert state(record, row_id) == "claimed"
        await message.ack()
        assert state(record, row_id) == "handed_off"
        await message.ack()
    assert [event.proof for event in record.events(row_id) if event.kind == "handed_off"] == ["program"]


async def test_one_that_was_passed_over_comes_again_and_says_so(record):
    row_id = post("hello")
    async with wakehub.subscribe("alice") as messages:
        first = await anext(messages)
        second = await anext(messages)
        assert (first.id, second.id, first.redelivery, second.redelivery) == (row_id, row_id, 0, 1)
        with pytest.raises(Held, match="expect the message again"):
            await first.ack()
        await second.ack()


async def test_one_in_hand_at_the_end_comes_again_and_says_so(record):
    row_id = post("hello")
    async with wakehub.subscribe("alice") as messages:
        kept = await anext(messages)
    assert state(record, row_id) == "unread"
    with pytest.raises(Held):
        await kept.ack()
    async with wakehub.subscribe("alice") as messages:
        again = await anext(messages)
        assert (again.id, again.redelivery) == (row_id, 1)
        await again.ack()


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_one_that_nobody_asked_for_is_left_as_if_untouched(record, is_cancelled):
    row_id = post("hello")
    with trio.CancelScope() as scope:
        async with wakehub.subscribe("alice"):
            while state(record, row_id) != "claimed":
                await trio.lowlevel.checkpoint()
            if is_cancelled:
                scope.cancel()
                await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught == is_cancelled
    (header,) = record.headers([row_id])
    assert (header.state, header.redelivery) == ("unread", 0)


async def test_one_whose_time_is_over_when_it_is_asked_for_is_not_given(record, monkeypatch):
    late = post("hello", ttl=1)
    row_id = post("hello")
    async with wakehub.subscribe("alice") as messages:
        while state(record, late) != "claimed":
            await trio.lowlevel.checkpoint()
        after = Now.read().ms + 1000
        while Now.read().ms < after:
            await trio.lowlevel.checkpoint()
        message = await anext(messages)
        assert message.id == row_id
        await message.ack()
    assert record.headers([late])[0].redelivery == 0


async def test_a_message_sent_meanwhile_is_given(record):
    async with wakehub.subscribe("alice", poll_s=1) as messages:
        row_id = await trio.to_thread.run_sync(post, "hello")
        message = await anext(messages)
        await message.ack()
    assert message.id == row_id


async def test_the_name_is_held_within_the_block_and_free_behind_it(record):
    async with wakehub.subscribe("alice"):
        assert record.leases.holder("alice", Now.read()) is not None
    assert record.leases.holder("alice", Now.read()) is None


async def test_an_error_of_the_program_comes_out_as_it_is(record):
    with pytest.raises(KeyError, match="mine"):
        async with wakehub.subscribe("alice"):
            raise KeyError("mine")
    assert record.leases.holder("alice", Now.read()) is None


async def test_a_name_of_another_process_is_refused(holder):
    with pytest.raises(Held, match="another listener"):
        async with wakehub.subscribe("alice"):
            pass


async def test_a_name_that_is_taken_ends_the_other_one(holder):
    async with wakehub.subscribe("alice", take_over=True):
        assert await trio.to_thread.run_sync(holder.wait) == 1


async def test_what_cannot_be_is_said_before_anything_happens(instance):
    with pytest.raises(WakehubError):
        async with wakehub.subscribe("no address!"):
            pass
    with pytest.raises(WakehubError):
        async with wakehub.subscribe("alice", poll_s=61):
            pass


async def test_several_names_and_one_sender(record):
    wakehub.send("alice", "no", sender="carol")
    ids = [post("one"), post("two", to="acme/deploy")]
    async with wakehub.subscribe("alice", namespaces=["acme/"], sender="bob") as messages:
        got = []
        while len(got) < 2:
            message = await anext(messages)
            got.append(message.id)
            await message.ack()
    assert sorted(got) == sorted(ids)


async def test_files_come_as_copies(record, tmp_path):
    (tmp_path / "notes.txt").write_text("content")
    post("see", attach=[tmp_path / "notes.txt"])
    async with wakehub.subscribe("alice") as messages:
        message = await anext(messages)
        (copy,) = message.files
        assert (copy.name, copy.read_text()) == ("notes.txt", "content")
        await message.ack()


def test_killed_before_it_acknowledged_it_gets_it_again(holder, record):
    row_id = post("hello")
    assert holder.stdout.readline() == f"{row_id} 0\n"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert state(record, row_id) == "claimed"
    message = next(iter(wakehub.listen("alice")))
    assert (message.id, message.redelivery) == (row_id, 1)


def test_a_program_of_its_own(holder, record):
    row_id = post("hello")
    assert holder.stdout.readline() == f"{row_id} 0\n"
    holder.stdin.write("\n")
    holder.stdin.flush()
    assert holder.stdout.readline() == "acknowledged\n"
    until(lambda: state(record, row_id) == "handed_off", "it is recorded")


async def test_nothing_is_printed(record, capfd, caplog):
    post("hello")
    caplog.set_level("INFO", "wakehub")
    async with wakehub.subscribe("alice") as messages:
        await (await anext(messages)).ack()
    assert capfd.readouterr() == ("", "")
    assert any("listening as alice" in entry.message for entry in caplog.records)
