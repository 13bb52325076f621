"""The targets that take bytes apart: each allows the one declared error, and bytes that parse must serialise alike.

| target | may raise | then |
|---|---|---|
| reader | `Violation` 413, for good | whole, or in pieces: the same frames; ≤ one unfinished frame is kept |
| frame, hello, welcome, wake, error, topics | `Violation` 400 (frame: 413 too) | `encode(decode(x)) == x` |
| client | `Violation` | the events of whole and of pieces are the same |
| certificate, bundle | `ValueError` | the same bytes; the same bundle |
| stamp | `ValueError` | a stamp of whole seconds, minted, is the same time |
| allowlist, allowlist content | `ValueError` with a label | what was parsed can be signed and parsed again |
| verifier | nothing | an identity, or a denial; never another agent's identity |

"allowlist content" mutates what is inside the signature and signs it. The verifier gets hellos that are signed by
the very session key, so that mutation reaches the checks behind the signatures as well.
"""

from base64 import urlsafe_b64decode
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from fuzz_mutator import MAX_INPUT_BYTES
from fuzz_seeds import hexes, prefixed, texts, vectors
from fuzz_target import Target

from wakehub.errors import ErrorCode, Violation
from wakehub.identity import stamps
from wakehub.identity.allowlist import Allowlist, Entry, Refused, parse, sign
from wakehub.identity.delegation import Bundle, Certificate, mint
from wakehub.identity.keys import KeyPair, b64
from wakehub.identity.verifier import Claim, DelegationVerifier, Denied, Identity, window_fault
from wakehub.limits import MAX_FRAME_BYTES, MAX_WAKE_PAYLOAD_BYTES, PREFIX_BYTES
from wakehub.wire import transcript
from wakehub.wire.fields import decode_topics, encode_topics
from wakehub.wire.frames import Frame, Kind, decode, encode
from wakehub.wire.payloads import Error, Hello, Wake, Welcome
from wakehub.wire.protocol import ClientProtocol
from wakehub.wire.reader import FrameReader

NOW_S = 1_788_436_800.0
"""The time at which the vectors' certificates and allowlists are good."""

OWNER = KeyPair(bytes([9]) * 32)
_HEADER = b64(b'{"alg":"EdDSA"}')
_PIECES = (1, 2, 3, 5, 8, 1309)


# --- the stream and the frame ---------------------------------------------------------------------------------


def run_reader(data: bytes) -> str:
    whole, end = _delimit(data, len(data) or 1)
    pieces, end_of_pieces = _delimit(data, _PIECES[len(data) % len(_PIECES)])
    assert (whole, end) == (pieces, end_of_pieces), "pieces make other frames than the whole"
    assert data.startswith(b"".join(whole)), "the frames are not the bytes that came"
    return f"{'a frame, ' * min(len(whole), 3)}{end}"


def _delimit(data: bytes, size: int) -> tuple[list[bytes], str]:
    reader = FrameReader()
    frames: list[bytes] = []
    refused = False
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])
        try:
            while (raw := reader.next_frame()) is not None:
                assert not refused, "a frame behind a refused prefix"
                frames.append(raw)
        except Violation as violation:
            _allow(violation, ErrorCode.TOO_LARGE)
            refused = True
        kept = len(reader._data) - reader._at
        assert kept < PREFIX_BYTES + MAX_FRAME_BYTES, f"{kept} bytes are kept"
        assert not (refused and kept), "bytes behind a refused prefix are kept"
    return frames, "refused" if refused else "clean" if reader.at_boundary else "unfinished"


def run_frame(data: bytes) -> str:
    data = prefixed(data[PREFIX_BYTES:])  # as the reader delimits it
    try:
        frame = decode(data)
    except Violation as violation:
        _allow(violation, ErrorCode.MALFORMED, ErrorCode.TOO_LARGE)
        return violation.reason
    assert encode(frame) == data, "it is encoded to other bytes"
    return f"a {frame.kind.name}"


def repair_stream(data: bytes) -> bytes:
    """Each piece that begins as a frame does gets the length prefix that fits."""
    parts = data.split(b"AWH1")
    if len(parts) < 2:
        return data
    bodies = [b"AWH1" + part[:-PREFIX_BYTES] for part in parts[1:-1]] + [b"AWH1" + parts[-1]]
    return b"".join(map(prefixed, bodies))


def repair_frame(data: bytes) -> bytes:
    """Make prefix and payload length fit the bytes that are there."""
    if len(data) < PREFIX_BYTES + 24:
        return data
    length = len(data) - PREFIX_BYTES
    payload = max(0, length - 24 - data[11] - data[12]) & 0xFFFF
    return length.to_bytes(4, "big") + data[4:14] + payload.to_bytes(2, "big") + data[16:]


def run_client(data: bytes) -> str:
    whole, pieces = _converse(data, len(data) or 1), _converse(data, _PIECES[len(data) % len(_PIECES)])
    assert whole == pieces, "pieces make other events than the whole"
    return " ".join(type(event).__name__ for event in whole[0][-3:]) + whole[1]


def _converse(data: bytes, size: int) -> tuple[list[object], str]:
    client = ClientProtocol(b"alice")
    events: list[object] = []
    try:
        for at in range(0, len(data), size):
            events.extend(client.receive_data(data[at : at + size]))
    except Violation as violation:
        return events, violation.reason
    return events, ""


# --- payloads -------------------------------------------------------------------------------------------------


def run_payload(payload: type[Hello | Welcome | Wake | Error], data: bytes) -> str:
    return _both_ways(payload.decode, lambda found: found.encode(), data)


def run_topics(data: bytes) -> str:
    return _both_ways(decode_topics, encode_topics, data)


def _both_ways(read: Callable[[bytes], Any], write: Callable[[Any], bytes], data: bytes) -> str:
    try:
        found = read(data)
    except Violation as violation:
        _allow(violation, ErrorCode.MALFORMED)
        return violation.reason
    try:
        written = write(found)
    except Violation as violation:
        _allow(violation, ErrorCode.MALFORMED)
        written = b""
    # A payload beyond its ceiling never gets here: the header's checks refuse it. It need not be encoded.
    assert written == data or len(data) > MAX_WAKE_PAYLOAD_BYTES, "it is encoded to other bytes"
    return "ok" if written == data else "over its ceiling"


def _allow(violation: Violation, *codes: ErrorCode) -> None:
    if violation.code not in codes:
        raise AssertionError(f"{violation.code} must not come from here") from violation


# --- identity -------------------------------------------------------------------------------------------------


def run_certificate(data: bytes) -> str:
    try:
        found = Certificate.decode(data)
    except ValueError as error:
        return _kind_of(error)
    assert found.encode() == data, "it is encoded to other bytes"
    assert found.signed_bytes()[:1] == b"\x87"
    return window_fault(found.window(), NOW_S) or "ok"


def run_stamp(data: bytes) -> str:
    try:
        ns = stamps.parse(data)
    except ValueError as error:
        return _kind_of(error)
    if ns % stamps.NS == 0 and data.endswith(b"Z"):
        assert stamps.parse(stamps.mint(ns // stamps.NS)) == ns
    return "ok"


def run_bundle(data: bytes) -> str:
    try:
        found = Bundle.from_json(data)
    except ValueError as error:
        return _kind_of(error)
    assert Bundle.from_json(found.to_json()) == found
    return "ok"


def run_allowlist(data: bytes, owner: bytes) -> str:
    try:
        found = parse(data, owner)
    except Refused as refused:
        return f"{refused.label} {_kind_of(refused)}"
    whole = Allowlist(_cut(found.refreshed_at), found.valid_for_secs, found.agents)
    again = parse(sign(whole, OWNER), OWNER.public)
    assert again.refreshed_at == whole.refreshed_at
    assert again.agents.keys() == found.agents.keys()
    for name, entry in again.agents.items():
        was = found.agents[name]
        assert (entry.public, entry.prefixes, entry.revoked_keys) == (was.public, was.prefixes, was.revoked_keys)
        assert entry.bound_at == _cut(was.bound_at)
    return f"{'an agent, ' * min(len(found.agents), 3)}ok"


def run_content(data: bytes) -> str:
    signed = f"{_HEADER}.{b64(data)}".encode()
    return run_allowlist(signed + b"." + b64(OWNER.sign(signed)).encode(), OWNER.public)


def _cut(ns: int) -> int:
    return ns // stamps.NS * stamps.NS


def _kind_of(error: ValueError) -> str:
    """The first words of an error; what follows may quote the input."""
    if isinstance(error, UnicodeError):
        return type(error).__name__
    return f"{type(error).__name__} {' '.join(str(error).split()[:4])}"


def _bundle(agent_id: str, agent: KeyPair) -> Bundle:
    """The same bundle each time: its session key is not drawn."""
    delegate = KeyPair(bytes([4]) * 32)
    certificate = mint(agent_id, agent, delegate.public, "wakehub", NOW_S - 60, 3600)
    stamps_of = certificate.not_before, certificate.not_after
    return Bundle(agent_id, "wakehub", certificate.encode(), delegate, *stamps_of)


class _InMemory:
    """Stands where the allowlist file does, which has a target of its own."""

    def __init__(self, allowlist: Allowlist) -> None:
        self._allowlist = allowlist

    def current(self, now_s: float, mono_s: float) -> Allowlist:
        return self._allowlist


class VerifierTarget:
    """Hellos to a verifier whose allowlist has one agent. Half of them are signed anew by the session key, so that
    the checks behind the signature are reached as well.

    Nobody can forge a signature: what is admitted carries the one certificate that the agent signed.
    """

    def __init__(self) -> None:
        agent = KeyPair(bytes([3]) * 32)
        self._bundle = _bundle("team/alice", agent)
        bound_at = int(NOW_S - 120) * stamps.NS
        entry = Entry("team/alice", agent.public, "possession_proof", bound_at, frozenset(), ("team",))
        self._verifier = DelegationVerifier(
            "wakehub",
            _InMemory(Allowlist(int(NOW_S) * stamps.NS, 60, {"team/alice": entry})),  # type: ignore[arg-type]
        )
        self._nonce = bytes(range(32))

    def seeds(self) -> list[bytes]:
        topics = ((), (b"#_inbox/team/alice",), (b"#team", b"#team/x"), (b"#other",))
        own = [encode(Frame(Kind.HELLO, b"team/alice", payload=self._hello(listed).encode())) for listed in topics]
        return own + [prefixed(body) for body in hexes("handshake", "body")]

    def _hello(self, topics: tuple[bytes, ...]) -> Hello:
        delegate = self._bundle.delegate
        signed = transcript.hello(b"wakehub", self._nonce, b"team/alice", topics)
        return Hello(delegate.public, delegate.sign(signed), self._bundle.certificate, topics)

    def run(self, data: bytes) -> str:
        try:
            frame = decode(data)
            hello = Hello.decode(frame.payload)
        except Violation as violation:
            return violation.reason
        signature = hello.signature
        if sum(data) & 1 and len(frame.from_id) < 256:
            signed = transcript.hello(b"wakehub", self._nonce, frame.from_id, hello.topics)
            signature = self._bundle.delegate.sign(signed)
        claim = Claim(frame.from_id.decode(), hello.key, signature, hello.certificate, hello.topics, self._nonce)
        verdict = self._verifier.verify(claim, NOW_S)
        if isinstance(verdict, Denied):
            return verdict.label
        assert verdict == Identity("team/alice", self._bundle.delegate.public, self._bundle.certificate, ("team",))
        assert (claim.agent_id, claim.key) == (verdict.agent_id, verdict.key)
        assert self._verifier.revalidation(NOW_S)(verdict) == verdict
        return f"admitted{' with a topic' * len(hello.topics)}"


# --- all of them ----------------------------------------------------------------------------------------------


@cache
def parsers() -> tuple[Target, ...]:
    """Every target of this module. The cheap ones have the larger shares of a long run."""
    frames = [prefixed(body) for body in hexes("frame", "body")]
    own = [prefixed(body) for body in hexes("handshake", "body")]
    streams = [raw for raw in hexes("stream", "bytes") if len(raw) < MAX_INPUT_BYTES]
    verifier = VerifierTarget()
    bundle = _bundle("alice", KeyPair(bytes([3]) * 32))
    certificates = hexes("certificate", "certificate")
    signed = [text for text in texts("allowlist", "jws") if len(text) < MAX_INPUT_BYTES]
    owner = bytes.fromhex(vectors("allowlist")[0]["input"]["owner_public"])
    return (
        Target("reader", [*streams, *frames[:40], b"".join(frames[:6])], run_reader, repair_stream, share=6),
        Target("frame", frames + own, run_frame, repair_frame, share=12),
        Target("client", _hub_streams(frames), run_client, repair_stream, share=2),
        *(
            Target(kind.__name__.lower(), hexes(kind.__name__.lower(), "payload"), partial(run_payload, kind), share=8)
            for kind in (Hello, Welcome, Wake, Error)
        ),
        Target("topics", hexes("topic list", "payload"), run_topics, share=8),
        Target("certificate", certificates, run_certificate, share=8),
        Target("stamp", texts("stamp", "text"), run_stamp, share=6),
        Target("bundle", [bundle.to_json()], run_bundle),
        Target("allowlist", signed, partial(run_allowlist, owner=owner)),
        Target("allowlist content", [_payload_of(text) for text in signed if text.count(b".") == 2], run_content),
        Target("verifier", verifier.seeds(), verifier.run, repair_frame),
    )


def _hub_streams(frames: list[bytes]) -> list[bytes]:
    """What a hub may send: a challenge, a welcome, and then anything."""
    challenge = encode(Frame(Kind.HELLO, b"wakehub", payload=bytes(32)))
    welcome = encode(Frame(Kind.WELCOME, b"wakehub", b"alice", Welcome(1, 0, 0, False, 250, 750).encode()))
    return [challenge + welcome + b"".join(frames[at : at + 3]) for at in range(0, len(frames), 3)]


def _payload_of(jws: bytes) -> bytes:
    part = jws.split(b".")[1]
    return urlsafe_b64decode(part + b"=" * (-len(part) % 4))
