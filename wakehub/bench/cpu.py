"""What a process costs: CPU time, memory, and the CPUs it may run on.

On Linux CPU time has nanoseconds (``schedstat`` of every thread), memory comes from ``smaps_rollup``. Elsewhere ``ps``
tells both, CPU time in hundredths of a second and no private memory, and nothing can be pinned: `can_pin` says so.
"""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wakehub.processes import asked

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_CENTISECOND_NS: Final = 10_000_000


@dataclass(frozen=True, slots=True)
class Memory:
    """KiB of a process: resident, and what it shares with nobody (None where the platform does not tell)."""

    rss_kib: int
    private_kib: int | None


def can_pin() -> bool:
    """Whether a process can be bound to a CPU here."""
    return sys.platform == "linux"


def usable() -> list[int]:
    """The CPUs that this process may use, by number; empty where that cannot be told."""
    return sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []


def confine(pid: int, cpus: Iterable[int]) -> None:
    """Bind every thread of process `pid` to `cpus`; nothing where `can_pin` is false."""
    if sys.platform != "linux":
        return
    chosen = set(cpus)
    for thread in _threads(pid):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(thread, chosen)


@contextlib.contextmanager
def begun_on(cpus: Iterable[int]) -> Iterator[None]:
    """Children that are started inside begin, and count their CPUs, on `cpus`; empty: wherever this process may be."""
    chosen = set(cpus)
    if sys.platform != "linux" or not chosen:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, chosen)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def cpu_ns(pid: int) -> int:
    """CPU time of process `pid` so far, all of its living threads together, in nanoseconds; 0 when it is gone."""
    if sys.platform != "linux":
        return parse_ps_time(asked("/bin/ps", "-o", "time=", "-p", str(pid)))
    return sum(map(_thread_ns, _threads(pid)))


def parse_ps_time(text: str) -> int:
    """Nanoseconds of ``[[days-]hours:]minutes:seconds[.hundredths]`` as ps writes it; 0 for anything else."""
    days, _, rest = text.strip().rpartition("-")
    try:
        seconds = 0.0
        for part in rest.split(":"):
            seconds = seconds * 60 + float(part)
        return round(seconds * 100 + (int(days) * 86_400_00 if days else 0)) * _CENTISECOND_NS
    except ValueError:
        return 0


def memory(pid: int) -> Memory:
    """Memory of process `pid` now; raises `ProcessLookupError` when it is gone."""
    if sys.platform != "linux":
        rss = asked("/bin/ps", "-o", "rss=", "-p", str(pid))
        if not rss.isdecimal():
            raise ProcessLookupError(f"no process {pid}")
        return Memory(int(rss), None)
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError as error:
        raise ProcessLookupError(f"no memory of process {pid} to be seen") from error
    return parse_smaps(text)


def parse_smaps(text: str) -> Memory:
    """Resident and private memory as ``smaps_rollup`` has them."""
    sizes = {
        name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in text.splitlines()[1:]) if rest
    }
    return Memory(sizes["Rss"], sizes["Private_Clean"] + sizes["Private_Dirty"])


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _thread_ns(thread: int) -> int:
    try:
        return int(Path(f"/proc/{thread}/schedstat").read_text().split()[0])
    except (ProcessLookupError, FileNotFoundError):
        pass
    try:  # a kernel without scheduler statistics: in ticks
        fields = Path(f"/proc/{thread}/stat").read_bytes().rpartition(b")")[2].split()
    except (ProcessLookupError, FileNotFoundError):
        return 0
    return (int(fields[11]) + int(fields[12])) * 1_000_000_000 // _TICKS
