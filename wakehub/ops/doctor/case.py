"""What several checks of `doctor` ask for, looked at once."""

import time
from functools import cached_property

from wakehub import locks
from wakehub.client.advice import HUB, PUBLISHER
from wakehub.config import Config
from wakehub.errors import Unavailable
from wakehub.identity import keys
from wakehub.identity.allowlist import Allowlist, AllowlistFile, Unusable
from wakehub.inbox.clock import Now
from wakehub.inbox.leases import Lease
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.ops import health, posture, round_trip, status
from wakehub.ops.round_trip import Trip
from wakehub.ops.status import Box


class Case:
    """One examination of the instance that `config` describes."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.paths = config.paths
        self.now = Now.read()
        self.now_s = time.time()

    @cached_property
    def trip(self) -> Trip:
        """The message that went around; where no hub answers none is sent."""
        if self.hub.state != "answers":
            return Trip({}, "session", "no hub answers", self.hub.remedy)
        return round_trip.travel(self.config)

    @cached_property
    def hub(self) -> health.Health:
        return health.check_hub(self.config)

    @cached_property
    def publisher(self) -> health.Health:
        return health.check_publisher(self.config)

    @cached_property
    def metrics(self) -> str | Unavailable:
        """The running hub's counters, or why there are none."""
        try:
            return health.read_metrics(self.config)
        except Unavailable as error:
            return error

    @cached_property
    def posture(self) -> posture.Posture:
        return posture.examine(self.config)

    @cached_property
    def admitted(self) -> Allowlist | Unusable:
        """What the allowlist says now; raises `OSError`, `WakehubError` when there is no key to judge it by."""
        return AllowlistFile(self.config.allowlist, keys.load_public(self.config.owner_pub)).current(time.time(), 0.0)

    @cached_property
    def boxes(self) -> list[Box]:
        """Every name, who is there for it and what waits, as `status` has it."""
        registry, _ = status.registry_of(self.config)
        with SqliteInbox.open(self.paths.record, create=False) as inbox:
            return status.boxes(inbox, registry, self.now)

    @cached_property
    def stale_leases(self) -> list[Lease]:
        """The leases of listeners that are dead, which nobody has swept away yet."""
        with SqliteInbox.open(self.paths.record, create=False) as inbox:
            return inbox.leases.stale(self.now)

    def daemons(self) -> dict[str, locks.Holder]:
        """The processes that hold the locks now, by what they are."""
        held = {daemon.name: daemon.holder(self.paths) for daemon in (HUB, PUBLISHER)}
        held["up"] = locks.live_holder(self.paths.lock("up"))
        return {what: holder for what, holder in held.items() if holder is not None}
