"""Applies the shared state in a process: loads versions aside, swaps names, unloads versions.

watch   reads the shared state; at its moment, replaces the names (one dictionary) and unloads
        versions that are no longer assigned
load    loads the assigned versions, one after another, at low priority, and reports
"""

import logging
import threading
from functools import partial
from pathlib import Path
from time import monotonic, sleep

from kernels.errors import LostMemoryError
from serving.errors import DeadlineError
from serving.host.background import lower_priority, paced, run_beside_requests, yielding_often
from serving.host.malloc import give_back_freed_memory
from serving.metrics.families.model_families import HOSTS_PHASE, OPEN_PHASE, SERVE_PHASE
from serving.metrics.server_metrics import ServerMetrics
from serving.versions.load_failures import without_frames
from serving.versions.load_phases import LoadPhases
from serving.versions.served_versions import (
    IndexEntry,
    ServedVersions,
    report_dropped,
    report_loaded,
)
from serving.versions.shared_state import SharedState
from serving.versions.state import AssignedVersion, DesiredState, ModelState, WorkerReport
from sharded_infer.errors import ShardedInferError, ShardHostError
from sharded_infer.progress import Progress, no_progress

_log = logging.getLogger("sharded_infer")
_HOST_ERRORS = (ShardHostError, DeadlineError)
_POLL_SECONDS = 0.02
# Between checks of the sizes of mapped files.
_FILES_SECONDS = 0.5
# Bounds the wait for new names, should a bug set their moment too far ahead.
_LONGEST_NOTICE = 1.0


class _Stopped(Exception):  # noqa: N818 - no error
    """The process ends while it loads."""


class VersionInstaller:
    """The versions of one process."""

    def __init__(
        self,
        store: ServedVersions,
        shared_state: SharedState,
        metrics: ServerMetrics,
        worker: int = 0,
    ) -> None:
        self._store = store
        self._shared_state = shared_state
        self._metrics = metrics
        self._worker = worker
        self._seen = -1
        self._releases = DesiredState()
        self._failed = shared_state.failed(worker)
        # Key of a version that no worker serves yet.
        self._opening = 0
        self._showing = False
        # Held to set names, and to report: two threads do.
        self._saying = threading.Lock()
        self._stop = threading.Event()
        self._more = threading.Event()
        self._threads: list[threading.Thread] = []
        # The first error of each model that could not be loaded here.
        self.errors: dict[str, Exception] = {}
        shared_state.report(worker, WorkerReport(failed=self._failed))

    def catch_up(self, progress: Progress = no_progress) -> None:
        """Loads and offers the assigned versions on the calling thread, before requests come."""
        while self._look():
            self._load_assigned(progress)
            # Names may refer to versions loaded just now.
            self._offer()

    def check_complete(self) -> None:
        """Checks that every ready version is loaded here; raises the ArtifactError or GateError."""
        for release in self._releases.models.values():
            for assigned_version in release.assigned:
                if assigned_version.ready and assigned_version.key in self._failed:
                    raise self.errors[release.model]

    def start(self) -> None:
        """Follows the shared state in its own threads, and reports it in the metrics."""
        self._showing = True
        self._show()
        for name, run in (
            ("shared state", self._watch),
            ("loader", self._load),
            # On its own thread: a file system that hangs delays nothing else.
            ("files", self._watch_files),
        ):
            self._threads.append(threading.Thread(target=run, name=name, daemon=True))
            self._threads[-1].start()

    def stop(self) -> None:
        """Ends the threads; waits at most a moment for a version that is being loaded."""
        self._stop.set()
        self._more.set()
        for thread in self._threads:
            thread.join(1.0)

    def _watch(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            try:
                if self._shared_state.sequence != self._seen and self._look():
                    self._more.set()
            except Exception:
                _log.exception("internal error in following the shared state")

    def _watch_files(self) -> None:
        while not self._stop.wait(_FILES_SECONDS):
            for loaded_version in self._store.loaded_versions():
                try:
                    loaded_version.model.check_files()
                except (LostMemoryError, OSError) as error:
                    self._lose(loaded_version.model.name, loaded_version.model.version, str(error))

    def _lose(self, model: str, version: int, reason: str) -> None:
        """Reports a loaded version as damaged, for the repository watcher to remove."""
        assigned = self._releases.models[model].assigned if model in self._releases.models else ()
        for assigned_version in assigned:
            if assigned_version.version == version and assigned_version.key not in self._failed:
                self._failed = {**self._failed, assigned_version.key: (SERVE_PHASE, reason)}
                self._report()

    def _load(self) -> None:
        lower_priority()

        def check(_what: str, _done: int, _total: int) -> None:
            if self._stop.is_set():
                raise _Stopped

        while True:
            self._more.wait()
            if self._stop.is_set():
                return
            self._more.clear()
            try:
                if self._load_assigned(paced(check)):
                    self._offer()
                    # Some may have been abandoned while they were loaded.
                    self._unload()
                give_back_freed_memory()
            except _Stopped:
                return
            except Exception:
                _log.exception("internal error in loading a version")

    def _look(self) -> bool:
        """Reads the shared state; False: nothing new."""
        if self._shared_state.sequence == self._seen:
            return False
        seen, releases = self._shared_state.releases()
        if self._showing:
            sleep(min(max(0.0, releases.moment - monotonic()), _LONGEST_NOTICE))
        self._offer(releases)
        self._seen = seen
        self._unload()
        keys = {h.key for m in releases.models.values() for h in m.assigned}
        self._failed = {key: told for key, told in self._failed.items() if key in keys}
        self._report()
        return True

    def _unload(self) -> None:
        models = self._releases.models.values()
        assigned = {(release.model, h.version) for release in models for h in release.assigned}
        for loaded_version in self._store.drop(assigned):
            name, version = loaded_version.model.name, loaded_version.model.version
            fields = {"model": name, "version": version}
            _log.info("unloaded %s version %d", name, version, extra=fields)
            if self._showing:
                report_dropped(loaded_version)

    def _offer(self, releases: DesiredState | None = None) -> None:
        """Sets the names: by new releases, or again after a load."""
        with self._saying:
            self._releases = releases or self._releases
            models = self._releases.models
            self._store.offer(
                {name: _names(release) for name, release in models.items()},
                {name: release.shares for name, release in models.items() if release.shares},
            )
            for release in models.values():
                self._store.set_index(release.model, _index(release), release.absence)
            if self._showing:
                self._show()

    def _show(self) -> None:
        for model, release in self._releases.models.items():
            if self._metrics.is_followed(model):
                metrics = self._metrics.releases(model)
                metrics.serves(release.names, missing=bool(release.absence))
                shares = release.version_shares
                for loaded_version in self._store.loaded_versions():
                    if loaded_version.model.name == model:
                        version = loaded_version.model.version
                        loaded_version.metrics.shares(shares.get(version, 0.0))

    def _load_assigned(self, progress: Progress) -> bool:
        """Loads assigned versions that are missing here; False if there were none."""
        loaded = False
        while (missing := self._missing()) is not None:
            model, assigned_version = missing
            if not assigned_version.ready:
                self._opening = assigned_version.key
                self._report()
            with yielding_often():
                self._load_one(model, assigned_version, progress)
            self._opening = 0
            self._report()
            loaded = True
        return loaded

    def _missing(self) -> tuple[str, AssignedVersion] | None:
        for release in self._releases.models.values():
            for assigned_version in release.assigned:
                known = self._store.is_loaded(release.model, assigned_version.version)
                if not known and assigned_version.key not in self._failed:
                    return release.model, assigned_version
        return None

    def _load_one(self, model: str, assigned_version: AssignedVersion, progress: Progress) -> None:
        phases = LoadPhases(OPEN_PHASE)
        metrics = self._metrics.releases(model)
        try:
            counters = metrics.version(assigned_version.version)
            path = Path(assigned_version.path)
            load = partial(
                self._store.loader.load, path, counters, phases=phases, progress=progress
            )
            loaded_version = run_beside_requests(load) if self._showing else load()
        except _Stopped:
            raise
        except Exception as error:
            if not isinstance(error, ShardedInferError):
                _log.exception(
                    "internal error in loading %s version %d", model, assigned_version.version,
                    extra={"model": model, "version": assigned_version.version},
                )  # fmt: skip
            self.errors.setdefault(model, without_frames(error))
            # Shard hosts may have the version, or answer, a moment later.
            phase = HOSTS_PHASE if isinstance(error, _HOST_ERRORS) else phases.current
            self._failed = {**self._failed, assigned_version.key: (phase, str(error))}
            return
        self._store.add(loaded_version)
        if self._showing:
            report_loaded(loaded_version)
            metrics.took(phases.seconds)

    def _report(self) -> None:
        with self._saying:
            loaded = tuple(
                assigned_version.key
                for release in self._releases.models.values()
                for assigned_version in release.assigned
                if self._store.is_loaded(release.model, assigned_version.version)
            )
            self._shared_state.report(
                self._worker, WorkerReport(loaded, dict(self._failed), self._opening, self._seen)
            )


def _names(release: ModelState) -> dict[str, int]:
    """Versions by name, and by the number of each ready version."""
    numbers = {str(h.version): h.version for h in release.assigned if h.ready}
    return {**numbers, **release.names}


def _index(release: ModelState) -> list[IndexEntry]:
    reason = "not loaded: not followed" if release.wanted else "unloaded"
    entries = {
        version: IndexEntry(release.model, version, "UNAVAILABLE", reason)
        for version in release.published
    }
    for failure in release.failures:
        reason = f"failed at {failure.phase}: {failure.reason}"
        entries[failure.version] = IndexEntry(release.model, failure.version, "UNAVAILABLE", reason)
    for assigned_version in release.assigned:
        state = IndexEntry(release.model, assigned_version.version, "READY", "")
        if not assigned_version.ready:
            state = IndexEntry(release.model, assigned_version.version, "LOADING", "loading")
        entries[assigned_version.version] = state
    if release.preparing:
        entries[release.preparing] = IndexEntry(
            release.model, release.preparing, "LOADING", "fetching and verifying"
        )
    if not entries and release.absence:
        # None of its versions is known, but clients learn why it is unavailable.
        entries[0] = IndexEntry(release.model, 0, "UNAVAILABLE", release.absence)
    return [entries[version] for version in sorted(entries)]
