"""What counts as mistyped (fault F15)."""

import pytest

from wakehub.identity.nearness import near


@pytest.mark.parametrize(
    ("typed", "known"),
    [
        ("alise", "alice"),
        ("alcie", "alice"),
        ("alic", "alice"),
        ("aalice", "alice"),
        ("Alice", "alice"),
        ("reviewre", "reviewer"),
        ("code-review", "codereview"),
        ("acme/deplyo", "acme/deploy"),
        ("acne/deploy", "acme/deploy"),
        ("documentatoins", "documentation"),
        ("bbo", "bob"),
    ],
)
def test_a_slip_is_near(typed: str, known: str) -> None:
    assert near(typed, ["zebra", known]) == [known]


@pytest.mark.parametrize(
    ("typed", "known"),
    [
        ("reviewer-2", "reviewer"),
        ("reviewer-2", "reviewer-3"),
        ("agent1", "agent2"),
        ("worker-a", "worker-b"),
        ("bob", "rob"),
        ("bob", "acme/bob"),
        ("alice", "bob"),
        ("frontend", "backend"),
        ("alice", "alice"),
    ],
)
def test_a_sibling_or_another_name_is_not(typed: str, known: str) -> None:
    assert near(typed, [known]) == []
