"""What can go wrong, and how it is said: wire codes, exit codes, and the one error a user sees.

Three kinds of trouble are never mixed. What a correct peer can cause is a *returned value*. A peer that breaks AWH1
raises `Violation`. A user, file or machine that is not as it must be raises `WakehubError`, which says what happened,
to which thing, why, and what to do next. Anything else is a bug.
"""

from enum import IntEnum


class ErrorCode(IntEnum):
    """The codes of an AWH1 error frame (awh1.md §2)."""

    MALFORMED = 400
    UNAUTHORIZED = 401
    FORBIDDEN = 403
    UNKNOWN = 404
    REPLACED = 409
    TOO_LARGE = 413
    RATE_LIMITED = 429
    INTERNAL = 500
    OVERFLOW = 507

    @property
    def ends_session(self) -> bool:
        """Whether the connection closes behind this code (awh1.md §2; 507 at the ceiling closes as well)."""
        return self in _ENDING


_ENDING = frozenset({ErrorCode.MALFORMED, ErrorCode.UNAUTHORIZED, ErrorCode.REPLACED, ErrorCode.TOO_LARGE})


class Exit(IntEnum):
    """The exit statuses of every command (design.md; 64 and above as in sysexits)."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 2
    NOTHING = 3
    NOT_REACHED = 4
    SPOOLED = 5
    DATA = 65
    NO_RECIPIENT = 67
    UNAVAILABLE = 69
    CANNOT_CREATE = 73
    OUTPUT_GONE = 74
    HELD = 75
    PERMISSION = 77
    CONFIG = 78


class Violation(Exception):
    """A peer broke AWH1; the code and the short reason are what it is told (awh1.md §1, §5.4)."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(f"{code.value} {reason}")
        self.code = code
        self.reason = reason


class WakehubError(Exception):
    """Something a person can put right.

    `what` names the thing and what happened to it, `why` the cause in words, `remedy` the next step. `str()` is the
    one-line form; `exit` is the status the command ends with.
    """

    exit: Exit = Exit.FAILED

    def __init__(self, what: str, *, why: str = "", remedy: str = "", exit: Exit | None = None) -> None:
        self.what = what
        self.why = why
        self.remedy = remedy
        if exit is not None:
            self.exit = exit
        super().__init__(what + (f": {why}" if why else "") + (f" (next: {remedy})" if remedy else ""))


class Unsafe(WakehubError):
    """A path, owner or mode that is not safe to use (awh1.md §6)."""

    exit = Exit.PERMISSION


class Misconfigured(WakehubError):
    """A limit, id or setting that cannot work (awh1.md §6)."""

    exit = Exit.CONFIG


class Held(WakehubError):
    """Another process holds the lock or the name (exit 75)."""

    exit = Exit.HELD


class CannotCreate(WakehubError):
    """A file, directory or socket cannot be made (exit 73)."""

    exit = Exit.CANNOT_CREATE


class BadData(WakehubError):
    """Input that is refused as it is: too large, not well formed (exit 65)."""

    exit = Exit.DATA


class NoRecipient(WakehubError):
    """The address is unknown or was closed (exit 67)."""

    exit = Exit.NO_RECIPIENT


class Unavailable(WakehubError):
    """A service that is needed does not answer (exit 69)."""

    exit = Exit.UNAVAILABLE


def only_known(group: BaseExceptionGroup[BaseException]) -> WakehubError | None:
    """The `WakehubError` that a task group ended with, the first of several; None when anything else is in it."""
    found: WakehubError | None = None
    for error in group.exceptions:
        known = only_known(error) if isinstance(error, BaseExceptionGroup) else error
        if not isinstance(known, WakehubError):
            return None
        found = found or known
    return found
