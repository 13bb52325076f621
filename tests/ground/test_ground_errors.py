"""Codes, exit statuses, and what a user's error says (awh1.md §2; design.md)."""

import pytest

from wakehub import errors
from wakehub.errors import ErrorCode, Exit, Violation, WakehubError


def test_the_codes_of_the_wire() -> None:
    assert sorted(ErrorCode) == [400, 401, 403, 404, 409, 413, 429, 500, 507]
    assert {code for code in ErrorCode if code.ends_session} == {400, 401, 409, 413}


def test_the_exit_statuses() -> None:
    assert {name: status.value for name, status in Exit.__members__.items()} == {
        "DONE": 0,
        "FAILED": 1,
        "USAGE": 2,
        "UNREACHABLE": 2,
        "NOTHING": 3,
        "NOT_REACHED": 4,
        "SPOOLED": 5,
        "DATA": 65,
        "NO_RECIPIENT": 67,
        "UNAVAILABLE": 69,
        "CANNOT_CREATE": 73,
        "OUTPUT_GONE": 74,
        "HELD": 75,
        "PERMISSION": 77,
        "CONFIG": 78,
    }


def test_a_violation_carries_its_code_and_reason() -> None:
    violation = Violation(ErrorCode.TOO_LARGE, "frame exceeds 1304 B")
    assert (violation.code, violation.reason, str(violation)) == (
        413,
        "frame exceeds 1304 B",
        "413 frame exceeds 1304 B",
    )


def test_an_error_says_what_why_and_what_next() -> None:
    error = WakehubError("it broke", why="it was dropped", remedy="pick it up")
    assert str(error) == "it broke: it was dropped (next: pick it up)"
    assert (error.what, error.why, error.remedy, error.exit) == (
        "it broke",
        "it was dropped",
        "pick it up",
        Exit.FAILED,
    )
    assert str(WakehubError("it broke")) == "it broke"
    assert WakehubError("it broke", exit=Exit.DATA).exit is Exit.DATA
    assert WakehubError.exit is Exit.FAILED


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (errors.Unsafe, 77),
        (errors.Misconfigured, 78),
        (errors.Held, 75),
        (errors.CannotCreate, 73),
        (errors.BadData, 65),
        (errors.NoRecipient, 67),
        (errors.Unavailable, 69),
    ],
)
def test_each_kind_has_its_status(kind: type[WakehubError], status: int) -> None:
    assert kind("x").exit == status


def test_a_group_of_known_errors_is_its_first_one() -> None:
    first, second = WakehubError("first"), WakehubError("second")
    assert errors.only_known(BaseExceptionGroup("", [first, second])) is first
    assert errors.only_known(BaseExceptionGroup("", [BaseExceptionGroup("", [first]), second])) is first
    assert errors.only_known(BaseExceptionGroup("", [first, ValueError()])) is None
    assert errors.only_known(BaseExceptionGroup("", [first, BaseExceptionGroup("", [KeyboardInterrupt()])])) is None
