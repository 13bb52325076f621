"""A whole instance: it is made, says when it is ready, comes back after a kill, and loses nothing meanwhile."""

from wakehub.bench.instance import Instance
from wakehub.limits import MAX_RECORD_SETTING


def test_the_loop_guard_is_wide_and_everything_lies_in_its_home(stage):
    instance = Instance(stage)
    assert instance.config.pair_per_minute == MAX_RECORD_SETTING
    assert stage.path in instance.config.paths.record.parents


def test_what_is_sent_while_the_hub_is_dead_is_heard(stage):
    instance = Instance(stage)
    instance.start("publish", "serve")
    sayer, hearer = instance.say(), instance.hear("one", "two")
    first, _ = sayer.say(["one", "two"], 2, 1)
    hearer.wait(lambda: set(first) <= set(hearer.heard), "hears")
    instance.kill("serve")
    assert instance.sessions() == 0
    gap, _ = sayer.say(["one", "two"], 2, 1)
    instance.start("serve")
    hearer.wait(lambda: set(gap) <= set(hearer.heard), "hears what was sent in the gap")
    assert hearer.again == 0
    for end in (sayer, hearer, instance):
        end.end()
