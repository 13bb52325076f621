"""The process that wants to be a channel's hub (intercom.md §5): what it costs where there is one, and when it ends."""

import os

from daemon_process import until
from mesh_independent_client import Client

from wakehub.intercom import election


def test_a_follower_loads_next_to_nothing(hub, channel):
    """Of a hundred clients that start a hub at once, ninety-nine must not cost the machine a second each."""
    with election.lead(channel):
        code = f"""
import sys
from pathlib import Path
from wakehub.intercom import client, daemon
assert daemon.run(Path({str(hub.base)!r}), "room") == 0
assert "trio" not in sys.modules and "structlog" not in sys.modules, "loaded in vain"
"""
        assert hub.start(code=code).wait(60) == 0, hub.log()


def test_a_hub_that_nobody_uses_ends_and_one_that_is_used_does_not(hub):
    code = f"""
from pathlib import Path
from wakehub.intercom import daemon
raise SystemExit(daemon.run(Path({str(hub.base)!r}), "room", idle_s=0.2))
"""
    process = hub.start(code=code)
    with Client(hub.socket) as client:
        assert client.greet("ann")["type"] == "welcome"
        rounds = hub.log().count("hub ready")
        for _ in range(3):  # each is a look at the path, at which it could have ended
            os.unlink(hub.socket)
            until(hub.socket.exists, "it is bound anew")
        assert rounds == 1
        assert process.poll() is None
    assert process.wait(60) == 0
    assert "nobody was there" in hub.log()
    assert not hub.socket.exists()
