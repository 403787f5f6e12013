"""Versions that a process has loaded, and the names that refer to them."""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from serving.errors import UnavailableError
from serving.metrics.families.model_families import OPEN_PHASE
from serving.metrics.server_metrics import ServerMetrics
from serving.versions.load_phases import LoadPhases
from serving.versions.loaded_version import LoadedVersion, ServingOverrides, WeightedVersion
from serving.versions.version_loader import VersionLoader
from serving.versions.warm_up import warm_thread
from sharded_infer.artifacts.artifact import verify_files
from sharded_infer.errors import NotFoundError
from sharded_infer.progress import Progress, no_progress
from sharded_infer.repositories.repository import Repository

State = Literal["LOADING", "READY", "UNAVAILABLE"]
Listener = Callable[[LoadedVersion], None]
# Versions by model and a request's version: a number, a label or nothing; and, by model, versions
# by label that share the requests without one. Replaced as a whole, never changed.
Names = Mapping[tuple[str, str], LoadedVersion]
Shares = Mapping[str, tuple[WeightedVersion, ...]]


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A version in the repository index."""

    model: str
    version: int
    state: State
    reason: str


class ServedVersions:
    """Loaded versions by name. Thread-safe."""

    def __init__(
        self,
        repository: Repository,
        metrics: ServerMetrics,
        *,
        topology: str | None,
        max_batch: int,
        overrides: ServingOverrides | None = None,
    ) -> None:
        """Starts empty; `topology` selects the plan, None each version's first."""
        self._repository = repository
        self._metrics = metrics
        self.loader = VersionLoader(topology=topology, max_batch=max_batch, overrides=overrides)
        self._loaded: dict[tuple[str, int], LoadedVersion] = {}
        self._served: Names = {}
        self._shares: Shares = {}
        self._index: dict[str, list[IndexEntry]] = {}
        self._reasons: dict[str, str] = {}
        self._listeners: list[tuple[Listener, Listener]] = []
        self._name_listeners: list[Callable[[Names, Shares], None]] = []
        self._lock = threading.Lock()

    def on_change(self, loaded: Listener, dropped: Listener) -> None:
        """Registers listeners, and calls them for versions that are loaded already.

        Args:
            loaded: called with each version before its first request.
            dropped: called with each version that gets no new requests; earlier requests may still
                use it.
        """
        with self._lock:
            self._listeners.append((loaded, dropped))
            for loaded_version in self._loaded.values():
                loaded(loaded_version)

    def on_names(self, changed: Callable[[Names, Shares], None]) -> None:
        """Registers a listener, and calls it with the current names."""
        with self._lock:
            self._name_listeners.append(changed)
            changed(self._served, self._shares)

    def load(self, model: str, progress: Progress = no_progress) -> LoadedVersion:
        """Verifies and loads a model's latest version, and makes it the only one.

        Raises:
            NotFoundError: the model does not exist.
            ArtifactError: the version is damaged.
            GateError: the scores of its golden requests differ too much.
        """
        artifact = self._repository.open(model)
        version = artifact.manifest.version
        verify_files(artifact, progress)
        metrics = self._metrics.version(model, version)
        loaded_version = self.loader.load(
            artifact.path, metrics, phases=LoadPhases(OPEN_PHASE), progress=progress
        )
        self.add(loaded_version)
        self.offer({model: {"": version, str(version): version}})
        self.set_index(model, [IndexEntry(model, version, "READY", "")])
        return loaded_version

    def add(self, loaded_version: LoadedVersion) -> None:
        """Adds a version, unavailable to requests until it is offered."""
        model = loaded_version.model
        with self._lock:
            for loaded, _ in self._listeners:
                loaded(loaded_version)
            self._loaded[model.name, model.version] = loaded_version

    def offer(
        self,
        names: Mapping[str, Mapping[str, int]],
        weights: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
    ) -> None:
        """Sets the versions of models' names, all at one moment.

        Args:
            names: for each model, versions by name: a number, a label, or the empty name. A version
                that is not loaded here leaves its name unchanged.
            weights: by label, for models whose requests without a version are shared.
        """
        with self._lock:
            served: dict[tuple[str, str], LoadedVersion] = {}
            for model, meanings in names.items():
                for name, version in meanings.items():
                    loaded_version = self._loaded.get((model, version)) or self._served.get(
                        (model, name)
                    )
                    if loaded_version is not None:
                        served[model, name] = loaded_version
            self._served = served
            self._shares = {
                model: shares
                for model, shared in weights.items()
                if (shares := _shares(model, shared, served))
            }
            for changed in self._name_listeners:
                changed(served, self._shares)

    def drop(self, keep: Iterable[tuple[str, int]]) -> list[LoadedVersion]:
        """Unloads and returns versions without a name, except for models and versions in `keep`.

        Those in use end with their last request.
        """
        with self._lock:
            asked = {id(loaded_version) for loaded_version in self._served.values()}
            kept = set(keep)
            gone = [
                key
                for key, loaded_version in self._loaded.items()
                if key not in kept and id(loaded_version) not in asked
            ]
            dropped = [self._loaded.pop(key) for key in gone]
            for loaded_version in dropped:
                for _, told in self._listeners:
                    told(loaded_version)
        return dropped

    def clear(self) -> None:
        """Releases all versions, in a process that answers no requests."""
        self.offer({})
        self.drop(())

    def map_tables(self) -> None:
        """Maps the pages of all tables in this process: a fork does not inherit shared ones."""
        for loaded_version in self.loaded_versions():
            self.loader.map_pages(loaded_version.model)

    def warm_up(self) -> None:
        """Runs one sample of every version on the calling thread."""
        for loaded_version in self.loaded_versions():
            warm_thread(loaded_version.model)

    def report_loaded(self) -> None:
        """Reports the loaded versions of this process in the metrics."""
        for loaded_version in self.loaded_versions():
            report_loaded(loaded_version)

    def get(self, model: str, version: str = "") -> LoadedVersion:
        """Loaded version for a request: by number, label, or empty for the default.

        Raises:
            NotFoundError: the model or version is not served here.
            UnavailableError: the model is still loading, or has failed to load.
        """
        loaded_version = self._served.get((model, version))
        if loaded_version is None:
            raise self._absence(model, version)
        return loaded_version

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

    def loaded_versions(self) -> list[LoadedVersion]:
        """All loaded versions."""
        with self._lock:
            return list(self._loaded.values())

    def defaults(self) -> list[LoadedVersion]:
        """For each model, the version for requests without one."""
        return [loaded_version for (_, name), loaded_version in self._served.items() if not name]

    def versions(self, model: str) -> list[int]:
        """Available versions of a model, ascending."""
        served = self._served
        return sorted({s.model.version for (name, _), s in served.items() if name == model})

    def names(self, model: str) -> dict[str, int]:
        """Versions of `default` and each label of a model here."""
        meant = {name: s.model.version for (of, name), s in self._served.items() if of == model}
        default = {"default": meant.pop("")} if "" in meant else {}
        return default | {name: meant[name] for name in sorted(meant) if not name.isdigit()}

    def is_loaded(self, model: str, version: int) -> bool:
        """True if a version is loaded in this process."""
        return (model, version) in self._loaded

    def index(self) -> list[IndexEntry]:
        """All known versions, and why some are not ready."""
        return [entry for entries in list(self._index.values()) for entry in entries]

    def set_index(self, model: str, entries: list[IndexEntry], absence: str = "") -> None:
        """Sets a model's index entries, the latest last.

        `absence` is why there is no default version; empty: there is one.
        """
        self._index[model], self._reasons[model] = entries, absence

    def announce(self, models: list[str]) -> None:
        """Lists models to be loaded, so that their requests get UnavailableError until then."""
        for model in models:
            self.set_index(model, [IndexEntry(model, 0, "LOADING", "waiting its turn")])


def _shares(model: str, weights: Mapping[str, int], served: Names) -> tuple[WeightedVersion, ...]:
    return tuple(
        WeightedVersion(label, weight, served[model, label])
        for label, weight in sorted(weights.items())
        if (model, label) in served
    )


def report_loaded(loaded_version: LoadedVersion) -> None:
    """Reports in the metrics that this process has loaded a version."""
    model = loaded_version.model
    loaded_version.metrics.loaded(True, created=model.artifact.manifest.created_seconds)
    loaded_version.metrics.run_at(model.engine.run_size)
    loaded_version.metrics.tables(
        table_bytes=model.artifact.manifest.table_bytes,
        huge_page_bytes=loaded_version.huge_page_bytes,
        rank_bytes=model.rank_bytes,
    )


def report_dropped(loaded_version: LoadedVersion) -> None:
    """Reports in the metrics that this process has unloaded a version."""
    loaded_version.metrics.loaded(False)
    loaded_version.metrics.shares(0.0)
    loaded_version.metrics.tables(table_bytes=0, huge_page_bytes=0)
    loaded_version.metrics.queue(requests=0, samples=0)
    if loaded_version.metrics.lookups is not None:
        loaded_version.metrics.lookups.hot_rows(0.0)
