"""Follows a repository: looks, fetches, verifies, and says on the board what is to be held.

look    what is published, and what labels point at
step    reads the workers' reports, lets the policy decide, prepares the next version if none is
        being loaded; a version is offered when every attached worker has it

It runs in a thread of a server of one process, and in a process of its own beside several workers.
All that it knows is on the board: its successor goes on from there.
"""

import logging
import threading
from dataclasses import replace
from pathlib import Path
from time import monotonic, time

from serving.background import paced
from serving.board import Board
from serving.failure_log import FailedLoad, FailureLog
from serving.follow_settings import FollowSettings
from serving.load_phases import LoadPhases
from serving.metrics import Metrics
from serving.model_families import SERVE_PHASE
from serving.preparation import Preparation, reason_of
from serving.releases import Failure, Holding, ModelReleases, Report
from serving.version_policy import Decision, decide
from serving.wish_reader import WishReader, settled
from sharded_infer.errors import ShardedInferError, StorageError
from sharded_infer.progress import Progress, no_progress
from sharded_infer.repository import Repository

_log = logging.getLogger("sharded_infer")
# While workers load, and while nothing does.
_BUSY_SECONDS, _IDLE_SECONDS = 0.02, 0.5
# How often it looks for clients' wishes.
_WISH_SECONDS = 0.02
# Between saying what names mean and when they do: every worker has read it by then.
_NOTICE_SECONDS = 0.1


class Follower:
    """What a server holds of its repository. One thread of one process calls."""

    def __init__(
        self, repository: Repository, board: Board, metrics: Metrics, settings: FollowSettings
    ) -> None:
        """Goes on from what the board says.

        Args:
            repository: where versions are published.
            board: the server's.
            metrics: the server's; its models are followed.
            settings: how.
        """
        self._repository = repository
        self._board = board
        self._metrics = metrics
        self._settings = settings
        self._preparation = Preparation(
            repository,
            memory=settings.memory,
            processes=settings.workers,
            spare_bytes=settings.spare_bytes,
        )
        self._releases = board.releases()[1]
        for release in list(self._releases.models.values()):
            # A predecessor that ended midway has left it.
            self._put(replace(release, preparing=0))
            self._hold_again(release)
        # By key of a holding: what was measured of it, and since when it waits for the workers.
        self._phases: dict[int, tuple[LoadPhases, float]] = {}
        self._wishes = WishReader(board, self._looked_at, metrics.adopt)
        # Of each version's files, by model and version, when it was last tried.
        self._fingerprints: dict[tuple[str, int], str] = {}
        # What keeps models from being followed.
        self._troubles: dict[str, str] = {}
        # Versions that could not be fetched: not before the next look.
        self._deferred: set[tuple[str, int]] = set()
        # When, by the same key: what kept them may take its time again, so others go first.
        self._deferred_at: dict[tuple[str, int], float] = {}
        # What was raised here, by model, the first time that each could not be prepared.
        self.errors: dict[str, Exception] = {}
        self.failures = FailureLog()

    def _hold_again(self, release: ModelReleases) -> None:
        """Locks what is served, as a predecessor in a process that has ended did."""
        for holding in release.held:
            try:
                self._repository.fetch(release.model, holding.version)
            except (ShardedInferError, OSError) as error:
                _log.warning(
                    "%s version %d: cannot be locked against removal: %s",
                    release.model, holding.version, error,
                    extra={"model": release.model, "version": holding.version},
                )  # fmt: skip

    def follow(self, models: list[str]) -> None:
        """Takes models in; one that cannot be read now is looked for again at every look."""
        for model in models:
            release = ModelReleases(model)
            try:
                release = self._looked_at(release)
            except (ShardedInferError, OSError) as error:
                self.errors[model] = error
                release = self._troubled(release, error)
            self._put(release)

    def look(self, *, again: bool = False) -> None:
        """Reads what is published now; what cannot be read stays as it was.

        Args:
            again: try versions that have failed again, too.
        """
        self._deferred.clear()
        if self._settings.explicit:
            self._find_models()
        for release in list(self._releases.models.values()):
            try:
                seen = self._looked_at(release)
            except (ShardedInferError, OSError) as error:
                # Said once, not at every look.
                if self._troubles.get(release.model) != str(error):
                    fields = {"model": release.model}
                    _log.warning(
                        "%s: cannot be followed now: %s", release.model, error, extra=fields
                    )
                self._put(self._troubled(release, error))
                continue
            if self._troubles.pop(release.model, None) == seen.trouble:
                seen = replace(seen, trouble="")
            kept = () if again else seen.failures
            failures = [f for f in kept if self._preparation.is_unchanged(release.model, f)]
            self._put(replace(seen, failures=tuple(failures)))

    def _troubled(self, release: ModelReleases, error: Exception) -> ModelReleases:
        self._troubles[release.model] = str(error)
        return replace(release, trouble=str(error))

    def _find_models(self) -> None:
        """Takes in models that are new in the repository, for the index: nobody wants them yet."""
        try:
            names = self._repository.models()
        except (ShardedInferError, OSError) as error:
            _log.warning("new models cannot be looked for now: %s", error)
            return
        for name in names:
            if name not in self._releases.models:
                self._put(ModelReleases(name, wanted=False))

    def step(self, progress: Progress = no_progress, *, checks_memory: bool = True) -> bool:
        """Does what can be done now; fetching and verifying a version takes long.

        Args:
            progress: told how far that is.
            checks_memory: refuse versions that do not fit in the memory that is left.

        Returns:
            Whether something is being loaded: to be called again soon.
        """
        reports = self._board.reports()
        for release in list(self._releases.models.values()):
            self._put(self._heard(release, reports))
        self._take_wishes()
        loads = self._decide()
        self._releases = settled(self._releases, {model for model, _ in loads})
        self._post()
        waiting = any(not h.ready for r in self._releases.models.values() for h in r.held)
        if not waiting and loads:
            model, version = loads[0]
            self._prepare(model, version, progress, checks_memory=checks_memory)
            self._post()
            return True
        return waiting

    def run(self, stop: threading.Event, asked: threading.Event) -> None:
        """Follows until it is told to stop.

        Args:
            stop: set to end it.
            asked: set to make it look at once, and try again what has failed.
        """
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
                # A bug of ours must not end the following, and never the serving.
                _log.exception("internal error in following the repository")
                busy = False
            idle = min(_IDLE_SECONDS, max(0.0, due - monotonic())) if poll else _IDLE_SECONDS
            self._wait(asked, _BUSY_SECONDS if busy else max(idle, _BUSY_SECONDS))

    def _wait(self, asked: threading.Event, seconds: float) -> None:
        end = monotonic() + seconds
        while (left := end - monotonic()) > 0 and not self._wishes.has_news:
            if asked.wait(min(left, _WISH_SECONDS) if self._settings.explicit else left):
                return

    def _take_wishes(self) -> None:
        before = self._releases.models
        self._releases = self._wishes.take(self._releases)
        for model, release in self._releases.models.items():
            if model not in before or before[model].wish != release.wish:
                # What could not be fetched or loaded is tried again.
                self._deferred = {load for load in self._deferred if load[0] != model}
                self.errors.pop(model, None)

    def _looked_at(self, release: ModelReleases) -> ModelReleases:
        published = tuple(self._repository.versions(release.model))
        labels = self._repository.labels(release.model)
        if release.wanted:
            self._metrics.releases(release.model).looked(time())
        return replace(release, published=published, labels=labels)

    def _heard(self, release: ModelReleases, reports: list[Report]) -> ModelReleases:
        for holding in release.held:
            failed = next((r.failed[holding.key] for r in reports if holding.key in r.failed), None)
            if failed is not None:
                self._repository.release(Path(holding.path))
                release = self._failed(release, holding.version, *failed)
            elif holding.ready:
                continue
            elif reports and all(holding.key in report.loaded for report in reports):
                held = (replace(h, ready=h.ready or h is holding) for h in release.held)
                release = replace(release, held=tuple(held))
                self._count_loaded(release.model, holding)
        return release

    def _count_loaded(self, model: str, holding: Holding) -> None:
        metrics = self._metrics.releases(model)
        phases, since = self._phases.pop(holding.key, (LoadPhases("fetch"), monotonic()))
        metrics.took({**phases.seconds, "workers": monotonic() - since})
        metrics.loaded()

    def _decide(self) -> list[tuple[str, int]]:
        """Lets the policy decide of each model; what is to be loaded."""
        loads = []
        for release in list(self._releases.models.values()):
            situation = release.situation()
            decision = Decision((), situation.held, {}, {})
            if release.wanted:
                decision = decide(self._settings.policy, situation)
            held = tuple(h for h in release.held if h.version not in decision.unload)
            # What is mapped stays readable even if somebody removes the files now.
            for gone in set(release.held) - set(held):
                self._repository.release(Path(gone.path))
            decided = replace(release, held=held, names=decision.names, previous=decision.previous)
            if decided.names != release.names:
                names = {name or "default": version for name, version in decided.names.items()}
                fields = {"model": release.model, "names": names}
                _log.info("%s: %s", release.model, _told(decided.names), extra=fields)
                notice = _NOTICE_SECONDS if self._settings.workers > 1 else 0.0
                self._releases = replace(self._releases, moment=monotonic() + notice)
            self._put(decided)
            loads += [(release.model, version) for version in decision.load]
        loads = [load for load in loads if load not in self._deferred]
        return sorted(loads, key=lambda load: self._deferred_at.get(load, 0.0))

    def _prepare(
        self, model: str, version: int, progress: Progress, *, checks_memory: bool
    ) -> None:
        """Fetches and verifies a version, and has it loaded; or says why not."""
        release = self._releases.models[model]
        self._put(replace(release, preparing=version))
        self._post()
        phases = LoadPhases("fetch")
        # Of what is tried now: files may be mended while it fails.
        self._fingerprints[model, version] = self._preparation.fingerprint(model, version)
        try:
            path, manifest = self._preparation.prepare(
                model, version, phases, progress, checks_memory=checks_memory
            )
        except StorageError as error:
            # The store may answer at the next look: nothing is wrong with the version.
            self.failures.add(FailedLoad(model, version, None, str(error)))
            self._metrics.releases(model).failed(phases.current)
            self._deferred.add((model, version))
            self._deferred_at[model, version] = monotonic()
            self.errors.setdefault(model, error)
            self._put(replace(release, preparing=0, trouble=reason_of(error)))
            return
        except Exception as error:
            self.errors.setdefault(model, error)
            self._put(self._failed(release, version, phases.current, reason_of(error)))
            return
        self._deferred_at.pop((model, version), None)
        held = {holding.version for holding in release.held}
        self._metrics.releases(model).assign(version, held)
        key = self._releases.next_key
        holding = Holding(key, version, str(path), manifest.created_seconds)
        self._phases[key] = (phases, monotonic())
        self._put(replace(release, held=(*release.held, holding), preparing=0))
        self._releases = replace(self._releases, next_key=key + 1)

    def _failed(
        self, release: ModelReleases, version: int, phase: str, reason: str
    ) -> ModelReleases:
        self.failures.add(FailedLoad(release.model, version, phase, reason))
        self._metrics.releases(release.model).failed(phase)
        fingerprint = ""
        # What was sound before may be so again by now: it is tried at the next look.
        if phase != SERVE_PHASE:
            fingerprint = self._fingerprints.get((release.model, version), "")
        return release.failed(Failure(version, phase, reason, fingerprint))

    def _put(self, release: ModelReleases) -> None:
        models = {**self._releases.models, release.model: release}
        self._releases = replace(self._releases, models=models)

    def _post(self) -> None:
        if self._board.releases()[1] != self._releases:
            self._board.post(self._releases)


def _told(names: dict[str, int]) -> str:
    meanings = [f"{name or 'default'} is version {version}" for name, version in names.items()]
    return ", ".join(meanings) or "no version"
