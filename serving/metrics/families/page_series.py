"""Families as Prometheus knows them, and their series on the page."""

from collections.abc import Sequence
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

from serving.metrics.families.family import Family, Kind


def metric_of(family: Family, block_labels: tuple[str, ...]) -> Metric:
    """A family without series.

    Args:
        block_labels: labels before the family's own.
    """
    kinds = {Kind.COUNTER: CounterMetricFamily, Kind.HISTOGRAM: HistogramMetricFamily}
    own = tuple(family.label.split(", ")) if family.label else ()
    metric: Metric = kinds.get(family.kind, GaugeMetricFamily)(
        family.name, family.help, labels=(*block_labels, *own)
    )
    return metric


def add_series(
    metric: Metric, family: Family, labels: Sequence[str], values: Sequence[float]
) -> None:
    """Adds a series to a metric; surplus label values are ignored.

    Args:
        values: one; of a histogram its buckets and its sum.
    """
    if isinstance(metric, HistogramMetricFamily):
        if labels[-1] in family.hidden_zeros and not any(values):
            return
        *buckets, total = values
        names = [*map(floatToGoString, family.boundaries), "+Inf"]
        metric.add_metric(labels, list(zip(names, accumulate(buckets), strict=True)), total)
    elif isinstance(metric, CounterMetricFamily | GaugeMetricFamily) and (
        values[0] or labels[-1] not in family.hidden_zeros
    ):
        metric.add_metric(labels, values[0])
