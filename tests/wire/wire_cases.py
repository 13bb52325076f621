"""Well-formed AWH1 values to test with, and frames built by hand: nothing here uses the encoder under test.

Property tests are deterministic and assert no time: `BUDGET` is their settings.
"""

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from wakehub.errors import Violation
from wakehub.wire.frames import PAYLOAD_CEILING, Frame, Kind
from wakehub.wire.payloads import Error, Hello, Wake, Welcome

Given = TypeVar("Given")
Value = TypeVar("Value")

BUDGET = settings(deadline=None, derandomize=True, max_examples=200)

U8, U32, U64 = (1 << 8) - 1, (1 << 32) - 1, (1 << 64) - 1

# The reference values of awh1.md §8.
CHALLENGE = bytes.fromhex(
    "0000004a41574831010100120000002000000000000000000000000061692d6d656d6f72792d77616b652d687562"
    "0707070707070707070707070707070707070707070707070707070707070707"
)
UNAUTHORIZED = bytes.fromhex(
    "0000003841574831010a00120000000e00000000000000000000000061692d6d656d6f72792d77616b652d687562"
    "0191756e617574686f72697a6564"
)
SUBSCRIBE = bytes.fromhex(
    "0000002f41574831010500090000000e0000000000000000000000006167656e742d737562020523686976650623737761726d"
)


@contextmanager
def refused(reason: str, code: int = 400) -> Iterator[None]:
    """Expect the `Violation` with exactly this code and reason."""
    with pytest.raises(Violation) as caught:
        yield
    assert (caught.value.code, caught.value.reason) == (code, reason)


def parsed(decode: Callable[[Given], Value], data: Given) -> Value | None:
    """What comes of `data`; None when it is refused, and with nothing but a 400 or a 413."""
    try:
        return decode(data)
    except Violation as violation:
        fault = violation
    assert fault.code in (400, 413)
    assert fault.reason
    return None


@dataclass(frozen=True)
class Parts:
    """The fields of a frame as they lie on the wire, each of them free to be wrong."""

    magic: bytes = b"AWH1"
    version: int = 1
    kind: int = 7
    flags: int = 0
    reserved: int = 0
    from_id: bytes = b"alice"
    to_id: bytes = b"bob"
    payload: bytes = bytes(12)
    ts_ms: int = 0
    ttl_ms: int = 0
    behind: bytes = b""
    keep: int | None = None

    def but(self, **changes: object) -> "Parts":
        return replace(self, **changes)  # type: ignore[arg-type]

    @property
    def raw(self) -> bytes:
        """Prefix, header, ids, payload, `behind`; the body cut to `keep` bytes."""
        header = self.magic + bytes((self.version, self.kind, self.flags, len(self.from_id), len(self.to_id)))
        header += struct.pack(">BHQI", self.reserved, len(self.payload), self.ts_ms, self.ttl_ms)
        body = (header + self.from_id + self.to_id + self.payload + self.behind)[: self.keep]
        return struct.pack(">I", len(body)) + body


def _fits(most: int, least: int = 0) -> st.SearchStrategy[bytes]:
    letters = st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])
    return st.text(letters, max_size=most).map(str.encode).filter(lambda text: least <= len(text) <= most)


ids = _fits(128, 1) | st.sampled_from([b"a" * 128, "é".encode() * 64, b"#topic", b"bob"])
topics = _fits(63, 1).map(lambda name: b"#" + name)
topic_lists = st.lists(topics, max_size=8).map(tuple)


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    """Any frame that may be sent, whatever its payload means."""
    kind = draw(st.sampled_from(Kind))
    return Frame(
        kind,
        draw(ids | st.just(b"") if kind is Kind.HELLO else ids),
        draw(ids | st.just(b"")),
        draw(st.binary(max_size=PAYLOAD_CEILING[kind])),
        draw(st.integers(0, U64)),
        draw(st.integers(0, U32)),
    )


hellos = st.builds(
    Hello,
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=64, max_size=64),
    st.binary(max_size=390),
    topic_lists,
)
welcomes = st.builds(
    Welcome,
    st.integers(1, U32),
    st.integers(0, U64),
    st.integers(0, U32),
    st.booleans(),
    st.integers(0, U32),
    st.integers(0, U32),
)
_words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20).map(str.encode)
wakes = st.builds(
    Wake, _words, _words, _words, st.just(b"") | st.binary(min_size=32, max_size=32), st.integers(0, U64)
).filter(lambda wake: len(wake.row_id + wake.namespace + wake.sender) <= 200)
errors = st.builds(
    Error,
    st.integers(0, (1 << 16) - 1),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=63),
)


@st.composite
def mutated(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Bytes a few edits away from good ones; many of them still parse."""
    data = bytearray(draw(whole))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        match draw(st.sampled_from(("set", "insert", "delete"))):
            case "set" if data:
                data[at] = draw(st.integers(0, U8))
            case "insert":
                data.insert(at, draw(st.integers(0, U8)))
            case _:
                del data[at : at + 1]
    return bytes(data)


@st.composite
def chunked(draw: st.DrawFn, stream: bytes) -> list[bytes]:
    """`stream` cut into pieces anywhere, also into empty ones."""
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    return [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
