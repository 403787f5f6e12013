"""A chart of latency against load."""

from collections.abc import Sequence
from dataclasses import dataclass

from serving.bench.charts.line_chart import Axis, Series, line_chart

_PERCENTILES = ("p50", "p95", "p99")


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """Percentiles in milliseconds at a rate of requests begun a second."""

    rate: float
    latency_ms: dict[str, float]


def latency_chart(title: str, points: Sequence[LoadPoint], capacity: float) -> str:
    """Draw p50, p95 and p99, on a logarithmic axis, against the rate, with a line at the capacity.

    Points ascend by rate; points without answers are left out. The capacity is in requests a
    second.
    """
    shown = [point for point in points if point.latency_ms]
    highest = max([capacity, *(point.rate for point in shown)]) * 1.02
    tenths = [highest * tick / 10 for tick in range(1, 11)]
    values = [point.latency_ms[name] for point in shown for name in _PERCENTILES] or [1.0, 10.0]
    return line_chart(
        title,
        Axis("requests a second", 0.0, highest, tenths, is_log=False),
        Axis.decades("milliseconds from when a request was due", values),
        [Series(n, tuple((one.rate, one.latency_ms[n]) for one in shown)) for n in _PERCENTILES],
        mark=(capacity, "closed-loop capacity"),
    )
