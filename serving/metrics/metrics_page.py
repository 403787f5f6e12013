"""The metrics page: counts of all processes as Prometheus families."""

import importlib.metadata
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from time import time

import torch
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from serving.host.memory import available_bytes, limit_bytes
from serving.metrics.cells import MetricCells
from serving.metrics.families.all_families import MODEL_LABELS, VERSION_LABELS
from serving.metrics.families.family import Detail, Family, FamilyBlock, Kind
from serving.metrics.families.model_families import (
    CREATED,
    EMPTY_BAGS,
    IDS_MAPPED,
    MODEL_FAMILIES,
    RANK_ROWS,
    SCORES,
    SERVED_AGE,
    SERVED_VERSION,
)
from serving.metrics.families.page_series import add_series, hidden_families, metric_of
from serving.metrics.families.request_families import (
    LATENCY_OBJECTIVE,
    REQUEST_SECONDS,
    WITHIN_OBJECTIVE,
)
from serving.metrics.families.server_families import (
    BUILD_INFO,
    BY_WORKER,
    MEMORY_AVAILABLE_BYTES,
    MEMORY_LIMIT_BYTES,
    PAGE_FAMILIES,
    SERVER_FAMILIES,
)
from serving.metrics.families.shard_families import SHARD_FAMILIES
from serving.metrics.families.tier_families import TIER_FAMILIES
from serving.metrics.version_info import latency_boundaries
from serving.metrics.version_metrics import VersionMetrics
from sharded_infer.errors import CapacityError

_Rows = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class _Shown:
    block: FamilyBlock
    names: dict[str, tuple[str, ...]]
    counters: VersionMetrics | None


class MetricsPage(Collector):
    """Sums the cells of all processes when the page is requested.

    A histogram's count is the sum of its buckets, so they always agree.
    """

    def __init__(
        self,
        cells: MetricCells,
        server: FamilyBlock,
        unknown: FamilyBlock,
        *,
        detail: Detail,
        families: tuple[Family, ...],
    ) -> None:
        """Starts without versions; `server` has the families without version labels."""
        self._families = families
        self._cells = cells
        self._server = server
        self._detail = detail
        self._unknown = unknown
        self._versions: list[VersionMetrics] = []
        # Each with a function that returns the model's name; empty: no model yet.
        self._models: list[tuple[FamilyBlock, Callable[[], str]]] = []
        # Places that versions occupy in turn, each with the cell of its current version's number.
        self._slots: list[tuple[VersionMetrics, Callable[[], str], int]] = []

    def add_version(self, counters: VersionMetrics) -> None:
        """Adds a version's families."""
        self._versions.append(counters)

    def add_model(self, block: FamilyBlock, model: Callable[[], str]) -> None:
        """Adds a model's families; `model` returns its name, empty while there is none."""
        self._models.append((block, model))

    def add_slot(
        self, counters: VersionMetrics, model: Callable[[], str], version_cell: int
    ) -> None:
        """Adds a place's families, shown while a version occupies it.

        The block of `counters` has no labels; `version_cell` has the version's number, 0 for none.
        """
        self._slots.append((counters, model, version_cell))

    def describe(self) -> Iterable[Metric]:
        """All families, without samples."""
        yield from self._metrics(self._families, VERSION_LABELS).values()
        yield from self._metrics(MODEL_FAMILIES, MODEL_LABELS).values()
        yield from self._metrics(SERVER_FAMILIES, ()).values()
        for family in PAGE_FAMILIES:
            yield GaugeMetricFamily(family.name, family.help)

    def collect(self) -> Iterator[Metric]:
        """All families, with their samples."""
        # Blocks first: cells of blocks added in between are not in the rows.
        shown = [_Shown(self._unknown, {}, None), *self._shown_versions()]
        named = [(block, model()) for block, model in list(self._models)]
        models = [replace(block, label_values=(name,)) for block, name in named if name]
        processes = self._cells.rows()
        metrics = self._metrics(self._families, VERSION_LABELS)
        for version in shown:
            _add_version(metrics, version, processes)
        yield from metrics.values()
        yield from self._of_models(models, [version.block for version in shown], processes)
        yield from self._of_server(processes)
        yield from _of_machine()

    def _metrics(
        self, families: Iterable[Family], block_labels: tuple[str, ...]
    ) -> dict[str, Metric]:
        counted = (family for family in families if family.detail <= self._detail)
        return {family.name: metric_of(family, block_labels) for family in counted}

    def _shown_versions(self) -> Iterator[_Shown]:
        for counters in list(self._versions):
            yield _Shown(counters.block, _names(counters), counters)
        for counters, model, cell in list(self._slots):
            if version := int(self._cells.largest(cell)):
                block = replace(counters.block, label_values=(model(), str(version)))
                yield _Shown(block, _names(counters), counters)

    def _of_server(self, processes: _Rows) -> Iterator[Metric]:
        metrics = self._metrics(SERVER_FAMILIES, ())
        asked: set[str] = set()
        for family, value, cell in self._server.series():
            metric = metrics.get(family.name)
            if metric is None:
                continue
            if family in BY_WORKER:
                for worker, count in enumerate(self._cells.values(cell)):
                    add_series(metric, family, (str(worker),), [count])
                continue
            values, labels = _together(processes, family, cell), value.split(", ")
            if family in SHARD_FAMILIES:
                if any(values):
                    asked.add(labels[0])
                # A host that was called has all its series: rates and increases miss a first
                # failure whose series begins with it.
                if labels[0] not in asked:
                    continue
            add_series(metric, family, labels, values)
        yield from metrics.values()

    def _of_models(
        self, models: Sequence[FamilyBlock], versions: Sequence[FamilyBlock], processes: _Rows
    ) -> Iterator[Metric]:
        metrics = self._metrics(MODEL_FAMILIES, MODEL_LABELS)
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
                        add_series(metric, family, (*block.label_values, str(worker)), [version])
                elif family.name == SERVED_AGE.name:
                    at = created.get((*block.label_values, str(served)))
                    if at is not None and (when := self._cells.largest(at)):
                        add_series(metric, family, labels, [max(0.0, time() - when)])
                else:
                    add_series(metric, family, labels, values)
        yield from metrics.values()


def _of_machine() -> Iterator[Metric]:
    for family, read in (
        (MEMORY_AVAILABLE_BYTES, available_bytes),
        (MEMORY_LIMIT_BYTES, limit_bytes),
    ):
        memory = GaugeMetricFamily(family.name, family.help)
        # No sample where the kernel does not report it.
        with suppress(OSError, CapacityError):
            memory.add_metric((), read())
        yield memory
    build = GaugeMetricFamily(
        BUILD_INFO.name, BUILD_INFO.help, labels=tuple(BUILD_INFO.label.split(", "))
    )
    build.add_metric((_our_version(), str(torch.__version__), platform.python_version()), 1.0)
    yield build


@cache
def _our_version() -> str:
    # Reads a file of the installation.
    return importlib.metadata.version("sharded-infer")


def _names(counters: VersionMetrics) -> dict[str, tuple[str, ...]]:
    """Names of a version's places for a label's values, by family."""
    facts = counters.facts
    by_label = {
        RANK_ROWS.label: facts.ranks(),
        SCORES.label: facts.outputs(),
        EMPTY_BAGS.label: facts.features(),
        IDS_MAPPED.label: facts.mapped_tables(),
    }
    names = {f.name: by_label[f.label] for f in counters.block.families if f.label in by_label}
    # Families without a label have one place, shown where any table has rows in tiers.
    return names | dict.fromkeys((f.name for f in TIER_FAMILIES), facts.tiered_tables())


def _add_version(metrics: dict[str, Metric], version: _Shown, processes: _Rows) -> None:
    objective = 0.0
    if LATENCY_OBJECTIVE in version.block.families:
        cell = version.block.cell(LATENCY_OBJECTIVE)
        objective = _together(processes, LATENCY_OBJECTIVE, cell)[0]
    hidden = hidden_families(version.block, processes)
    for family, value, cell in version.block.series():
        metric = metrics.get(family.name)
        if metric is None or family is WITHIN_OBJECTIVE or family.name in hidden:
            continue
        names, own = version.names.get(family.name), value.split(", ")
        if names is not None:
            place = family.label_values.index(value)
            if place >= len(names):
                continue
            own = [names[place]]
        labels = (*version.block.label_values, *own)
        values = _together(processes, family, cell)
        if family is REQUEST_SECONDS and version.counters is not None:
            _add_whole(metric, labels, values, objective, version.counters)
            if objective:
                within = latency_boundaries(objective).index(objective) + 1
                counted = [sum(values[:within])]
                add_series(metrics[WITHIN_OBJECTIVE.name], WITHIN_OBJECTIVE, labels, counted)
        else:
            add_series(metric, family, labels, values)


def _add_whole(
    metric: Metric,
    labels: Sequence[str],
    values: list[float],
    objective: float,
    counters: VersionMetrics,
) -> None:
    names = [*map(floatToGoString, latency_boundaries(objective)), "+Inf"]
    buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
    counted = zip(names, accumulate(values), counters.exemplars.last(), strict=False)
    for name, count, one in counted:
        if one is None:
            buckets.append((name, count))
        else:
            trace = {"trace_id": one.trace_id}
            buckets.append((name, count, Exemplar(trace, one.seconds, one.timestamp)))
    if isinstance(metric, HistogramMetricFamily):
        metric.add_metric(labels, buckets, values[-1])


def _together(processes: _Rows, family: Family, cell: int) -> list[float]:
    combine = max if family.kind is Kind.LARGEST else sum
    series = slice(cell, cell + family.cells_per_series)
    return [combine(values) for values in zip(*(row[series] for row in processes), strict=True)]
