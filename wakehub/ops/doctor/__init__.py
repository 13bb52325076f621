"""`wakehub doctor`: what is wrong with this instance, and what to do about it (F9, F28, F65, F66, F68, F77, F84).

A line for each check: a mark, what was found, whether that was *measured* (seen to be so just now) or is only what is
*configured*, and one remedy. ✗ keeps messages from arriving or is unsafe, ! is worth a look. What could not be looked
at is never ✓. The first line is a message that really went around (`round_trip`).

What several checks run into is said once, by the first of them; the others say which one that is.

Apart from that message nothing is changed: no lock is tried, nothing is repaired or removed.

    report      a line, and all of them together
    case        what several checks ask for, looked at once
    way running places admission waiting     the checks, by subject
"""

from collections.abc import Callable
from typing import Final

from wakehub.client import advice
from wakehub.config import Config
from wakehub.errors import WakehubError
from wakehub.inbox.refusals import NoRecord
from wakehub.ops.doctor import admission, places, running, waiting, way
from wakehub.ops.doctor.case import Case
from wakehub.ops.doctor.report import Diagnosis, Line, from_error

CHECKS: Final[dict[str, Callable[[Case], Line]]] = {
    "round trip": way.round_trip,
    "hub": way.hub,
    "publisher": way.publisher,
    "version": running.versions,
    "supervisor": running.supervision,
    "limits": running.limits,
    "safety": places.safety,
    "sockets": places.sockets,
    "record": places.record,
    "admission": admission.admission,
    "delegations": admission.delegations,
    "overdue": waiting.overdue,
    "unheard": waiting.unheard,
    "leftovers": places.leftovers,
}


def examine(config: Config) -> Diagnosis:
    """Look at the instance that `config` describes, and send a message around; at most some 30 s."""
    case = Case(config)
    lines: list[Line] = []
    for name, look in CHECKS.items():
        line = _looked(name, look, case)
        first = next((other for other in lines if line.cause and other.cause == line.cause), None)
        lines.append(line if first is None else line.not_checked(f"see {first.check}"))
    return Diagnosis(tuple(lines), case.trip)


def unreadable(error: WakehubError) -> Diagnosis:
    """The diagnosis of an instance whose configuration cannot even be read."""
    return Diagnosis((from_error("configuration", error),), None)


def _looked(name: str, look: Callable[[Case], Line], case: Case) -> Line:
    """What `look` finds; what keeps it from looking is the finding."""
    try:
        return look(case)
    except NoRecord as error:
        if look is places.record:
            remedy = advice.to_start(case.paths, advice.PUBLISHER)
            return Line(name, "critical", error.what, remedy, cause=error.what)
        return Line(name, "ok", "there is no record yet, so nothing to be found in it")
    except WakehubError as error:
        return from_error(name, error)
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return Line(name, "critical", f"cannot be looked at: {what}", advice.SANDBOX, cause=what)
