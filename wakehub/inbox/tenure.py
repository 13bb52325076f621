"""The rules of leases (receive.md §2; formats.md, Leases): which addresses a name covers, and how long a lease counts.

A name is an address (`acme/deploy`) or a namespace with its trailing slash (`acme/`), which covers every address under
it on whole segments. Apart from what leases are (`leases`), since a hook asks these as well (fault F86).
"""

from collections.abc import Collection

from wakehub.inbox.clock import Now
from wakehub.limits import LEASE_VOID_SECONDS, MAX_ID_BYTES
from wakehub.processes import ProcessId


def is_namespace(name: str) -> bool:
    """Whether `name` stands for everything under it."""
    return name.endswith("/")


def covers(name: str, address: str) -> bool:
    """Whether a lease on `name` covers `address`: it is that address, or a namespace above it."""
    return name == address or (is_namespace(name) and address.startswith(name))


def covering(address: str) -> list[str]:
    """Every name whose lease covers `address`, the most specific first: itself, then the namespaces above it."""
    above = [address[: at + 1] for at, character in enumerate(address[:-1]) if character == "/"]
    return [address, *reversed(above)]


def age_ms(boot: str, renewed_ms: int, renewed_mono_ms: int, now: Now) -> int:
    """Milliseconds since a renewal that a process of `boot` made, never negative.

    In the same boot the monotonic clock tells, so that setting the wall clock changes nothing.
    """
    age = now.mono_ms - renewed_mono_ms if boot == now.boot else now.ms - renewed_ms
    return max(0, age)


def is_live(process: ProcessId, renewed_ms: int, renewed_mono_ms: int, now: Now) -> bool:
    """Whether a lease of `process` counts at `now`: renewed within 300 s, and the process not provably dead."""
    age = age_ms(process.boot, renewed_ms, renewed_mono_ms, now)
    return age < LEASE_VOID_SECONDS * 1000 and not process.is_provably_dead()


def alternative(name: str, taken: Collection[str]) -> str | None:
    """A free name to offer instead of `name`: `alice-2`, `alice-3`, …; None for a namespace or an over-long name."""
    if is_namespace(name):
        return None
    number = 2
    while (offered := f"{name}-{number}") in taken:
        number += 1
    return offered if len(offered.encode()) <= MAX_ID_BYTES else None
