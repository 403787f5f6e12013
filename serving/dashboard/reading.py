"""A reading: the metrics at one moment, as plain numbers."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from prometheus_client.core import Metric

# Of these histograms the page needs the buckets; of the others the count and the sum do.
_WITH_BUCKETS = frozenset({"sharded_infer_request_seconds", "sharded_infer_batch_samples"})
# Not drawn: they would make the history several times as long.
_LEFT_OUT = frozenset(
    {
        "sharded_infer_build_info",
        "sharded_infer_cost_ratio",
        "sharded_infer_scores",
        "sharded_infer_version_load_failures",
    }
)

Labels = tuple[tuple[str, str], ...]
Key = tuple[str, Labels]
Value = float | tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Described:
    """A family of metrics.

    Attributes:
        kind: counter, gauge or histogram.
    """

    kind: str
    help: str


@dataclass(frozen=True, slots=True)
class Reading:
    """The metrics at one moment.

    Attributes:
        at: seconds since 1970.
        values: by family and labels: a number, or for a histogram its count, its sum and, if the
            series has boundaries, the counts of its buckets with the overflow bucket last.
        boundaries: upper bounds of the buckets, for the series that have them.
    """

    at: float
    values: dict[Key, Value]
    boundaries: dict[Key, tuple[float, ...]] = field(repr=False)
    families: dict[str, Described] = field(repr=False)

    def by_label(self, family: str, label: str, **wanted: str) -> dict[str, float]:
        """A family's numbers by one label.

        Args:
            wanted: required values of other labels.
        """
        found = {}
        for (name, labels), value in self.values.items():
            named = dict(labels)
            same = all(named.get(other) == text for other, text in wanted.items())
            if name == family and same and label in named and isinstance(value, float):
                found[named[label]] = value
        return found


def read_metrics(metrics: Iterable[Metric], at: float) -> Reading:
    """Takes a reading of metrics.

    Args:
        metrics: from a registry; those of other libraries are left out.
        at: seconds since 1970.
    """
    values: dict[Key, Value] = {}
    boundaries: dict[Key, tuple[float, ...]] = {}
    families: dict[str, Described] = {}
    for metric in metrics:
        if metric.name in _LEFT_OUT:
            continue
        families[metric.name] = Described(metric.type, metric.documentation)
        if metric.type == "histogram":
            for key, (value, upper) in _histogram(metric).items():
                values[key] = value
                if upper:
                    boundaries[key] = upper
            continue
        for sample in metric.samples:
            # Beside a counter's total there may be when it was made.
            named = sample.name in {metric.name, f"{metric.name}_total"}
            # JSON knows no others.
            if named and math.isfinite(sample.value):
                values[metric.name, tuple(sample.labels.items())] = float(sample.value)
    return Reading(at, values, boundaries, families)


def _histogram(metric: Metric) -> dict[Key, tuple[tuple[float, ...], tuple[float, ...]]]:
    """Value of each series, and the boundaries of its buckets if requested."""
    cumulative: dict[Labels, list[tuple[float, float]]] = {}
    sums: dict[Labels, float] = {}
    for sample in metric.samples:
        labels = tuple(pair for pair in sample.labels.items() if pair[0] != "le")
        if sample.name.endswith("_bucket"):
            bucket = (float(sample.labels["le"]), float(sample.value))
            cumulative.setdefault(labels, []).append(bucket)
        elif sample.name.endswith("_sum"):
            sums[labels] = float(sample.value)
    found: dict[Key, tuple[tuple[float, ...], tuple[float, ...]]] = {}
    for labels, buckets in cumulative.items():
        totals = [total for _, total in buckets]
        head = (totals[-1], sums.get(labels, 0.0))
        if metric.name in _WITH_BUCKETS:
            counts = [total - below for below, total in pairwise((0.0, *totals))]
            upper = tuple(boundary for boundary, _ in buckets[:-1])
            found[metric.name, labels] = ((*head, *counts), upper)
        else:
            found[metric.name, labels] = (head, ())
    return found
