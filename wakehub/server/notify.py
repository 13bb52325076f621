"""The supervisor's side: systemd's notify protocol (awh1.md §6).

A notify socket that cannot be reached is logged and not fatal; without ``NOTIFY_SOCKET`` nothing is sent.
"""

import os
import socket
from collections.abc import Mapping
from typing import Any

import trio


class Notifier:
    """Sends ``READY=1``, ``STOPPING=1``, ``WATCHDOG=1`` and ``STATUS=…`` to where the supervisor listens."""

    def __init__(self, environ: Mapping[str, str], log: Any) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._log = log
        self._failing = False
        self.watchdog_s = _watchdog_seconds(environ)
        """Seconds between two ``WATCHDOG=1``, half of what the supervisor allows; None when it does not watch."""

    def send(self, *lines: str) -> None:
        """Send one datagram of `lines`; never blocks, never raises for an unreachable socket."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sock.sendto("\n".join(lines).encode(), self._address)
        except (OSError, ValueError) as error:
            if not self._failing:
                self._log.warning("supervisor cannot be notified", error=str(error))
            self._failing = True
        else:
            self._failing = False

    async def feed_watchdog(self) -> None:
        """Send ``WATCHDOG=1`` until cancelled, from the loop that is to be proven alive; returns if nobody watches."""
        while self.watchdog_s is not None:
            self.send("WATCHDOG=1")
            await trio.sleep(self.watchdog_s)


def _watchdog_seconds(environ: Mapping[str, str]) -> float | None:
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    given = environ.get("WATCHDOG_USEC", "")
    return int(given) / 2e6 if given.isdecimal() and int(given) else None
