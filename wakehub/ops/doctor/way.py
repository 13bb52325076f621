"""The way of a message: does one arrive, and do the two daemons answer? (faults F47, F84)"""

from wakehub.ops.doctor.case import Case
from wakehub.ops.doctor.report import Line


def round_trip(case: Case) -> Line:
    trip = case.trip
    legs = " · ".join(f"{leg} {ms:.1f} ms" for leg, ms in trip.legs.items())
    if trip.arrived:
        return Line("round trip", "ok", f"a message arrived: {legs}")
    passed = f", after {legs}" if legs else ""
    if trip.stopped_at:
        detail = f"no message arrives: stopped at {trip.stopped_at}{passed}: {trip.why}"
        return Line("round trip", "critical", detail, trip.remedy, cause=trip.why)
    return Line("round trip", "warning", f"not measured: {trip.why}", trip.remedy, "configured", cause=trip.why)


def hub(case: Case) -> Line:
    found = case.hub
    if found.state != "answers":
        return Line("hub", "critical", f"{found.state}: {found.socket}: {found.why}", found.remedy)
    return Line("hub", "ok", f"{found.hub_id} answers at {found.socket} in {found.ms:.1f} ms")


def publisher(case: Case) -> Line:
    found = case.publisher
    if found.state != "answers":
        return Line("publisher", "critical", f"{found.state}: {found.socket}: {found.why}", found.remedy)
    return Line("publisher", "ok", f"answers at {found.socket} in {found.ms:.1f} ms")
