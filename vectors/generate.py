"""Makes the vectors beside it from the AWH1 specification: standard library only, no code of `wakehub`, fixed seeds.

`python vectors/generate.py` writes the files, `python vectors/generate.py --check` says whether they are what it would
write. README.md here describes the format. A new vector goes into the function of its file; it holds one failure or
none, unless its purpose is to pin which of two failures decides.

Ed25519 is written out below, because several vectors are signatures no library would make, and because it lets the
generator assert about each of them that a careless verifier would have accepted it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
Json = dict[str, Any]


class Collector:
    """The vectors of one file, in the order in which they were added."""

    def __init__(self, name: str, title: str) -> None:
        self.name, self.title = name, title
        self.vectors: list[Json] = []

    def add(self, name: str, layer: str, section: str, given: Json, expect: Json, note: str = "") -> None:
        assert all(vector["name"] != name for vector in self.vectors), f"{self.name}: two vectors are called {name!r}"
        vector = {"name": name, "layer": layer, "section": section, "input": given, "expect": expect}
        self.vectors.append(vector | ({"note": note} if note else {}))

    def text(self) -> str:
        """One vector a line, so that a diff shows which changed."""
        head = json.dumps({"title": self.title, "count": len(self.vectors)})[1:-1]
        lines = ",\n".join(json.dumps(vector) for vector in self.vectors)
        return f'{{{head}, "vectors": [\n{lines}\n]}}\n'


# --- Ed25519 (RFC 8032), slow and plain -------------------------------------------------------------------------------

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
ROOT = pow(2, (P - 1) // 4, P)


class Point(NamedTuple):
    """Extended coordinates: x = X/Z, y = Y/Z, T = XY/Z."""

    X: int
    Y: int
    Z: int
    T: int


def same(p: Point, q: Point) -> bool:
    return (p.X * q.Z - q.X * p.Z) % P == 0 and (p.Y * q.Z - q.Y * p.Z) % P == 0


def plus(p: Point, q: Point) -> Point:
    a = (p.Y - p.X) * (q.Y - q.X) % P
    b = (p.Y + p.X) * (q.Y + q.X) % P
    c = 2 * p.T * q.T * D % P
    d = 2 * p.Z * q.Z % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return Point(e * f % P, g * h % P, f * g % P, e * h % P)


def times(scalar: int, point: Point) -> Point:
    result = NEUTRAL
    while scalar:
        if scalar & 1:
            result = plus(result, point)
        point, scalar = plus(point, point), scalar >> 1
    return result


def x_of(y: int, sign: int) -> int | None:
    """The x of a point with this y; x = 0 is returned for either sign, as careless decoders do."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * ROOT % P
    if (x * x - square) % P:
        return None
    return P - x if x % 2 != sign and x else x


def decode_carelessly(data: bytes) -> Point | None:
    """Accepts y ≥ p and the superfluous sign of x = 0, which a strict decoder refuses."""
    value = int.from_bytes(data, "little")
    y, sign = (value & (2**255 - 1)) % P, value >> 255
    x = x_of(y, sign)
    return None if x is None else Point(x, y, 1, x * y % P)


def encode_point(p: Point) -> bytes:
    inverse = pow(p.Z, -1, P)
    x, y = p.X * inverse % P, p.Y * inverse % P
    return (y | (x & 1) << 255).to_bytes(32, "little")


NEUTRAL = Point(0, 1, 1, 0)
_BASE_Y = 4 * pow(5, -1, P) % P
_BASE_X = x_of(_BASE_Y, 0)
assert _BASE_X is not None
BASE = Point(_BASE_X, _BASE_Y, 1, _BASE_X * _BASE_Y % P)


def hash_int(*parts: bytes) -> int:
    return int.from_bytes(hashlib.sha512(b"".join(parts)).digest(), "little") % L


def secret_scalar(seed: bytes) -> int:
    scalar = int.from_bytes(hashlib.sha512(seed).digest()[:32], "little")
    return scalar & ((1 << 254) - 8) | 1 << 254


@cache
def public(seed: bytes) -> bytes:
    return encode_point(times(secret_scalar(seed), BASE))


@cache
def sign(seed: bytes, message: bytes) -> bytes:
    nonce = hash_int(hashlib.sha512(seed).digest()[32:], message)
    commitment = encode_point(times(nonce, BASE))
    challenge = hash_int(commitment, public(seed), message)
    return commitment + ((nonce + challenge * secret_scalar(seed)) % L).to_bytes(32, "little")


def careless_verify(key: bytes, message: bytes, signature: bytes) -> bool:
    """8·S·B = 8·R + 8·h·A with lax decoding and no bound on S: what the vectors must get past to be worth having."""
    a, r, s = decode_carelessly(key), decode_carelessly(signature[:32]), int.from_bytes(signature[32:], "little")
    if a is None or r is None:
        return False
    h = hash_int(signature[:32], key, message)
    return same(times(8 * s, BASE), plus(times(8, r), times(8 * h, a)))


def small_order_encodings() -> list[tuple[str, bytes]]:
    """Every 32-byte string a careless decoder takes for one of the eight points of small order."""
    found = []
    for y in _small_order_ys():
        for value in (y, y + P):
            for sign_bit in (0, 1):
                data = (value | sign_bit << 255).to_bytes(32, "little") if value < 2**255 else b""
                point = decode_carelessly(data) if data else None
                if point is None:
                    continue
                canonical = encode_point(point) == data
                order = next(n for n in (1, 2, 4, 8) if same(times(n, point), NEUTRAL))
                kind = "canonical" if canonical else "not canonical"
                found.append((f"order {order}, {kind}, {data[:1].hex()}…{data[-1:].hex()}", data))
    return found


def _small_order_ys() -> list[int]:
    candidate = 2
    while True:
        x = x_of(candidate, 0)
        if x is not None:
            torsion = times(L, Point(x, candidate, 1, x * candidate % P))
            if not same(times(4, torsion), NEUTRAL):
                break
        candidate += 1
    ys = {point.Y * pow(point.Z, -1, P) % P for point in (times(n, torsion) for n in range(8))}
    return sorted(ys)


# --- the bytes of AWH1 ------------------------------------------------------------------------------------------------

HELLO, WELCOME, JOIN, DEPART, SUBSCRIBE, UNSUBSCRIBE, WAKE, PING, PONG, ERROR = range(1, 11)
KINDS = {
    HELLO: "hello",
    WELCOME: "welcome",
    JOIN: "join",
    DEPART: "depart",
    SUBSCRIBE: "subscribe",
    UNSUBSCRIBE: "unsubscribe",
    WAKE: "wake",
    PING: "ping",
    PONG: "pong",
    ERROR: "error",
}
CEILINGS = dict.fromkeys(KINDS, 1024) | {WELCOME: 256, WAKE: 256, PING: 32, PONG: 32, ERROR: 256}
MAX_FRAME = 24 + 2 * 128 + 1024

NOT_UTF8 = {
    "a lone continuation byte": b"\x80",
    "an overlong slash": b"\xc0\xaf",
    "a surrogate": b"\xed\xa0\x80",
    "a code point over U+10FFFF": b"\xf4\x90\x80\x80",
    "a character cut short": b"\xe2\x82",
    "the byte FF": b"\xff",
}
CONTROLS = (0x00, 0x09, 0x0A, 0x1B, 0x1F, 0x7F, 0x80, 0x85, 0x9F)
NO_CONTROLS = {
    "a space": " ",
    "a no-break space": "\u00a0",
    "U+00AD soft hyphen": "\u00ad",
    "U+200E left-to-right mark": "\u200e",
    "U+202E right-to-left override": "\u202e",
    "U+2028 line separator": "\u2028",
    "U+FEFF": "\ufeff",
    "U+FFFF": "\uffff",
    "U+E000 private use": "\ue000",
    "four-byte characters": "\U0001f980\U0010ffff",
    "a decomposed accent": "e\u0301",
    "a composed accent": "\u00e9",
}


def lp(data: bytes | str) -> bytes:
    raw = data.encode() if isinstance(data, str) else data
    return bytes([len(raw)]) + raw


def topic_list(topics: Sequence[bytes | str]) -> bytes:
    return bytes([len(topics)]) + b"".join(map(lp, topics))


def body(
    kind: int,
    from_: bytes | str = b"",
    to: bytes | str = b"",
    payload: bytes = b"",
    *,
    ts_ms: int = 0,
    ttl_ms: int = 0,
    magic: bytes = b"AWH1",
    version: int = 1,
    flags: int = 0,
    reserved: int = 0,
    claim: int = 0,
) -> bytes:
    """A frame without its length prefix; `claim` is added to the payload length it states."""
    sender = from_.encode() if isinstance(from_, str) else from_
    target = to.encode() if isinstance(to, str) else to
    head = magic + bytes([version, kind, flags, len(sender), len(target), reserved])
    return head + struct.pack(">HQI", len(payload) + claim, ts_ms, ttl_ms) + sender + target + payload


def prefixed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(each)) + each for each in bodies)


def wake_payload(
    row_id: bytes | str = "",
    namespace: bytes | str = "",
    sender: bytes | str = "",
    digest: bytes = b"",
    tail: bytes = bytes(8),
) -> bytes:
    return lp(row_id) + lp(namespace) + lp(sender) + lp(digest) + tail


def topics_hash(topics: Sequence[str]) -> bytes:
    return hashlib.sha256(b"".join(map(lp, topics))).digest()


def hello_transcript(hub_id: str, nonce: bytes, agent_id: str, topics: Sequence[str]) -> bytes:
    return b"a2a/v1/hello" + lp(hub_id) + nonce + lp(agent_id) + topics_hash(topics)


def membership_transcript(act: str, hub_id: str, nonce: bytes, agent_id: str) -> bytes:
    return b"a2a/v1/" + act.encode() + lp(hub_id) + nonce + lp(agent_id)


def cbor_item(major: int, data: bytes) -> bytes:
    if len(data) < 24:
        return bytes([major << 5 | len(data)]) + data
    assert len(data) < 256
    return bytes([major << 5 | 24, len(data)]) + data


class Certificate(NamedTuple):
    principal: str
    scope: str
    delegate_key: bytes
    hub_id: str
    not_before: str
    not_after: str

    def signed_bytes(self) -> bytes:
        texts = [cbor_item(3, text.encode()) for text in ("ai-memory/a2a-hub-join/v1", self.principal, self.scope)]
        stamps = [cbor_item(3, text.encode()) for text in (self.hub_id, self.not_before, self.not_after)]
        return b"\x87" + b"".join([*texts, cbor_item(2, self.delegate_key), *stamps])

    def wire(self, signature: bytes) -> bytes:
        head = b"\x01" + lp(self.principal) + lp(self.scope) + self.delegate_key
        return head + lp(self.hub_id) + lp(self.not_before) + lp(self.not_after) + signature

    def signed(self, agent_seed: bytes) -> bytes:
        return self.wire(sign(agent_seed, self.signed_bytes()))

    def fields(self) -> Json:
        return self._asdict() | {"delegate_key": self.delegate_key.hex()}


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def compact(data: Any) -> bytes:
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()


def jws(payload: bytes, seed: bytes, header: bytes = b'{"alg":"EdDSA"}') -> str:
    signed = f"{b64(header)}.{b64(payload)}"
    return f"{signed}.{b64(sign(seed, signed.encode()))}"


def unix(text: str) -> int:
    return int(datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp())


def stamp(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seed(name: str) -> bytes:
    return hashlib.sha256(b"wakehub vectors: " + name.encode()).digest()


HUB = "wakehub"
NOON = unix("2026-09-03T12:00:00Z")
NONCE = hashlib.sha256(b"wakehub vectors: nonce").digest()
OWNER = seed("owner")
ROOT_SEED, DELEGATE_SEED = b"\x03" * 32, b"\x04" * 32
REFERENCE = Certificate(
    "agent-a",
    "a2a-hub",
    public(DELEGATE_SEED),
    "ai-memory-wake-hub",
    "2026-09-03T11:00:00Z",
    "2026-09-03T13:00:00Z",
)


def topic_of(size: int, fill: str = "t") -> str:
    return "#" + fill * (size - 1)


# --- frames.json ------------------------------------------------------------------------------------------------------


def frames() -> Collector:
    out = Collector("frames", "Frames and the stream they travel in")
    _valid_frames(out)
    _header_refusals(out)
    _id_refusals(out)
    _order_of_refusals(out)
    _frames_to_encode(out)
    _streams(out)
    return out


def _frame(
    out: Collector,
    name: str,
    kind: int,
    from_: str,
    to: str = "",
    payload: bytes = b"",
    ts_ms: int = 0,
    ttl_ms: int = 0,
    section: str = "1",
) -> None:
    data = body(kind, from_, to, payload, ts_ms=ts_ms, ttl_ms=ttl_ms)
    expect = {"kind": kind, "from": from_, "to": to, "payload": payload.hex(), "ts_ms": str(ts_ms), "ttl_ms": ttl_ms}
    out.add(name, "frame", section, {"body": data.hex()}, expect)


def _refused(
    out: Collector, name: str, data: bytes, code: int, defect: str, section: str = "1", reason: str = "", note: str = ""
) -> None:
    expect = {"code": code, "defect": defect} | ({"reason": reason} if reason else {})
    out.add(name, "frame", section, {"body": data.hex()}, expect, note)


def _valid_frames(out: Collector) -> None:
    signature = sign(DELEGATE_SEED, b"any")
    certificate = REFERENCE.signed(ROOT_SEED)
    hello = public(DELEGATE_SEED) + signature + struct.pack(">H", len(certificate)) + certificate + b"\0"
    welcome = struct.pack(">IQIBII", 1, 0, 0, 0, 250, 750)
    typical = {
        HELLO: ("agent-a", "", hello),
        WELCOME: (HUB, "agent-a", welcome),
        JOIN: ("agent-a", "", signature),
        DEPART: ("agent-a", "", signature),
        SUBSCRIBE: ("agent-a", "", topic_list(["#hive", "#swarm"])),
        UNSUBSCRIBE: ("agent-a", "", topic_list(["#hive"])),
        WAKE: ("agent-a", "agent-b", wake_payload("m_1", "_inbox/agent-b", "agent-a", bytes(range(32)))),
        PING: ("agent-a", "", b"now"),
        PONG: (HUB, "agent-a", b""),
        ERROR: (HUB, "agent-a", b"\x01\x94no such agent"),
    }
    for kind, (from_, to, payload) in typical.items():
        _frame(out, f"{KINDS[kind]}, typical", kind, from_, to, payload, section="2")
    _frame(out, "hello of a hub: the challenge (§8)", HELLO, "ai-memory-wake-hub", "", b"\x07" * 32, section="8")
    _frame(out, "401 before authentication (§8)", ERROR, "ai-memory-wake-hub", "", b"\x01\x91unauthorized", section="8")
    pair = topic_list(["#hive", "#swarm"])
    _frame(out, "subscribe by agent-sub (§8)", SUBSCRIBE, "agent-sub", "", pair, section="8")
    _frame(out, "hello without a from", HELLO, "", "", hello)
    for kind, ceiling in CEILINGS.items():
        _frame(out, f"{KINDS[kind]}, payload at its ceiling", kind, "a", "", b"\xff" * ceiling, section="2")
    for kind in KINDS:
        _frame(out, f"{KINDS[kind]}, empty payload", kind, "a")
    _frame(out, "the largest frame", HELLO, "f" * 128, "t" * 128, b"\0" * 1024)
    _frame(out, "from of 128 bytes", PING, "f" * 128)
    _frame(out, "from of 128 bytes in 64 characters", PING, "\u00fc" * 64)
    _frame(out, "to of 128 bytes", WAKE, "a", "t" * 128)
    _frame(out, "to is a topic", WAKE, "a", "#hive")
    _frame(out, "to is a topic too long to exist", WAKE, "a", topic_of(100))
    _frame(out, "to is a bare hash", WAKE, "a", "#")
    _frame(out, "time stamp and ttl at their largest", WAKE, "a", "b", wake_payload(), 2**64 - 1, 2**32 - 1)
    _frame(out, "time stamp and ttl with every byte different", WAKE, "a", "b", b"", 0x0102030405060708, 0x090A0B0C)
    for what, text in NO_CONTROLS.items():
        _frame(out, f"ids with {what}", PING, f"a{text}b", f"b{text}a")


def _header_refusals(out: Collector) -> None:
    good = body(PING, "agent-a")
    for size in (0, 1, 23):
        _refused(out, f"body of {size} bytes", good[:size], 400, "short")
    for magic in (b"AWH2", b"awh1", b"1HWA", b"\0\0\0\0", b"AWH "):
        _refused(out, f"magic {magic!r}", body(PING, "a", magic=magic), 400, "magic", reason="bad magic")
    for version in (0, 2, 255):
        _refused(out, f"version {version}", body(PING, "a", version=version), 400, "version")
    for kind in (0, 14, 128, 255):
        _refused(out, f"kind {kind}", body(kind, "a"), 400, "kind")
    for kind, name in {11: "request", 12: "reply", 13: "notify"}.items():
        reason = "reserved kind 11 (request) carries a body and was removed in v1" if kind == 11 else ""
        _refused(out, f"reserved kind {kind}, {name}", body(kind, "a"), 400, "reserved kind", reason=reason)
    for bit in range(8):
        _refused(out, f"flag bit {bit}", body(PING, "a", flags=1 << bit), 400, "flags")
    for value in (1, 128, 255):
        _refused(out, f"reserved byte {value}", body(PING, "a", reserved=value), 400, "reserved byte")
    _refused(out, "one byte more than the lengths say", body(PING, "a", "b", b"abc") + b"x", 400, "lengths")
    _refused(out, "one byte fewer than the lengths say", body(PING, "a", "b", b"abc")[:-1], 400, "lengths")
    _refused(out, "payload length one over", body(PING, "a", payload=b"abc", claim=1), 400, "lengths")
    _refused(out, "payload length one under", body(PING, "a", payload=b"abc", claim=-1), 400, "lengths")
    _refused(out, "header alone, lengths not zero", body(PING, "a")[:24], 400, "lengths")
    for kind, ceiling in CEILINGS.items():
        name = f"{KINDS[kind]}, payload one over its ceiling"
        _refused(out, name, body(kind, "a", payload=bytes(ceiling + 1)), 413, "ceiling", "2")
    phrase = "wake payload 300 B exceeds 256 B"
    _refused(out, "wake payload of 300 B", body(WAKE, "a", "b", bytes(300)), 413, "ceiling", "2", phrase)
    _refused(out, "ping of 1,024 B", body(PING, "a", payload=bytes(1024)), 413, "ceiling", "2")


def _id_refusals(out: Collector) -> None:
    for what, data in NOT_UTF8.items():
        _refused(out, f"from with {what}", body(PING, b"a" + data), 400, "from utf-8")
        _refused(out, f"to with {what}", body(WAKE, "a", b"b" + data), 400, "to utf-8")
    split = body(WAKE, b"a\xc3", b"\xbcb")
    _refused(out, "a character split between from and to", split, 400, "from utf-8")
    across = body(WAKE, "a", b"b\xc3", b"\xbc")
    _refused(out, "a character split between to and payload", across, 400, "to utf-8")
    for size in (129, 255):
        _refused(out, f"from of {size} bytes", body(PING, "f" * size), 400, "from length")
        _refused(out, f"to of {size} bytes", body(WAKE, "a", "t" * size), 400, "to length")
    _refused(out, "from of 130 bytes in 65 characters", body(PING, "\u00fc" * 65), 400, "from length")
    for kind in KINDS:
        if kind != HELLO:
            _refused(out, f"{KINDS[kind]} without a from", body(kind), 400, "from empty")
    for code in CONTROLS:
        text = chr(code)
        _refused(out, f"from with U+{code:04X}", body(PING, f"a{text}b"), 400, "from control")
        _refused(out, f"to with U+{code:04X}", body(WAKE, "a", f"b{text}a"), 400, "to control")
    _refused(out, "hello: from with a newline", body(HELLO, "a\n"), 400, "from control")


def _order_of_refusals(out: Collector) -> None:
    """Two failures; the defect named is the one that decides. Where one of them is 413, the code shows it."""
    over = bytes(257)
    wrong = b"\xff"
    pairs: list[tuple[str, bytes, int, str]] = [
        ("short and not AWH1", b"AWH2" + bytes(19), 400, "short"),
        ("magic and version", body(PING, "a", magic=b"AWH2", version=2), 400, "magic"),
        ("magic and ceiling", body(WAKE, "a", "b", over, magic=b"AWH2"), 400, "magic"),
        ("version and kind", body(0, "a", version=2), 400, "version"),
        ("version and ceiling", body(WAKE, "a", "b", over, version=2), 400, "version"),
        ("kind and flags", body(14, "a", flags=1), 400, "kind"),
        ("kind and lengths", body(14, "a", claim=1), 400, "kind"),
        ("kind and a large payload", body(14, "a", "b", bytes(1024)), 400, "kind"),
        ("reserved kind and flags", body(11, "a", flags=1), 400, "reserved kind"),
        ("reserved kind and a large payload", body(11, "a", "b", bytes(1024)), 400, "reserved kind"),
        ("reserved kind and from not UTF-8", body(13, wrong), 400, "reserved kind"),
        ("flags and lengths", body(PING, "a", flags=1, claim=1), 400, "flags"),
        ("flags and ceiling", body(WAKE, "a", "b", over, flags=1), 400, "flags"),
        ("reserved byte and lengths", body(PING, "a", reserved=1, claim=1), 400, "reserved byte"),
        ("reserved byte and ceiling", body(WAKE, "a", "b", over, reserved=1), 400, "reserved byte"),
        ("lengths and ceiling", body(WAKE, "a", "b", over, claim=1), 400, "lengths"),
        ("lengths and a claim of 65,535 bytes", body(WAKE, "a", "b", b"", claim=65535), 400, "lengths"),
        ("lengths and from not UTF-8", body(PING, wrong, claim=1), 400, "lengths"),
        ("lengths and from too long", body(PING, "f" * 129, claim=1), 400, "lengths"),
        ("ceiling and from not UTF-8", body(WAKE, wrong, "b", over), 413, "ceiling"),
        ("ceiling and to not UTF-8", body(WAKE, "a", wrong, over), 413, "ceiling"),
        ("ceiling and from empty", body(WAKE, "", "b", over), 413, "ceiling"),
        ("ceiling and from too long", body(WAKE, "f" * 129, "b", over), 413, "ceiling"),
        ("ceiling and from with a control character", body(WAKE, "a\n", "b", over), 413, "ceiling"),
        ("ceiling and to too long", body(WAKE, "a", "t" * 129, over), 413, "ceiling"),
        ("ceiling and to with a control character", body(WAKE, "a", "b\n", over), 413, "ceiling"),
        ("from and to not UTF-8", body(WAKE, wrong, wrong), 400, "from utf-8"),
        ("to not UTF-8 and from empty", body(WAKE, "", wrong), 400, "to utf-8"),
        ("to not UTF-8 and from too long", body(WAKE, "f" * 129, wrong), 400, "to utf-8"),
        ("to not UTF-8 and from with a control character", body(WAKE, "a\n", wrong), 400, "to utf-8"),
        ("from not UTF-8 and too long", body(WAKE, wrong * 129, "b"), 400, "from utf-8"),
        ("from too long and with a control character", body(WAKE, "f" * 128 + "\n", "b"), 400, "from length"),
        ("from empty and to too long", body(WAKE, "", "t" * 129), 400, "from empty"),
        ("from with a control character and to too long", body(WAKE, "a\n", "t" * 129), 400, "from control"),
        ("to too long and with a control character", body(WAKE, "a", "t" * 128 + "\n"), 400, "to length"),
        ("from and to with control characters", body(WAKE, "a\n", "b\n"), 400, "from control"),
    ]
    for name, data, code, defect in pairs:
        _refused(out, f"two failures: {name}", data, code, defect, note="pins the order of §1")


def _frames_to_encode(out: Collector) -> None:
    """The encoder refuses what the decoder refuses."""
    cases: list[tuple[str, Json, int]] = [
        ("from empty", {"kind": WAKE, "from": "", "to": "b"}, 400),
        ("from of 129 bytes", {"kind": WAKE, "from": "f" * 129, "to": "b"}, 400),
        ("to of 129 bytes", {"kind": WAKE, "from": "a", "to": "t" * 129}, 400),
        ("from with a control character", {"kind": WAKE, "from": "a\u0085", "to": "b"}, 400),
        ("to with a control character", {"kind": WAKE, "from": "a", "to": "b\x00"}, 400),
        ("wake payload over its ceiling", {"kind": WAKE, "from": "a", "to": "b", "payload": bytes(257).hex()}, 413),
        ("pong payload over its ceiling", {"kind": PONG, "from": "a", "to": "b", "payload": bytes(33).hex()}, 413),
        ("hello payload over its ceiling", {"kind": HELLO, "from": "a", "payload": bytes(1025).hex()}, 413),
    ]
    for name, given, code in cases:
        full = {"kind": 0, "from": "", "to": "", "payload": "", "ts_ms": "0", "ttl_ms": 0} | given
        out.add(f"encode: {name}", "frame encode", "1", full, {"code": code})


def _stream(out: Collector, name: str, data: bytes, bodies: Sequence[bytes], end: str, note: str = "") -> None:
    expect: Json = {"bodies": [each.hex() for each in bodies]}
    expect |= {"code": 413} if end == "refused" else {"end": end}
    given = {"bytes": data.hex(), "eof": end in ("clean", "truncated")}
    out.add(name, "stream", "1", given, expect, note)


def _streams(out: Collector) -> None:
    ping, wake = body(PING, "agent-a", payload=b"1"), body(WAKE, "agent-a", "agent-b", wake_payload("m_1"))
    largest = body(HELLO, "f" * 128, "t" * 128, bytes(1024))
    bad = body(PING, "a", magic=b"AWH2")
    challenge = body(HELLO, "ai-memory-wake-hub", "", b"\x07" * 32)
    refusal = body(ERROR, "ai-memory-wake-hub", "", b"\x01\x91unauthorized")
    subscribe = body(SUBSCRIBE, "agent-sub", "", topic_list(["#hive", "#swarm"]))
    _stream(out, "stream: nothing, then the end", b"", [], "clean")
    _stream(out, "stream: nothing yet", b"", [], "more")
    _stream(out, "stream: one frame", prefixed(ping), [ping], "more")
    _stream(out, "stream: one frame, then the end", prefixed(ping), [ping], "clean")
    _stream(out, "stream: three frames, then the end", prefixed(ping, wake, ping), [ping, wake, ping], "clean")
    _stream(
        out,
        "stream: the frames of §8",
        prefixed(challenge, refusal, subscribe),
        [challenge, refusal, subscribe],
        "more",
    )
    _stream(out, "stream: forty frames", prefixed(*[wake] * 40), [wake] * 40, "more")
    _stream(out, "stream: the largest frame between two", prefixed(ping, largest, ping), [ping, largest, ping], "more")
    _stream(out, "stream: a frame and three bytes of the next prefix", prefixed(ping) + bytes(3), [ping], "more")
    _stream(out, "stream: a frame and half of the next", prefixed(ping, wake)[:-9], [ping], "more")
    note = "a body is delimited, and charged, before it is looked at"
    _stream(out, "stream: a body that will not decode, then another", prefixed(bad, ping), [bad, ping], "more", note)
    _stream(out, "stream: a body of no bytes", prefixed(b"", ping), [b"", ping], "more", note)
    _stream(out, "stream: the end inside a prefix", bytes(2), [], "truncated")
    _stream(out, "stream: the end after a prefix", prefixed(ping)[:4], [], "truncated")
    _stream(out, "stream: the end inside a body", prefixed(ping)[:-1], [], "truncated")
    _stream(out, "stream: a frame, then the end inside the next", prefixed(ping, wake)[:-1], [ping], "truncated")
    _stream(out, "stream: the largest frame, cut short", prefixed(largest)[:-1], [], "truncated")
    _stream(out, "stream: a prefix of 1,304 alone", struct.pack(">I", MAX_FRAME), [], "more")
    for length in (MAX_FRAME + 1, 65_536, 2**31, 2**32 - 1):
        alone = struct.pack(">I", length)
        _stream(out, f"stream: a prefix of {length} alone", alone, [], "refused", "four bytes suffice to refuse")
    _stream(out, "stream: an HTTP request", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", [], "refused")
    _stream(out, "stream: a frame without its prefix", ping, [], "refused")
    over = struct.pack(">I", MAX_FRAME + 1)
    _stream(out, "stream: two frames, then a prefix too large", prefixed(ping, wake) + over, [ping, wake], "refused")
    _stream(
        out,
        "stream: a prefix too large, its body and a frame",
        over + bytes(MAX_FRAME + 1) + prefixed(ping),
        [],
        "refused",
    )


# --- payloads.json ----------------------------------------------------------------------------------------------------


def payloads() -> Collector:
    out = Collector("payloads", "Payloads by kind")
    _hello_payloads(out)
    _welcome_payloads(out)
    _wake_payloads(out)
    _error_payloads(out)
    return out


def _hello_payloads(out: Collector) -> None:
    key, signature = public(DELEGATE_SEED), sign(DELEGATE_SEED, b"any")
    certificate = REFERENCE.signed(ROOT_SEED)

    def layout(delegation: bytes, topics: bytes, claim: int = 0) -> bytes:
        return key + signature + struct.pack(">H", len(delegation) + claim) + delegation + topics

    def good(name: str, delegation: bytes, topics: Sequence[str], note: str = "") -> None:
        expect = {"key": key.hex(), "signature": signature.hex(), "certificate": delegation.hex(), "topics": topics}
        data = layout(delegation, topic_list(topics))
        out.add(f"hello: {name}", "hello", "2", {"payload": data.hex()}, expect, note)

    def bad(name: str, data: bytes, note: str = "") -> None:
        out.add(f"hello: {name}", "hello", "2", {"payload": data.hex()}, {"code": 400}, note)

    good("no topics", certificate, [])
    good("two topics", certificate, ["#hive", "#swarm"])
    good("eight topics", certificate, [f"#t{n}" for n in range(8)])
    good("no certificate", b"", [], "well-formed; the answer is 401")
    good("a certificate that is none", b"\0", ["#hive"], "opaque to the layout; the answer is 401")
    largest = [topic_of(63, "t") + str(n) for n in range(8)]
    good("the largest, 1,009 bytes", bytes(390), largest)
    assert len(layout(bytes(390), topic_list(largest))) == 1009
    whole = layout(certificate, b"\0")
    for size, what in {
        0: "empty",
        31: "cut inside the key",
        32: "cut after the key",
        95: "cut inside the signature",
        96: "cut after the signature",
        97: "cut inside D",
        98: "cut after D",
        99: "cut inside the certificate",
        len(whole) - 2: "cut one byte before the certificate's end",
        len(whole) - 1: "cut before the topic list",
    }.items():
        bad(what, whole[:size])
    bad("D of 0 and no topic list", layout(b"", b""))
    bad("D of 391", layout(bytes(391), b"\0"))
    bad("D of 65,535", layout(b"", b"\0", claim=65535))
    bad("D one over, which eats the topic list", layout(certificate, b"\0", claim=1))
    bad("a byte after the topic list", whole + b"\0")
    bad("nine topics", layout(certificate, topic_list([f"#t{n}" for n in range(9)])))
    bad("a topic without its hash", layout(certificate, topic_list(["hive"])))
    bad("a topic of one byte", layout(certificate, topic_list(["#"])))
    bad("a topic of 65 bytes", layout(certificate, topic_list([topic_of(65)])))
    bad("a topic not UTF-8", layout(certificate, topic_list([b"#\xff"])))
    bad("a topic with a control character", layout(certificate, topic_list(["#a\u0085"])))
    bad("a topic list cut short", layout(certificate, topic_list(["#hive", "#swarm"])[:-1]))


def _welcome_payloads(out: Collector) -> None:
    def good(name: str, *values: int) -> None:
        session, count, ids, lagged, base, jitter = values
        expect = {"session": session, "pending_count": str(count), "pending_ids": ids, "lagged": bool(lagged)}
        expect |= {"reconnect_base_ms": base, "reconnect_jitter_ms": jitter}
        data = struct.pack(">IQIBII", *values)
        out.add(f"welcome: {name}", "welcome", "2", {"payload": data.hex()}, expect)

    def bad(name: str, data: bytes) -> None:
        out.add(f"welcome: {name}", "welcome", "2", {"payload": data.hex()}, {"code": 400})

    good("nothing pending", 1, 0, 0, 0, 250, 750)
    good("seven wakes for three rows", 4_711, 7, 3, 0, 250, 750)
    good("lagged", 2, 1_000, 64, 1, 250, 750)
    good("every number at its largest", 2**32 - 1, 2**64 - 1, 2**32 - 1, 1, 2**32 - 1, 2**32 - 1)
    whole = struct.pack(">IQIBII", 1, 0, 0, 0, 250, 750)
    bad("session 0", struct.pack(">IQIBII", 0, 0, 0, 0, 250, 750))
    bad("empty", b"")
    bad("24 bytes", whole[:-1])
    bad("26 bytes", whole + b"\0")


def _wake_payloads(out: Collector) -> None:
    digest = hashlib.sha256(b"hello").digest()

    def good(
        name: str, row_id: str, namespace: str, sender: str, digest: bytes, watermark: int, note: str = ""
    ) -> bytes:
        data = wake_payload(row_id, namespace, sender, digest, struct.pack(">Q", watermark))
        expect = {"row_id": row_id, "namespace": namespace, "sender": sender, "digest": digest.hex()}
        expect |= {"watermark": str(watermark)}
        out.add(f"wake: {name}", "wake", "2", {"payload": data.hex()}, expect, note)
        return data

    def bad(name: str, data: bytes, note: str = "") -> None:
        out.add(f"wake: {name}", "wake", "2", {"payload": data.hex()}, {"code": 400}, note)

    whole = good("typical", "m_01h455vb4pex5vsknk084sn02q", "_inbox/bob", "alice", digest, 42)
    good("the smallest, 12 bytes", "", "", "", b"", 0)
    good("no digest", "m_1", "_inbox/bob", "alice", b"", 1)
    good("a healing wake", "m_1", "_inbox/bob", "", b"", 0)
    good("watermark at its largest", "m_1", "", "", b"", 2**64 - 1)
    good("a row id of 200 bytes", "r" * 200, "", "", b"", 1, "well-formed; the pending set will count it as lagged")
    good("not only ASCII", "m_\u00e4", "\u65e5\u672c", "\U0001f980", digest, 1)
    good("a control character", "m_\n1", "", "", b"", 1, "the rule about control characters is about ids and topics")
    full = good("256 bytes", "m_1", "n" * 100, "s" * (256 - 12 - 3 - 100 - 32), digest, 1)
    assert len(full) == 256
    over = wake_payload("m_1", "n" * 101, "s" * (256 - 12 - 3 - 100 - 32), digest)
    given = {"body": body(WAKE, "alice", "bob", over).hex()}
    out.add("wake: 257 bytes", "frame", "2", given, {"code": 413, "defect": "ceiling"})
    for cut, what in {
        0: "empty",
        1: "row id's length without the row id",
        20: "cut inside the row id",
        len(whole) - 8: "no watermark",
        len(whole) - 1: "watermark of seven bytes",
    }.items():
        bad(what, whole[:cut])
    bad("watermark of nine bytes", whole + b"\0")
    bad(
        "three fields",
        lp("m_1") + lp("n") + lp("s") + bytes(8),
        "the watermark's first byte is read as a digest length",
    )
    bad("a fourth field longer than what is left", lp("m_1") + lp("n") + lp("s") + b"\x20" + bytes(31))
    for size in (1, 16, 31, 33, 64):
        bad(f"digest of {size} bytes", wake_payload("m_1", digest=bytes(size)))
    for part in ("row_id", "namespace", "sender"):
        bad(f"{part} not UTF-8", wake_payload(**{part: b"a\xff"}))
    bad("a character split between two fields", wake_payload(b"m\xc3", b"\xbcn"))


def _error_payloads(out: Collector) -> None:
    def good(name: str, code: int, reason: str) -> None:
        data = struct.pack(">H", code) + reason.encode()
        out.add(f"error: {name}", "error", "2", {"payload": data.hex()}, {"error_code": code, "reason": reason})

    def bad(name: str, data: bytes) -> None:
        out.add(f"error: {name}", "error", "2", {"payload": data.hex()}, {"code": 400})

    def cut(name: str, reason: str, kept: str) -> None:
        expect = {"payload": (struct.pack(">H", 400) + kept.encode()).hex()}
        out.add(f"error: {name}", "error encode", "2", {"error_code": 400, "reason": reason}, expect)

    for code in (400, 401, 403, 404, 409, 413, 429, 500, 507):
        good(f"code {code}", code, "why")
    good("no reason", 401, "")
    good("a reason of 254 bytes", 400, "r" * 254)
    good("not only ASCII", 403, "\u00e4\u65e5\U0001f980")
    bad("empty", b"")
    bad("one byte", b"\x01")
    bad("reason not UTF-8", b"\x01\x91\xff")
    bad("reason cut inside a character", b"\x01\x91a\xe2\x82")
    cut("encode, fits", "r" * 254, "r" * 254)
    cut("encode, one byte too long", "r" * 255, "r" * 254)
    cut("encode, two-byte characters that fit", "\u00e4" * 127, "\u00e4" * 127)
    cut("encode, cut before a two-byte character", "r" + "\u00e4" * 127, "r" + "\u00e4" * 126)
    cut("encode, cut before a three-byte character", "r" * 252 + "\u65e5", "r" * 252)
    cut("encode, cut before a four-byte character", "r" * 251 + "\U0001f980", "r" * 251)


# --- topics.json ------------------------------------------------------------------------------------------------------


def topics() -> Collector:
    out = Collector("topics", "Topics, lists of them, and who may hold which")
    _single_topics(out)
    _topic_lists(out)
    _scopes(out)
    return out


def _single_topics(out: Collector) -> None:
    def topic(name: str, data: bytes | str, valid: bool) -> None:
        raw = data.encode() if isinstance(data, str) else data
        out.add(f"topic: {name}", "topic", "1", {"topic": raw.hex()}, {"valid": valid})

    topic("two bytes", "#a", True)
    topic("64 bytes", topic_of(64), True)
    topic("64 bytes, two-byte characters", "#a" + "\u00e4" * 31, True)
    topic("an inbox", "#_inbox/alice", True)
    topic("two hashes", "##", True)
    topic("an inner space", "#a b", True)
    topic("case is kept", "#Hive", True)
    for what, text in NO_CONTROLS.items():
        topic(f"with {what}", f"#{text}", True)
    topic("empty", "", False)
    topic("a bare hash", "#", False)
    topic("no hash", "hive", False)
    topic("a hash that is not first", "a#", False)
    topic("a full-width hash", "\uff03hive", False)
    topic("65 bytes", topic_of(65), False)
    topic("65 bytes in 33 characters", "#" + "\u00e4" * 32, False)
    for code in CONTROLS:
        topic(f"with U+{code:04X}", f"#a{chr(code)}b", False)
    for what, data in NOT_UTF8.items():
        topic(f"with {what}", b"#a" + data, False)


def _topic_lists(out: Collector) -> None:
    def good(name: str, names: Sequence[str], note: str = "") -> None:
        given = {"payload": topic_list(names).hex()}
        out.add(f"list: {name}", "topic list", "1", given, {"topics": list(names)}, note)

    def bad(name: str, data: bytes, note: str = "") -> None:
        out.add(f"list: {name}", "topic list", "1", {"payload": data.hex()}, {"code": 400}, note)

    good("empty", [])
    good("one", ["#hive"])
    good("two (§8)", ["#hive", "#swarm"])
    good("not sorted", ["#b", "#a"], "order is kept: it is part of the hash and of the acknowledgement")
    good("the same twice", ["#a", "#a"], "well-formed, and must serialise to the same bytes")
    good("eight", [f"#t{n}" for n in range(8)])
    good("eight of 64 bytes", [topic_of(63) + str(n) for n in range(8)])
    bad("no bytes at all", b"")
    bad("nine", topic_list([f"#t{n}" for n in range(9)]))
    bad("a count of nine, eight topics", b"\x09" + topic_list([f"#t{n}" for n in range(8)])[1:])
    bad("a count of 255", b"\xff")
    bad("a count of one, no topic", b"\x01")
    bad("a count of two, one topic", b"\x02" + lp("#hive"))
    bad("a count of one, two topics", b"\x01" + lp("#hive") + lp("#swarm"))
    bad("a count of none, one topic", b"\x00" + lp("#hive"))
    bad("a trailing byte", topic_list(["#hive"]) + b"\0")
    bad("an empty list and a trailing byte", b"\0\0")
    bad("a topic cut short", topic_list(["#hive"])[:-1])
    bad("a length without its topic", b"\x01\x05")
    bad("a topic of no bytes", topic_list([""]))
    bad("a bare hash", topic_list(["#"]))
    bad("the second without a hash", topic_list(["#hive", "swarm"]))
    bad("a topic of 65 bytes", topic_list([topic_of(65)]))
    bad("a topic of 255 bytes", topic_list([topic_of(255)]))
    bad("a topic with a control character", topic_list(["#a\u0085"]))
    bad("a topic not UTF-8", topic_list([b"#\xc0\xaf"]))
    bad("a character split between two topics", topic_list([b"#a\xc3", b"\xbc#"]))


def _scopes(out: Collector) -> None:
    def scope(name: str, agent_id: str, prefixes: Sequence[str], topic: str, allowed: bool, note: str = "") -> None:
        given = {"agent_id": agent_id, "readable_prefixes": list(prefixes), "topic": topic}
        out.add(f"scope: {name}", "scope", "4.5", given, {"allowed": allowed}, note)

    deep = "acme/eng/web/alice"
    parents = ["acme/eng/web", "acme/eng", "acme"]
    scope("own inbox", "alice", [], "#_inbox/alice", True)
    scope("own inbox of a path", deep, [], f"#_inbox/{deep}", True)
    scope("own inbox of 64 bytes", "a" * 56, [], "#_inbox/" + "a" * 56, True)
    scope("own inbox, other case", "alice", [], "#_inbox/Alice", False)
    scope("another's inbox", "alice", [], "#_inbox/bob", False)
    scope("an inbox one's own id begins", "alice", [], "#_inbox/alice2", False)
    scope("an inbox under one's own", "alice", [], "#_inbox/alice/x", False)
    scope("no prefixes, any namespace", "alice", [], "#hive", False)
    scope("no prefixes, one's own id", "alice", [], "#alice", False)
    for prefix in parents:
        scope(f"the prefix {prefix} itself", deep, parents, f"#{prefix}", True)
    scope("a namespace under a prefix", deep, ["acme/eng"], "#acme/eng/x", True)
    scope("a namespace far under a prefix", deep, ["acme/eng"], "#acme/eng/x/y/z", True)
    scope("a namespace that continues the last segment", deep, ["acme/eng"], "#acme/engineering", False)
    scope("a namespace above the prefix", deep, ["acme/eng"], "#acme", False)
    scope("a sibling of the prefix", deep, ["acme/eng"], "#acme/ops", False)
    scope("another case", deep, ["acme/eng"], "#Acme/eng", False)
    scope("the other normal form", "alice", ["caf\u00e9"], "#cafe\u0301", False)
    scope("a bare hash", "alice", ["acme"], "#", False)
    for name in ("_agents", "_agent_sessions", "_standards"):
        scope(f"substrate {name}, even when signed for", "alice", [name], f"#{name}", False)
    for root in ("_messages", "_inbox", "_curator", "_subscriptions"):
        scope(f"substrate {root}/x, even when signed for", "alice", [root], f"#{root}/x", False)
    scope("substrate _standard:x, even when signed for", "alice", ["_standard:x"], "#_standard:x", False)
    scope("a namespace that begins like substrate", "alice", ["_agentsmith"], "#_agentsmith", True)


# --- transcripts.json -------------------------------------------------------------------------------------------------


def transcripts() -> Collector:
    out = Collector("transcripts", "What a hello, a join and a depart sign")
    cases: list[tuple[str, str, str, Sequence[str]]] = [
        ("no topics", HUB, "alice", []),
        ("the topics of §8", "ai-memory-wake-hub", "agent-sub", ["#hive", "#swarm"]),
        ("the same topics in another order", "ai-memory-wake-hub", "agent-sub", ["#swarm", "#hive"]),
        (
            "one topic that is their concatenation",
            "ai-memory-wake-hub",
            "agent-sub",
            ["#hive#swarm"],
        ),
        ("the same topic twice", HUB, "alice", ["#a", "#a"]),
        ("eight topics", HUB, "alice", [f"#t{n}" for n in range(8)]),
        ("an agent id of 128 bytes", HUB, "a" * 128, []),
        ("a hub id of 64 bytes", "h" * 64, "alice", []),
        ("not only ASCII", "h\u00fcb", "\u65e5\u672c", ["#\U0001f980"]),
        ("an empty agent id", HUB, "", []),
    ]
    for name, hub_id, agent_id, names in cases:
        given = {"act": "hello", "hub_id": hub_id, "nonce": NONCE.hex(), "agent_id": agent_id, "topics": list(names)}
        data = hello_transcript(hub_id, NONCE, agent_id, names)
        out.add(
            f"hello: {name}", "transcript", "3", given, {"bytes": data.hex(), "topics_hash": topics_hash(names).hex()}
        )
    for act in ("join", "depart"):
        for name, hub_id, agent_id in [
            ("plain", HUB, "alice"),
            ("lengths that differ, text that does not", HUB + "a", "lice"),
            ("the largest ids", "h" * 64, "a" * 128),
            ("not only ASCII", "h\u00fcb", "\u65e5\u672c"),
        ]:
            given = {"act": act, "hub_id": hub_id, "nonce": NONCE.hex(), "agent_id": agent_id}
            data = membership_transcript(act, hub_id, NONCE, agent_id)
            out.add(f"{act}: {name}", "transcript", "3", given, {"bytes": data.hex()})
    _memberships(out)
    return out


def _memberships(out: Collector) -> None:
    key = seed("session key")

    def member(name: str, act: str, payload: bytes, accepted: bool, note: str = "") -> None:
        given = {"act": act, "hub_id": HUB, "nonce": NONCE.hex(), "agent_id": "alice", "key": public(key).hex()}
        expect: Json = {"accepted": True} if accepted else {"code": 401}
        out.add(name, "membership", "2", given | {"payload": payload.hex()}, expect, note)

    for act, other in (("join", "depart"), ("depart", "join")):
        right = sign(key, membership_transcript(act, HUB, NONCE, "alice"))
        member(f"{act}: signed", act, right, True)
        member(f"{act}: signed as {other}", act, sign(key, membership_transcript(other, HUB, NONCE, "alice")), False)
        member(f"{act}: the hello's signature", act, sign(key, hello_transcript(HUB, NONCE, "alice", [])), False)
        member(f"{act}: another nonce", act, sign(key, membership_transcript(act, HUB, bytes(32), "alice")), False)
        member(f"{act}: another hub", act, sign(key, membership_transcript(act, "hub", NONCE, "alice")), False)
        member(f"{act}: another agent", act, sign(key, membership_transcript(act, HUB, NONCE, "bob")), False)
        wrong_key = sign(seed("another key"), membership_transcript(act, HUB, NONCE, "alice"))
        member(f"{act}: another key", act, wrong_key, False)
        note = "a wrong length is a bad signature, not a malformed frame"
        for size in (0, 63, 65):
            member(f"{act}: {size} bytes", act, (right + b"\0")[:size], False, note)
        raised = int.from_bytes(right[32:], "little") + L
        member(f"{act}: S + L", act, right[:32] + raised.to_bytes(32, "little"), False)


# --- certificates.json ------------------------------------------------------------------------------------------------


def certificates() -> Collector:
    out = Collector("certificates", "Delegation certificates: layout, signed bytes, signature, window, time stamps")
    _certificate_layouts(out)
    _certificate_signed_bytes(out)
    _certificate_signatures(out)
    _windows(out)
    _stamps(out)
    return out


def _certificate_layouts(out: Collector) -> None:
    signature = sign(ROOT_SEED, REFERENCE.signed_bytes())

    def good(name: str, section: str = "4.2", **changes: Any) -> None:
        certificate = REFERENCE._replace(**changes)
        signed = sign(ROOT_SEED, certificate.signed_bytes())
        expect = certificate.fields() | {"signature": signed.hex()}
        out.add(f"layout: {name}", "certificate", section, {"certificate": certificate.wire(signed).hex()}, expect)

    def bad(name: str, data: bytes, note: str = "") -> None:
        expect = {"code": 401, "label": "bad_certificate"}
        out.add(f"layout: {name}", "certificate", "4.2", {"certificate": data.hex()}, expect, note)

    def changed(name: str, **changes: Any) -> None:
        bad(name, REFERENCE._replace(**changes).signed(ROOT_SEED))

    good("the example of §8", "8")
    good("principal of one byte", principal="a")
    good("principal of 128 bytes", principal="p" * 128)
    good("principal not only ASCII", principal="\u65e5\u672c")
    good("hub id of one byte", hub_id="h")
    good("hub id of 64 bytes", hub_id="h" * 64)
    good(
        "stamps of 32 bytes",
        not_before="2026-09-03T11:00:00.123456+00:00",
        not_after="2026-09-03T13:00:00.123456+00:00",
    )
    good(
        "the largest, 365 bytes",
        principal="p" * 128,
        hub_id="h" * 64,
        not_before="2026-09-03T11:00:00.123456+00:00",
        not_after="2026-09-03T13:00:00.123456+00:00",
    )
    whole = REFERENCE.wire(signature)
    bad("empty", b"")
    bad("version 0", b"\0" + whole[1:])
    bad("version 2", b"\2" + whole[1:])
    position, ends = 1, {"the version": 1}
    for what, size in {
        "the principal": 1 + len(REFERENCE.principal),
        "the scope": 1 + len(REFERENCE.scope),
        "the delegate key": 32,
        "the hub id": 1 + len(REFERENCE.hub_id),
        "not_before": 1 + len(REFERENCE.not_before),
        "not_after": 1 + len(REFERENCE.not_after),
    }.items():
        position += size
        bad(f"cut inside {what}", whole[: position - 1])
        ends[what] = position
    for what, end in ends.items():
        bad(f"cut after {what}", whole[:end])
    bad("signature of 63 bytes", whole[:-1])
    bad("signature of 65 bytes", whole + b"\0")
    bad(
        "signed as usual, then 390 bytes long",
        whole + bytes(390 - len(whole)),
        "within D's bound, yet 64 bytes must remain",
    )
    changed("principal empty", principal="")
    changed("principal of 129 bytes", principal="p" * 129)
    changed("scope empty", scope="")
    changed("scope a2a-hub2", scope="a2a-hub2")
    changed("scope A2A-HUB", scope="A2A-HUB")
    changed("scope a2a-hu", scope="a2a-hu")
    changed("hub id empty", hub_id="")
    changed("hub id of 65 bytes", hub_id="h" * 65)
    changed("not_before empty", not_before="")
    changed("not_after empty", not_after="")
    changed("not_before of 33 bytes", not_before="2026-09-03T11:00:00.1234567+00:00")
    changed("not_after of 33 bytes", not_after="2026-09-03T13:00:00.1234567+00:00")
    bad("principal not UTF-8", whole.replace(b"agent-a", b"agent-\xff"))
    bad("hub id not UTF-8", whole.replace(b"wake-hub", b"wake-h\xc3b"))
    bad("not_before not UTF-8", whole.replace(b"11:00:00Z", b"11:00:00\xff"))


def _certificate_signed_bytes(out: Collector) -> None:
    for name, certificate in {
        "the example of §8": REFERENCE,
        "lengths of 23 bytes, the last short form": REFERENCE._replace(principal="p" * 23, hub_id="h" * 23),
        "lengths of 24 bytes, the first long form": REFERENCE._replace(principal="p" * 24, hub_id="h" * 24),
        "the largest ids": REFERENCE._replace(principal="p" * 128, hub_id="h" * 64),
        "not only ASCII": REFERENCE._replace(principal="\u65e5\u672c"),
        "fractions and offsets": REFERENCE._replace(not_before="2026-09-03T13:00:00.5+02:00"),
    }.items():
        signed = certificate.signed_bytes()
        expect = {"bytes": signed.hex(), "signature": sign(ROOT_SEED, signed).hex()}
        section = "8" if certificate is REFERENCE else "4.2"
        given = certificate.fields() | {"seed": ROOT_SEED.hex(), "public": public(ROOT_SEED).hex()}
        out.add(f"signed bytes: {name}", "certificate signed bytes", section, given, expect)


def _certificate_signatures(out: Collector) -> None:
    right = sign(ROOT_SEED, REFERENCE.signed_bytes())

    def case(name: str, data: bytes, valid: bool, key: bytes = public(ROOT_SEED), note: str = "") -> None:
        given = {"certificate": data.hex(), "agent_key": key.hex()}
        out.add(f"signature: {name}", "certificate signature", "4.2", given, {"valid": valid}, note)

    case("the example of §8", REFERENCE.wire(right), True)
    changes: dict[str, Any] = {
        "principal": "agent-b",
        "delegate_key": public(seed("another delegate")),
        "hub_id": "ai-memory-wake-huc",
        "not_before": "2026-09-03T11:00:01Z",
        "not_after": "2026-09-03T13:00:01Z",
    }
    for part, value in changes.items():
        case(f"{part} changed", REFERENCE._replace(**{part: value}).wire(right), False)
    same_moment = REFERENCE._replace(not_before="2026-09-03T11:00:00.0Z")
    case("not_before written differently", same_moment.wire(right), False, note="the text is signed, not the moment")
    for at in (0, 31, 32, 63):
        flipped = right[:at] + bytes([right[at] ^ 1]) + right[at + 1 :]
        case(f"byte {at} of the signature changed", REFERENCE.wire(flipped), False)
    case("another agent's key", REFERENCE.wire(right), False, public(seed("another agent")))
    case("signed with the delegate's own key", REFERENCE.signed(DELEGATE_SEED), False)
    raised = (int.from_bytes(right[32:], "little") + L).to_bytes(32, "little")
    case("S + L", REFERENCE.wire(right[:32] + raised), False)
    digest = hashlib.sha256(REFERENCE.signed_bytes()).digest()
    case("the hash was signed instead of the bytes", REFERENCE.wire(sign(ROOT_SEED, digest)), False)
    long_form = REFERENCE.signed_bytes().replace(b"\x67agent-a", b"\x78\x07agent-a")
    case("signed over a longer CBOR form", REFERENCE.wire(sign(ROOT_SEED, long_form)), False)
    indefinite = b"\x9f" + REFERENCE.signed_bytes()[1:] + b"\xff"
    case("signed over an array of indefinite length", REFERENCE.wire(sign(ROOT_SEED, indefinite)), False)


def _windows(out: Collector) -> None:
    def case(name: str, not_before: str, not_after: str, now_ms: int, label: str = "", note: str = "") -> None:
        given = {"not_before": not_before, "not_after": not_after, "now_ms": now_ms}
        expect: Json = {"code": 401, "label": label} if label else {"valid": True}
        out.add(f"window: {name}", "window", "4.2", given, expect, note)

    def at(seconds: int, fraction: str = "") -> str:
        return stamp(NOON + seconds).replace("Z", fraction + "Z")

    now = NOON * 1000
    case("in the middle", at(-60), at(60), now)
    case("just begun", at(0), at(60), now)
    case("the last second", at(-60), at(1), now)
    case("the last millisecond of the last second", at(-60), at(1), now + 999)
    case("ended this second", at(-60), at(0), now, "window_expired", "half-open")
    case("ended a second ago", at(-60), at(-1), now, "window_expired", "expiry has no leeway")
    case("ends half a second into this second", at(-60), at(0, ".5"), now + 900, note="now is floored to whole seconds")
    case("begins 30 s ahead", at(30), at(60), now, note="the leeway")
    case("begins 30 s ahead, and now has a fraction", at(30), at(60), now + 999)
    case("begins 30.000000001 s ahead", at(30, ".000000001"), at(60), now, "window_not_yet")
    case("begins 31 s ahead", at(31), at(60), now, "window_not_yet")
    case(
        "begins 31 s ahead of now floored",
        at(31),
        at(60),
        now + 999,
        "window_not_yet",
        "now is floored to whole seconds",
    )
    case("begins an hour ahead", at(3600), at(7200), now, "window_not_yet")
    case("exactly 12 h", at(-60), at(43200 - 60), now)
    case("12 h and a nanosecond", at(-60), at(43200 - 60, ".000000001"), now, "window_too_long")
    case("12 h and a second", at(-60), at(43201 - 60), now, "window_too_long")
    case("a week", at(-60), at(7 * 86400), now, "window_too_long")
    case("exactly 12 h with equal fractions", at(-60, ".25"), at(43200 - 60, ".25"), now)
    case("exactly 12 h in two offsets", "2026-09-03T13:00:00+02:00", "2026-09-03T18:00:00-05:00", now)
    case(
        "12 h and a second in two offsets",
        "2026-09-03T13:00:00+02:00",
        "2026-09-03T18:00:01-05:00",
        now,
        "window_too_long",
    )
    case("over half an hour's offset", "2026-09-03T16:30:00+05:30", "2026-09-03T18:30:00+05:30", now)
    case(
        "that looks like now but is two hours past",
        at(-60).replace("Z", "+02:00"),
        at(60).replace("Z", "+02:00"),
        now,
        "window_expired",
    )
    case("empty", at(10), at(10), now, "window_empty", "within the leeway, but no moment lies in it")
    case("backwards", at(20), at(10), now, "window_empty", "within the leeway, but no moment lies in it")
    case("not_before is no time", "yesterday", at(60), now, "bad_certificate")
    case("not_after is no time", at(-60), "tomorrow", now, "bad_certificate")


def _stamps(out: Collector) -> None:
    second = 1_000_000_000

    def good(name: str, text: str, ns: int) -> None:
        out.add(f"stamp: {name}", "stamp", "4.2", {"text": text}, {"ns": str(ns)})

    def bad(name: str, text: str) -> None:
        out.add(f"stamp: {name}", "stamp", "4.2", {"text": text}, {"valid": False})

    noon = NOON * second
    good("whole seconds", "2026-09-03T12:00:00Z", noon)
    good("one fractional digit", "2026-09-03T12:00:00.5Z", noon + 500_000_000)
    good("three fractional digits", "2026-09-03T12:00:00.001Z", noon + 1_000_000)
    good("nine fractional digits", "2026-09-03T12:00:00.123456789Z", noon + 123_456_789)
    good("a fraction of zero", "2026-09-03T12:00:00.000Z", noon)
    good("offset zero", "2026-09-03T12:00:00+00:00", noon)
    good("offset minus zero", "2026-09-03T12:00:00-00:00", noon)
    good("offset east", "2026-09-03T14:00:00+02:00", noon)
    good("offset west", "2026-09-03T04:30:00-07:30", noon)
    good("offset of 23:59", "2026-09-04T11:59:00+23:59", noon)
    good("offset that changes the day", "2026-09-04T01:00:00+13:00", noon)
    good("six digits and an offset, 32 bytes", "2026-09-03T14:00:00.000001+02:00", noon + 1_000)
    good("the epoch", "1970-01-01T00:00:00Z", 0)
    good("before the epoch", "1969-12-31T23:59:59Z", -second)
    good("the 29th of February", "2028-02-29T00:00:00Z", unix("2028-02-29T00:00:00Z") * second)
    good("the 29th of February 2000", "2000-02-29T00:00:00Z", unix("2000-02-29T00:00:00Z") * second)
    good("the last second of a day", "2026-12-31T23:59:59Z", unix("2026-12-31T23:59:59Z") * second)
    good("the last second of four-digit years", "9999-12-31T23:59:59Z", unix("9999-12-31T23:59:59Z") * second)
    for name, text in {
        "empty": "",
        "small t": "2026-09-03t12:00:00Z",
        "small z": "2026-09-03T12:00:00z",
        "a space for T": "2026-09-03 12:00:00Z",
        "no zone": "2026-09-03T12:00:00",
        "no seconds": "2026-09-03T12:00Z",
        "a date": "2026-09-03",
        "no separators": "20260903T120000Z",
        "a week date": "2026-W36-4T12:00:00Z",
        "a point and no digits": "2026-09-03T12:00:00.Z",
        "a comma for the point": "2026-09-03T12:00:00,5Z",
        "ten fractional digits": "2026-09-03T12:00:00.1234567890Z",
        "seven digits and an offset, 33 bytes": "2026-09-03T14:00:00.0000001+02:00",
        "an offset without its colon": "2026-09-03T14:00:00+0200",
        "an offset of hours": "2026-09-03T14:00:00+02",
        "an offset with seconds": "2026-09-03T14:00:00+02:00:00",
        "an offset of 24:00": "2026-09-04T12:00:00+24:00",
        "an offset of 60 minutes": "2026-09-03T12:00:00+00:60",
        "an offset with a minus sign that is none": "2026-09-03T04:30:00\u221207:30",
        "both Z and an offset": "2026-09-03T12:00:00Z+00:00",
        "month 0": "2026-00-03T12:00:00Z",
        "month 13": "2026-13-03T12:00:00Z",
        "day 0": "2026-09-00T12:00:00Z",
        "day 31 of September": "2026-09-31T12:00:00Z",
        "the 29th of February 2026": "2026-02-29T12:00:00Z",
        "the 29th of February 2100": "2100-02-29T12:00:00Z",
        "hour 24": "2026-09-03T24:00:00Z",
        "minute 60": "2026-09-03T12:60:00Z",
        "second 61": "2026-09-03T12:00:61Z",
        "one digit for the month": "2026-9-03T12:00:00Z",
        "a year of five digits": "12026-09-03T12:00:00Z",
        "a year with a sign": "+2026-09-03T12:00:00Z",
        "a leading space": " 2026-09-03T12:00:00Z",
        "a trailing space": "2026-09-03T12:00:00Z ",
        "a trailing newline": "2026-09-03T12:00:00Z\n",
        "a trailing NUL": "2026-09-03T12:00:00Z\0",
        "an Arabic-Indic digit": "2026-09-03T12:00:0\u0660Z",
        "a full-width digit": "\uff12026-09-03T12:00:00Z",
        "an underscore between digits": "2026-09-03T12:00:0_Z",
        "a number": "1788436800",
    }.items():
        bad(name, text)


# --- allowlists.json --------------------------------------------------------------------------------------------------


def entry(agent_id: str, **changes: Any) -> Json:
    plain = {
        "agent_id": agent_id,
        "pubkey_b64": b64(public(seed(agent_id))),
        "bind_authority": "possession_proof",
        "bound_at": stamp(NOON - 30 * 86_400),
        "revoked_keys": [],
        "readable_prefixes": [],
    }
    return plain | changes


def listing(*agents: Json, **changes: Any) -> Json:
    plain: Json = {"version": 2, "refreshed_at": stamp(NOON - 10), "valid_for_secs": 60, "agents": list(agents)}
    return plain | changes


def allowlists() -> Collector:
    out = Collector("allowlists", "The signed allowlist: the JWS around it, its content, its age, its file")

    def good(name: str, content: Json, text: str = "", now_ms: int = NOON * 1000, note: str = "") -> None:
        given = {"jws": text or jws(compact(content), OWNER), "owner_public": public(OWNER).hex(), "now_ms": now_ms}
        out.add(name, "allowlist", "4.3", given, {"agents": [each["agent_id"] for each in content["agents"]]}, note)

    def bad(name: str, label: str, text: str, now_ms: int = NOON * 1000, note: str = "") -> None:
        given = {"jws": text, "owner_public": public(OWNER).hex(), "now_ms": now_ms}
        out.add(name, "allowlist", "4.3", given, {"usable": False, "label": label}, note)

    _allowlist_envelopes(good, bad)
    _allowlist_contents(good, bad)
    _allowlist_entries(good, bad)
    _allowlist_ages(good, bad)
    _allowlist_files(out)
    return out


def _allowlist_envelopes(good: Callable[..., None], bad: Callable[..., None]) -> None:
    content = listing(entry("alice"))
    payload = compact(content)
    plain = jws(payload, OWNER)
    head, middle, signature = plain.split(".")
    good("envelope: alg alone", content)
    for members in ({"kid": "owner"}, {"typ": "JWT"}, {"kid": "owner", "typ": "allowlist"}):
        header = compact({"alg": "EdDSA"} | members)
        good(f"envelope: alg and {' and '.join(members)}", content, jws(payload, OWNER, header))
    good("envelope: white space in the header", content, jws(payload, OWNER, b'{ "alg" : "EdDSA" }'))
    bad("envelope: an empty file", "unsigned", "")
    bad("envelope: the bare JSON", "unsigned", payload.decode())
    bad("envelope: no signature part", "unsigned", f"{head}.{middle}")
    bad("envelope: an empty signature", "bad_signature", f"{head}.{middle}.")
    bad("envelope: alg none and an empty signature", "bad_signature", b64(b'{"alg":"none"}') + f".{middle}.")
    bad("envelope: four parts", "unsigned", f"{plain}.{signature}")
    bad("envelope: signed by another key", "bad_signature", jws(payload, seed("not the owner")))
    other = jws(compact(listing(entry("mallory"))), OWNER).split(".")[1]
    bad("envelope: another payload", "bad_signature", f"{head}.{other}.{signature}")
    bad("envelope: another header", "bad_signature", b64(b'{"alg":"EdDSA","kid":"x"}') + f".{middle}.{signature}")
    raw = base64.urlsafe_b64decode(signature + "==")
    bad("envelope: signature of 63 bytes", "bad_signature", f"{head}.{middle}.{b64(raw[:63])}")
    bad("envelope: signature of 65 bytes", "bad_signature", f"{head}.{middle}.{b64(raw + b'x')}")
    raised = raw[:32] + (int.from_bytes(raw[32:], "little") + L).to_bytes(32, "little")
    bad("envelope: S + L", "bad_signature", f"{head}.{middle}.{b64(raised)}")
    over_payload = sign(OWNER, payload)
    bad("envelope: the payload alone was signed", "bad_signature", f"{head}.{middle}.{b64(over_payload)}")
    bad("envelope: the signature is padded", "unsigned", f"{plain}==")
    standard = base64.b64encode(raw).rstrip(b"=").decode()
    assert standard != signature, "the signature must hold a character in which the two alphabets differ"
    bad("envelope: the signature in the other base64 alphabet", "unsigned", f"{head}.{middle}.{standard}")
    for name, header in {
        "alg HS256": b'{"alg":"HS256"}',
        "alg ES256": b'{"alg":"ES256"}',
        "alg eddsa": b'{"alg":"eddsa"}',
        "alg none, signed all the same": b'{"alg":"none"}',
        "no alg": b'{"kid":"owner"}',
        "alg a list": b'{"alg":["EdDSA"]}',
        "an unknown member": b'{"alg":"EdDSA","cty":"json"}',
        "a critical extension": b'{"alg":"EdDSA","crit":["x"]}',
        "b64 false": b'{"alg":"EdDSA","b64":false}',
        "a key of its own": b'{"alg":"EdDSA","jwk":{"kty":"OKP"}}',
        "alg twice": b'{"alg":"EdDSA","alg":"EdDSA"}',
        "a list": b'["EdDSA"]',
        "no JSON": b"EdDSA",
    }.items():
        bad(f"envelope header: {name}", "malformed", jws(payload, OWNER, header))


def _allowlist_contents(good: Callable[..., None], bad: Callable[..., None]) -> None:
    def malformed(name: str, payload: bytes | Json) -> None:
        raw = payload if isinstance(payload, bytes) else compact(payload)
        bad(f"content: {name}", "malformed", jws(raw, OWNER))

    alice, bob = entry("alice"), entry("bob")
    good("content: no agents", listing(), note="usable, and admits nobody")
    good("content: two agents", listing(alice, bob))
    good("content: keys in another order", listing(alice), jws(compact(dict(reversed(listing(alice).items()))), OWNER))
    good("content: white space", listing(alice), jws(json.dumps(listing(alice), indent=2).encode(), OWNER))
    good("content: valid for 1 s, refreshed now", listing(alice, valid_for_secs=1, refreshed_at=stamp(NOON)))
    good("content: valid for 43,200 s", listing(alice, valid_for_secs=43_200))
    for key in listing():
        malformed(f"{key} missing", {name: value for name, value in listing(alice).items() if name != key})
        value = json.dumps(listing(alice)[key])
        twice = compact(listing(alice))[:-1] + f',"{key}":{value}}}'.encode()
        malformed(f"{key} twice", twice)
    malformed("an unknown key", listing(alice, comment="x"))
    for version in (1, 3, "2", True, None, [2]):
        malformed(f"version {json.dumps(version)}", listing(alice, version=version))
    for seconds in (0, -1, 43_201, "60", True, None, 1.5):
        malformed(f"valid_for_secs {json.dumps(seconds)}", listing(alice, valid_for_secs=seconds))
    for text in ("", "yesterday", "2026-09-03", "2026-09-03 11:59:50Z", "2026-09-03T11:59:50", 1788436790, None):
        malformed(f"refreshed_at {json.dumps(text)}", listing(alice, refreshed_at=text))
    others: list[Any] = [None, {}, "alice", [None], ["alice"], [[]]]
    for agents in others:
        malformed(f"agents {json.dumps(agents)}", listing(agents=agents))
    whole = compact(listing(alice))
    malformed("empty", b"")
    malformed("no JSON", b"alice")
    malformed("a list", b"[" + whole + b"]")
    malformed("cut short", whole[:-1])
    malformed("a second value after it", whole + b"{}")
    malformed("a byte order mark", b"\xef\xbb\xbf" + whole)
    malformed("not UTF-8", whole.replace(b"alice", b"alic\xff"))
    malformed("UTF-16", whole.decode().encode("utf-16"))
    malformed("NaN for a number", whole.replace(b":60,", b":NaN,"))
    malformed("a trailing comma", whole[:-1] + b",}")
    malformed("nesting 10,000 deep", b'{"version":' + b"[" * 10_000 + b"]" * 10_000 + b"}")
    malformed("a number of 5,000 digits", whole.replace(b":60,", b":" + b"6" * 5_000 + b","))


def _allowlist_entries(good: Callable[..., None], bad: Callable[..., None]) -> None:
    def malformed(name: str, *agents: Json) -> None:
        bad(f"entry: {name}", "malformed", jws(compact(listing(*agents)), OWNER))

    def fine(name: str, *agents: Json, note: str = "") -> None:
        good(f"entry: {name}", listing(*agents), note=note)

    alice = entry("alice")
    revoked = b64(public(seed("revoked")))
    fine("agent id of 128 bytes", entry("a" * 128))
    fine("ids that differ in case", alice, entry("Alice"), note="compared byte for byte")
    fine("ids that differ in normal form", entry("caf\u00e9"), entry("cafe\u0301"), note="compared byte for byte")
    fine("a revoked key", entry("alice", revoked_keys=[revoked]))
    fine("three prefixes", entry("a/b/c/d", readable_prefixes=["a/b/c", "a/b", "a"]))
    fine("a prefix of 63 bytes", entry("alice", readable_prefixes=["p" * 63]))
    fine("an unknown bind_authority", entry("alice", bind_authority="handshake"), note="loads, cannot delegate")
    fine("daemon_key_dir for anybody", entry("alice", bind_authority="daemon_key_dir"), note="loads, cannot delegate")
    fine("bound 30 s after the refresh", entry("alice", bound_at=stamp(NOON - 10 + 30)))
    fine("bound_at with a fraction and an offset", entry("alice", bound_at="2026-09-03T12:00:00.5+02:00"))
    malformed("bound 31 s after the refresh", entry("alice", bound_at=stamp(NOON - 10 + 31)))
    malformed("the same agent twice", alice, alice)
    malformed("the same agent with two keys", alice, entry("alice", pubkey_b64=b64(public(seed("bob")))))
    for key in alice:
        malformed(f"{key} missing", {name: value for name, value in alice.items() if name != key})
    malformed("an unknown key", entry("alice", note="x"))
    doubled = compact(listing(alice)).replace(b'"revoked_keys":[]', b'"revoked_keys":[],"revoked_keys":[]')
    bad("entry: a key twice", "malformed", jws(doubled, OWNER))
    for name, agent_id in {
        "empty": "",
        "of 129 bytes": "a" * 129,
        "of 130 bytes in 65 characters": "\u00e4" * 65,
        "with a newline": "a\nb",
        "with U+0085": "a\u0085b",
        "with DEL": "a\x7fb",
        "a number": 7,
        "null": None,
    }.items():
        malformed(f"agent id {name}", alice | {"agent_id": agent_id})
    surrogate = compact(listing(alice)).replace(b'"alice"', b'"\\ud800"')
    bad("entry: agent id with a lone surrogate", "malformed", jws(surrogate, OWNER))
    right = public(seed("alice"))
    for name, text in {
        "of 31 bytes": b64(right[:31]),
        "of 33 bytes": b64(right + b"\0"),
        "padded": b64(right) + "=",
        "in hex": right.hex(),
        "in the other base64 alphabet": base64.b64encode(b"\xfb\xff" + right[2:]).rstrip(b"=").decode(),
        "with a newline": b64(right) + "\n",
        "with a space inside": b64(right)[:20] + " " + b64(right)[20:],
        "empty": "",
        "null": None,
    }.items():
        malformed(f"key {name}", entry("alice", pubkey_b64=text))
        if text is not None:
            malformed(f"revoked key {name}", entry("alice", revoked_keys=[revoked, text]))
    malformed("revoked_keys null", entry("alice", revoked_keys=None))
    malformed("revoked_keys a string", entry("alice", revoked_keys=revoked))
    malformed("bind_authority null", entry("alice", bind_authority=None))
    malformed("bind_authority a list", entry("alice", bind_authority=["possession_proof"]))
    malformed("bound_at no time", entry("alice", bound_at="long ago"))
    malformed("bound_at a number", entry("alice", bound_at=NOON))
    malformed("bound_at null", entry("alice", bound_at=None))
    for name, prefixes in {
        "four": ["a", "b", "c", "d"],
        "one empty": [""],
        "one of 64 bytes": ["p" * 64],
        "one of 64 bytes in 32 characters": ["\u00e4" * 32],
        "one with a control character": ["a\x1fb"],
        "one a number": [7],
        "null": None,
        "a string": "acme",
    }.items():
        malformed(f"prefixes: {name}", entry("alice", readable_prefixes=prefixes))


def _allowlist_ages(good: Callable[..., None], bad: Callable[..., None]) -> None:
    def at(seconds: int, **changes: Any) -> tuple[Json, str]:
        content = listing(entry("alice"), refreshed_at=stamp(NOON + seconds), **changes)
        return content, jws(compact(content), OWNER)

    good("age: none", *at(0))
    good("age: 59 s of 60", *at(-59))
    bad("age: 60 s of 60", "stale", at(-60)[1])
    bad("age: a day", "stale", at(-86_400)[1])
    good("age: 43,199 s of 43,200", *at(-43_199, valid_for_secs=43_200))
    bad("age: 43,200 s of 43,200", "stale", at(-43_200, valid_for_secs=43_200)[1])
    good("age: 30 s in the future", *at(30))
    bad("age: 31 s in the future", "future", at(31)[1])
    offset = listing(entry("alice"), refreshed_at="2026-09-03T13:59:50+02:00")
    good("age: with an offset", offset)
    past = listing(entry("alice"), refreshed_at="2026-09-03T12:00:00+02:00")
    bad("age: looks like now but is two hours past", "stale", jws(compact(past), OWNER))


def _allowlist_files(out: Collector) -> None:
    text = jws(compact(listing(entry("alice"))), OWNER)

    def case(name: str, file: Json, label: str = "", note: str = "") -> None:
        given = {"jws": text, "owner_public": public(OWNER).hex(), "now_ms": NOON * 1000, "file": file}
        expect: Json = {"usable": False, "label": label} if label else {"agents": ["alice"]}
        out.add(f"file: {name}", "allowlist file", "4.3", given, expect, note)

    case("mode 0600", {"type": "regular", "mode": "0600"})
    for mode in ("0400", "0640", "0604", "0620", "0644", "0666", "0700", "0777"):
        case(f"mode {mode}", {"type": "regular", "mode": mode}, "unsafe")
    case("absent", {"type": "absent"}, "absent")
    case("a symbolic link to a good file", {"type": "symlink"}, "unsafe")
    case("a directory", {"type": "directory", "mode": "0600"}, "unsafe")
    case("a FIFO", {"type": "fifo", "mode": "0600"}, "unsafe", "opening it must not block")
    case("over 1 MiB", {"type": "regular", "mode": "0600", "pad_to": 1_048_577}, "unsafe", "padded with spaces")


# --- handshakes.json --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """Everything a hub looks at for one hello. The default is admitted; each vector changes one thing of it."""

    agent_id: str = "acme/eng/alice"
    hub_id: str = HUB
    nonce: bytes = NONCE
    topics: Sequence[str] = ()
    claimed: str | None = None
    principal: str | None = None
    certified_hub: str = HUB
    certified_key: bytes | None = None
    not_before: str = stamp(NOON - 600)
    not_after: str = stamp(NOON + 3000)
    agent_seed: bytes | None = None
    delegate: bytes = seed("delegate")
    certificate: bytes | None = None
    signature: bytes | None = None
    key: bytes | None = None
    changes: Json = field(default_factory=dict)
    others: Sequence[Json] = ()
    list_changes: Json = field(default_factory=dict)
    enrolled: bool = True
    allowlist: str | None = "signed"
    now_ms: int = NOON * 1000

    def but(self, **changes: Any) -> Scene:
        return replace(self, **changes)

    def hello(self) -> bytes:
        key = self.key or public(self.delegate)
        certificate = self.certificate
        if certificate is None:
            fields = Certificate(
                principal=self.agent_id if self.principal is None else self.principal,
                scope="a2a-hub",
                delegate_key=self.certified_key or key,
                hub_id=self.certified_hub,
                not_before=self.not_before,
                not_after=self.not_after,
            )
            certificate = fields.signed(self.agent_seed or seed(self.agent_id))
        claimed = self.agent_id if self.claimed is None else self.claimed
        transcript = hello_transcript(self.hub_id, self.nonce, claimed, self.topics)
        signature = self.signature or sign(self.delegate, transcript)
        payload = key + signature + struct.pack(">H", len(certificate)) + certificate + topic_list(self.topics)
        return body(HELLO, claimed, "", payload)

    def jws(self) -> str | None:
        if self.allowlist != "signed":
            return self.allowlist
        prefixes = {"readable_prefixes": parents_of(self.agent_id)}
        own = [entry(self.agent_id, **prefixes | self.changes)] if self.enrolled else []
        return jws(compact(listing(*own, *self.others, **self.list_changes)), OWNER)

    def given(self, hello: bytes | None = None) -> Json:
        return {
            "hub_id": HUB,
            "nonce": NONCE.hex(),
            "body": (hello or self.hello()).hex(),
            "allowlist": self.jws(),
            "owner_public": public(OWNER).hex(),
            "now_ms": self.now_ms,
        }


def parents_of(agent_id: str) -> list[str]:
    parts = agent_id.split("/")
    return ["/".join(parts[:size]) for size in range(len(parts) - 1, 0, -1)][:3]


def handshakes() -> Collector:
    out = Collector("handshakes", "Whole hellos against a hub, its challenge and its allowlist")
    _admitted(out)
    _malformed_hellos(out)
    _identity_refusals(out)
    _signature_refusals(out)
    _order_of_identity_checks(out)
    return out


def _handshake(out: Collector, name: str, scene: Scene, code: int = 0, label: str = "", note: str = "") -> None:
    expect: Json = {"accepted": {"agent_id": scene.agent_id, "topics": list(scene.topics)}}
    if code:
        expect = {"code": code} | ({"label": label} if label else {})
    out.add(name, "handshake", "4.4", scene.given(), expect, note)


def _admitted(out: Collector) -> None:
    plain = Scene()
    own = "#_inbox/acme/eng/alice"
    cases = {
        "no topics": plain,
        "own inbox": plain.but(topics=[own]),
        "a namespace": plain.but(topics=["#acme/eng"]),
        "own inbox and namespaces": plain.but(topics=[own, "#acme", "#acme/eng", "#acme/eng/x"]),
        "eight topics": plain.but(topics=[f"#acme/{n}" for n in range(8)]),
        "the same topic twice": plain.but(topics=[own, own]),
        "an agent without a path": plain.but(agent_id="alice", topics=["#_inbox/alice"]),
        "an agent id of 128 bytes": plain.but(agent_id="a" * 128),
        "an agent id not only ASCII": plain.but(agent_id="\u65e5\u672c", topics=["#_inbox/\u65e5\u672c"]),
        "another agent beside it": plain.but(others=[entry("bob")]),
        "another key of its own revoked": plain.but(changes={"revoked_keys": [b64(public(seed("lost")))]}),
        "bound in the second of not_before": plain.but(changes={"bound_at": stamp(NOON - 600)}),
        "bound later in the second of not_before": plain.but(
            changes={"bound_at": stamp(NOON - 600).replace("Z", ".9Z")}
        ),
        "a window of 12 h": plain.but(not_before=stamp(NOON), not_after=stamp(NOON + 43_200)),
        "a window that begins in 30 s": plain.but(not_before=stamp(NOON + 30)),
        "a window in its last second": plain.but(not_after=stamp(NOON + 1), now_ms=NOON * 1000 + 999),
        "lineage_succession": plain.but(changes={"bind_authority": "lineage_succession"}),
        "guardian_recovery": plain.but(changes={"bind_authority": "guardian_recovery"}),
        "the publisher by daemon_key_dir": plain.but(
            agent_id="wakehub-publisher", changes={"bind_authority": "daemon_key_dir"}
        ),
        "the other producer by daemon_key_dir": plain.but(
            agent_id="wake-hub-producer", changes={"bind_authority": "daemon_key_dir"}
        ),
    }
    for name, scene in cases.items():
        _handshake(out, f"admitted: {name}", scene)


def _malformed_hellos(out: Collector) -> None:
    plain = Scene()
    good = plain.hello()
    payload = good[24 + len(plain.agent_id) :]

    def case(name: str, hello: bytes, code: int, label: str = "", note: str = "") -> None:
        expect: Json = {"code": code} | ({"label": label} if label else {})
        out.add(f"not a hello: {name}", "handshake", "5.4", plain.given(hello), expect, note)

    def again(data: bytes) -> bytes:
        return body(HELLO, plain.agent_id, "", data)

    case("an empty payload", again(b""), 400)
    case("no topic list", again(payload[:-1]), 400)
    case("a trailing byte", again(payload + b"\0"), 400)
    case("D of 391", again(payload[:96] + struct.pack(">H", 391) + bytes(391) + b"\0"), 400)
    case("nine topics", again(payload[:-1] + topic_list([f"#acme/{n}" for n in range(9)])), 400)
    case("a topic that is none", again(payload[:-1] + topic_list(["acme"])), 400)
    case("a challenge sent back", again(NONCE), 400)
    case("a frame with flags", good[:6] + b"\1" + good[7:], 400)
    case("a frame with a newline in from", body(HELLO, "acme\n", "", payload), 400)
    case("a payload over its ceiling", again(bytes(1025)), 413)
    note = "anything but a hello before authentication"
    case("a ping", body(PING, plain.agent_id), 401, note=note)
    case("a wake", body(WAKE, plain.agent_id, "bob", wake_payload("m_1")), 401, note=note)
    case("a subscribe", body(SUBSCRIBE, plain.agent_id, "", topic_list(["#acme"])), 401, note=note)
    case("a wake that is malformed inside", body(WAKE, plain.agent_id, "bob", b""), 401, note=note)


def _identity_refusals(out: Collector) -> None:
    plain = Scene()

    def case(name: str, label: str, note: str = "", **changes: Any) -> None:
        _handshake(out, f"refused: {name}", plain.but(**changes), 401, label, note)

    case("no from", "bad_id", "a well-formed hello", claimed="")
    case("no certificate", "bad_certificate", "a well-formed hello", certificate=b"")
    case("a certificate of 390 zeros", "bad_certificate", "a well-formed hello", certificate=bytes(390))
    case("a principal other than from", "principal_mismatch", principal="acme/eng/bob")
    case("a principal that only begins with from", "principal_mismatch", principal="acme/eng/alice2")
    case("a principal in another case", "principal_mismatch", principal="acme/eng/Alice")
    case("a certificate for another hub", "hub_mismatch", certified_hub="ai-memory-wake-hub")
    case("a certificate for another key", "key_mismatch", certified_key=public(seed("another delegate")))
    case("no allowlist", "allowlist_absent", allowlist=None)
    case("an allowlist that is not signed", "allowlist_unsigned", allowlist="{}")
    wrong = jws(compact(listing(entry("acme/eng/alice"))), seed("not the owner"))
    case("an allowlist signed by another key", "allowlist_bad_signature", allowlist=wrong)
    case("a stale allowlist", "allowlist_stale", list_changes={"refreshed_at": stamp(NOON - 60)})
    case("an allowlist of the future", "allowlist_future", list_changes={"refreshed_at": stamp(NOON + 31)})
    case("a malformed allowlist", "allowlist_malformed", list_changes={"version": 1})
    case("an agent that is not listed", "unknown_agent", enrolled=False, others=[entry("bob")])
    case("an empty allowlist", "unknown_agent", enrolled=False)
    case("an agent listed in another case", "unknown_agent", enrolled=False, others=[entry("acme/eng/ALICE")])
    case("a revoked delegate key", "revoked_key", changes={"revoked_keys": [b64(public(plain.delegate))]})
    case("bound in the second after not_before", "before_binding", changes={"bound_at": stamp(NOON - 599)})
    for topic in ("#_inbox/bob", "#_inbox/acme/eng/bob", "#ops", "#acmecorp", "#_agents", "#_inbox/acme"):
        case(f"topic {topic}", "topic", topics=[topic])
    case("one bad topic among good ones", "topic", topics=["#_inbox/acme/eng/alice", "#acme", "#ops"])
    case(
        "a substrate topic signed as a prefix",
        "topic",
        topics=["#_messages/x"],
        changes={"readable_prefixes": ["_messages"]},
    )
    case("a namespace without any prefix", "topic", topics=["#acme"], changes={"readable_prefixes": []})
    case("daemon_key_dir", "bind_authority", changes={"bind_authority": "daemon_key_dir"})
    case("an unknown bind_authority", "bind_authority", changes={"bind_authority": "handshake"})
    case("bind_authority in capitals", "bind_authority", changes={"bind_authority": "POSSESSION_PROOF"})
    case("a certificate signed by another agent", "certificate_signature", agent_seed=seed("bob"))
    case("a certificate signed by the delegate", "certificate_signature", agent_seed=plain.delegate)
    case("a certificate signed by the owner", "certificate_signature", agent_seed=OWNER)
    case("an agent with a new key", "certificate_signature", changes={"pubkey_b64": b64(public(seed("new")))})
    case("a window that ended now", "window_expired", not_after=stamp(NOON))
    case("a window that ended this second", "window_expired", not_after=stamp(NOON), now_ms=NOON * 1000 + 999)
    case("a window that begins in 31 s", "window_not_yet", not_before=stamp(NOON + 31))
    case("a window of 12 h and a second", "window_too_long", not_before=stamp(NOON), not_after=stamp(NOON + 43_201))
    case("a window that is backwards", "window_empty", not_before=stamp(NOON + 20), not_after=stamp(NOON + 10))


def _signature_refusals(out: Collector) -> None:
    plain = Scene()
    delegate, who = plain.delegate, plain.agent_id

    def case(name: str, signature: bytes, note: str = "", **changes: Any) -> None:
        _handshake(
            out, f"refused: {name}", plain.but(signature=signature, **changes), 401, "transcript_signature", note
        )

    def over(hub_id: str = HUB, nonce: bytes = NONCE, agent_id: str = who, topics: Sequence[str] = ()) -> bytes:
        return sign(delegate, hello_transcript(hub_id, nonce, agent_id, topics))

    right = over()
    case("signed over another nonce", over(nonce=seed("an older nonce")), "a hello replayed on another connection")
    case("signed over another hub's id", over(hub_id="ai-memory-wake-hub"))
    case("signed over another agent", over(agent_id="acme/eng/bob"))
    case("signed over no topics, sent with one", over(), topics=["#acme"])
    case("signed over one topic, sent with none", over(topics=["#acme"]))
    case("signed over another order of topics", over(topics=["#acme", "#acme/eng"]), topics=["#acme/eng", "#acme"])
    case("signed as a join", sign(delegate, membership_transcript("join", HUB, NONCE, who)))
    case("signed by the enrolled key", sign(seed(who), hello_transcript(HUB, NONCE, who, ())))
    case("signed by another delegate", sign(seed("another delegate"), hello_transcript(HUB, NONCE, who, ())))
    case("a signature of zeros", bytes(64))
    case("a signature with S + L", right[:32] + (int.from_bytes(right[32:], "little") + L).to_bytes(32, "little"))
    for name, key in (
        ("of order 1", encode_point(NEUTRAL)),
        ("of order 1, not canonical", (P + 1).to_bytes(32, "little")),
    ):
        forged = encode_point(times(7, BASE)) + (7).to_bytes(32, "little")
        assert careless_verify(key, hello_transcript(HUB, NONCE, who, ()), forged)
        case(f"a delegate key {name}", forged, "a careless verifier accepts this signature over anything", key=key)


def _order_of_identity_checks(out: Collector) -> None:
    """Two failures that follow each other in §4.4; the label is the one of the earlier."""
    plain = Scene()
    other = public(seed("another delegate"))
    steps: list[tuple[str, Json]] = [
        ("bad_id", {"claimed": ""}),
        ("bad_certificate", {"certificate": b"\x01"}),
        ("principal_mismatch", {"principal": "acme/eng/bob"}),
        ("hub_mismatch", {"certified_hub": "ai-memory-wake-hub"}),
        ("key_mismatch", {"certified_key": other}),
        ("allowlist_absent", {"allowlist": None}),
        ("unknown_agent", {"enrolled": False}),
        ("revoked_key", {"changes": {"revoked_keys": [b64(public(plain.delegate))]}}),
        ("before_binding", {"changes": {"bound_at": stamp(NOON - 599)}}),
        ("topic", {"topics": ["#ops"]}),
        ("bind_authority", {"changes": {"bind_authority": "handshake"}}),
        ("certificate_signature", {"agent_seed": seed("bob")}),
        ("window_expired", {"not_after": stamp(NOON - 1)}),
        ("transcript_signature", {"signature": bytes(64)}),
    ]
    for (first, one), (second, two) in pairwise(steps):
        merged = one | two | {"changes": one.get("changes", {}) | two.get("changes", {})}
        scene = plain.but(**merged)
        _handshake(out, f"two failures: {first} and {second}", scene, 401, first, "pins the order of §4.4")


# --- ed25519.json -----------------------------------------------------------------------------------------------------


def ed25519() -> Collector:
    out = Collector("ed25519", "Ed25519 signatures, strictly verified")
    _plain_signatures(out)
    _small_order_keys(out)
    _small_order_commitments(out)
    _large_scalars(out)
    return out


def _verify(
    out: Collector, name: str, key: bytes, message: bytes, signature: bytes, valid: bool, note: str = ""
) -> None:
    given = {"public": key.hex(), "message": message.hex(), "signature": signature.hex()}
    out.add(name, "ed25519", "3", given, {"valid": valid}, note)


RFC8032 = {
    "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60": (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
    ),
    "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb": (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
    ),
    "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7": (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
    ),
}


def _plain_signatures(out: Collector) -> None:
    for number, (secret_hex, (expected, message_hex)) in enumerate(RFC8032.items(), 1):
        secret, message = bytes.fromhex(secret_hex), bytes.fromhex(message_hex)
        assert public(secret).hex() == expected
        _verify(out, f"RFC 8032, test {number}", public(secret), message, sign(secret, message), True)
    secret, message = seed("signer"), b"wakehub"
    key, right = public(secret), sign(secret, message)
    _verify(out, "a message of 1,023 bytes", key, bytes(1023), sign(secret, bytes(1023)), True)
    _verify(out, "another message", key, b"wakehuc", right, False)
    _verify(out, "the message and a byte", key, message + b"\0", right, False)
    _verify(out, "another key", public(seed("another signer")), message, right, False)
    _verify(out, "R and S exchanged", key, message, right[32:] + right[:32], False)
    _verify(
        out,
        "S negated",
        key,
        message,
        right[:32] + (L - int.from_bytes(right[32:], "little")).to_bytes(32, "little"),
        False,
    )
    for bit in (0, 7, 254, 255, 256, 263, 507):
        flipped = (int.from_bytes(right, "little") ^ 1 << bit).to_bytes(64, "little")
        _verify(out, f"bit {bit} of the signature changed", key, message, flipped, False)
    sign_bit = bytes([*key[:31], key[31] ^ 0x80])
    _verify(out, "the sign bit of the key changed", sign_bit, message, right, False)
    _verify(out, "a signature of 64 zeros", key, message, bytes(64), False)
    for size in (0, 32, 63, 65):
        _verify(out, f"a signature of {size} bytes", key, message, (right + b"\0")[:size], False)
    for size in (0, 31, 33):
        _verify(out, f"a key of {size} bytes", (key + b"\0")[:size], message, right, False)
    off_curve = next(y for y in range(2, 99) if x_of(y, 0) is None)
    _verify(out, "a key that is no point", off_curve.to_bytes(32, "little"), message, right, False)
    _verify(out, "an R that is no point", key, message, off_curve.to_bytes(32, "little") + right[32:], False)


def _small_order_keys(out: Collector) -> None:
    """S·B = R + h·A holds for a key of order n whenever n divides h; the message is chosen so that it does."""
    commitment, scalar = encode_point(times(7, BASE)), (7).to_bytes(32, "little")
    for name, key in small_order_encodings():
        message = _message_that_forgives(commitment, key)
        assert careless_verify(key, message, commitment + scalar)
        note = "satisfies the equation; anybody could have made it"
        _verify(out, f"key of {name}", key, message, commitment + scalar, False, note)


def _message_that_forgives(commitment: bytes, key: bytes) -> bytes:
    for number in range(1000):
        message = b"message %d" % number
        if hash_int(commitment, key, message) % 8 == 0:
            return message
    raise AssertionError("no multiple of eight among a thousand hashes")


def _small_order_commitments(out: Collector) -> None:
    """R of small order, S = h·a: holds after multiplication by the cofactor, and for R of order 1 also without."""
    secret, message = seed("signer"), b"wakehub"
    key = public(secret)
    for name, commitment in small_order_encodings():
        scalar = hash_int(commitment, key, message) * secret_scalar(secret) % L
        signature = commitment + scalar.to_bytes(32, "little")
        assert careless_verify(key, message, signature)
        _verify(out, f"R of {name}", key, message, signature, False, "satisfies the cofactored equation")


def _large_scalars(out: Collector) -> None:
    secret, message = seed("signer"), b"wakehub"
    key, right = public(secret), sign(secret, message)
    scalar = int.from_bytes(right[32:], "little")
    for factor in (1, 2, 7, 8, 15):
        raised = scalar + factor * L
        if raised >= 2**256:
            continue
        signature = right[:32] + raised.to_bytes(32, "little")
        assert careless_verify(key, message, signature)
        _verify(out, f"S + {factor} L", key, message, signature, False, "the same scalar, not reduced")
    for name, value in {"S = L": L, "S = 2^253": 2**253, "S = 2^256 - 1": 2**256 - 1}.items():
        _verify(out, name, key, message, right[:32] + value.to_bytes(32, "little"), False)


# --- the program ------------------------------------------------------------------------------------------------------

FILES = (frames, payloads, topics, transcripts, certificates, handshakes, allowlists, ed25519)

REFERENCE_SIGNATURE = (
    "37d8476fa1b9fc6ae6fd6537d39abb4f99ae5b6b8635c9bb07789bf16b36b105"
    "becd146be627c88822bc3645377da65d4d74e072ea7584226377cf801ad8c508"
)


def assert_reference_values() -> None:
    """§8, so that a mistake in this file's own primitives cannot go into the vectors."""
    assert public(ROOT_SEED).hex() == "ed4928c628d1c2c6eae90338905995612959273a5c63f93636c14614ac8737d1"
    assert public(DELEGATE_SEED).hex() == "ca93ac1705187071d67b83c7ff0efe8108e8ec4530575d7726879333dbdabe7c"
    assert sign(ROOT_SEED, REFERENCE.signed_bytes()).hex() == REFERENCE_SIGNATURE
    expected = "9ea65efb082681b480d3bc98e35f41dacb8b3ba9d900cee034a9782ddf6d0ddb"
    assert topics_hash(["#hive", "#swarm"]).hex() == expected
    subscribe = body(SUBSCRIBE, "agent-sub", "", topic_list(["#hive", "#swarm"]))
    assert prefixed(subscribe).hex().startswith("0000002f41574831010500090000000e")


def differing(texts: Iterable[tuple[Path, str]]) -> list[Path]:
    return [path for path, text in texts if not path.is_file() or path.read_text(encoding="utf-8") != text]


def main(arguments: Sequence[str]) -> int:
    if set(arguments) - {"--check"}:
        print("usage: generate.py [--check]", file=sys.stderr)
        return 2
    assert_reference_values()
    collectors = [make() for make in FILES]
    texts = [(HERE / f"{collector.name}.json", collector.text()) for collector in collectors]
    if "--check" in arguments:
        wrong = differing(texts)
        for path in wrong:
            print(f"{path.name} is not what the generator makes; run python vectors/generate.py", file=sys.stderr)
        extra = sorted(set(HERE.glob("*.json")) - {path for path, _ in texts})
        for path in extra:
            print(f"{path.name} is made by no part of the generator; remove it", file=sys.stderr)
        if not wrong and not extra:
            count = sum(len(collector.vectors) for collector in collectors)
            print(f"{len(texts)} files with {count} vectors are what the generator makes")
        return 1 if wrong or extra else 0
    for path, text in texts:
        path.write_text(text, encoding="utf-8")
    for collector in collectors:
        print(f"{collector.name + '.json':20} {len(collector.vectors):4}")
    print(f"{'in all':20} {sum(len(collector.vectors) for collector in collectors):4}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
