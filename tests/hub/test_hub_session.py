"""One connection as the hub sees it: a stranger, then a session, then closed."""

import pytest
from hub_world import World

from wakehub.hub.session import Session
from wakehub.wire.protocol import HubState


def test_a_stranger() -> None:
    world = World()
    session = world.open().session
    assert session.state is HubState.AUTHENTICATING
    assert session.nonce == (1).to_bytes(32, "big")
    assert (session.number, session.agent, session.identity, session.topics) == (0, b"", None, {})
    assert (session.owed, session.owed_429, session.last_429_us, session.stale_since_us) == (False, "", None, None)


def test_a_session() -> None:
    world = World()
    session = world.connect("alice", b"#team", b"#_inbox/alice").session
    assert session.state is HubState.IN_SESSION
    assert (session.number, session.agent) == (1, b"alice")
    assert list(session.topics) == [b"#team", b"#_inbox/alice"]
    assert session.identity is not None
    assert session.identity.agent_id == "alice"


def test_a_closed_one_keeps_its_name_for_the_log() -> None:
    world = World()
    alice = world.connect("alice", b"#team")
    alice.finish()
    assert alice.session.state is HubState.CLOSED
    assert (alice.session.agent, alice.session.topics) == (b"alice", {})


@pytest.mark.parametrize("state", HubState)
def test_frames_are_looked_at_until_it_is_closed(state: HubState) -> None:
    session = World().open().session
    session.state = state
    assert session.is_open == (state is not HubState.CLOSED)


def test_two_connections_of_one_agent_are_two() -> None:
    world = World()
    one, other = world.connect("alice").session, world.connect("alice").session
    assert one != other
    assert len({one, other}) == 2


def test_a_session_has_no_room_for_anything_else() -> None:
    session = World().open().session
    with pytest.raises(AttributeError):
        session.anything = 1  # type: ignore[attr-defined]
    assert not hasattr(session, "__dict__")
    assert isinstance(session, Session)
