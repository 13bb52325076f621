"""Dialects: the same amount for everybody, and bytes that the systems themselves understand."""

import pytest

from wakehub.bench import dialects
from wakehub.bench.dialects import agent_id, message
from wakehub.bench.dialects.awh1 import HINT_BYTES, TOPIC
from wakehub.bench.hubs import Hub
from wakehub.wire.frames import Kind, decode
from wakehub.wire.payloads import Wake


def test_other_systems_carry_as_much_as_a_hint():
    assert len(message(1, 2, HINT_BYTES)) == HINT_BYTES
    assert message(1, 2, HINT_BYTES) != message(2, 1, HINT_BYTES)


def test_a_frame_is_what_the_publisher_would_send(stage):
    spoken = dialects.load("awh1", {"bundles": str(Hub(stage, 2).bundles)})
    frame = decode(spoken.wake(0, 1))
    assert (frame.kind, frame.from_id, frame.to_id) == (Kind.WAKE, agent_id(0).encode(), agent_id(1).encode())
    assert frame.ts_ms > 0
    wake = Wake.decode(frame.payload)
    assert (wake.namespace, wake.sender, len(wake.digest)) == (b"_inbox/bench/0001", b"bench/0000", 32)
    assert len(frame.payload) == HINT_BYTES
    assert decode(spoken.broadcast(1)).to_id == TOPIC
    assert spoken.wake(0, 1) == spoken.heard(0, 1) != spoken.wake(1, 0)


def test_what_is_waited_for_may_come_in_parts():
    waiting = dialects.until(b"OK\r\n")
    assert next(waiting) == b""
    assert waiting.send(b"O") == b""
    with pytest.raises(StopIteration) as end:
        waiting.send(b"K\r\n")
    assert end.value.value == b"OK\r\n"
