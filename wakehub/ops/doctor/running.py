"""The processes: which version, who starts them again, how near their limits they are (faults F59, F66)."""

from typing import Final

from wakehub import __version__
from wakehub.client import advice
from wakehub.client.supervisor import supervisor_of
from wakehub.errors import Unavailable
from wakehub.limits import NEARLY_FULL_PERCENT
from wakehub.ops import metrics
from wakehub.ops.doctor.case import Case
from wakehub.ops.doctor.report import Line, Mark
from wakehub.processes import open_files

_CONNECTIONS: Final = "wakehub_connections"
_CEILING: Final = "wakehub_connection_ceiling"


def versions(case: Case) -> Line:
    running = {what: holder.version or "unknown" for what, holder in case.daemons().items()}
    for sample in metrics.samples(case.metrics) if isinstance(case.metrics, str) else ():
        running["hub"] = sample.labels.get("version", running.get("hub", "unknown"))
    if not running:
        return Line("version", "ok", f"{__version__} is installed, nothing runs", basis="configured")
    other = [f"{what} runs {version}" for what, version in running.items() if version != __version__]
    if other:
        detail = f"{', '.join(other)}, but {__version__} is installed: restart needed"
        return Line("version", "warning", detail, _to_renew(case))
    return Line("version", "ok", f"{__version__} is installed and runs ({', '.join(running)})")


def supervision(case: Case) -> Line:
    """`up` itself is not asked who looks after it: it may be a person at a terminal."""
    running = {what: holder.pid for what, holder in case.daemons().items() if what != "up"}
    by = {what: supervisor_of(pid, case.paths) for what, pid in running.items()}
    if not by:
        return Line("supervisor", "warning", "nothing runs that could be started again").not_checked("see hub")
    detail = ", ".join(f"{what} (pid {running[what]}): {name or 'nobody'}" for what, name in by.items())
    if None in by.values():
        return Line("supervisor", "warning", f"{detail}; nobody starts it again when it dies", "wakehub guide operate")
    return Line("supervisor", "ok", detail)


def _to_renew(case: Case) -> str:
    """How what runs is started anew, `wakehub up` as a whole: it would stay what it is, with new children."""
    if (up := case.daemons().get("up")) is not None:
        return f"kill {up.pid}, then: wakehub up"
    alive = [daemon for daemon in (advice.HUB, advice.PUBLISHER) if daemon.holder(case.paths)]
    return "; ".join(advice.to_restart(case.paths, daemon) for daemon in alive)


def limits(case: Case) -> Line:
    if isinstance(case.metrics, Unavailable):
        line = Line("limits", "warning", f"{case.metrics.what}: {case.metrics.why}", case.metrics.remedy)
        return line if case.hub.state == "answers" else line.not_checked("see hub")
    counted = {sample.name: int(sample.value) for sample in metrics.samples(case.metrics)}
    if not {_CONNECTIONS, _CEILING} <= counted.keys():
        what = "the hub does not tell how many connections it has"
        return Line("limits", "warning", what, advice.to_restart(case.paths, advice.HUB))
    connections, ceiling = counted[_CONNECTIONS], counted[_CEILING]
    uses = [(connections, ceiling, "connections")]
    hub = case.daemons().get("hub")
    if hub is not None and (budget := open_files(hub.pid)) is not None:
        uses.append((*budget, "descriptors"))
    detail = ", ".join(f"{used} of {most} {what}" for used, most, what in uses)
    if any(used * 100 >= most * NEARLY_FULL_PERCENT for used, most, _ in uses):
        mark: Mark = "critical" if connections >= ceiling else "warning"
        return Line("limits", mark, f"nearly full: {detail}", "raise [hub] max_connections and LimitNOFILE=")
    if ceiling < case.config.limits.max_connections:
        detail += f", although {case.config.limits.max_connections} connections are configured"
        return Line("limits", "warning", detail, "raise the hub's limit of open files (LimitNOFILE=, ulimit -n)")
    return Line("limits", "ok", detail)
