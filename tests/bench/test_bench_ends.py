"""Both ends: every message is matched with its hearing, and an end that breaks is named."""

import json
import sys

import pytest

from wakehub.bench.ends import Hearer, Sayer, took_ns
from wakehub.bench.hubs import Hub
from wakehub.bench.instance import Instance
from wakehub.bench.programs import number_of, text_of
from wakehub.bench.systems import Failed


def printing(stage, lines, *, more=""):
    """A hearer that reads a command's lines."""
    script = "import sys, time\n" + "".join(f"print({line!r}, flush=True)\n" for line in lines) + more
    return Hearer(stage, [sys.executable, "-c", script], {}, ready=0)


def test_texts_carry_their_number_and_are_all_as_long():
    assert [number_of(text_of(number)) for number in (0, 7, 12_345)] == [0, 7, 12_345]
    assert len({len(text_of(number)) for number in (0, 7, 12_345)}) == 1


def test_what_a_command_prints_is_heard_once_and_counted_when_it_comes_again(stage):
    lines = [json.dumps({"text": text_of(number)}) for number in (3, 1, 3)]
    hearer = printing(stage, lines, more="time.sleep(600)")
    hearer.wait(lambda: hearer.again == 1, "has heard all")
    assert sorted(hearer.heard) == [1, 3]
    assert hearer.heard[3] < hearer.heard[1]  # the first time counts
    hearer.end()


def test_a_listener_that_ends_is_quoted(stage):
    hearer = printing(stage, [], more="raise SystemExit('no such name')")
    with pytest.raises(Failed, match=r"has heard it.*no such name"):
        hearer.wait(lambda: False, "has heard it")
    hearer.end()


def test_a_sender_that_ends_is_quoted(stage):
    with pytest.raises(Failed, match="a sender ended"):
        Sayer(stage, ["say", "nobody", "-"], {})


def test_wakes_through_the_hub_alone_are_heard_behind_their_sending(stage):
    hub = Hub(stage, 2)
    hub.start(())
    hearer = Hearer(stage, ["hear", "session", hub.address, str(hub.bundles)], {})
    sayer = Sayer(stage, ["say", "session", hub.address, str(hub.bundles)], {})
    for count in (3, 4):  # the numbers go on
        took = took_ns(sayer, hearer, [""], count, 1)
        assert len(took) == count
        assert all(each > 0 for each in took)
    assert sorted(hearer.heard) == list(range(7))
    sayer.end()
    hearer.end()


def test_a_message_goes_all_the_way_to_a_program_and_to_a_command(stage):
    instance = Instance(stage)
    instance.start("publish", "serve")
    sayer, program, command = instance.say(), instance.hear("program"), instance.hear_printed("command")
    for hearer, name in ((program, "program"), (command, "command")):
        took = took_ns(sayer, hearer, [name], 3, 1)
        assert len(took) == 3
        assert all(each > 0 for each in took)
    assert not set(program.heard) & set(command.heard)
    assert instance.sessions() >= 2
    for end in (sayer, program, command, instance):
        end.end()
