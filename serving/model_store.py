"""The versions a process has loaded, and which of them each name means."""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from serving.load_phases import LoadPhases
from serving.metrics import Metrics
from serving.refusals import UnavailableError
from serving.snapshot import ServingOverrides, Snapshot
from serving.version_loader import VersionLoader
from sharded_infer.artifact import verify_files
from sharded_infer.errors import NotFoundError
from sharded_infer.executor import run_batch
from sharded_infer.golden import generate_samples
from sharded_infer.progress import Progress, no_progress
from sharded_infer.repository import Repository

# What libraries keep by thread is there after any run; large ones map memory in each arena.
WARM_UP_BATCHES = (1, 16)
State = Literal["LOADING", "READY", "UNAVAILABLE"]
Listener = Callable[[Snapshot], None]


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """What the repository index says of a version."""

    model: str
    version: int
    state: State
    reason: str


class ModelStore:
    """Keeps snapshots of versions and hands them out by name. Any thread may call.

    Attributes:
        loader: makes the snapshots.
    """

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
        self.loader = VersionLoader(topology=topology, max_batch=max_batch, overrides=overrides)
        self._loaded: dict[tuple[str, int], Snapshot] = {}
        # By model and what a request says: a number, a label or nothing. Never changed, replaced.
        self._served: dict[tuple[str, str], Snapshot] = {}
        self._index: dict[str, list[IndexEntry]] = {}
        self._reasons: dict[str, str] = {}
        self._listeners: list[tuple[Listener, Listener]] = []
        self._lock = threading.Lock()

    def on_change(self, loaded: Listener, dropped: Listener) -> None:
        """Tells listeners of versions, those loaded already among them.

        Args:
            loaded: told each version before it is asked.
            dropped: told each version that will not be asked for any more; requests that began
                before may still come to it.
        """
        with self._lock:
            self._listeners.append((loaded, dropped))
            for snapshot in self._loaded.values():
                loaded(snapshot)

    def load(self, model: str, progress: Progress = no_progress) -> Snapshot:
        """Verifies and loads a model's latest version, and offers it alone.

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
        verify_files(artifact, progress)
        metrics = self._metrics.version(model, version)
        snapshot = self.loader.load(
            artifact.path, metrics, phases=LoadPhases("open"), progress=progress
        )
        self.add(snapshot)
        self.offer({model: {"": version, str(version): version}})
        self.set_index(model, [IndexEntry(model, version, "READY", "")])
        return snapshot

    def add(self, snapshot: Snapshot) -> None:
        """Keeps a version; nobody can ask for it before it is offered."""
        model = snapshot.model
        with self._lock:
            for loaded, _ in self._listeners:
                loaded(snapshot)
            self._loaded[model.name, model.version] = snapshot

    def offer(self, names: Mapping[str, Mapping[str, int]]) -> None:
        """Says what the names of models mean from now on, of all at one moment.

        Args:
            names: for each model a version by each name: a number, a label, or the empty one. A
                version that is not loaded here leaves its name as it was.
        """
        with self._lock:
            served = {}
            for model, meanings in names.items():
                for name, version in meanings.items():
                    snapshot = self._loaded.get((model, version)) or self._served.get((model, name))
                    if snapshot is not None:
                        served[model, name] = snapshot
            self._served = served

    def drop(self, keep: Iterable[tuple[str, int]]) -> list[Snapshot]:
        """Lets versions go that are not offered; those in use end with their last request.

        Args:
            keep: models and versions that stay.

        Returns:
            Those that went.
        """
        with self._lock:
            asked = {id(snapshot) for snapshot in self._served.values()}
            kept = set(keep)
            gone = [
                key
                for key, snapshot in self._loaded.items()
                if key not in kept and id(snapshot) not in asked
            ]
            dropped = [self._loaded.pop(key) for key in gone]
            for snapshot in dropped:
                for _, told in self._listeners:
                    told(snapshot)
        return dropped

    def clear(self) -> None:
        """Lets all versions go, in a process that answers no requests."""
        self.offer({})
        self.drop(())

    def warm_up(self) -> None:
        """Runs every version at several batch sizes on the calling thread."""
        for snapshot in self.snapshots():
            for batch in WARM_UP_BATCHES:
                samples = generate_samples(snapshot.model.spec, min(batch, self.loader.max_batch))
                run_batch(snapshot.model, [samples])

    def report_loaded(self) -> None:
        """Says in the metrics that this process serves what is loaded."""
        for snapshot in self.snapshots():
            report_loaded(snapshot)

    def get(self, model: str, version: str = "") -> Snapshot:
        """The snapshot that answers for a model.

        Args:
            model: the model's name.
            version: a version's number, a label, or empty for the default.

        Raises:
            NotFoundError: the model or version is not served here.
            UnavailableError: the model is still loading, or failed to.
        """
        snapshot = self._served.get((model, version))
        if snapshot is None:
            raise self._absence(model, version)
        return snapshot

    def _absence(self, model: str, version: str) -> Exception:
        names = [name for served, name in self._served if served == model]
        if not names:
            entries = self._index.get(model)
            if not entries:
                return NotFoundError(f"no model {model!r} is served here")
            entry = entries[-1]
            reason = self._reasons.get(model) or entry.reason
            return UnavailableError(f"model {model!r} is {entry.state.lower()}: {reason}")
        versions = sorted((name for name in names if name.isdigit()), key=int)
        labels = sorted(name for name in names if name and not name.isdigit())
        several = "s" if len(versions) > 1 else ""
        verb = "are" if several else "is"
        known = f"version{several} {', '.join(versions)} {verb} served"
        if labels:
            known += f", with label{'s' if len(labels) > 1 else ''} {', '.join(labels)}"
        return NotFoundError(f"model {model!r} has no version {version!r} here; {known}")

    def snapshots(self) -> list[Snapshot]:
        """All loaded versions."""
        with self._lock:
            return list(self._loaded.values())

    def defaults(self) -> list[Snapshot]:
        """For each model the version that answers requests which name none."""
        return [snapshot for (_, name), snapshot in self._served.items() if not name]

    def versions(self, model: str) -> list[int]:
        """The versions of a model that can be asked for, ascending."""
        served = self._served
        return sorted({s.model.version for (name, _), s in served.items() if name == model})

    def names(self, model: str) -> dict[str, int]:
        """What `default` and each label of a model mean here."""
        meant = {name: s.model.version for (of, name), s in self._served.items() if of == model}
        default = {"default": meant.pop("")} if "" in meant else {}
        return default | {name: meant[name] for name in sorted(meant) if not name.isdigit()}

    def is_loaded(self, model: str, version: int) -> bool:
        """Whether a version is loaded in this process."""
        return (model, version) in self._loaded

    def index(self) -> list[IndexEntry]:
        """All versions that are known, and why those that are not ready are not."""
        return [entry for entries in list(self._index.values()) for entry in entries]

    def set_index(self, model: str, entries: list[IndexEntry], absence: str = "") -> None:
        """Says what is known of a model.

        Args:
            model: its name.
            entries: its versions, the latest last.
            absence: why none of them answers requests that name none; empty: one does.
        """
        self._index[model], self._reasons[model] = entries, absence

    def announce(self, models: list[str]) -> None:
        """Lists models that will be loaded, so that requests for them are told to wait."""
        for model in models:
            self.set_index(model, [IndexEntry(model, 0, "LOADING", "waiting its turn")])


def report_loaded(snapshot: Snapshot) -> None:
    """Says in the metrics that this process has a version loaded."""
    model = snapshot.model
    snapshot.metrics.loaded(True, created=model.artifact.manifest.created_seconds)
    snapshot.metrics.run_at(model.engine.run_size)
    snapshot.metrics.tables(
        table_bytes=model.artifact.manifest.table_bytes,
        huge_page_bytes=model.huge_page_bytes(),
        rank_bytes=model.rank_bytes,
    )


def report_dropped(snapshot: Snapshot) -> None:
    """Says in the metrics that this process has let a version go."""
    snapshot.metrics.loaded(False)
    snapshot.metrics.tables(table_bytes=0, huge_page_bytes=0)
    snapshot.metrics.queue(requests=0, samples=0)
    if snapshot.metrics.lookups is not None:
        snapshot.metrics.lookups.hot_rows(0.0)
