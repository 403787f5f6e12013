"""Metrics of a server over all processes: requests, batches, queues and workers."""

import threading
from collections.abc import Callable, Sequence
from functools import partial

from prometheus_client import CollectorRegistry

from serving.metrics.cells import CELL_BYTES, WORKER_BYTES, MetricCells
from serving.metrics.families.all_families import VERSION_FAMILIES
from serving.metrics.families.family import Detail, Family, FamilyBlock
from serving.metrics.families.request_families import CODES, UNKNOWN_REQUESTS
from serving.metrics.families.server_families import (
    GRPC_DROPPED,
    IN_FLIGHT,
    SERVER_FAMILIES,
    SLOTS,
    TRACES_DROPPED,
    WORKER_REQUESTS,
    WORKERS,
)
from serving.metrics.families.shadow_families import SHADOW_FAMILIES
from serving.metrics.metrics_page import MetricsPage
from serving.metrics.name_slots import NameSlots
from serving.metrics.release_metrics import ReleaseMetrics, model_families
from serving.metrics.version_metrics import VersionMetrics
from sharded_infer.errors import InternalError

__all__ = ["ServerMetrics", "VersionMetrics"]


class ServerMetrics:
    """All metrics of a server and its processes, in a separate registry.

    With several workers their parent creates it and names the versions before it forks; each worker
    then calls `use`. A single worker creates it itself.
    """

    def __init__(
        self,
        workers: int = 1,
        *,
        most_versions: int = 0,
        detail: Detail = Detail.FULL,
        shadows: bool = False,
    ) -> None:
        """Starts without versions; `most_versions` slots are for `follow`, over all models."""
        self.detail = detail
        self._families = (*VERSION_FAMILIES, *(SHADOW_FAMILIES if shadows else ()))
        version_cells = 3 * sum(family.cells for family in self._families)
        slots_bytes = most_versions * version_cells * CELL_BYTES
        self._cells = MetricCells(workers, worker_bytes=WORKER_BYTES + slots_bytes)
        self._server = self._block(SERVER_FAMILIES, ())
        unknown = self._block((UNKNOWN_REQUESTS,), ("unknown", ""))
        self._unknown = {code: unknown.cell(UNKNOWN_REQUESTS, code) for code in CODES}
        self._in_flight = self._server.cell(IN_FLIGHT)
        self._traces_dropped = self._server.cell(TRACES_DROPPED)
        self._worker_requests = self._server.cell(WORKER_REQUESTS)
        self._versions: dict[tuple[str, int], VersionMetrics] = {}
        self._models: dict[str, ReleaseMetrics] = {}
        # For models added later, in the order of their names' places.
        self._spare_names = NameSlots(0)
        self._spares: list[ReleaseMetrics] = []
        self._naming = threading.Lock()
        self._page = MetricsPage(
            self._cells, self._server, unknown, detail=detail, families=self._families
        )
        self.registry = CollectorRegistry()
        self.registry.register(self._page)
        if workers == 1:
            self.use(0)

    def use(self, worker: int) -> None:
        """Makes this process a worker, which continues the counts of its dead predecessor."""
        self._cells.use(worker)
        self._naming = threading.Lock()

    def version(self, model: str, version: int) -> VersionMetrics:
        """A version's metrics; the same object each time.

        Raises InternalError without room, or for a new version in a forked worker.
        """
        with self._naming:
            known = self._versions.get((model, version))
            if self.is_followed(model):
                return self.releases(model).version(version)
            if known is None:
                block = self._block(self._families, (model, str(version)))
                known = VersionMetrics(self._cells, block, self._worker_requests, self.detail)
                self._versions[model, version] = known
                self._page.add_version(known)
        return known

    def follow(self, model: str, *, slots: int, labels: tuple[str, ...] = ()) -> ReleaseMetrics:
        """Reserves room for later versions of a model, before any fork.

        Of `slots` versions counted at once, new ones replace old ones. `labels` are shown.
        """
        self._models[model] = self._make_room(lambda: model, slots, labels)
        return self._models[model]

    def spare(self, count: int, *, slots: int, labels: tuple[str, ...] = ()) -> None:
        """Reserves room for `count` later models, each as in `follow`, once and before any fork."""
        self._spare_names = names = NameSlots(count)
        for place in range(count):
            room = self._make_room(partial(names.name, place), slots, labels)
            self._spares.append(room)

    def adopt(self, model: str) -> None:
        """Assigns reserved room to a model, in all processes; LimitError if none is left."""
        if not self.is_followed(model):
            self._spare_names.take(model)

    def is_followed(self, model: str) -> bool:
        """True if there is room for a model's versions."""
        return model in self._models or self._spare_names.find(model) is not None

    def releases(self, model: str) -> ReleaseMetrics:
        """Counters of a model's versions; InternalError without `follow` or `adopt` before."""
        if model in self._models:
            return self._models[model]
        place = self._spare_names.find(model)
        if place is None:
            raise InternalError(f"metrics: no room for model {model!r}")
        return self._spares[place]

    def _make_room(
        self, model: Callable[[], str], slots: int, labels: tuple[str, ...]
    ) -> ReleaseMetrics:
        block = self._block(model_families(labels), ())
        self._page.add_model(block, model)
        places = []
        for _ in range(slots):
            version_cell = self._cells.allocate(1)
            slot = self._block(self._families, ())
            counters = VersionMetrics(self._cells, slot, self._worker_requests, self.detail)
            self._page.add_slot(counters, model, version_cell)
            places.append((version_cell, counters))
        return ReleaseMetrics(self._cells, block, tuple(places))

    def unknown_failed(self, code_name: str, count: int = 1) -> None:
        """Counts requests for an unknown model. Clients' names never become labels."""
        with self._cells.lock:
            for cell in (self._unknown[code_name], self._worker_requests):
                self._cells.own[cell] += count

    def in_flight(self, change: int) -> None:
        """Counts requests that begin (1) or end (-1) in this process."""
        if self.detail is not Detail.OFF:
            self._cells.add(self._in_flight, change)

    def serving(self, flag: bool, *, slots: int = 0) -> None:
        """Sets whether this process answers requests, and the batches that it runs at once."""
        self.set(WORKERS, float(flag))
        self.set(SLOTS, slots if flag else 0.0)

    def traces_dropped(self, count: int) -> None:
        """Counts traced requests whose spans were lost."""
        self._cells.add(self._traces_dropped, count)

    def grpc_dropped(self, reason: str, count: int) -> None:
        """Counts gRPC connections or calls that were dropped, by a reason of `GRPC_DROPS`."""
        self.add(GRPC_DROPPED, count, reason)

    def add(self, family: Family, by: float = 1.0, label_value: str | None = None) -> None:
        """Adds to a series of `SERVER_FAMILIES` in this process."""
        self._cells.add(self._server.cell(family, label_value), by)

    def set(self, family: Family, value: float) -> None:
        """Sets a gauge of `SERVER_FAMILIES` in this process."""
        self._cells.set(self._server.cell(family), value)

    def count(self, family: Family, label_value: str, by: Sequence[float]) -> None:
        """Adds to a series: one value, or a histogram's buckets and sum."""
        if family.detail > self.detail:
            return
        first = self._server.cell(family, label_value)
        with self._cells.lock:
            for cell, one in enumerate(by, first):
                self._cells.own[cell] += one

    def worker_died(self, worker: int) -> None:
        """Clears the gauges of a dead worker, before its successor starts."""
        models = [*self._models.values(), *self._spares]
        versions = [*self._versions.values()]
        versions += [version for model in models for version in model.versions]
        blocks = [self._server, *(version.block for version in versions)]
        blocks += [model.block for model in models]
        self._cells.clear_worker(worker, (c for block in blocks for c in block.gauge_cells()))

    def _block(self, families: tuple[Family, ...], label_values: tuple[str, ...]) -> FamilyBlock:
        first = self._cells.allocate(sum(family.cells for family in families))
        return FamilyBlock(families, label_values, first)
