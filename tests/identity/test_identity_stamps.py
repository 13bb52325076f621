"""awh1.md §4.2: stamps are RFC 3339, read strictly, and hold every nanosecond."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wakehub.identity import stamps

FIRST = -62_135_596_800  # 0001-01-01
LAST = 253_402_300_799  # 9999-12-31T23:59:59


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1969-12-31T23:59:59Z", -1_000_000_000),
        ("2026-09-03T11:00:00Z", 1_788_433_200_000_000_000),
        ("2026-09-03T11:00:00.5Z", 1_788_433_200_500_000_000),
        ("2026-09-03T11:00:00.000000001Z", 1_788_433_200_000_000_001),
        ("2026-09-03T11:00:00.123456789Z", 1_788_433_200_123_456_789),
        ("2026-09-03T13:30:00+02:30", 1_788_433_200_000_000_000),
        ("2026-09-03T06:00:00-05:00", 1_788_433_200_000_000_000),
        ("2026-09-03T11:00:00-00:00", 1_788_433_200_000_000_000),
        ("2026-09-03T13:00:00.25+02:00", 1_788_433_200_250_000_000),
        ("1969-12-31T23:59:59.25Z", -750_000_000),
        ("2024-02-29T00:00:00Z", 1_709_164_800_000_000_000),
        ("2026-09-03T11:00:00.123456+02:00", 1_788_426_000_123_456_000),
    ],
)
def test_what_is_a_stamp(text: str, nanoseconds: int) -> None:
    assert stamps.parse(text) == nanoseconds
    assert stamps.parse(text.encode()) == nanoseconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-09-03",
        "2026-09-03 11:00:00Z",
        "2026-09-03t11:00:00Z",
        "2026-09-03T11:00:00z",
        "2026-09-03T11:00:00",
        "2026-09-03T11:00Z",
        "2026-9-3T11:00:00Z",
        "2026-09-03T11:00:00.Z",
        "2026-09-03T11:00:00.1234567891Z",
        "2026-09-03T11:00:00,5Z",
        "2026-09-03T11:00:00+0200",
        "2026-09-03T11:00:00+02",
        "2026-09-03T11:00:00+24:00",
        "2026-09-03T11:00:00+02:60",
        "2026-09-03T11:00:00 Z",
        " 2026-09-03T11:00:00Z",
        "2026-09-03T11:00:00Z\n",
        "2026-13-03T11:00:00Z",
        "2026-02-29T11:00:00Z",
        "2026-09-31T11:00:00Z",
        "2026-09-03T24:00:00Z",
        "2026-09-03T11:60:00Z",
        "2016-12-31T23:59:60Z",
        "0000-01-01T00:00:00Z",
        "+2026-09-03T11:00:00Z",
        "2026-09-03T11:00:00.123456789+02:00",  # 35 bytes
        "２０２６-09-03T11:00:00Z",
        "2026-09-03T11:00:00ZZ",
    ],
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any ValueError is the contract
        stamps.parse(text)
    with pytest.raises(ValueError):  # noqa: PT011
        stamps.parse(text.encode())


@given(st.integers(FIRST, LAST))
def test_what_is_minted_is_read_back(seconds: int) -> None:
    text = stamps.mint(seconds)
    assert len(text) == 20
    assert stamps.parse(text) == seconds * stamps.NS
    assert stamps.mint(stamps.parse(text) // stamps.NS) == text


@given(st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)))
def test_agrees_with_the_standard_library(moment: datetime) -> None:
    text = f"{moment:%Y-%m-%dT%H:%M:%S.%f}Z"
    whole = int((moment.replace(microsecond=0) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())
    assert stamps.parse(text) == whole * stamps.NS + moment.microsecond * 1000


@given(st.text())
def test_never_fails_otherwise(text: str) -> None:
    try:
        stamps.parse(text)
    except ValueError:
        pass
