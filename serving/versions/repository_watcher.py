"""Follows a repository: polls, fetches, verifies, and sets a server's desired versions.

    look    reads published versions and labels
    step    reads the workers' reports, lets the policy decide, and prepares the next version if
    none
            is being loaded; a version is offered when every attached worker has it

It runs in a thread of a single-process server, or in a process beside several workers. Its whole
state is in the shared state, where its successor continues. Only the process that loaded first, and
its forks, know the verified files.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, time

from serving.config.version_policy import VersionPolicy
from serving.host.background import paced
from serving.host.signal_flag import SignalFlag
from serving.metrics.families.model_families import HOSTS_PHASE, SERVE_PHASE
from serving.metrics.server_metrics import ServerMetrics
from serving.versions.decision import Decision, decide
from serving.versions.load_failures import FailedLoad, LoadFailureLog, without_frames
from serving.versions.load_phases import LoadPhases
from serving.versions.load_requests import LoadRequests, settled
from serving.versions.shared_state import SharedState
from serving.versions.state import AssignedVersion, Failure, ModelState, WorkerReport
from serving.versions.version_fetcher import (
    FetchFront,
    VerifiedFiles,
    VersionFetcher,
    reason_of,
)
from sharded_infer.artifacts.table_memory import TableMemory
from sharded_infer.errors import ShardedInferError, StorageError
from sharded_infer.progress import Progress, no_progress
from sharded_infer.repositories.repository import Repository
from sharded_infer.towers.host_products import ProductsOption

_log = logging.getLogger("sharded_infer")
# While workers load, and while nothing does.
_BUSY_SECONDS, _IDLE_SECONDS = 0.02, 0.5
# Between polls for clients' load requests.
_LOAD_REQUEST_SECONDS = 0.02
# From publishing names to their effect: every worker has read them by then.
_NOTICE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """Settings of the repository watcher.

    Attributes:
        poll_seconds: between polls; 0: only on request.
        spare_bytes: memory that must stay free.
        memory: None: as each model's spec says.
        explicit: clients decide which models are served.
        shares_copies: the workers share copies of tables in huge pages.
        row_memory_bytes, products: as `ServingOverrides`.
        fetch_front: as for `VersionFetcher`.
    """

    policy: VersionPolicy
    poll_seconds: float
    spare_bytes: int
    workers: int
    memory: TableMemory | None
    explicit: bool = False
    shares_copies: bool = False
    row_memory_bytes: int | None = None
    products: ProductsOption = ProductsOption.AUTO
    fetch_front: FetchFront | None = None


class RepositoryWatcher:
    """Desired versions of a server. One thread of one process calls."""

    def __init__(
        self,
        repository: Repository,
        shared_state: SharedState,
        metrics: ServerMetrics,
        settings: WatchSettings,
        verified: VerifiedFiles,
    ) -> None:
        """Continues from the shared state, with metrics that have room for the models.

        Args:
            metrics: with room for the models.
            verified: files not to read again; the predecessor's, if it ran in this process.
        """
        self._repository = repository
        self._shared_state = shared_state
        self._metrics = metrics
        self._settings = settings
        self._fetcher = VersionFetcher(
            repository,
            verified,
            memory=settings.memory,
            processes=settings.workers,
            shares_copies=settings.shares_copies,
            fetch_front=settings.fetch_front,
            spare_bytes=settings.spare_bytes,
            row_memory_bytes=settings.row_memory_bytes,
            products=settings.products,
        )
        self._releases = shared_state.releases()[1]
        for release in list(self._releases.models.values()):
            # Left by a predecessor that ended midway.
            self._put(replace(release, preparing=0))
            self._hold_again(release)
        # By key of an assigned version: its timings, and since when it waits for the workers.
        self._phases: dict[int, tuple[LoadPhases, float]] = {}
        self._load_requests = LoadRequests(shared_state, self._looked_at, metrics.adopt)
        # Of each version's files at its last attempt, by model and version.
        self._fingerprints: dict[tuple[str, int], str] = {}
        # Why models cannot be followed.
        self._troubles: dict[str, str] = {}
        # Versions that could not be fetched: not before the next look.
        self._deferred: set[tuple[str, int]] = set()
        # Times by the same key: these may be slow to fail again, so others go first.
        self._deferred_at: dict[tuple[str, int], float] = {}
        # The first error of each model that could not be prepared here.
        self.errors: dict[str, Exception] = {}
        self.failures = LoadFailureLog()

    def _hold_again(self, release: ModelState) -> None:
        """Locks the served versions' files, as a predecessor in an ended process did."""
        for assigned_version in release.assigned:
            try:
                self._fetcher.hold(release.model, assigned_version.version)
            except (ShardedInferError, OSError) as error:
                _log.warning(
                    "%s version %d: cannot be locked against removal: %s",
                    release.model, assigned_version.version, error,
                    extra={"model": release.model, "version": assigned_version.version},
                )  # fmt: skip

    def follow(self, models: list[str]) -> None:
        """Adds models; unreadable ones are tried again at every look."""
        for model in models:
            release = ModelState(model)
            try:
                release = self._looked_at(release)
            except (ShardedInferError, OSError) as error:
                self.errors[model] = without_frames(error)
                release = self._troubled(release, error)
            self._put(release)

    def look(self, *, again: bool = False) -> None:
        """Reads the published versions; unreadable ones stay as they were.

        With `again`, failed versions are retried.
        """
        self._deferred.clear()
        if self._settings.explicit:
            self._find_models()
        for release in list(self._releases.models.values()):
            try:
                seen = self._looked_at(release)
            except (ShardedInferError, OSError) as error:
                # Logged once, not at every look.
                if self._troubles.get(release.model) != str(error):
                    fields = {"model": release.model}
                    _log.warning(
                        "%s: cannot be followed now: %s", release.model, error, extra=fields
                    )
                self._put(self._troubled(release, error))
                continue
            if changed := self._changed(seen):
                if self._troubles.get(release.model) != changed:
                    _log.error("%s: %s", release.model, changed, extra={"model": release.model})
                self._troubles[release.model] = changed
                seen = replace(seen, trouble=changed)
            elif self._troubles.pop(release.model, None) == seen.trouble:
                seen = replace(seen, trouble="")
            kept = () if again else seen.failures
            failures = [f for f in kept if self._fetcher.is_unchanged(release.model, f)]
            self._put(replace(seen, failures=tuple(failures)))

    def _changed(self, release: ModelState) -> str:
        """The error of a version that was published again under its number, or nothing."""
        for assigned in release.assigned:
            try:
                digest = self._fetcher.manifest_digest(release.model, assigned.version)
            except (ShardedInferError, OSError):
                continue  # removed, or not readable now
            if assigned.digest and digest != assigned.digest:
                return (
                    f"version {assigned.version} was published again under its number: its "
                    f"manifest has the SHA-256 {digest[:12]}…, {assigned.digest[:12]}… when it was "
                    "loaded. The loaded one is served until this server restarts; publish other "
                    "rows under another number"
                )
        return ""

    def _troubled(self, release: ModelState, error: Exception) -> ModelState:
        self._troubles[release.model] = str(error)
        return replace(release, trouble=str(error))

    def _find_models(self) -> None:
        """Adds new models of the repository, unwanted yet, for the index."""
        try:
            names = self._repository.models()
        except (ShardedInferError, OSError) as error:
            _log.warning("the repository cannot be searched for new models now: %s", error)
            return
        for name in names:
            if name not in self._releases.models:
                self._put(ModelState(name, wanted=False))

    def step(self, progress: Progress = no_progress, *, beside_requests: bool = True) -> bool:
        """Takes the next steps; fetching and verifying a version takes long.

        Returns True if a version is being loaded, so that the next call should come soon.
        `beside_requests` is as in `VersionFetcher.prepare`.
        """
        reports = self._shared_state.reports()
        for release in list(self._releases.models.values()):
            self._put(self._heard(release, reports))
        self._take_load_requests()
        loads = self._decide()
        self._releases = settled(self._releases, {model for model, _ in loads})
        self._post()
        waiting = any(not h.ready for r in self._releases.models.values() for h in r.assigned)
        if not waiting and loads:
            model, version = loads[0]
            self._prepare(model, version, progress, beside_requests=beside_requests)
            self._post()
            return True
        return waiting

    def run(self, stop: SignalFlag, asked: SignalFlag) -> None:
        """Watches the repository until `stop`; `asked` polls now and retries failed versions."""
        poll = self._settings.poll_seconds
        due = monotonic() + poll
        progress = paced()
        while not stop.is_set():
            try:
                again = asked.is_set()
                if again or (poll and monotonic() >= due):
                    asked.clear()
                    due = monotonic() + poll
                    self.look(again=again)
                busy = self.step(progress)
            except Exception:
                # A bug of ours must not end the watching, and never the serving.
                _log.exception("internal error in following the repository")
                busy = False
            idle = min(_IDLE_SECONDS, max(0.0, due - monotonic())) if poll else _IDLE_SECONDS
            self._wait(asked, _BUSY_SECONDS if busy else max(idle, _BUSY_SECONDS))

    def _wait(self, asked: SignalFlag, seconds: float) -> None:
        end = monotonic() + seconds
        while (left := end - monotonic()) > 0 and not self._load_requests.has_news:
            if asked.wait(min(left, _LOAD_REQUEST_SECONDS) if self._settings.explicit else left):
                return

    def _take_load_requests(self) -> None:
        before = self._releases.models
        self._releases = self._load_requests.take(self._releases)
        for model, release in self._releases.models.items():
            if model not in before or before[model].load_request != release.load_request:
                # Versions that could not be fetched or loaded are tried again.
                self._deferred = {load for load in self._deferred if load[0] != model}
                self.errors.pop(model, None)

    def _looked_at(self, release: ModelState) -> ModelState:
        published = tuple(self._repository.versions(release.model))
        labels = self._repository.label_history(release.model)
        if release.wanted:
            self._metrics.releases(release.model).looked(time())
        return replace(
            release,
            published=published,
            labels=dict(labels.versions),
            weights=dict(labels.weights_at(time())),
        )

    def _heard(self, release: ModelState, reports: list[WorkerReport]) -> ModelState:
        for assigned_version in release.assigned:
            failed = next(
                (
                    r.failed[assigned_version.key]
                    for r in reports
                    if assigned_version.key in r.failed
                ),
                None,
            )
            if failed is not None:
                self._repository.release(Path(assigned_version.path))
                release = self._failed(release, assigned_version.version, *failed)
            elif assigned_version.ready:
                continue
            elif reports and all(assigned_version.key in report.loaded for report in reports):
                assigned = (
                    replace(h, ready=h.ready or h is assigned_version) for h in release.assigned
                )
                release = replace(release, assigned=tuple(assigned))
                self._count_loaded(release.model, assigned_version)
        return release

    def _count_loaded(self, model: str, assigned_version: AssignedVersion) -> None:
        metrics = self._metrics.releases(model)
        phases, since = self._phases.pop(assigned_version.key, (LoadPhases("fetch"), monotonic()))
        metrics.took({**phases.seconds, "workers": monotonic() - since})
        metrics.loaded()

    def _decide(self) -> list[tuple[str, int]]:
        """Applies the policy to each model; returns the versions to load."""
        loads = []
        for release in list(self._releases.models.values()):
            known_versions = release.known_versions()
            decision = Decision((), known_versions.assigned, {}, {})
            if release.wanted:
                decision = decide(self._settings.policy, known_versions)
            assigned = tuple(h for h in release.assigned if h.version not in decision.unload)
            # Mapped files stay readable even if somebody removes them now.
            for gone in set(release.assigned) - set(assigned):
                self._repository.release(Path(gone.path))
            decided = replace(
                release,
                assigned=assigned,
                names=decision.names,
                shares=decision.weights,
                previous=decision.previous,
            )
            if (decided.names, decided.shares) != (release.names, release.shares):
                names = {name or "default": version for name, version in decided.names.items()}
                fields: dict[str, object] = {"model": release.model, "names": names}
                if decided.shares:
                    fields["weights"] = decided.shares
                _log.info("%s: %s", release.model, _told(decided), extra=fields)
                notice = _NOTICE_SECONDS if self._settings.workers > 1 else 0.0
                self._releases = replace(self._releases, moment=monotonic() + notice)
            self._put(decided)
            loads += [(release.model, version) for version in decision.load]
        loads = [load for load in loads if load not in self._deferred]
        return sorted(loads, key=lambda load: self._deferred_at.get(load, 0.0))

    def _prepare(
        self, model: str, version: int, progress: Progress, *, beside_requests: bool
    ) -> None:
        """Fetches and verifies a version, and assigns it to the workers, or records the failure."""
        release = self._releases.models[model]
        self._put(replace(release, preparing=version))
        self._post()
        phases = LoadPhases("fetch")
        # Of the files tried now: they may be repaired while it fails.
        self._fingerprints[model, version] = self._fetcher.fingerprint(model, version)
        try:
            digest = self._fetcher.manifest_digest(model, version)
            path, manifest = self._fetcher.prepare(
                model, version, phases, progress, beside_requests=beside_requests
            )
        except StorageError as error:
            # The store may answer at the next look: nothing is wrong with the version.
            self.failures.add(FailedLoad(model, version, None, str(error)))
            self._metrics.releases(model).failed(phases.current)
            self._deferred.add((model, version))
            self._deferred_at[model, version] = monotonic()
            self.errors.setdefault(model, without_frames(error))
            self._put(replace(release, preparing=0, trouble=reason_of(error)))
            return
        except Exception as error:
            self.errors.setdefault(model, without_frames(error))
            self._put(self._failed(release, version, phases.current, reason_of(error)))
            return
        self._deferred_at.pop((model, version), None)
        assigned = {assigned_version.version for assigned_version in release.assigned}
        self._metrics.releases(model).assign(version, assigned)
        key = self._releases.next_key
        assigned_version = AssignedVersion(
            key, version, str(path), manifest.created_seconds, digest
        )
        self._phases[key] = (phases, monotonic())
        self._put(replace(release, assigned=(*release.assigned, assigned_version), preparing=0))
        self._releases = replace(self._releases, next_key=key + 1)

    def _failed(self, release: ModelState, version: int, phase: str, reason: str) -> ModelState:
        self.failures.add(FailedLoad(release.model, version, phase, reason))
        self._metrics.releases(release.model).failed(phase)
        fingerprint = ""
        # Files that were sound before may be so again, and shard hosts may have the version by now:
        # it is tried at the next look.
        if phase not in (SERVE_PHASE, HOSTS_PHASE):
            fingerprint = self._fingerprints.get((release.model, version), "")
        return release.failed(Failure(version, phase, reason, fingerprint))

    def _put(self, release: ModelState) -> None:
        models = {**self._releases.models, release.model: release}
        self._releases = replace(self._releases, models=models)

    def _post(self) -> None:
        if self._shared_state.releases()[1] != self._releases:
            self._shared_state.post(self._releases)


def _told(release: ModelState) -> str:
    meanings = [
        f"{name or 'default'} is version {version}" for name, version in release.names.items()
    ]
    meanings += [f"{label} has weight {weight}" for label, weight in release.shares.items()]
    return ", ".join(meanings) or "no version"
