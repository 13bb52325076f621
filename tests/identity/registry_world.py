"""An instance with a registry, and ways to kill what is at work on it."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from wakehub.identity import enrolment, keys
from wakehub.identity.audit import AuditLog
from wakehub.paths import Paths

NOW = 1_790_000_000
HUB = "wakehub"


def events(places: Paths) -> list[str]:
    return [event.event for event in AuditLog(places.audit, keys.load_public(places.owner_pub)).verify()]


def enroll(places: Paths, name: str, now_s: float = NOW) -> enrolment.Change:
    return enrolment.enroll(places, name, HUB, now_s)


EFFECTS = ("mkdir", "open", "write", "fsync", "link", "unlink", "rename", "ftruncate", "fchmod")


def killed(act: Callable[[], object], at: int) -> bool:
    """Run `act` in a child that is killed in the middle of its `at`-th change to the disk; False when it has fewer."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
        return os.WIFSIGNALED(status)
    try:
        count = 0

        def interrupted(name: str, real: Callable[..., object]) -> Callable[..., object]:
            def effect(*args: object, **kwargs: object) -> object:
                nonlocal count
                count += 1
                if count == at:
                    if name == "write":
                        real(args[0], bytes(args[1])[: len(bytes(args[1])) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **kwargs)

            return effect

        for name in EFFECTS:
            setattr(os, name, interrupted(name, getattr(os, name)))
        act()
        os._exit(0)
    except BaseException:
        os._exit(1)


def homes(root: Path) -> Iterator[Paths]:
    for number in range(1, 1000):
        home = root / str(number)
        yield Paths(home / "run", home / "state", home / "keys", home / "config.toml")
