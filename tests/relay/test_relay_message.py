"""What a message derives from its row."""

from dataclasses import replace
from pathlib import Path

import pytest
from relay_world import message

from wakehub.inbox.rows import Attachment
from wakehub.relay.message import document, is_address, workspace


@pytest.mark.parametrize(
    ("address", "found"), [("alice", ""), ("acme/alice", "acme"), ("acme/eng/x", "acme"), ("ai:alice", ""), ("a/", "a")]
)
def test_the_workspace_is_the_first_of_several_segments(address: str, found: str) -> None:
    assert workspace(address) == found


@pytest.mark.parametrize("name", ["alice", "acme/deploy", "ai:alice", "a.b_c-d"])
def test_addresses_can_be_answered(name: str) -> None:
    assert is_address(name)
    assert message(sender=name).reply == (
        f"wakehub send --as alice --to {name} --re m_00000000000000000000000000 --stdin"
    )


@pytest.mark.parametrize("name", ["", "a b", "$(id)", "bob;x", "../x", "b\u0456b", "-x", "a/", "x" * 129])
def test_other_ids_cannot(name: str) -> None:
    assert not is_address(name)
    assert message(sender=name).reply is None
    assert message(recipient=name).reply is None


def test_age_is_whole_seconds() -> None:
    assert message(after_s=4.999).age_s == 4
    assert message(after_s=-3).age_s == 0


def test_attachments_are_named_with_size_and_digest() -> None:
    only_seen = message(attachments=(Attachment("a.txt", 3, b"\x01" * 32),))
    expected = {"name": "a.txt", "path": None, "size": 3, "sha256": "01" * 32}
    assert document(only_seen)["attachments"] == [expected]
    assert document(replace(only_seen, files=(None,)))["attachments"] == [expected]
    handed_over = replace(only_seen, files=(Path("/state/files/a.txt"),))
    assert document(handed_over)["attachments"] == [expected | {"path": "/state/files/a.txt"}]
