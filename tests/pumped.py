"""What the hub's own loop does beside Trio, done inside the Trio loop of a test."""

import trio

from wakehub.server.pump import Pump


async def pump_forever(pump: Pump) -> None:
    """Serve the sockets of `pump` until cancelled; what is still in it takes itself out, so it is not closed here."""
    while True:
        await trio.lowlevel.wait_readable(pump.fileno())
        pump.turn(wait=False)
