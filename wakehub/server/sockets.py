"""What the hub holds in the file system while it runs: two sockets, and the lock that lets it touch their paths.

The lock comes first and goes last, so that a successor finds either us or nothing. While we run, the paths are looked
at every now and then: what is no longer our socket is bound anew, if the lock still is ours (awh1.md §6).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from wakehub import files, sockets
from wakehub.config import Config
from wakehub.errors import CannotCreate, Held, Misconfigured, WakehubError
from wakehub.locks import Lock
from wakehub.server.listener import Listener, Place, passed_listeners
from wakehub.visible import visible


@dataclass(slots=True)
class Sockets:
    """What the hub listens on, and the lock."""

    hub: Listener
    stats: Listener
    lock: Lock

    @classmethod
    def open(cls, config: Config, environ: Mapping[str, str]) -> Self:
        """Take the lock, then the sockets: those that a supervisor passed (`environ`), the others bound by ourselves.

        Raises `Held` (75), `Unsafe` (77), `Misconfigured` (78) or `CannotCreate` (73), and then holds nothing.
        """
        for path in (config.hub_socket, config.stats_socket):
            sockets.check_directory(path.parent)
        if config.hub_socket == config.stats_socket:
            raise Misconfigured(
                f"{visible(str(config.hub_socket))} is both hub socket and stats socket", remedy="set them apart"
            )
        files.private_directory(config.paths.state)
        lock = Lock.acquire(config.paths.lock("hub"), what="a hub")
        taken: list[Listener] = []
        try:
            passed = passed_listeners(environ)
            taken += passed.values()
            _check_expected(passed, config)
            for path in (config.hub_socket, config.stats_socket):
                if path in passed:
                    continue
                sockets.refuse_live(path, what="a hub")
                passed[path] = Listener.bind(path)
                taken.append(passed[path])
        except BaseException:
            for listener in taken:
                listener.withdraw()
            lock.release()
            raise
        return cls(passed[config.hub_socket], passed[config.stats_socket], lock)

    def mend(self) -> dict[Listener, Place]:
        """Bind anew where a path no longer is our socket; returns such listeners, and what was found in their place.

        Raises `Held` (75) when another hub holds the lock by now, `CannotCreate` (73) when something that is no socket
        is in the way, the state directory is gone, or it cannot be bound.
        """
        found = {listener: listener.look() for listener in (self.hub, self.stats)}
        lost: dict[Listener, Place] = {each: place for each, place in found.items() if place is not Place.OURS}
        if not lost:
            return lost
        for listener, place in lost.items():
            if place is Place.FOREIGN:
                raise CannotCreate(
                    f"the socket {visible(str(listener.path))} is gone",
                    why=f"there is {place.value}",
                    remedy="move that away, then start the hub",
                )
        try:
            self._hold_lock()
            for listener in lost:
                listener.bind_anew()
        except Held:
            raise
        except WakehubError as error:
            raise CannotCreate(error.what, why=error.why, remedy=error.remedy) from error
        return lost

    def _hold_lock(self) -> None:
        if self.lock.is_in_place():
            return
        state = self.lock.path.parent
        if not state.is_dir():
            raise CannotCreate(f"the state directory {visible(str(state))} is gone", remedy="start the hub again")
        anew = Lock.acquire(self.lock.path, what="a hub")
        self.lock.release()
        self.lock = anew

    def withdraw(self) -> None:
        """Unlink what still is ours and stop listening; the lock stays ours."""
        self.hub.withdraw()
        self.stats.withdraw()

    def close(self) -> None:
        """Give everything up."""
        self.withdraw()
        self.lock.release()


def _check_expected(passed: Mapping[Path, Listener], config: Config) -> None:
    for path in passed:
        if path not in (config.hub_socket, config.stats_socket):
            raise Misconfigured(
                f"the supervisor passed a socket at {visible(str(path))}, where none is configured",
                why="nobody would ever be answered there",
                remedy=f"let the socket unit listen on {visible(str(config.hub_socket))}, or give --socket",
            )
