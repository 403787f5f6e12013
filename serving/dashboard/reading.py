"""Readings of the metrics, as plain numbers, and the history that all open pages share."""

import math
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from prometheus_client.core import Metric

# Pages that ask within this time get the same reading.
FRESH_SECONDS = 1.0
KEPT_SECONDS = 600.0
# Pages ask every 2 s, so readings this far apart are kept, and the newest.
_SPACING_SECONDS = 1.9
_MOST = int(KEPT_SECONDS / _SPACING_SECONDS)
# Histograms whose buckets the page needs; of others it needs count and sum.
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
    """A family of metrics, of kind counter, gauge or histogram."""

    kind: str
    help: str


class Series(NamedTuple):
    """A series of a family.

    Attributes:
        width: number of values: 1, or of a histogram its count, its sum and, if the series
            has boundaries, the counts of its buckets with the overflow bucket last.
        boundaries: upper bounds of the buckets.
    """

    family: str
    labels: Labels
    width: int = 1
    boundaries: tuple[float, ...] = ()

    @property
    def key(self) -> Key:
        """Unique key."""
        return self.family, self.labels


@dataclass(frozen=True, slots=True)
class Reading:
    """The metrics at one moment; hundreds are kept, and share series and families if equal.

    `at` is in seconds since 1970; `numbers` has those of all series, in their order.
    """

    at: float
    series: tuple[Series, ...]
    numbers: "array[float]"
    families: dict[str, Described]

    def values(self) -> dict[Key, Value]:
        """Number of each series, or those of a histogram."""
        values: dict[Key, Value] = {}
        first = 0
        for one in self.series:
            values[one.key] = self._value(first, one.width)
            first += one.width
        return values

    def by_label(self, family: str, label: str, **wanted: str) -> dict[str, float]:
        """A family's numbers by one label, where other labels have the `wanted` values."""
        numbers = {}
        for (name, labels), value in self.values().items():
            named = dict(labels)
            same = all(named.get(other) == text for other, text in wanted.items())
            if name == family and same and label in named and isinstance(value, float):
                numbers[named[label]] = value
        return numbers

    def _value(self, first: int, width: int) -> Value:
        return self.numbers[first] if width == 1 else tuple(self.numbers[first : first + width])


def read_metrics(metrics: Iterable[Metric], at: float, before: Reading | None = None) -> Reading:
    """Takes a reading at seconds since 1970, which shares series with the one before."""
    series: list[Series] = []
    numbers = array("d")
    families: dict[str, Described] = {}
    for metric in metrics:
        if metric.name in _LEFT_OUT:
            continue
        families[metric.name] = Described(metric.type, metric.documentation)
        if metric.type == "histogram":
            for one, values in _histogram(metric):
                series.append(one)
                numbers.extend(values)
            continue
        for sample in metric.samples:
            # A counter may have a creation time beside its total.
            named = sample.name in {metric.name, f"{metric.name}_total"}
            # JSON has no others.
            if named and math.isfinite(sample.value):
                series.append(Series(metric.name, tuple(sample.labels.items())))
                numbers.append(sample.value)
    if before is None:
        return Reading(at, tuple(series), numbers, families)
    known = {one: one for one in before.series}
    shared = tuple(known.get(one, one) for one in series)
    return Reading(
        at,
        before.series if shared == before.series else shared,
        numbers,
        before.families if families == before.families else families,
    )


def _histogram(metric: Metric) -> Iterator[tuple[Series, tuple[float, ...]]]:
    """Each series and its numbers."""
    cumulative: dict[Labels, list[tuple[float, float]]] = {}
    sums: dict[Labels, float] = {}
    for sample in metric.samples:
        labels = tuple(pair for pair in sample.labels.items() if pair[0] != "le")
        if sample.name.endswith("_bucket"):
            bucket = (float(sample.labels["le"]), float(sample.value))
            cumulative.setdefault(labels, []).append(bucket)
        elif sample.name.endswith("_sum"):
            sums[labels] = float(sample.value)
    for labels, buckets in cumulative.items():
        totals = [total for _, total in buckets]
        head = (totals[-1], sums.get(labels, 0.0))
        if metric.name in _WITH_BUCKETS:
            counts = (total - below for below, total in pairwise((0.0, *totals)))
            upper = tuple(boundary for boundary, _ in buckets[:-1])
            values = (*head, *counts)
            yield Series(metric.name, labels, len(values), upper), values
        else:
            yield Series(metric.name, labels, len(head)), head


class History:
    """Readings in chronological order. Thread-safe."""

    def __init__(
        self, read: Callable[[float, Reading | None], Reading], clock: Callable[[], float]
    ) -> None:
        """Starts empty; times are in seconds since 1970, and `read` gets the previous reading."""
        self._read = read
        self._clock = clock
        self._readings: deque[Reading] = deque(maxlen=_MOST)
        self._lock = threading.Lock()

    def newest(self, within_seconds: float = FRESH_SECONDS) -> Reading:
        """A new reading, or one that is not older than `within_seconds`."""
        # Concurrent callers wait for a reading in progress, and take none.
        with self._lock:
            now = self._clock()
            readings = self._readings
            # After the clock was set back, all readings are useless.
            if readings and readings[-1].at > now:
                readings.clear()
            if readings and now - readings[-1].at < within_seconds:
                return readings[-1]
            reading = self._read(now, readings[-1] if readings else None)
            if len(readings) > 1 and now - readings[-2].at < _SPACING_SECONDS:
                readings.pop()
            readings.append(reading)
            while readings[0].at < now - KEPT_SECONDS:
                readings.popleft()
            return reading

    def since(self, at: float) -> Sequence[Reading]:
        """Readings after a time, seconds since 1970, the newest last."""
        with self._lock:
            return [reading for reading in self._readings if reading.at > at]
