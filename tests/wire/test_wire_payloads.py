"""What each kind carries: layouts, refusals in words, and that encoder and decoder agree (awh1.md §2)."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_cases import BUDGET, U32, U64, errors, hellos, mutated, parsed, refused, wakes, welcomes

from wakehub.wire.fields import lp
from wakehub.wire.payloads import Error, Hello, Wake, Welcome

KEY, SIGNATURE = bytes(range(32)), bytes(range(100, 164))

# --- hello --------------------------------------------------------------------------------------------------------


def test_the_layout_of_a_hello() -> None:
    payload = KEY + SIGNATURE + b"\x00\x04cert" + b"\x01\x02#a"
    hello = Hello(KEY, SIGNATURE, b"cert", (b"#a",))
    assert hello.encode() == payload
    assert Hello.decode(payload) == hello


def test_the_smallest_hello_has_neither_certificate_nor_topics() -> None:
    payload = KEY + SIGNATURE + b"\x00\x00\x00"
    assert Hello(KEY, SIGNATURE, b"").encode() == payload
    assert Hello.decode(payload) == Hello(KEY, SIGNATURE, b"", ())


def test_the_largest_hello() -> None:
    hello = Hello(KEY, SIGNATURE, bytes(390), tuple(b"#%d" % number + b"x" * 62 for number in range(8)))
    assert len(hello.encode()) == 1009
    assert Hello.decode(hello.encode()) == hello


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "0 B is too short"),
        (KEY + SIGNATURE, "96 B is too short"),
        (KEY + SIGNATURE + b"\x00", "97 B is too short"),
        (KEY + SIGNATURE + b"\x00\x00", "topic list is empty"),
        (KEY + SIGNATURE + b"\x01\x87" + bytes(392), "certificate of 391 B exceeds 390 B"),
        (KEY + SIGNATURE + b"\xff\xff", "certificate of 65535 B exceeds 390 B"),
        (KEY + SIGNATURE + b"\x00\x05cert", "certificate is cut short"),
        (KEY + SIGNATURE + b"\x00\x04cert", "topic list is empty"),
        (KEY + SIGNATURE + b"\x00\x04cert\x01", "topic is missing"),
        (KEY + SIGNATURE + b"\x00\x04cert\x01\x02a#", "topic does not start with #"),
        (KEY + SIGNATURE + b"\x00\x04cert\x09" + b"\x02#a" * 9, "topic list of 9 exceeds 8"),
        (KEY + SIGNATURE + b"\x00\x04cert\x00!", "topic list has 1 trailing B"),
    ],
)
def test_malformed_hellos(payload: bytes, reason: str) -> None:
    with refused(reason):
        Hello.decode(payload)


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (Hello(KEY[1:], SIGNATURE, b""), "key or signature has a wrong length"),
        (Hello(KEY, SIGNATURE + b"x", b""), "key or signature has a wrong length"),
        (Hello(KEY, SIGNATURE, bytes(391)), "certificate of 391 B exceeds 390 B"),
        (Hello(KEY, SIGNATURE, bytes(70_000)), "certificate of 70000 B exceeds 390 B"),
        (Hello(KEY, SIGNATURE, b"", (b"#",)), "topic of 1 B is not within 2..64 B"),
        (Hello(KEY, SIGNATURE, b"", (b"#a",) * 9), "topic list of 9 exceeds 8"),
    ],
)
def test_hellos_that_are_not_sent(hello: Hello, reason: str) -> None:
    with refused(reason):
        hello.encode()


# --- welcome ------------------------------------------------------------------------------------------------------


def test_the_layout_of_a_welcome() -> None:
    payload = bytes.fromhex("00000007 0000000000000009 00000003 01 000000fa 000002ee")
    welcome = Welcome(7, 9, 3, True, 250, 750)
    assert welcome.encode() == payload
    assert len(payload) == 25
    assert Welcome.decode(payload) == welcome


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (bytes(24), "welcome of 24 B is not 25 B"),
        (bytes(26), "welcome of 26 B is not 25 B"),
        (bytes(25), "welcome's session is 0"),
        (b"\0\0\0\x01" + bytes(12) + b"\x02" + bytes(8), "welcome's lagged is neither 0 nor 1"),
    ],
)
def test_malformed_welcomes(payload: bytes, reason: str) -> None:
    with refused(reason):
        Welcome.decode(payload)


FULL = {"session": U32, "pending_count": U64, "pending_ids": U32, "reconnect_base_ms": U32, "reconnect_jitter_ms": U32}


def test_the_largest_welcome() -> None:
    welcome = Welcome(lagged=True, **FULL)
    assert Welcome.decode(welcome.encode()) == welcome


@pytest.mark.parametrize("field", FULL)
@pytest.mark.parametrize("too_far", [1, -1])
def test_welcomes_that_are_not_sent(field: str, too_far: int) -> None:
    value = FULL[field] + 1 if too_far > 0 else -1
    values: dict[str, Any] = {**FULL, field: value}
    with refused(f"welcome's {field} {value} is not within {int(field == 'session')}..{FULL[field]}"):
        Welcome(lagged=False, **values).encode()


def test_a_welcome_to_session_0_is_not_sent() -> None:
    with refused(f"welcome's session 0 is not within 1..{U32}"):
        Welcome(0, 0, 0, False, 0, 0).encode()


# --- wake ---------------------------------------------------------------------------------------------------------

DIGEST = bytes(range(32))


def test_the_layout_of_a_wake() -> None:
    payload = b"\x03m_1" + b"\x0a_inbox/bob" + b"\x05alice" + b"\x20" + DIGEST + b"\0\0\0\0\0\0\x01\x02"
    wake = Wake(b"m_1", b"_inbox/bob", b"alice", DIGEST, 258)
    assert wake.encode() == payload
    assert Wake.decode(payload) == wake


def test_the_smallest_wake() -> None:
    assert Wake(b"").encode() == bytes(12)
    assert Wake.decode(bytes(12)) == Wake(b"")


@pytest.mark.parametrize("wake", [Wake(b"x" * 244), Wake(b"", b"x" * 244), Wake(b"", b"", b"x" * 212, DIGEST, U64)])
def test_the_largest_wake(wake: Wake) -> None:
    assert len(wake.encode()) == 256
    assert Wake.decode(wake.encode()) == wake


def test_the_strings_of_a_wake_may_hold_any_character() -> None:
    wake = Wake("\x00\u202e".encode(), b"\n", "\x85é".encode())
    assert Wake.decode(wake.encode()) == wake


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "wake's row id is missing"),
        (b"\x04m_1", "wake's row id is cut short"),
        (b"\x03m_1", "wake's namespace is missing"),
        (b"\0\x01", "wake's namespace is cut short"),
        (b"\0\0", "wake's sender is missing"),
        (b"\0\0\x01", "wake's sender is cut short"),
        (b"\0\0\0", "wake's digest is missing"),
        (b"\0\0\0\x20" + bytes(31), "wake's digest is cut short"),
        (b"\0\0\0\0", "wake does not end in an 8 B watermark"),
        (bytes(11), "wake does not end in an 8 B watermark"),
        (bytes(13), "wake does not end in an 8 B watermark"),
        (b"\0\0\0\x01" + bytes(9), "wake's digest of 1 B is neither 0 nor 32 B"),
        (b"\0\0\0\x1f" + bytes(39), "wake's digest of 31 B is neither 0 nor 32 B"),
        (b"\0\0\0\x21" + bytes(41), "wake's digest of 33 B is neither 0 nor 32 B"),
        (b"\x01\xff\0\0\0" + bytes(8), "wake's row id is not UTF-8"),
        (b"\0\x01\xff\0\0" + bytes(8), "wake's namespace is not UTF-8"),
        (b"\0\0\x01\xff\0" + bytes(8), "wake's sender is not UTF-8"),
    ],
)
def test_malformed_wakes(payload: bytes, reason: str) -> None:
    with refused(reason):
        Wake.decode(payload)


@pytest.mark.parametrize(
    ("wake", "reason"),
    [
        (Wake(b"x" * 245), "wake payload 257 B exceeds 256 B"),
        (Wake(b"x" * 256), "wake payload 268 B exceeds 256 B"),
        (Wake(b"", b"", b"x" * 5000), "wake payload 5012 B exceeds 256 B"),
        (Wake(b"x" * 100, b"y" * 100, b"z" * 45), "wake payload 257 B exceeds 256 B"),
        (Wake(b"m", digest=b"x"), "wake's digest of 1 B is neither 0 nor 32 B"),
        (Wake(b"\xff"), "wake's row id is not UTF-8"),
        (Wake(b"m", b"\xff"), "wake's namespace is not UTF-8"),
        (Wake(b"m", b"", b"\xff"), "wake's sender is not UTF-8"),
        (Wake(b"m", watermark=-1), f"wake's watermark -1 is not within 0..{U64}"),
        (Wake(b"m", watermark=U64 + 1), f"wake's watermark {U64 + 1} is not within 0..{U64}"),
    ],
)
def test_wakes_that_are_not_sent(wake: Wake, reason: str) -> None:
    with refused(reason):
        wake.encode()


# --- error --------------------------------------------------------------------------------------------------------


def test_the_layout_of_an_error() -> None:
    assert Error(401, "unauthorized").encode() == b"\x01\x91unauthorized"
    assert Error.decode(b"\x01\x91unauthorized") == Error(401, "unauthorized")


def test_a_code_that_nobody_knows_is_still_an_error() -> None:
    assert Error.decode(b"\xff\xffnew") == Error(65_535, "new")


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "error without a code"),
        (b"\x01", "error without a code"),
        (b"\x01\x91\xff", "error's reason is not UTF-8"),
    ],
)
def test_malformed_errors(payload: bytes, reason: str) -> None:
    with refused(reason):
        Error.decode(payload)


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        ("x" * 254, 254),
        ("x" * 255, 254),
        ("x" * 9000, 254),
        ("é" * 127, 127),
        ("é" * 128, 127),
        ("x" + "é" * 127, 127),  # the last é would end in byte 255
        ("xx" + "😀" * 63, 65),
        ("xxx" + "😀" * 63, 65),
    ],
)
def test_a_long_reason_is_cut_between_characters(reason: str, kept: int) -> None:
    payload = Error(400, reason).encode()
    assert len(payload) <= 256
    assert Error.decode(payload) == Error(400, reason[:kept])


@pytest.mark.parametrize("code", [-1, 65_536])
def test_a_code_that_its_field_cannot_hold(code: int) -> None:
    with refused(f"error's code {code} is not within 0..65535"):
        Error(code, "").encode()


# --- one value, one encoding --------------------------------------------------------------------------------------

PAYLOADS = {Hello: hellos, Welcome: welcomes, Wake: wakes, Error: errors}


@pytest.mark.parametrize("kind", PAYLOADS)
def test_a_payload_survives_the_wire(kind: Any) -> None:
    @BUDGET
    @given(PAYLOADS[kind])
    def survives(value: Any) -> None:
        assert kind.decode(value.encode()) == value

    survives()


@pytest.mark.parametrize("kind", PAYLOADS)
def test_a_payload_that_parses_has_no_other_spelling(kind: Any) -> None:
    ceiling = 1024 if kind is Hello else 256

    @BUDGET
    @given(mutated(PAYLOADS[kind].map(kind.encode)) | st.binary(max_size=ceiling))
    def has_no_other_spelling(payload: bytes) -> None:
        value = parsed(kind.decode, payload[:ceiling])
        assert value is None or value.encode() == payload[:ceiling]

    has_no_other_spelling()


@BUDGET
@given(st.text(max_size=300) | st.text(st.sampled_from("aé😀"), max_size=300))
def test_a_reason_is_cut_and_never_changed(reason: str) -> None:
    cut = Error.decode(Error(400, reason).encode()).reason
    assert reason.startswith(cut)
    assert cut == reason or len(reason[: len(cut) + 1].encode()) > 254


def test_the_length_prefixes_of_a_wake_are_bytes() -> None:
    """An id of 128..244 bytes is well formed, also where a signed byte would be negative."""
    payload = lp(b"x" * 200) + bytes(3) + struct.pack(">Q", 1)
    assert Wake.decode(payload) == Wake(b"x" * 200, watermark=1)
