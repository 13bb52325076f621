"""Cases of awh1.md §1: what a hub makes of bytes. They need no agent: what is well formed is answered by 401 before a
hello, what is not by 400 or 413, and either closes the connection."""

from wakehub.errors import ErrorCode
from wakehub.limits import (
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    MAX_ID_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_PING_BYTES,
    MAX_WAKE_PAYLOAD_BYTES,
    PREFIX_BYTES,
)
from wakehub.ops.conformance.case import Book
from wakehub.ops.conformance.lab import Lab
from wakehub.ops.conformance.outcome import Mismatch
from wakehub.ops.conformance.peer import body, prefixed
from wakehub.wire.frames import PAYLOAD_CEILING, PREFIX, Kind

BOOK = Book()
_X = b"x"


def _answered(lab: Lab, data: bytes, code: ErrorCode) -> str:
    """Send `data` on a connection of its own; one error must come, then the end. Gives its reason."""
    peer = lab.open()
    peer.send(data)
    return peer.expect_refusal(code)


def _frame_case(name: str, section: str, code: ErrorCode, *bodies: bytes) -> None:
    """Each of these bodies, alone on a connection, is answered by that code and the end."""

    @BOOK.case(name, section, f"{code.value}, and the end")
    def attempt(lab: Lab) -> None:
        for frame_body in bodies:
            _answered(lab, prefixed(frame_body), code)


# --- the length prefix ----------------------------------------------------------------------------------------


@BOOK.case("prefix-over-ceiling", "1", "413 from the four bytes alone, and the end")
def _over_ceiling(lab: Lab) -> None:
    _answered(lab, PREFIX.pack(MAX_FRAME_BYTES + 1), ErrorCode.TOO_LARGE)


@BOOK.case("prefix-largest", "1", "413 from the four bytes alone, and the end")
def _largest(lab: Lab) -> None:
    _answered(lab, b"\xff" * PREFIX_BYTES, ErrorCode.TOO_LARGE)


@BOOK.case("prefix-at-ceiling", "1", "a frame of 1304 B is read and judged: 401, and the end")
def _at_ceiling(lab: Lab) -> None:
    largest = body(Kind.JOIN, b"f" * MAX_ID_BYTES, b"t" * MAX_ID_BYTES, bytes(MAX_PAYLOAD_BYTES))
    _answered(lab, prefixed(largest), ErrorCode.UNAUTHORIZED)


@BOOK.case("prefix-over-ceiling-then-frame", "1", "one 413, and the end; nothing behind it is answered")
def _sticky(lab: Lab) -> None:
    _answered(lab, PREFIX.pack(MAX_FRAME_BYTES + 1) + prefixed(body(Kind.PING)) * 3, ErrorCode.TOO_LARGE)


@BOOK.case("frame-in-pieces", "1", "bytes that come one by one are one frame: 401, and the end")
def _in_pieces(lab: Lab) -> None:
    peer = lab.open()
    for byte in prefixed(body(Kind.PING)):
        peer.send(bytes((byte,)))
    peer.expect_refusal(ErrorCode.UNAUTHORIZED)


@BOOK.case("one-answer", "1", "one error for the first of several bad frames, and the end")
def _one_answer(lab: Lab) -> None:
    _answered(lab, prefixed(body(Kind.PING, magic=b"AWH2")) * 4, ErrorCode.MALFORMED)


@BOOK.case("end-at-boundary", "1", "the end, without an answer")
def _end_at_boundary(lab: Lab) -> None:
    peer = lab.open()
    peer.send_end()
    peer.expect_end()


@BOOK.case("end-inside-prefix", "1", "the end, without an answer")
def _end_inside_prefix(lab: Lab) -> None:
    peer = lab.open()
    peer.send(bytes(PREFIX_BYTES - 1))
    peer.send_end()
    peer.expect_end()


@BOOK.case("end-inside-frame", "1", "the end, without an answer")
def _end_inside_frame(lab: Lab) -> None:
    peer = lab.open()
    peer.send(prefixed(body(Kind.PING))[:-1])
    peer.send_end()
    peer.expect_end()


# --- the header, field by field -------------------------------------------------------------------------------

_MALFORMED, _TOO_LARGE, _UNAUTHORIZED = ErrorCode.MALFORMED, ErrorCode.TOO_LARGE, ErrorCode.UNAUTHORIZED

_frame_case("length-0", "1", _MALFORMED, b"")
_frame_case("length-23", "1", _MALFORMED, body(Kind.PING)[: HEADER_BYTES - 1])
_frame_case("bad-magic", "1", _MALFORMED, body(Kind.PING, magic=b"AWH2"), body(Kind.PING, magic=b"awh1"))
_frame_case("bad-version", "1", _MALFORMED, body(Kind.PING, version=0), body(Kind.PING, version=2))
_frame_case("unknown-kind", "1", _MALFORMED, *(body(kind) for kind in (0, 14, 255)))
_frame_case("reserved-kind", "1", _MALFORMED, *(body(kind) for kind in (11, 12, 13)))
_frame_case("flags", "1", _MALFORMED, body(Kind.PING, flags=1), body(Kind.PING, flags=0x80))
_frame_case("reserved-byte", "1", _MALFORMED, body(Kind.PING, reserved=1))
_frame_case("lengths-too-short", "1", _MALFORMED, body(Kind.PING, payload=bytes(8), payload_len=7))
_frame_case("lengths-too-long", "1", _MALFORMED, body(Kind.PING, payload=bytes(8), payload_len=9))

# --- payload ceilings (§2), judged by the header --------------------------------------------------------------

for _kind in (Kind.HELLO, Kind.WAKE, Kind.PING, Kind.ERROR):
    _ceiling = PAYLOAD_CEILING[_kind]
    _name = f"{_kind.name.lower()}-payload-over-{_ceiling}"
    _frame_case(_name, "2", _TOO_LARGE, body(_kind, payload=bytes(_ceiling + 1)))
_frame_case(
    "other-payloads-over-ceiling",
    "2",
    _TOO_LARGE,
    *(
        body(kind, payload=bytes(PAYLOAD_CEILING[kind] + 1))
        for kind in (Kind.WELCOME, Kind.JOIN, Kind.DEPART, Kind.SUBSCRIBE, Kind.UNSUBSCRIBE, Kind.PONG)
    ),
)
_frame_case(
    "payload-at-ceiling",
    "2",
    _UNAUTHORIZED,
    body(Kind.WAKE, payload=bytes(MAX_WAKE_PAYLOAD_BYTES)),
    body(Kind.PING, payload=bytes(MAX_PING_BYTES)),
    body(Kind.SUBSCRIBE, payload=bytes(MAX_PAYLOAD_BYTES)),
)

# --- from and to ----------------------------------------------------------------------------------------------

_NOT_UTF8 = (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc3")
_CONTROL = ("\0", "\n", "\x1f", "\x7f", "\x80", "\x85", "\x9f")

_frame_case("from-not-utf8", "1", _MALFORMED, *(body(Kind.PING, _X + bad) for bad in _NOT_UTF8))
_frame_case("to-not-utf8", "1", _MALFORMED, *(body(Kind.WAKE, _X, _X + bad) for bad in _NOT_UTF8))
_frame_case("from-over-128", "1", _MALFORMED, body(Kind.PING, _X * 129), body(Kind.HELLO, _X * 129))
_frame_case("to-over-128", "1", _MALFORMED, body(Kind.WAKE, _X, _X * 129))
_frame_case("from-empty", "1", _MALFORMED, body(Kind.PING, b""), body(Kind.WAKE, b"", _X))
_frame_case("from-control", "1", _MALFORMED, *(body(Kind.PING, f"x{bad}".encode()) for bad in _CONTROL))
_frame_case("to-control", "1", _MALFORMED, *(body(Kind.WAKE, _X, f"x{bad}".encode()) for bad in _CONTROL))
_frame_case(
    "format-characters-are-no-control",
    "1",
    _UNAUTHORIZED,
    *(body(Kind.WAKE, f"x{good}".encode(), f"y{good}".encode()) for good in ("\u200e", "\u2028", "\xa0", "\xad")),
)
_frame_case("ids-of-128", "1", _UNAUTHORIZED, body(Kind.WAKE, _X * 128, "é".encode() * 64))

# --- two faults: the order decides ----------------------------------------------------------------------------

_LONG_WAKE = bytes(MAX_WAKE_PAYLOAD_BYTES + 1)

_frame_case("order-prefix-before-all", "1", _TOO_LARGE, bytes(MAX_FRAME_BYTES + 1))
_frame_case("order-kind-before-ceiling", "1", _MALFORMED, body(11, payload=bytes(MAX_PAYLOAD_BYTES + 1)))
_frame_case("order-flags-before-ceiling", "1", _MALFORMED, body(Kind.WAKE, flags=1, payload=_LONG_WAKE))
_frame_case("order-reserved-before-ceiling", "1", _MALFORMED, body(Kind.WAKE, reserved=1, payload=_LONG_WAKE))
_frame_case(
    "order-lengths-before-ceiling",
    "1",
    _MALFORMED,
    body(Kind.WAKE, payload=_LONG_WAKE, payload_len=len(_LONG_WAKE) + 1),
)
_frame_case("order-ceiling-before-from", "1", _TOO_LARGE, body(Kind.WAKE, b"\xff", payload=_LONG_WAKE))
_frame_case("order-ceiling-before-to", "1", _TOO_LARGE, body(Kind.WAKE, _X, b"\n", payload=_LONG_WAKE))
_frame_case("order-decoding-before-401", "5.4", _MALFORMED, body(Kind.PING, b"\xff"), body(Kind.WAKE, _X, b"\n"))


# --- (ours): a person can read what was wrong -----------------------------------------------------------------


@BOOK.case("reason-bad-magic", "1", "the reason says: bad magic", ours=True)
def _reason_magic(lab: Lab) -> None:
    _told(lab, body(Kind.PING, magic=b"AWH2"), _MALFORMED, "bad magic")


@BOOK.case("reason-reserved-kind", "1", "the reason names the kind that was removed", ours=True)
def _reason_reserved(lab: Lab) -> None:
    for kind, name in ((11, "request"), (12, "reply"), (13, "notify")):
        _told(lab, body(kind), _MALFORMED, f"reserved kind {kind} ({name}) carries a body and was removed in v1")


@BOOK.case("reason-ceiling", "1", "the reason gives size and ceiling", ours=True)
def _reason_ceiling(lab: Lab) -> None:
    _told(lab, body(Kind.WAKE, payload=bytes(300)), _TOO_LARGE, "wake payload 300 B exceeds 256 B")


@BOOK.case("reason-order", "1", "of two defects the reason names the one that comes first", ours=True)
def _reason_order(lab: Lab) -> None:
    """Each defect alone gives its reason; together with the next one it gives the same."""
    first_of = (
        (body(Kind.PING, version=2), body(0, version=2)),
        (body(0), body(0, flags=1)),
        (body(Kind.PING, flags=1), body(Kind.PING, flags=1, payload=_X, payload_len=0)),
        (body(Kind.PING, b"\xff"), body(Kind.PING, b"\xff", b"\xff")),
        (body(Kind.PING, b"\n"), body(Kind.PING, b"\n", _X * 129)),
    )
    for alone, together in first_of:
        expected = _answered(lab, prefixed(alone), _MALFORMED)
        _told(lab, together, _MALFORMED, expected)


def _told(lab: Lab, frame_body: bytes, code: ErrorCode, expected: str) -> None:
    reason = _answered(lab, prefixed(frame_body), code)
    if reason != expected:
        raise Mismatch(f"error {code.value} {reason!r}, not {expected!r}")
