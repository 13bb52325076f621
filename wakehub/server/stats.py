"""The hub's numbers as OpenMetrics text (awh1.md §7). Names are stable; keys are only added."""

from collections.abc import Iterator
from dataclasses import fields

from wakehub.hub.counters import Counters, Gauges, Histogram
from wakehub.limits import HISTOGRAM_BOUNDS_US

_COUNTERS = (
    "accepted",
    "frames_in",
    "frames_out",
    "wakes_routed",
    "fanout_deliveries",
    "wakes_written",
    "wakes_expired",
    "pending_coalesced",
    "pending_evicted",
    "sessions_replaced",
)
_HISTOGRAMS = ("fanout_us", "wake_latency_us")
# Bounds are label values, compared as text: OpenMetrics has them written in one way only (100.0, 1e+06).
_BOUNDS = tuple(text if "e" in text else f"{text}.0" for text in (f"{bound:g}" for bound in HISTOGRAM_BOUNDS_US))


def render(counters: Counters, gauges: Gauges, version: str, ceiling: int) -> bytes:
    """The whole exposition, ending in ``# EOF``."""
    return ("\n".join(_lines(counters, gauges, version, ceiling)) + "\n").encode()


def _lines(counters: Counters, gauges: Gauges, version: str, ceiling: int) -> Iterator[str]:
    yield "# TYPE wakehub_build info"
    yield f'wakehub_build_info{{version="{version}"}} 1'
    for name in _COUNTERS:
        yield f"# TYPE wakehub_{name} counter"
        yield f"wakehub_{name}_total {getattr(counters, name)}"
    yield "# TYPE wakehub_refused counter"
    for (cause, label), count in sorted(counters.refused.items()):
        yield f'wakehub_refused_total{{cause="{cause}",label="{label}"}} {count}'
    yield "# TYPE wakehub_overflow counter"
    for cause, count in sorted(counters.overflow.items()):
        yield f'wakehub_overflow_total{{cause="{cause}"}} {count}'
    for field in fields(Gauges):
        yield f"# TYPE wakehub_{field.name} gauge"
        yield f"wakehub_{field.name} {getattr(gauges, field.name)}"
    yield "# TYPE wakehub_connection_ceiling gauge"
    yield f"wakehub_connection_ceiling {ceiling}"
    for name in _HISTOGRAMS:
        yield from _histogram(f"wakehub_{name}", getattr(counters, name))
    yield "# EOF"


def _histogram(name: str, histogram: Histogram) -> Iterator[str]:
    yield f"# TYPE {name} histogram"
    below = 0
    for bound, count in zip((*_BOUNDS, "+Inf"), histogram.buckets, strict=True):
        below += count
        yield f'{name}_bucket{{le="{bound}"}} {below}'
    yield f"{name}_sum {histogram.total_us}"
    yield f"{name}_count {below}"
