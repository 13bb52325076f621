"""What waits: rows that a listener leaves, and rows for whom nobody listens, as `status` judges them (F9, F28)."""

import os
import shlex
from collections.abc import Sequence

from wakehub.errors import Unsafe
from wakehub.limits import OVERDUE_SECONDS
from wakehub.ops.doctor.case import Case
from wakehub.ops.doctor.report import Line
from wakehub.ops.status import Box, ago
from wakehub.relay.backends.claude import directory, inbound


def overdue(case: Case) -> Line:
    """Rows that a live listener should have taken long ago, and sessions that are set to let them wait."""
    late = [box for box in case.boxes if box.trouble(case.now) == "overdue"]
    if not late:
        well = f"no message waits {OVERDUE_SECONDS // 60} min for a listener that is there"
        return _held_back() or _stuck(case) or Line("overdue", "ok", well)
    box = late[0]
    pid = box.presence.listener.process.pid if box.presence.listener else 0
    since = ago(case.now, box.waiting_ms or 0)
    detail = f"{box.unread} unread for {box.name} for {since}, although pid {pid} listens"
    remedy = f"see whether pid {pid} or its reader hangs: kill {pid}, then: {_listen(box)}"
    if box.stuck is not None:
        detail, remedy = f"{detail}: {box.stuck.detail}", f"wakehub why {box.stuck.id}"
    return Line("overdue", "critical", _and_more(detail, late), remedy)


def _stuck(case: Case) -> Line | None:
    """A row that a listener tries in vain, or keeps for an agent that is not there; None when there is none."""
    found = [(box, box.stuck) for box in case.boxes if box.stuck is not None]
    if not found:
        return None
    box, why = found[0]
    detail = _and_more(f"{box.unread} unread for {box.name}: {why.detail}", [box for box, _ in found])
    return Line("overdue", "warning", detail, f"wakehub why {why.id}")


def _held_back() -> Line | None:
    """A Claude Code session whose settings keep messages from it; None when there is none (receive.md §4, 8)."""
    try:
        _, found = inbound.look(directory(os.environ))
    except Unsafe as error:
        return Line("overdue", "warning", f"{error.what}: {error.why}", error.remedy)
    if not found:
        return None
    more = f"; {len(found) - 1} more such sessions" if len(found) > 1 else ""
    return Line("overdue", "warning", f"{found[0].detail}{more}", found[0].remedy, "configured")


def unheard(case: Case) -> Line:
    """Rows for names that nobody holds: a listener that died is an error, one that left is not."""
    dead = [box for box in case.boxes if box.trouble(case.now) == "dead_listener"]
    if dead:
        box, last = dead[0], dead[0].presence.last
        died = f"its listener, pid {last.pid}, died {ago(case.now, last.ended_ms)} ago" if last else "its listener died"
        detail = f"{box.unread} unread for {box.name}; {died}"
        return Line("unheard", "critical", _and_more(detail, dead), _listen(box))
    waiting = [box for box in case.boxes if box.waiting is not None and box.presence.listener is None]
    oldest = {box.name: box.waiting.oldest_ms for box in waiting if box.waiting is not None}
    late = [box for box in waiting if case.now.ms - oldest[box.name] > OVERDUE_SECONDS * 1000]
    if late:
        box = late[0]
        detail = f"{box.unread} unread for {box.name} for {ago(case.now, oldest[box.name])}, and nobody listens"
        return Line("unheard", "warning", _and_more(detail, late), _listen(box))
    count = sum(box.unread for box in waiting)
    detail = f"{count} message(s) wait, none of them long" if count else "no message waits"
    return Line("unheard", "ok", f"{detail} for a name that nobody holds")


def _listen(box: Box) -> str:
    return f"wakehub listen --as {shlex.quote(box.name)}"


def _and_more(detail: str, found: Sequence[Box]) -> str:
    return f"{detail}; {len(found) - 1} more such names" if len(found) > 1 else detail
