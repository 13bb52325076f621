"""Each failure is told apart and ends in what to do next."""

import errno
import os
from pathlib import Path

import pytest

from wakehub.client.failures import Failure, from_answer, from_os_error
from wakehub.errors import ErrorCode, Exit
from wakehub.wire.payloads import Error

SOCKET = Path("/run/user/1000/wakehub/hub.sock")


@pytest.mark.parametrize(
    ("number", "failure"),
    [
        (errno.ENOENT, Failure.ABSENT),
        (errno.ENOTDIR, Failure.ABSENT),
        (errno.ECONNREFUSED, Failure.REFUSED),
        (errno.EPERM, Failure.DENIED),
        (errno.EACCES, Failure.DENIED),
        (errno.ECONNRESET, Failure.LOST),
        (errno.EPIPE, Failure.LOST),
        (None, Failure.LOST),
    ],
)
def test_an_os_error_becomes_its_failure(number: int | None, failure: Failure) -> None:
    error = OSError("AF_UNIX path too long") if number is None else OSError(number, os.strerror(number))
    found = from_os_error(error, SOCKET)
    assert found.failure is failure
    assert found.exit is (Exit.PERMISSION if failure is Failure.DENIED else Exit.UNAVAILABLE)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES])
def test_a_sandbox_is_never_reported_as_not_running(number: int) -> None:
    found = from_os_error(OSError(number, os.strerror(number)), SOCKET)
    assert "sandbox" in found.why
    assert str(SOCKET) in found.what
    assert str(SOCKET) in found.remedy
    assert "running" not in str(found)


def test_a_path_is_shown_safely() -> None:
    found = from_os_error(OSError(errno.ENOENT, "no"), Path("/tmp/\x1b[2J/hub.sock"))
    assert "\x1b" not in str(found)


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        (401, Failure.UNAUTHORIZED),
        (409, Failure.REPLACED),
        (507, Failure.CEILING),
        (400, Failure.VIOLATION),
        (413, Failure.VIOLATION),
        (599, Failure.VIOLATION),
    ],
)
def test_an_answer_becomes_its_failure_and_shows_code_and_reason_safely(code: int, failure: Failure) -> None:
    found = from_answer(Error(code, "why\x1b]0;x\x07"))
    assert found.failure is failure
    assert str(code) in found.why
    assert "\x1b" not in str(found)


def test_a_full_hub_names_the_setting() -> None:
    assert "max_connections" in from_answer(Error(ErrorCode.OVERFLOW, "full")).remedy
