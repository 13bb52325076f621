"""awh1.md §4.5: which topics a session may hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wakehub.identity.scope import inbox_topic, may_hold, prefixes_of

PREFIXES = ("acme/eng", "acme/ops")


def test_an_inbox_topic_is_ones_own_and_fits() -> None:
    assert inbox_topic("bob") == b"#_inbox/bob"
    assert inbox_topic("b" * 56) == b"#_inbox/" + b"b" * 56
    assert inbox_topic("b" * 57) is None
    assert inbox_topic("é" * 28) is not None
    assert inbox_topic("é" * 29) is None


@pytest.mark.parametrize(
    "topic", [b"#_inbox/acme/eng/bob", b"#acme/eng", b"#acme/eng/x", b"#acme/eng/x/y", b"#acme/ops/deploy"]
)
def test_what_may_be_held(topic: bytes) -> None:
    assert may_hold("acme/eng/bob", PREFIXES, topic)


@pytest.mark.parametrize(
    "topic",
    [
        b"#acme",
        b"#acme/engineering",
        b"#acme/eng-x",
        b"#acme/en",
        b"#ACME/eng",
        b"#acme/sales",
        b"#other",
        b"#_inbox/alice",
        b"#_inbox/acme/eng/bob/x",
        b"#_inbox/acme/eng",
        b"#",
        b"",
        b"acme/eng",
        b"#acme/eng/" + b"x" * 55,
        b"#acme/eng/\n",
        b"#acme/eng/\xff",
        b"#acme/eng/\xc2\x85",
        b"#_agents",
        b"#_messages/x",
    ],
)
def test_what_may_not(topic: bytes) -> None:
    assert not may_hold("acme/eng/bob", PREFIXES, topic)


@pytest.mark.parametrize(
    "namespace",
    [
        "_agents",
        "_agent_sessions",
        "_standards",
        "_messages/x",
        "_inbox/x",
        "_curator/x",
        "_subscriptions/x",
        "_standard:x",
    ],
)
def test_the_substrate_is_nobodys_whatever_the_prefixes_say(namespace: str) -> None:
    prefixes = (namespace, namespace.split("/")[0])
    assert not may_hold("bob", prefixes, f"#{namespace}".encode())
    assert may_hold("x", prefixes, f"#{namespace}".encode()) == (namespace == "_inbox/x")


def test_the_longest_topic_of_a_full_prefix() -> None:
    prefix = "a" * 63
    assert may_hold("bob", (prefix,), b"#" + prefix.encode())


def test_prefixes_are_the_nearest_three_parents() -> None:
    assert prefixes_of("bob") == ()
    assert prefixes_of("acme/bob") == ("acme",)
    assert prefixes_of("a/b/c/d/e") == ("a/b/c/d", "a/b/c", "a/b")


def test_a_parent_too_long_is_left_out_and_not_replaced() -> None:
    middle = "m" * 60
    assert prefixes_of(f"a/b/{middle}/y/bob") == ("a/b",)
    assert prefixes_of(f"{'m' * 63}/bob") == ("m" * 63,)
    assert prefixes_of(f"{'m' * 64}/bob") == ()


@given(st.lists(st.text(st.sampled_from("ab"), min_size=1, max_size=2), min_size=1, max_size=5), st.data())
def test_an_agent_holds_what_lies_under_its_parents(segments: list[str], data: st.DataObject) -> None:
    other = data.draw(st.lists(st.text(st.sampled_from("ab"), min_size=1, max_size=2), min_size=1, max_size=5))
    parents = [segments[:depth] for depth in range(max(1, len(segments) - 3), len(segments))]
    expected = any(other[: len(parent)] == parent for parent in parents)
    assert may_hold("/".join(segments), prefixes_of("/".join(segments)), f"#{'/'.join(other)}".encode()) == expected
