"""The versions a server has loaded."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from serving.metrics import Metrics, VersionMetrics, version_metrics
from serving.statistics import Statistics
from serving.status import UnavailableError
from sharded_infer.errors import NotFoundError
from sharded_infer.golden import generate_samples
from sharded_infer.model import Model, check_golden, open_model
from sharded_infer.progress import Progress, no_progress
from sharded_infer.repository import Repository
from sharded_infer.request import RequestReader

_log = logging.getLogger("sharded_infer")
WARM_UP_BATCHES = (1, 16, 256)
_TOGETHER_SECONDS = 5.0
_WARM_UP_SECONDS = 60.0
State = Literal["LOADING", "READY", "UNAVAILABLE"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A version loaded and ready, with everything a request needs.

    Attributes:
        model: the version.
        reader: reads its requests.
        statistics: its totals.
        metrics: its metrics.
    """

    model: Model
    reader: RequestReader
    statistics: Statistics
    metrics: VersionMetrics


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
        pool: ThreadPoolExecutor,
        *,
        threads: int,
        topology: str | None,
        max_batch: int,
    ) -> None:
        """Begins empty.

        Args:
            repository: where versions are published.
            metrics: where loaded versions are reported.
            pool: the threads that answer requests.
            threads: how many they are.
            topology: which published plan to use; None takes each version's first.
            max_batch: samples of a request.
        """
        self._repository = repository
        self._metrics = metrics
        self._pool = pool
        self._threads = threads
        self._topology = topology
        self._max_batch = max_batch
        self._snapshots: dict[str, Snapshot] = {}
        self._index: dict[str, IndexEntry] = {}

    def load(self, model: str, progress: Progress = no_progress) -> Snapshot:
        """Loads a model's latest version: verify, map, check the golden requests, warm up.

        Args:
            model: the model's name.
            progress: told how far the verification is.

        Raises:
            NotFoundError: the repository has no such model.
            ArtifactError: the version is damaged.
            GateError: it does not score its golden requests as it should.
        """
        artifact = self._repository.open(model)
        version = artifact.manifest.version
        self._index[model] = IndexEntry(model, version, "LOADING", "")
        try:
            opened = open_model(artifact.path, topology=self._topology, progress=progress)
            difference = check_golden(opened)
            self._warm_up(opened)
        except Exception as error:
            self._index[model] = IndexEntry(model, version, "UNAVAILABLE", str(error))
            raise
        snapshot = Snapshot(
            model=opened,
            reader=RequestReader(opened.spec, max_batch=self._max_batch),
            statistics=Statistics(),
            metrics=version_metrics(self._metrics, model, version),
        )
        self._snapshots[model] = snapshot
        self._index[model] = IndexEntry(model, version, "READY", "")
        self._metrics.loaded.labels(model, str(version)).set(1)
        _log.info(
            "loaded %s version %d: plan %s, kernels %s, golden requests within %.2g of fp32",
            model,
            version,
            opened.plan.topology.name,
            opened.lookup.backends,
            difference,
        )
        return snapshot

    def _warm_up(self, model: Model) -> None:
        # Libraries below keep state by thread, made at a thread's first call: each RPC thread has
        # its own turn. The barrier keeps a fast thread from taking two; threads that a client's
        # streams hold do not come, and are not waited for long.
        together = threading.Barrier(self._threads)

        def run() -> None:
            with suppress(threading.BrokenBarrierError):
                together.wait(_TOGETHER_SECONDS)
            for batch in WARM_UP_BATCHES:
                model.run(generate_samples(model.spec, min(batch, self._max_batch)))

        turns = [self._pool.submit(run) for _ in range(self._threads)]
        finished, late = wait(turns, timeout=_WARM_UP_SECONDS)
        for turn in late:
            turn.cancel()
        for turn in finished:
            turn.result()

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
