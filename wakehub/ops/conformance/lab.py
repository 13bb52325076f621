"""What a case works with: connections to the hub, sessions of its agents, time. It closes all that it opened.

A session is opened *settled*: what still waited for the agent has been read, so that no case sees the leavings of the
one before. Names that a case makes up carry a token of this run, so that they mean nothing to anybody else.
"""

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from wakehub.errors import Violation
from wakehub.limits import (
    CHECK_RETRY_MS,
    CONFORMANCE_CASE_SECONDS,
    MAX_TOPIC_BYTES,
    NONCE_BYTES,
    TEARDOWN_FLUSH_MS,
)
from wakehub.ops.conformance.guest import Guest
from wakehub.ops.conformance.outcome import Mismatch, NotApplicable, Stop
from wakehub.ops.conformance.peer import Peer, body, prefixed
from wakehub.visible import visible
from wakehub.wire.frames import Kind
from wakehub.wire.payloads import Welcome

_CLOSING_SECONDS: Final = TEARDOWN_FLUSH_MS / 1000
"""What is left of a case's time to close its connections in."""


class Lab:
    """The hub at `path`, and the agents of the bundles, for one case that begins now.

    `patience_s` is how long one answer may take; `token` tells this run's names from all others.
    """

    def __init__(self, path: Path, guests: Sequence[Guest], token: str, patience_s: float) -> None:
        self.guests = guests
        self.token = token
        self.deadline = time.monotonic() + CONFORMANCE_CASE_SECONDS - _CLOSING_SECONDS
        self._path = path
        self._patience_s = patience_s
        self._peers: list[Peer] = []

    def close(self) -> None:
        """Close every connection of the case; a session first ends its stream and reads the rest, so that nothing of
        it is left in the hub for the next one."""
        for peer in self._peers:
            peer.send_end()
        until = time.monotonic() + _CLOSING_SECONDS
        for peer in self._peers:
            if peer.agent:
                peer.read_off(until)
            peer.close()

    # --- connections ------------------------------------------------------------------------------------------

    def connect(self) -> Peer:
        """A connection on which nothing was read. Raises `Stop` when there is none to be had."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        peer = Peer(sock, self.deadline, self._patience_s)
        self._peers.append(peer)
        while True:
            try:
                sock.settimeout(self._patience_s)
                sock.connect(os.fspath(self._path))
            except BlockingIOError:  # Linux: the line of those who wait to be accepted is full
                if time.monotonic() > self.deadline:
                    raise Stop("the hub accepts nobody any more") from None
                time.sleep(CHECK_RETRY_MS / 1000)
            except OSError as error:
                raise Stop(f"the hub is gone: {error.strerror or 'no connection in time'}") from error
            else:
                return peer

    def open(self) -> Peer:
        """A connection whose challenge was read. Raises `Stop` when the hub gives none."""
        peer = self.connect()
        found = peer.receive()
        if found is None or found.frame.kind is not Kind.HELLO or len(found.frame.payload) != NONCE_BYTES:
            raise Stop(f"the hub gives no challenge; it said {found or 'nothing'}")
        peer.hub_id, peer.nonce = found.frame.from_id, found.frame.payload
        return peer

    # --- sessions ---------------------------------------------------------------------------------------------

    def session(self, guest: Guest, topics: Sequence[bytes] = ()) -> Peer:
        """A settled session of the agent, which replaces one that is left from before."""
        peer = self.welcomed(guest, topics)
        peer.before_pong()
        return peer

    def welcomed(self, guest: Guest, topics: Sequence[bytes] = ()) -> Peer:
        """A session of which nothing was read behind the welcome."""
        peer = self.open()
        self.greet(peer, guest, guest.hello(peer.hub_id, peer.nonce, topics))
        self.await_welcome(peer, guest)
        return peer

    def greet(self, peer: Peer, guest: Guest, payload: bytes, *, agent: bytes | None = None) -> None:
        """Send a hello with this payload in the name of the guest, or of another agent."""
        peer.claimed = guest.agent if agent is None else agent
        peer.send(prefixed(body(Kind.HELLO, peer.claimed, payload=payload)))

    def await_welcome(self, peer: Peer, guest: Guest) -> Welcome:
        """The next frame must be the welcome."""
        for other in self._peers:
            other.is_displaced = other.is_displaced or other.agent == guest.agent
        found = peer.expect(Kind.WELCOME)
        peer.agent = guest.agent
        peer.expect_from_hub(found)
        try:
            peer.welcome = Welcome.decode(found.frame.payload)
        except Violation as violation:
            raise Mismatch(f"a welcome that is malformed: {violation.reason}") from violation
        return peer.welcome

    def absent(self, guest: Guest) -> None:
        """Make the agent known and not connected, with nothing waiting for it."""
        self.session(guest).leave()

    def depart(self, peer: Peer, guest: Guest) -> None:
        """Have the hub forget the agent of a session; it must close without an answer."""
        peer.send_frame(Kind.DEPART, payload=guest.membership(Kind.DEPART, peer.hub_id, peer.nonce))
        peer.expect_end()

    # --- names ------------------------------------------------------------------------------------------------

    def row(self, number: int | str) -> bytes:
        """A row id of this run."""
        return f"c-{self.token}-{number}".encode()

    def nobody(self) -> bytes:
        """An agent id that no hub knows."""
        return f"nobody-{self.token}".encode()

    def own_topic(self, guest: Guest) -> bytes:
        """The topic of the agent's own inbox (§4.5)."""
        return self._fitting(f"#_inbox/{guest.bundle.agent_id}")

    def namespace(self, agents: int) -> str:
        """A namespace that the first so many agents may all read."""
        first, *others = self.guests[:agents]
        for prefix in first.prefixes:
            if all(prefix in other.prefixes for other in others):
                return prefix
        raise NotApplicable("needs agents under one path, such as team/a and team/b")

    def topic(self, agents: int, number: int = 0) -> bytes:
        """A topic of this run that the first so many agents may all hold."""
        return self._fitting(f"#{self.namespace(agents)}/c{number}-{self.token}")

    def _fitting(self, topic: str) -> bytes:
        if len(topic.encode()) > MAX_TOPIC_BYTES:
            raise NotApplicable(f"the topic {visible(topic)} would be longer than {MAX_TOPIC_BYTES} B")
        return topic.encode()
