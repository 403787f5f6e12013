"""The versions a server has loaded."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Literal

from serving.cost_table import CostTable
from serving.lane import Lane, LanePolicy, Mode
from serving.metrics import Metrics, VersionMetrics
from serving.refusals import UnavailableError
from serving.request_decoder import RequestDecoder
from serving.response_encoder import ResponseEncoder
from sharded_infer.batch import ModelInput
from sharded_infer.batch_sizes import padded_sizes
from sharded_infer.errors import NotFoundError
from sharded_infer.executor import run_batch
from sharded_infer.golden import generate_samples
from sharded_infer.model import Model, check_golden, open_model
from sharded_infer.progress import Progress, no_progress
from sharded_infer.repository import Repository
from sharded_infer.sizes import size_text
from sharded_infer.table_memory import HUGE_PAGE_BYTES, TableMemory

_log = logging.getLogger("sharded_infer")
WARM_UP_BATCHES = (1, 16, 256)
# Batches whose cost is measured. None that follows one that took longer is run before it is asked.
_MEASURED_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_LONGEST_MEASURED_SECONDS = 0.25
_ROUNDS = 7
# Less of the tables than this in huge pages is worth a warning.
_MOST_HUGE = 0.9
State = Literal["LOADING", "READY", "UNAVAILABLE"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A version loaded and ready, with everything a request needs.

    Attributes:
        model: the version.
        decoder: reads its requests.
        encoder: writes its responses.
        lane: its requests that wait.
        metrics: its metrics.
    """

    model: Model
    decoder: RequestDecoder
    encoder: ResponseEncoder
    lane: Lane
    metrics: VersionMetrics


@dataclass(frozen=True, slots=True)
class ServingOverrides:
    """What a server sets for all models, whatever their specs say; None: as the spec says.

    Attributes:
        mode: how requests are put together.
        max_delay_us: microseconds that batched models wait.
        memory: where tables lie.
    """

    mode: Mode | None = None
    max_delay_us: int | None = None
    memory: TableMemory | None = None


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """What the repository index says of a version."""

    model: str
    version: int
    state: State
    reason: str


class ModelStore:
    """Loads versions and hands out snapshots of them."""

    def __init__(
        self,
        repository: Repository,
        metrics: Metrics,
        *,
        topology: str | None,
        max_batch: int,
        overrides: ServingOverrides | None = None,
    ) -> None:
        """Begins empty.

        Args:
            repository: where versions are published.
            metrics: where loaded versions are reported.
            topology: which published plan to use; None takes each version's first.
            max_batch: samples of a request.
            overrides: how requests are put together.
        """
        self._repository = repository
        self._metrics = metrics
        self._topology = topology
        self._max_batch = max_batch
        self._overrides = overrides or ServingOverrides()
        self._snapshots: dict[str, Snapshot] = {}
        self._index: dict[str, IndexEntry] = {}
        self._listeners: list[Callable[[Snapshot], None]] = []

    def on_ready(self, listener: Callable[[Snapshot], None]) -> None:
        """Tells a listener of every version, loaded already or to come, before it is asked."""
        self._listeners.append(listener)
        for snapshot in self._snapshots.values():
            listener(snapshot)

    def load(self, model: str, progress: Progress = no_progress) -> Snapshot:
        """Loads a model's latest version: verify, map or copy, golden requests, measure costs.

        Args:
            model: the model's name.
            progress: told how far verifying and copying are.

        Raises:
            NotFoundError: the repository has no such model.
            ArtifactError: the version is damaged.
            GateError: it does not score its golden requests as it should.
        """
        artifact = self._repository.open(model)
        version = artifact.manifest.version
        self._index[model] = IndexEntry(model, version, "LOADING", "")
        try:
            opened = open_model(
                artifact.path,
                topology=self._topology,
                memory=self._overrides.memory,
                progress=progress,
            )
            difference = check_golden(opened)
            costs = measure_costs(opened, self._max_batch)
        except Exception as error:
            self._index[model] = IndexEntry(model, version, "UNAVAILABLE", str(error))
            raise
        snapshot = Snapshot(
            model=opened,
            decoder=RequestDecoder(opened.spec, max_batch=self._max_batch),
            encoder=ResponseEncoder(opened.name, opened.version, opened.spec.tower.outputs),
            lane=Lane(self._policy(opened), CostTable(costs)),
            metrics=self._metrics.version(model, version),
        )
        for listener in self._listeners:
            listener(snapshot)
        self._snapshots[model] = snapshot
        self._index[model] = IndexEntry(model, version, "READY", "")
        _log.info(
            "loaded %s version %d: plan %s, kernels %s, golden requests within %.2g of fp32, "
            "%s executor, a batch of 1 / %d takes %.3g / %.3g ms",
            model,
            version,
            opened.plan.topology.name,
            opened.lookup.backends,
            difference,
            snapshot.lane.policy.mode.value,
            max(costs),
            costs[1] * 1e3,
            costs[max(costs)] * 1e3,
        )
        _report_memory(opened)
        return snapshot

    def warm_up(self) -> None:
        """Runs every version at several batch sizes on the calling thread."""
        for snapshot in self.snapshots():
            for batch in WARM_UP_BATCHES:
                samples = generate_samples(snapshot.model.spec, min(batch, self._max_batch))
                run_batch(snapshot.model, [samples])

    def report_loaded(self) -> None:
        """Says in the metrics that this process serves what is loaded."""
        for snapshot in self.snapshots():
            model = snapshot.model
            self._metrics.loaded(model.name, model.version, True)
            snapshot.metrics.tables(
                table_bytes=model.artifact.manifest.table_bytes,
                huge_page_bytes=model.huge_page_bytes(),
            )

    def _policy(self, model: Model) -> LanePolicy:
        serving = model.spec.serving
        delay_us = self._overrides.max_delay_us
        return LanePolicy(
            mode=self._overrides.mode or Mode(serving.executor),
            max_batch=serving.max_batch,
            max_delay=(serving.max_delay_us if delay_us is None else delay_us) / 1e6,
        )

    def get(self, model: str, version: str = "") -> Snapshot:
        """The snapshot that answers for a model.

        Args:
            model: the model's name.
            version: a version's number, or empty for whichever is served.

        Raises:
            NotFoundError: the model or version is not served here.
            UnavailableError: the model is still loading, or failed to.
        """
        snapshot = self._snapshots.get(model)
        if snapshot is None:
            entry = self._index.get(model)
            if entry is None:
                raise NotFoundError(f"no model {model!r} is served here")
            raise UnavailableError(f"model {model!r} is {entry.state.lower()}: {entry.reason}")
        if version and version != str(snapshot.model.version):
            raise NotFoundError(
                f"model {model!r} has no version {version!r} here; version "
                f"{snapshot.model.version} is served"
            )
        return snapshot

    def snapshots(self) -> list[Snapshot]:
        """All loaded versions."""
        return list(self._snapshots.values())

    def index(self) -> list[IndexEntry]:
        """All versions that are loaded, loading, or failed to load."""
        return list(self._index.values())

    def announce(self, models: list[str]) -> None:
        """Lists models that will be loaded, so that requests for them are told to wait."""
        for model in models:
            self._index[model] = IndexEntry(model, 0, "LOADING", "waiting its turn")


def _report_memory(model: Model) -> None:
    if model.memory is TableMemory.MAP:
        return
    huge, total = model.huge_page_bytes(), model.artifact.manifest.table_bytes
    told = _log.info if huge >= _MOST_HUGE * total or total < HUGE_PAGE_BYTES else _log.warning
    told(
        "%s version %d: %s of its %s of tables lie in huge pages%s",
        model.name,
        model.version,
        size_text(huge),
        size_text(total),
        "" if told is _log.info else ": see /sys/kernel/mm/transparent_hugepage/enabled",
    )


def measure_costs(model: Model, max_batch: int) -> Mapping[int, float]:
    """Runs every size that batches are padded to, and measures some of them.

    The first run of a size is the one that makes its kernels. Of the measured ones the least of
    some runs counts, because whatever else the machine does only adds.

    Args:
        model: what to run.
        max_batch: samples of a request; larger batches are not measured.
    """
    costs: dict[int, float] = {}
    largest = min(max_batch, max(_MEASURED_BATCHES))
    everything = generate_samples(model.spec, largest)
    for batch in padded_sizes(largest):
        samples = everything.samples(0, batch)
        seconds = _timed(model, samples)
        if batch in _MEASURED_BATCHES:
            costs[batch] = min(_timed(model, samples) for _ in range(_ROUNDS))
        if seconds > _LONGEST_MEASURED_SECONDS:
            break
    return costs


def _timed(model: Model, samples: ModelInput) -> float:
    started = perf_counter()
    run_batch(model, [samples])
    return perf_counter() - started
