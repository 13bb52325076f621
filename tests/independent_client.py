"""An AWH1 client written from the specification alone: plain blocking sockets and PyNaCl, none of the package's code.

It exists to show that the specification suffices, and to be the other side of black-box tests, so it imports nothing of
`wakehub`. Section numbers refer to the AWH1 specification.

Model: a `Client` is one connection; after `Client.connect` it is one session. Reading is strict (a frame a hub must not
send raises `ProtocolError`); writing is not, since tests need to send nonsense: `send_frame` takes any field as text or
bytes, `send_bytes` takes anything. While a call waits for its answer, other frames are set aside, and `recv_frame`
returns them later in the order in which they came. A ping of the hub's is answered and not shown.

    with Client.connect(socket_path, Bundle.load("alice.a2a-hub.json"), ["#hive"]) as alice:
        print(alice.welcome.session)
        alice.wake("bob", row_id="m_1")
        assert alice.ping() == []            # no error before the pong: the hub took the wake
        frame = alice.recv_wake(timeout=5)

A world without the package's identity commands is made from seeds:

    agent = Agent("alice", seed=bytes(32))
    write_allowlist(run / "allowlist.jws", owner_seed, [agent.entry()])
    bundle = agent.bundle(hub_id="wakehub")

As a program, `independent_client.py SOCKET BUNDLE [--topic T]… [--wakes N] [--timeout S]` prints one JSON object per
frame, the welcome first. Exit 0 after N wakes, or at the hub's clean end without `--wakes`; 1 refused, closed or
malformed; 3 nothing in time.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from nacl.signing import SigningKey

HELLO, WELCOME, JOIN, DEPART, SUBSCRIBE, UNSUBSCRIBE, WAKE, PING, PONG, ERROR = range(1, 11)
KINDS = ("", "hello", "welcome", "join", "depart", "subscribe", "unsubscribe", "wake", "ping", "pong", "error")
CEILINGS = {HELLO: 1024, WELCOME: 256, SUBSCRIBE: 1024, UNSUBSCRIBE: 1024, WAKE: 256, PING: 32, PONG: 32, ERROR: 256}

HEADER = struct.Struct(">4sBBBBBBHQI")
MAX_FRAME_BYTES = HEADER.size + 2 * 128 + 1024
WELCOME_LAYOUT = struct.Struct(">IQIBII")
CLOSING_CODES = (400, 401, 409, 413)

Text = str | bytes


class ProtocolError(Exception):
    """The hub sent what AWH1 does not allow."""


class HubClosed(Exception):
    """The hub ended the connection."""


class Refused(Exception):
    """The hub answered with an error frame, kept in `frame`."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.code, self.reason = frame.error
        super().__init__(f"{self.code} {self.reason}")


# --- bytes (§1) -------------------------------------------------------------------------------------------------------


def raw(text: Text) -> bytes:
    return text.encode() if isinstance(text, str) else bytes(text)


def lp(text: Text) -> bytes:
    """LP(x): one length byte, then x."""
    data = raw(text)
    return bytes([len(data)]) + data


def topic_list(topics: Sequence[Text]) -> bytes:
    return bytes([len(topics)]) + b"".join(lp(topic) for topic in topics)


def encode_body(
    kind: int, from_: Text = b"", to: Text = b"", payload: bytes = b"", ts_ms: int = 0, ttl_ms: int = 0
) -> bytes:
    """One frame without its length prefix. Only what the header's fields cannot hold is refused (struct.error)."""
    sender, target = raw(from_), raw(to)
    head = HEADER.pack(b"AWH1", 1, kind, 0, len(sender), len(target), 0, len(payload), ts_ms, ttl_ms)
    return head + sender + target + payload


def prefixed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


@dataclass(frozen=True)
class Wake:
    """The payload of a wake (§2)."""

    row_id: str
    namespace: str
    sender: str
    digest: bytes
    watermark: int


@dataclass(frozen=True)
class Welcome:
    """The payload of a welcome (§2)."""

    session: int
    pending_count: int
    pending_ids: int
    lagged: bool
    reconnect_base_ms: int
    reconnect_jitter_ms: int


@dataclass(frozen=True)
class Frame:
    """One received frame; `body` is what came after the length prefix."""

    kind: int
    from_: str
    to: str
    payload: bytes
    ts_ms: int
    ttl_ms: int
    body: bytes = field(repr=False)

    @property
    def name(self) -> str:
        return KINDS[self.kind]

    @property
    def error(self) -> tuple[int, str]:
        """Code and reason of an error frame."""
        _expect(self.kind == ERROR and len(self.payload) >= 2, "not an error frame")
        return int.from_bytes(self.payload[:2], "big"), _text(self.payload[2:])

    @property
    def wake(self) -> Wake:
        _expect(self.kind == WAKE, "not a wake")
        fields, rest = [], self.payload
        for _ in range(4):
            _expect(bool(rest) and len(rest) > rest[0], "wake fields are cut short")
            fields.append(rest[1 : 1 + rest[0]])
            rest = rest[1 + rest[0] :]
        _expect(len(rest) == 8, "a wake ends in eight bytes of watermark")
        row_id, namespace, sender, digest = fields
        _expect(len(digest) in (0, 32), "a digest is empty or 32 bytes")
        return Wake(_text(row_id), _text(namespace), _text(sender), digest, int.from_bytes(rest, "big"))

    @property
    def welcome(self) -> Welcome:
        _expect(self.kind == WELCOME and len(self.payload) == WELCOME_LAYOUT.size, "not a welcome of 25 bytes")
        session, count, ids, lagged, base, jitter = WELCOME_LAYOUT.unpack(self.payload)
        _expect(session >= 1 and lagged in (0, 1), "a welcome with session 0 or an odd lagged byte")
        return Welcome(session, count, ids, bool(lagged), base, jitter)

    @property
    def topics(self) -> list[str]:
        """The topics of a subscribe or unsubscribe acknowledgement."""
        _expect(self.kind in (SUBSCRIBE, UNSUBSCRIBE) and bool(self.payload), "not a topic list")
        topics, rest = [], self.payload[1:]
        for _ in range(self.payload[0]):
            _expect(bool(rest) and len(rest) > rest[0], "topic list is cut short")
            topics.append(_text(rest[1 : 1 + rest[0]]))
            rest = rest[1 + rest[0] :]
        _expect(not rest, "bytes after the topic list")
        return topics

    def as_dict(self) -> dict[str, Any]:
        """For people and `--json` readers: the header, and the payload by kind."""
        shown: dict[str, Any] = {"kind": self.name, "from": self.from_, "to": self.to}
        shown |= {"ts_ms": self.ts_ms, "ttl_ms": self.ttl_ms}
        if self.kind == WAKE:
            shown |= vars(self.wake) | {"digest": self.wake.digest.hex()}
        elif self.kind == ERROR:
            shown |= dict(zip(("code", "reason"), self.error, strict=True))
        elif self.kind == WELCOME:
            shown |= vars(self.welcome)
        elif self.kind in (SUBSCRIBE, UNSUBSCRIBE):
            shown["topics"] = self.topics
        else:
            shown["payload"] = self.payload.hex()
        return shown


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ProtocolError(otherwise)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"not UTF-8: {error}") from error


def decode_body(body: bytes) -> Frame:
    """A frame a hub may send; anything else raises ProtocolError."""
    _expect(len(body) >= HEADER.size, f"a frame of {len(body)} bytes is shorter than its header")
    magic, version, kind, flags, n, m, reserved, p, ts_ms, ttl_ms = HEADER.unpack_from(body)
    _expect(magic == b"AWH1" and version == 1, f"not AWH1 version 1: {body[:5]!r}")
    _expect(kind in CEILINGS, f"kind {kind} is not one a hub sends")
    _expect(flags == 0 and reserved == 0, "flags or the reserved byte are set")
    _expect(HEADER.size + n + m + p == len(body), "the lengths do not add up")
    _expect(p <= CEILINGS[kind], f"{p} bytes are too many for a {KINDS[kind]}")
    _expect(1 <= n <= 128 and m <= 128, "from or to has a bad length")
    sender, target = _text(body[24 : 24 + n]), _text(body[24 + n : 24 + n + m])
    control = [c for c in sender + target if ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0]
    _expect(not control, f"control characters in from or to: {control!r}")
    return Frame(kind, sender, target, body[24 + n + m :], ts_ms, ttl_ms, body)


# --- proofs (§3, §4.2, §4.3) ------------------------------------------------------------------------------------------


def sign(seed: bytes, message: bytes) -> bytes:
    return SigningKey(seed).sign(message).signature


def public_key(seed: bytes) -> bytes:
    return bytes(SigningKey(seed).verify_key)


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unb64(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def stamp(unix_seconds: float) -> str:
    return datetime.fromtimestamp(int(unix_seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def cbor(value: str | bytes | list[Any]) -> bytes:
    """Definite-length, shortest-form CBOR of text, bytes and arrays, as far as a certificate needs it."""
    if isinstance(value, list):
        return _cbor_head(4, len(value)) + b"".join(map(cbor, value))
    return _cbor_head(3 if isinstance(value, str) else 2, len(raw(value))) + raw(value)


def _cbor_head(major: int, length: int) -> bytes:
    if length < 24:
        return bytes([major << 5 | length])
    return bytes([major << 5 | 24, length]) if length < 256 else struct.pack(">BH", major << 5 | 25, length)


def hello_transcript(hub_id: Text, nonce: bytes, agent_id: Text, topics: Sequence[Text]) -> bytes:
    topics_hash = hashlib.sha256(b"".join(lp(topic) for topic in topics)).digest()
    return b"a2a/v1/hello" + lp(hub_id) + nonce + lp(agent_id) + topics_hash


def membership_transcript(act: str, hub_id: Text, nonce: bytes, agent_id: Text) -> bytes:
    """What a join or a depart signs; `act` is one of these two words."""
    return b"a2a/v1/" + act.encode() + lp(hub_id) + nonce + lp(agent_id)


def hello_payload(
    seed: bytes, hub_id: Text, nonce: bytes, agent_id: Text, certificate: bytes, topics: Sequence[Text] = ()
) -> bytes:
    """A client's hello; `seed` is the delegate key's."""
    signature = sign(seed, hello_transcript(hub_id, nonce, agent_id, topics))
    return public_key(seed) + signature + struct.pack(">H", len(certificate)) + certificate + topic_list(topics)


def mint_certificate(
    agent_id: str, agent_seed: bytes, delegate_public: bytes, hub_id: str, not_before: str, not_after: str
) -> bytes:
    scope = "a2a-hub"
    fields = ["ai-memory/a2a-hub-join/v1", agent_id, scope, delegate_public, hub_id, not_before, not_after]
    head = b"\x01" + lp(agent_id) + lp(scope) + delegate_public
    return head + lp(hub_id) + lp(not_before) + lp(not_after) + sign(agent_seed, cbor(fields))


@dataclass(frozen=True)
class Bundle:
    """What a program needs to be one agent for a while: a certificate and the key it names."""

    agent_id: str
    hub_id: str
    certificate: bytes
    delegate_seed: bytes = field(repr=False)
    not_before: str = ""
    not_after: str = ""

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Bundle:
        return cls.from_json(Path(path).read_bytes())

    @classmethod
    def from_json(cls, text: str | bytes) -> Bundle:
        """Raises ValueError for anything that is not a bundle of version 1."""
        data = json.loads(text)
        if data.get("version") != 1:
            raise ValueError(f"bundle version {data.get('version')!r} is not 1")
        certificate, seed = unb64(data["delegation_b64"]), unb64(data["delegate_private_b64"])
        if len(seed) != 32:
            raise ValueError(f"the private key has {len(seed)} bytes, not 32")
        return cls(data["agent_id"], data["hub_id"], certificate, seed, data["not_before"], data["not_after"])

    def to_json(self) -> str:
        return json.dumps(
            {
                "version": 1,
                "agent_id": self.agent_id,
                "hub_id": self.hub_id,
                "delegation_b64": b64(self.certificate),
                "delegate_private_b64": b64(self.delegate_seed),
                "not_before": self.not_before,
                "not_after": self.not_after,
            }
        )

    def write(self, path: str | os.PathLike[str]) -> None:
        _replace_private(Path(path), self.to_json().encode())


@dataclass(frozen=True)
class Agent:
    """An enrolled agent made from a seed."""

    agent_id: str
    seed: bytes = field(default_factory=lambda: os.urandom(32), repr=False)

    def entry(
        self, *, bound_at: str | None = None, prefixes: Sequence[str] | None = None, **other: Any
    ) -> dict[str, Any]:
        """The agent's part of an allowlist. Prefixes are its nearest three path parents unless given (§4.5);
        `bound_at` is an hour ago unless given; any other key replaces the default's value."""
        parts = self.agent_id.split("/")
        parents = ["/".join(parts[:depth]) for depth in range(len(parts) - 1, 0, -1)][:3]
        entry = {
            "agent_id": self.agent_id,
            "pubkey_b64": b64(public_key(self.seed)),
            "bind_authority": "possession_proof",
            "bound_at": bound_at or stamp(time.time() - 3600),
            "revoked_keys": [],
            "readable_prefixes": parents if prefixes is None else list(prefixes),
        }
        return entry | other

    def bundle(
        self,
        hub_id: str,
        *,
        not_before: float | None = None,
        ttl_s: float = 3600,
        delegate_seed: bytes | None = None,
        principal: str | None = None,
    ) -> Bundle:
        """A fresh delegation, valid from `not_before` (now, unless given; Unix seconds) for `ttl_s` seconds.
        `principal` puts another principal into the certificate, for a hub to refuse."""
        start = time.time() if not_before is None else not_before
        since, until = stamp(start), stamp(start + ttl_s)
        delegate = delegate_seed or os.urandom(32)
        certificate = mint_certificate(
            principal or self.agent_id, self.seed, public_key(delegate), hub_id, since, until
        )
        return Bundle(self.agent_id, hub_id, certificate, delegate, since, until)


def allowlist_jws(
    owner_seed: bytes,
    agents: Iterable[dict[str, Any]],
    *,
    refreshed_at: str | None = None,
    valid_for_secs: int = 3600,
    header: dict[str, Any] | None = None,
) -> bytes:
    """A signed allowlist (§4.3) in compact form, refreshed now unless told otherwise."""
    payload = {
        "version": 2,
        "refreshed_at": refreshed_at or stamp(time.time()),
        "valid_for_secs": valid_for_secs,
        "agents": list(agents),
    }
    parts = (json.dumps(part, separators=(",", ":")).encode() for part in (header or {"alg": "EdDSA"}, payload))
    signed = ".".join(map(b64, parts)).encode()
    return signed + b"." + b64(sign(owner_seed, signed)).encode()


def write_allowlist(
    path: str | os.PathLike[str], owner_seed: bytes, agents: Iterable[dict[str, Any]], **options: Any
) -> None:
    """Put a signed allowlist in place at once (0600, by rename); options as for `allowlist_jws`."""
    _replace_private(Path(path), allowlist_jws(owner_seed, agents, **options))


def write_owner_public(path: str | os.PathLike[str], owner_seed: bytes) -> None:
    """`owner.pub`: one line, the base64url of the owner's public key."""
    _replace_private(Path(path), b64(public_key(owner_seed)).encode() + b"\n")


def _replace_private(path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
    temporary.replace(path)


# --- the connection ---------------------------------------------------------------------------------------------------


class Client:
    """One connection to a hub. `timeout` (seconds) bounds every call that waits, unless the call names its own;
    when it passes, the call raises TimeoutError and nothing received is lost."""

    def __init__(self, sock: socket.socket, timeout: float = 5.0) -> None:
        self.sock = sock
        self.timeout = timeout
        self.agent_id = ""
        self.hub_id = ""
        self.nonce = b""
        self.welcome: Welcome | None = None
        self._seed = b""
        self._received = bytearray()
        self._aside: deque[Frame] = deque()

    # opening

    @classmethod
    def open(cls, path: str | os.PathLike[str], timeout: float = 5.0) -> Client:
        """Connect and read nothing: the state in which the hub's challenge is under way."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout)
            sock.connect(os.fspath(path))
        except BaseException:
            sock.close()
            raise
        return cls(sock, timeout)

    @classmethod
    def connect(
        cls, path: str | os.PathLike[str], bundle: Bundle, topics: Sequence[Text] = (), timeout: float = 5.0
    ) -> Client:
        """The whole handshake. Raises Refused when the hub says no, HubClosed when it says nothing."""
        client = cls.open(path, timeout)
        try:
            client.challenge()
            client.hello(bundle, topics)
        except BaseException:
            client.close()
            raise
        return client

    def challenge(self) -> bytes:
        """Read the hub's hello; returns the nonce. A refusal in its place (507 at the ceiling) raises Refused."""
        frame = self._next_or_refused()
        _expect(frame.kind == HELLO, f"the hub must speak first with a hello, not with a {frame.name}")
        _expect(frame.to == "" and len(frame.payload) == 32, "a challenge has an empty to and 32 bytes")
        self.hub_id, self.nonce = frame.from_, frame.payload
        return self.nonce

    def hello(self, bundle: Bundle, topics: Sequence[Text] = ()) -> Welcome:
        """Answer the challenge and read the welcome, which must be the first frame in answer."""
        if bundle.hub_id != self.hub_id:
            raise ProtocolError(f"the bundle is for hub {bundle.hub_id!r}, this one is {self.hub_id!r}")
        self.agent_id, self._seed = bundle.agent_id, bundle.delegate_seed
        payload = hello_payload(
            bundle.delegate_seed, self.hub_id, self.nonce, bundle.agent_id, bundle.certificate, topics
        )
        self.send_frame(HELLO, payload=payload)
        frame = self._next_or_refused()
        _expect(frame.kind == WELCOME, f"the first frame after hello must be the welcome, not a {frame.name}")
        _expect((frame.from_, frame.to) == (self.hub_id, self.agent_id), "the welcome is not from the hub to us")
        self.welcome = frame.welcome
        return self.welcome

    # sending

    def send_bytes(self, data: bytes) -> None:
        """Bytes as they are, without a length prefix of ours. Raises HubClosed when nobody reads any more."""
        self.sock.settimeout(self.timeout)
        try:
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise HubClosed("the hub closed the connection") from error

    def send_frame(
        self,
        kind: int,
        to: Text = b"",
        payload: bytes = b"",
        from_: Text | None = None,
        ts_ms: int = 0,
        ttl_ms: int = 0,
    ) -> None:
        """One frame; `from_` is the session's agent unless given."""
        sender = self.agent_id if from_ is None else from_
        self.send_bytes(prefixed(encode_body(kind, sender, to, payload, ts_ms, ttl_ms)))

    def wake(
        self,
        to: Text,
        row_id: Text = b"",
        namespace: Text = b"",
        sender: Text = b"",
        digest: bytes = b"",
        watermark: int = 0,
        *,
        from_: Text | None = None,
        ts_ms: int | None = None,
        ttl_ms: int = 0,
    ) -> None:
        """Wake an agent or a topic, stamped with the clock unless `ts_ms` is given. The hub answers only a refusal;
        `ping` tells whether there was one."""
        payload = lp(row_id) + lp(namespace) + lp(sender) + lp(digest) + struct.pack(">Q", watermark)
        now = time.time_ns() // 1_000_000
        self.send_frame(WAKE, to, payload, from_, now if ts_ms is None else ts_ms, ttl_ms)

    def subscribe(self, topics: Text | Sequence[Text], timeout: float | None = None) -> None:
        """Add topics and wait until it took effect. An error in answer raises Refused."""
        self._change_topics(SUBSCRIBE, topics, timeout)

    def unsubscribe(self, topics: Text | Sequence[Text], timeout: float | None = None) -> None:
        self._change_topics(UNSUBSCRIBE, topics, timeout)

    def _change_topics(self, kind: int, topics: Text | Sequence[Text], timeout: float | None) -> None:
        names = [topics] if isinstance(topics, str | bytes) else topics
        request = topic_list(names)
        self.send_frame(kind, payload=request)
        answer = self.wait_for(kind, timeout)
        _expect(answer.payload == request, "the acknowledgement must carry the request's own bytes")
        _expect((answer.from_, answer.to) == (self.hub_id, self.agent_id), "the acknowledgement is not from hub to us")

    def join(self) -> None:
        """Prove membership; the hub does not answer."""
        self._membership("join", JOIN)

    def depart(self) -> None:
        """Leave for good; the hub closes without an answer (`wait_closed`)."""
        self._membership("depart", DEPART)

    def _membership(self, act: str, kind: int) -> None:
        transcript = membership_transcript(act, self.hub_id, self.nonce, self.agent_id)
        self.send_frame(kind, payload=sign(self._seed, transcript))

    def ping(self, data: bytes = b"", timeout: float | None = None) -> list[tuple[int, str]]:
        """Wait for the pong; returns code and reason of every error that came before it. An empty list proves that
        whatever was sent before the ping was taken."""
        self.send_frame(PING, payload=data)
        errors = []
        kept: deque[Frame] = deque()
        deadline = self._deadline(timeout)
        try:
            while True:
                frame = self._receive(deadline)
                if frame.kind == ERROR:
                    errors.append(frame.error)
                    if frame.error[0] in CLOSING_CODES:
                        raise Refused(frame)
                elif frame.kind == PONG:
                    _expect(frame.payload == b"", "a pong has no payload")
                    return errors
                else:
                    kept.append(frame)
        finally:
            self._aside.extend(kept)

    # receiving

    def recv_frame(self, timeout: float | None = None) -> Frame:
        """The next frame, also an error frame. Raises TimeoutError, HubClosed or ProtocolError."""
        if self._aside:
            return self._aside.popleft()
        return self._receive(self._deadline(timeout))

    def recv_wake(self, timeout: float | None = None) -> Frame:
        """The next frame, which must be a wake; an error frame raises Refused."""
        frame = self._next_or_refused(timeout)
        _expect(frame.kind == WAKE, f"expected a wake, got a {frame.name}")
        return frame

    def recv_error(self, timeout: float | None = None) -> tuple[int, str]:
        """Code and reason of the next frame, which must be an error."""
        frame = self.recv_frame(timeout)
        _expect(frame.kind == ERROR, f"expected an error, got a {frame.name}")
        return frame.error

    def wait_for(self, kind: int, timeout: float | None = None) -> Frame:
        """The next frame of that kind; an error in its place raises Refused, others are set aside."""
        for frame in self._aside:
            if frame.kind == kind:
                self._aside.remove(frame)
                return frame
        deadline = self._deadline(timeout)
        while True:
            frame = self._receive(deadline)
            if frame.kind == kind:
                return frame
            if frame.kind == ERROR:
                raise Refused(frame)
            self._aside.append(frame)

    def wait_closed(self, timeout: float | None = None) -> list[Frame]:
        """Read until the hub closes; returns what came before that."""
        frames = list(self._aside)
        self._aside.clear()
        deadline = self._deadline(timeout)
        while True:
            try:
                frames.append(self._receive(deadline))
            except HubClosed:
                return frames

    def _next_or_refused(self, timeout: float | None = None) -> Frame:
        frame = self.recv_frame(timeout)
        if frame.kind == ERROR:
            raise Refused(frame)
        return frame

    def _deadline(self, timeout: float | None) -> float:
        return time.monotonic() + (self.timeout if timeout is None else timeout)

    def _receive(self, deadline: float) -> Frame:
        self._fill(4, deadline)
        length = int.from_bytes(self._received[:4], "big")
        _expect(length <= MAX_FRAME_BYTES, f"the hub announced a frame of {length} bytes")
        self._fill(4 + length, deadline)
        body = bytes(self._received[4 : 4 + length])
        del self._received[: 4 + length]
        frame = decode_body(body)
        if frame.kind != PING:
            return frame
        self.send_frame(PONG)
        return self._receive(deadline)

    def _fill(self, size: int, deadline: float) -> None:
        while len(self._received) < size:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError("the hub sent nothing in time")
            self.sock.settimeout(None if remaining == float("inf") else remaining)
            try:
                data = self.sock.recv(65536)
            except TimeoutError:
                continue  # and say so at the top
            except ConnectionResetError as error:
                raise HubClosed("the hub reset the connection") from error
            if not data:
                _expect(not self._received, f"the hub closed inside a frame, {len(self._received)} bytes into it")
                raise HubClosed("the hub closed the connection")
            self._received += data

    # closing

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# --- the program ------------------------------------------------------------------------------------------------------


def _show(frame: dict[str, Any]) -> None:
    print(json.dumps(frame), flush=True)


def _watch(client: Client, wakes: int | None, timeout: float | None) -> int:
    assert client.welcome is not None
    _show({"kind": "welcome", "from": client.hub_id, "to": client.agent_id, **vars(client.welcome)})
    seen = 0
    while wakes is None or seen < wakes:
        try:
            frame = client.recv_frame(float("inf") if timeout is None else timeout)
        except HubClosed:
            return 0 if wakes is None else 1
        _show(frame.as_dict())
        if frame.kind == ERROR and frame.error[0] in CLOSING_CODES:
            return 1
        seen += frame.kind == WAKE
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Print every AWH1 frame an agent receives, one JSON object a line.")
    parser.add_argument("socket")
    parser.add_argument("bundle", help="a file made by `wakehub delegate`")
    parser.add_argument("--topic", action="append", default=[], help="subscribe at hello; may be repeated")
    parser.add_argument("--wakes", type=int, help="end after this many wakes (default: never)")
    parser.add_argument("--timeout", type=float, help="seconds to wait for each frame (default: for ever)")
    args = parser.parse_args(argv)
    try:
        with Client.connect(args.socket, Bundle.load(args.bundle), args.topic) as client:
            return _watch(client, args.wakes, args.timeout)
    except TimeoutError as error:
        print(error, file=sys.stderr)
        return 3
    except Refused as refusal:
        _show(refusal.frame.as_dict())
        return 1
    except (HubClosed, ProtocolError, OSError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
