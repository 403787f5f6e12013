"""Families as Prometheus metrics, and their series on the page."""

from collections.abc import Sequence, Set
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

from serving.metrics.families.family import Family, FamilyBlock, Kind
from serving.metrics.families.shadow_families import SHADOW_FAMILIES, SHADOWING

_SHADOW_NAMES = frozenset(family.name for family in SHADOW_FAMILIES)


def metric_of(family: Family, block_labels: tuple[str, ...]) -> Metric:
    """A family without series; `block_labels` come before its own label."""
    kinds = {Kind.COUNTER: CounterMetricFamily, Kind.HISTOGRAM: HistogramMetricFamily}
    own = tuple(family.label.split(", ")) if family.label else ()
    metric: Metric = kinds.get(family.kind, GaugeMetricFamily)(
        family.name, family.help, labels=(*block_labels, *own)
    )
    return metric


def add_series(
    metric: Metric, family: Family, labels: Sequence[str], values: Sequence[float]
) -> None:
    """Adds a series: one value, or a histogram's buckets and sum. Surplus labels are ignored."""
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


def hidden_families(block: FamilyBlock, processes: Sequence[Sequence[float]]) -> Set[str]:
    """Names of the shadow families if the version was never a shadow; `processes` are all cells."""
    if SHADOWING not in block.families:
        return frozenset()
    first, end = block.cell(SHADOWING), block.first + block.cells
    was_shadow = any(any(row[first:end]) for row in processes)
    return frozenset() if was_shadow else _SHADOW_NAMES
