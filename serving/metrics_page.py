"""The metrics page: what all processes of a server counted, as Prometheus families."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from serving.metric_cells import MetricCells
from serving.metric_families import (
    SERVER_FAMILIES,
    VERSION_FAMILIES,
    VERSION_LABELS,
    WORKER_REQUESTS,
    Family,
    FamilyBlock,
    Kind,
)


class MetricsPage(Collector):
    """Sums the cells of all processes when the page is asked for.

    A histogram's count is the sum of its buckets, so that the two never differ.
    """

    def __init__(self, cells: MetricCells, server: FamilyBlock) -> None:
        """Begins without versions.

        Args:
            cells: the server's.
            server: the families without version labels.
        """
        self._cells = cells
        self._server = server
        self._versions: list[FamilyBlock] = []

    def add(self, block: FamilyBlock) -> None:
        """Shows a version's families too."""
        self._versions.append(block)

    def describe(self) -> Iterable[Metric]:
        """All families, without samples."""
        versions = [_metric(family, VERSION_LABELS) for family in VERSION_FAMILIES]
        return [*versions, *(_metric(family, ()) for family in SERVER_FAMILIES)]

    def collect(self) -> Iterator[Metric]:
        """All families, with their samples."""
        # Blocks first: the cells of those that come in between are not in the rows.
        blocks = list(self._versions)
        processes = self._cells.rows()
        metrics = {family.name: _metric(family, VERSION_LABELS) for family in VERSION_FAMILIES}
        for block in blocks:
            for family, value, cell in block.series():
                metric = metrics[family.name]
                labels = (*block.label_values, value)
                _add(metric, family, labels, _together(processes, family, cell))
        yield from metrics.values()
        for family, value, cell in self._server.series():
            metric = _metric(family, ())
            if family is WORKER_REQUESTS:
                for worker, count in enumerate(self._cells.values(cell)):
                    _add(metric, family, (str(worker),), [count])
            else:
                _add(metric, family, (value,), _together(processes, family, cell))
            yield metric


def _together(processes: Sequence[Sequence[float]], family: Family, cell: int) -> list[float]:
    """A series' cells, of all processes."""
    combine = max if family.kind is Kind.LARGEST else sum
    series = slice(cell, cell + family.cells_per_series)
    return [combine(values) for values in zip(*(row[series] for row in processes), strict=True)]


def _metric(family: Family, block_labels: tuple[str, ...]) -> Metric:
    kinds = {Kind.COUNTER: CounterMetricFamily, Kind.HISTOGRAM: HistogramMetricFamily}
    labels = (*block_labels, family.label) if family.label else block_labels
    metric: Metric = kinds.get(family.kind, GaugeMetricFamily)(
        family.name, family.help, labels=labels
    )
    return metric


def _add(metric: Metric, family: Family, labels: Sequence[str], values: list[float]) -> None:
    """Adds a series to a metric; label values beyond the metric's labels are not looked at."""
    if isinstance(metric, HistogramMetricFamily):
        *buckets, total = values
        names = [*map(floatToGoString, family.boundaries), "+Inf"]
        metric.add_metric(labels, list(zip(names, accumulate(buckets), strict=True)), total)
    elif isinstance(metric, CounterMetricFamily | GaugeMetricFamily) and (
        values[0] or labels[-1] not in family.hidden_zeros
    ):
        metric.add_metric(labels, values[0])
