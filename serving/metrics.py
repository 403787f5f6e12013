"""What a server counts: requests, batches, queues and workers, over all of its processes."""

import threading
from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry

from serving.metric_cells import CELL_BYTES, WORKER_BYTES, MetricCells
from serving.metric_families import VERSION_FAMILIES
from serving.metric_family import Detail, Family, FamilyBlock
from serving.metrics_page import MetricsPage
from serving.release_metrics import ReleaseMetrics, model_families
from serving.request_families import CODES, UNKNOWN_REQUESTS
from serving.server_families import (
    IN_FLIGHT,
    MINOR_FAULTS,
    SERVER_FAMILIES,
    SLOTS,
    TRACES_DROPPED,
    WORKER_CPU_SECONDS,
    WORKER_HUGE_PAGE_BYTES,
    WORKER_REQUESTS,
    WORKER_RESIDENT_BYTES,
    WORKER_RESTARTS,
    WORKERS,
)
from serving.spare_names import SpareNames
from serving.version_metrics import VersionMetrics
from sharded_infer.errors import InternalError

__all__ = ["Metrics", "VersionMetrics"]


class Metrics:
    """All metrics of one server, in a registry of their own, whatever its processes.

    With several workers the process that makes it is their parent: it names the versions before it
    forks, and each worker says which one it is. With one worker it is that worker itself.

    Attributes:
        detail: how much is counted.
    """

    def __init__(
        self, workers: int = 1, *, most_versions: int = 0, detail: Detail = Detail.FULL
    ) -> None:
        """Begins without versions.

        Args:
            workers: processes that answer requests.
            most_versions: slots that `follow` will take, of all models.
            detail: how much is counted.
        """
        self.detail = detail
        version_cells = 3 * sum(family.cells for family in VERSION_FAMILIES)
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
        # For models that come later, in the order of their names' places.
        self._spare_names = SpareNames(0)
        self._spares: list[ReleaseMetrics] = []
        self._naming = threading.Lock()
        self._page = MetricsPage(self._cells, self._server, detail)
        self._page.add_unknown(unknown)
        self.registry = CollectorRegistry()
        self.registry.register(self._page)
        if workers == 1:
            self.use(0)

    def use(self, worker: int) -> None:
        """Makes this process a worker, whose counts go on from those of a dead one of its number.

        Args:
            worker: its number, from 0.
        """
        self._cells.use(worker)
        self._naming = threading.Lock()

    def version(self, model: str, version: int) -> VersionMetrics:
        """A version's metrics, the same ones each time.

        Args:
            model: the model's name.
            version: the version's number.

        Raises:
            InternalError: a worker asks for a version that was not named before it was forked, or
                there is no room for another one.
        """
        with self._naming:
            known = self._versions.get((model, version))
            if self.is_followed(model):
                return self.releases(model).version(version)
            if known is None:
                block = self._block(VERSION_FAMILIES, (model, str(version)))
                known = VersionMetrics(self._cells, block, self._worker_requests, self.detail)
                self._versions[model, version] = known
                self._page.add_version(known)
        return known

    def follow(self, model: str, *, slots: int, labels: tuple[str, ...] = ()) -> ReleaseMetrics:
        """Makes room for a model's versions that come later, before any fork.

        Args:
            model: the model's name.
            slots: versions that are counted at once; those that come take the places of others.
            labels: names of versions whose meaning is shown.
        """
        self._models[model] = self._make_room(lambda: model, slots, labels)
        return self._models[model]

    def spare(self, count: int, *, slots: int, labels: tuple[str, ...] = ()) -> None:
        """Makes room for models that come later, once and before any fork.

        Args:
            count: of models.
            slots: as `follow` has them, for each.
            labels: as `follow` has them.
        """
        self._spare_names = names = SpareNames(count)
        for place in range(count):
            room = self._make_room(partial(names.name, place), slots, labels)
            self._spares.append(room)

    def adopt(self, model: str) -> None:
        """Gives a model one of the spare rooms, in all processes, if it has none.

        Raises:
            LimitError: none is left.
        """
        if not self.is_followed(model):
            self._spare_names.take(model)

    def is_followed(self, model: str) -> bool:
        """Whether there is room for a model's versions."""
        return model in self._models or self._spare_names.find(model) is not None

    def releases(self, model: str) -> ReleaseMetrics:
        """What is counted of a model's versions, after `follow` or `adopt`.

        Raises:
            InternalError: there is no room for them.
        """
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
            slot = self._block(VERSION_FAMILIES, ())
            counters = VersionMetrics(self._cells, slot, self._worker_requests, self.detail)
            self._page.add_slot(counters, model, version_cell)
            places.append((version_cell, counters))
        return ReleaseMetrics(self._cells, block, tuple(places))

    def unknown_failed(self, code_name: str) -> None:
        """Counts a request for no model that is known: a client's names become no labels.

        Args:
            code_name: the gRPC status code's name.
        """
        self._add(self._unknown[code_name], self._worker_requests)

    def in_flight(self, change: int) -> None:
        """Counts requests that begin or end in this process.

        Args:
            change: 1 or -1.
        """
        if self.detail is Detail.OFF:
            return
        cells = self._cells
        with cells.lock:
            cells.own[self._in_flight] += change

    def loaded(self, model: str, version: int, flag: bool) -> None:
        """Says whether a version is ready in this process; it is shown if it is in any.

        Args:
            model: the model's name.
            version: the version's number.
            flag: whether it is.
        """
        self.version(model, version).loaded(flag)

    def serving(self, flag: bool, *, slots: int = 0) -> None:
        """Says whether this process answers requests.

        Args:
            flag: whether it does.
            slots: batches that it runs side by side.
        """
        self._set(WORKERS, float(flag))
        self._set(SLOTS, slots if flag else 0.0)

    def minor_faults(self, count: int) -> None:
        """Counts pages that this process had mapped since it said so last.

        Args:
            count: of pages.
        """
        self._increase(MINOR_FAULTS, count)

    def worked(self, cpu_seconds: float) -> None:
        """Counts processor time of this process since it said so last.

        Args:
            cpu_seconds: so much.
        """
        self._increase(WORKER_CPU_SECONDS, cpu_seconds)

    def resident(self, count: int) -> None:
        """Says what this process has in memory now.

        Args:
            count: of bytes.
        """
        self._set(WORKER_RESIDENT_BYTES, count)

    def huge_pages(self, count: int) -> None:
        """Says what this process has in huge pages now.

        Args:
            count: of bytes.
        """
        self._set(WORKER_HUGE_PAGE_BYTES, count)

    def traces_dropped(self, count: int) -> None:
        """Counts traced requests whose spans were lost.

        Args:
            count: of requests.
        """
        cells = self._cells
        with cells.lock:
            cells.own[self._traces_dropped] += count

    def worker_died(self, worker: int) -> None:
        """Forgets what a dead worker was doing, before another one takes its number.

        Args:
            worker: its number, from 0.
        """
        models = [*self._models.values(), *self._spares]
        versions = [*self._versions.values()]
        versions += [version for model in models for version in model.versions]
        blocks = [self._server, *(version.block for version in versions)]
        blocks += [model.block for model in models]
        self._cells.clear_worker(worker, (c for block in blocks for c in block.gauge_cells()))

    def worker_restarted(self) -> None:
        """Counts a worker that was started in a dead one's place."""
        self._increase(WORKER_RESTARTS, 1.0)

    def _add(self, *counters: int) -> None:
        cells = self._cells
        with cells.lock:
            for cell in counters:
                cells.own[cell] += 1.0

    def _increase(self, family: Family, by: float) -> None:
        cell = self._server.cell(family)
        with self._cells.lock:
            self._cells.own[cell] += by

    def _set(self, family: Family, value: float) -> None:
        cell = self._server.cell(family)
        with self._cells.lock:
            self._cells.own[cell] = value

    def _block(self, families: tuple[Family, ...], label_values: tuple[str, ...]) -> FamilyBlock:
        first = self._cells.allocate(sum(family.cells for family in families))
        return FamilyBlock(families, label_values, first)
