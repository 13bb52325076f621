"""What `doctor` tells: a line for each check, and all of them together, for people and for programs."""

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from wakehub import __version__
from wakehub.errors import Exit, WakehubError
from wakehub.ops.round_trip import Trip
from wakehub.visible import visible

Mark = Literal["ok", "warning", "critical"]
Basis = Literal["measured", "configured"]
JSON_KEYS: Final = ("healthy", "version", "round_trip", "checks")
LINE_KEYS: Final = ("check", "mark", "detail", "remedy", "basis")
_MARKS: Final[dict[Mark, str]] = {"ok": "✓", "warning": "!", "critical": "✗"}


@dataclass(frozen=True, slots=True)
class Line:
    """What one check found, on what that rests, and what to do.

    `cause` is what other checks may run into as well, in words that are the same for all of them; it is not shown.
    """

    check: str
    mark: Mark
    detail: str
    remedy: str = ""
    basis: Basis = "measured"
    cause: str = ""

    def not_checked(self, why: str) -> "Line":
        """This check where something else keeps it from finding anything of its own."""
        return Line(self.check, "warning", f"not checked, {why}", "mend that first", "configured", self.cause)

    def to_json(self) -> dict[str, str]:
        """The line for programs: exactly `LINE_KEYS`."""
        return {key: getattr(self, key) for key in LINE_KEYS}

    def to_text(self, as_for: str = "") -> str:
        """The line for people; a remedy that the line `as_for` has told is not told again."""
        remedy = f"as for {as_for}" if as_for else self.remedy
        next_step = f" · next: {visible(remedy)}" if remedy else ""
        return f"{_MARKS[self.mark]} {self.check}: {visible(self.detail)} ({self.basis}){next_step}"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Every line, and the message that went around (None: there was no instance to send it in)."""

    lines: tuple[Line, ...]
    trip: Trip | None

    def exit(self, *, fail_on_warn: bool = False) -> Exit:
        bad = {"critical", "warning"} if fail_on_warn else {"critical"}
        return Exit.FAILED if any(line.mark in bad for line in self.lines) else Exit.DONE

    def to_json(self) -> dict[str, Any]:
        """The report for programs: exactly `JSON_KEYS`; milliseconds of legs are rounded to microseconds."""
        trip = asdict(self.trip) | {"arrived": self.trip.arrived} if self.trip else None
        if trip is not None:
            trip["legs"] = {leg: round(ms, 3) for leg, ms in trip["legs"].items()}
        return {
            "healthy": self.exit() is Exit.DONE,
            "version": __version__,
            "round_trip": trip,
            "checks": [line.to_json() for line in self.lines],
        }

    def to_text(self) -> str:
        """The report for people: a line for each check and one that sums up."""
        critical, warnings = (sum(line.mark == mark for line in self.lines) for mark in ("critical", "warning"))
        if critical or warnings:
            verdict = f"{_MARKS['critical' if critical else 'warning']} {critical} critical, {warnings} to look at"
        else:
            verdict = "✓ nothing found"
        told: dict[str, str] = {}
        texts = []
        for line in self.lines:
            first = told.setdefault(line.remedy, line.check)
            texts.append(
                line.to_text(first if line.remedy and first != line.check and line.basis == "measured" else "")
            )
        return "\n".join([*texts, verdict])


def from_error(check: str, error: WakehubError) -> Line:
    """The line of a check that `error` kept from looking, or that found it."""
    what = error.what + (f": {error.why}" if error.why else "")
    return Line(check, "critical", what, error.remedy, cause=what)
