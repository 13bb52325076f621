"""What the hub counts (awh1.md §7). Names are stable; keys are only added."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from wakehub.limits import HISTOGRAM_BOUNDS_US


class Histogram:
    """Observations in µs, counted by the first bound that is not below them; the last bucket is +Inf."""

    __slots__ = ("buckets", "total_us")

    def __init__(self) -> None:
        self.buckets = [0] * (len(HISTOGRAM_BOUNDS_US) + 1)
        self.total_us = 0

    def observe(self, us: int, times: int = 1) -> None:
        """Count an observation that was made so often; below 0 counts as 0."""
        us = max(us, 0)
        self.buckets[bisect_left(HISTOGRAM_BOUNDS_US, us)] += times
        self.total_us += us * times


@dataclass(slots=True)
class Counters:
    """Everything that only grows. `refused` is by (cause, label), `overflow` by cause."""

    accepted: int = 0
    frames_in: int = 0
    frames_out: int = 0
    wakes_routed: int = 0
    fanout_deliveries: int = 0
    wakes_written: int = 0
    wakes_expired: int = 0
    pending_coalesced: int = 0
    pending_evicted: int = 0
    sessions_replaced: int = 0
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    overflow: Counter[str] = field(default_factory=Counter)
    fanout_us: Histogram = field(default_factory=Histogram)
    wake_latency_us: Histogram = field(default_factory=Histogram)


@dataclass(frozen=True, slots=True)
class Gauges:
    """The state right now: connections, agents with a route, what waits in queues (bytes and frames), what is charged
    hub-wide, and how many queues are half full or more."""

    connections: int
    recipients: int
    queued_bytes: int
    queued_frames: int
    egress_bytes: int
    slow_consumers: int
