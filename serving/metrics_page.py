"""The metrics page: what all processes of a server counted, as Prometheus families."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from time import time

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
    CREATED,
    MODEL_FAMILIES,
    MODEL_LABELS,
    SERVED_AGE,
    SERVED_VERSION,
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

    def __init__(
        self, cells: MetricCells, server: FamilyBlock, clock: Callable[[], float] = time
    ) -> None:
        """Begins without versions.

        Args:
            cells: the server's.
            server: the families without version labels.
            clock: seconds since 1970.
        """
        self._cells = cells
        self._server = server
        self._clock = clock
        self._versions: list[FamilyBlock] = []
        # With what says which model it is of; an empty name: none yet.
        self._models: list[tuple[FamilyBlock, Callable[[], str]]] = []
        # Blocks that versions take in turn, each with the cell that says which one has it.
        self._slots: list[tuple[FamilyBlock, Callable[[], str], int]] = []

    def add(self, block: FamilyBlock) -> None:
        """Shows a version's families too."""
        self._versions.append(block)

    def add_model(self, block: FamilyBlock, model: Callable[[], str]) -> None:
        """Shows a model's families too.

        Args:
            block: without labels.
            model: the model's name, once it has one.
        """
        self._models.append((block, model))

    def add_slot(self, block: FamilyBlock, model: Callable[[], str], version_cell: int) -> None:
        """Shows a block's families, while a version has it.

        Args:
            block: without labels.
            model: the model's name.
            version_cell: the number of the version that has it; 0: none.
        """
        self._slots.append((block, model, version_cell))

    def describe(self) -> Iterable[Metric]:
        """All families, without samples."""
        versions = [_metric(family, VERSION_LABELS) for family in VERSION_FAMILIES]
        models = [_metric(family, MODEL_LABELS) for family in MODEL_FAMILIES]
        return [*versions, *models, *(_metric(family, ()) for family in SERVER_FAMILIES)]

    def collect(self) -> Iterator[Metric]:
        """All families, with their samples."""
        # Blocks first: the cells of those that come in between are not in the rows.
        blocks = [*self._versions, *self._named_slots()]
        named = [(block, model()) for block, model in list(self._models)]
        models = [replace(block, label_values=(name,)) for block, name in named if name]
        processes = self._cells.rows()
        metrics = {family.name: _metric(family, VERSION_LABELS) for family in VERSION_FAMILIES}
        for block in blocks:
            for family, value, cell in block.series():
                metric = metrics[family.name]
                labels = (*block.label_values, value)
                _add(metric, family, labels, _together(processes, family, cell))
        yield from metrics.values()
        yield from self._of_models(models, blocks, processes)
        for family, value, cell in self._server.series():
            metric = _metric(family, ())
            if family is WORKER_REQUESTS:
                for worker, count in enumerate(self._cells.values(cell)):
                    _add(metric, family, (str(worker),), [count])
            else:
                _add(metric, family, (value,), _together(processes, family, cell))
            yield metric

    def _named_slots(self) -> Iterator[FamilyBlock]:
        for block, model, cell in list(self._slots):
            if version := int(self._cells.largest(cell)):
                yield replace(block, label_values=(model(), str(version)))

    def _of_models(
        self,
        models: Sequence[FamilyBlock],
        versions: Sequence[FamilyBlock],
        processes: Sequence[Sequence[float]],
    ) -> Iterator[Metric]:
        metrics = {family.name: _metric(family, MODEL_LABELS) for family in MODEL_FAMILIES}
        created = {b.label_values: b.cell(CREATED) for b in versions if CREATED in b.families}
        for block in models:
            served = 0
            for family, value, cell in block.series():
                metric, labels = metrics[family.name], (*block.label_values, value)
                values = _together(processes, family, cell)
                if family.name == SERVED_VERSION.name:
                    by_worker = self._cells.values(cell)
                    served = int(max(by_worker))
                    for worker, version in enumerate(by_worker):
                        _add(metric, family, (*block.label_values, str(worker)), [version])
                elif family.name == SERVED_AGE.name:
                    at = created.get((*block.label_values, str(served)))
                    if at is not None and (when := self._cells.largest(at)):
                        _add(metric, family, labels, [max(0.0, self._clock() - when)])
                else:
                    _add(metric, family, labels, values)
        yield from metrics.values()


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
