"""Flags that contradict each other are refused as usage errors, with what to write instead."""

from pathlib import Path
from typing import Any

import pytest

from wakehub.errors import Exit, WakehubError
from wakehub.relay.options import ListenOptions, ToClaude, ToFile, ToHook


@pytest.mark.parametrize(
    ("flags", "remedy"),
    [
        ({"wait_s": 5.0}, "--once"),
        ({"once": True, "wait_s": -1.0}, "seconds"),
        ({"once": True, "wait_s": float("inf")}, "seconds"),
        ({"once": True, "wait_s": float("nan")}, "seconds"),
        ({"acknowledge": False, "take_over": True}, "leave one"),
        ({"acknowledge": False, "status": True}, "--status"),
        ({"namespaces": ("acme",)}, "write acme/"),
        ({"to": ToHook(("cat",)), "acknowledge": False}, "the backend"),
        ({"to": ToFile(Path("/x")), "format": "json"}, "--opt format="),
        ({"to": ToClaude(session="x"), "namespaces": ("acme/",)}, "--as"),
        ({"to": ToClaude(agents=frozenset({"x"}))}, "leave it out"),
        ({"to": ToClaude(agents=frozenset({"x"})), "namespaces": ("acme",)}, "write acme/"),
        ({"to": ToClaude(agents=frozenset({"x"})), "namespaces": ("acme/eng/",)}, "agents=eng/x"),
        ({"to": ToClaude(agents=frozenset({"eng/a", "other/x"})), "namespaces": ("acme/eng/",)}, "agents=eng/"),
        ({"to": ToClaude(agents=frozenset({"acme/x"})), "namespaces": ("acme/",)}, "agents=x"),
    ],
)
def test_contradictions(flags: dict[str, Any], remedy: str) -> None:
    with pytest.raises(WakehubError) as caught:
        ListenOptions(**flags)
    assert caught.value.exit == Exit.USAGE
    assert remedy in caught.value.remedy


def test_agents_that_a_listener_can_have_messages_for() -> None:
    ListenOptions(namespaces=("corp/", "acme/eng/"), to=ToClaude(agents=frozenset({"x", "eng/x", "other/x"})))
    ListenOptions(names=("acme/x",), namespaces=("acme/eng/",), to=ToClaude(agents=frozenset({"x"})))


def test_the_defaults_acknowledge_and_go_on() -> None:
    options = ListenOptions()
    assert options.acknowledge
    assert not options.once
    assert not options.take_over
