"""Follows a repository in all processes of a server, and loads the first versions."""

from dataclasses import dataclass, field

from serving.errors import UnservedError
from serving.metrics.server_metrics import ServerMetrics
from serving.versions.repository_watcher import RepositoryWatcher, WatchSettings
from serving.versions.served_versions import ServedVersions
from serving.versions.shared_state import SharedState
from serving.versions.version_fetcher import VerifiedFiles
from serving.versions.version_installer import VersionInstaller
from sharded_infer.errors import NotFoundError
from sharded_infer.progress import Progress, no_progress
from sharded_infer.repositories.repository import Repository


@dataclass(frozen=True, slots=True)
class VersionManager:
    """Watches a repository and installs versions, in any process of a server."""

    repository: Repository
    shared_state: SharedState
    metrics: ServerMetrics
    settings: WatchSettings
    verified: VerifiedFiles = field(default_factory=VerifiedFiles)

    def watcher(self) -> RepositoryWatcher:
        """A watcher that continues from the shared state."""
        return RepositoryWatcher(
            self.repository, self.shared_state, self.metrics, self.settings, self.verified
        )

    def installer(self, store: ServedVersions, worker: int = 0) -> VersionInstaller:
        """The installer of a process."""
        return VersionInstaller(store, self.shared_state, self.metrics, worker)

    def load_first(
        self,
        store: ServedVersions,
        models: list[str],
        progress: Progress = no_progress,
        *,
        strict: bool = False,
    ) -> VersionInstaller:
        """Loads the policy's versions in this process, before requests come.

        A version that fails is reported, and another serves if the policy allows it. A model that
        cannot be served is reported in `missing`, and followed like the others.

        Args:
            strict: raise if any model cannot be served, not only if none can.

        Returns:
            The installer, caught up.

        Raises:
            NotFoundError: the repository lacks a model, or a version of the policy.
            ArtifactError, GateError, StorageError: no version of a model can be served; the error
                of the preferred one.
            UnservedError: none of several models can be served; the message has each reason.
        """
        watcher, installer = self.watcher(), self.installer(store)
        watcher.follow(models)
        if self.settings.explicit:
            # The others, for the index.
            watcher.look()
        watcher.failures.hold_back()
        # There is no old version to leave room for; the loader itself checks the memory.
        raised: Exception | None = None
        try:
            while watcher.step(progress, beside_requests=False):
                installer.catch_up(progress)
            installer.catch_up(progress)
            raised = self._why_not_served(models, watcher, installer, strict=strict)
        finally:
            # The handler of the raised error logs it.
            watcher.failures.release(but=raised)
        if raised is not None:
            raise raised
        return installer

    def missing(self) -> dict[str, str]:
        """Wanted models that are not served, and why."""
        return self.shared_state.releases()[1].missing

    def _why_not_served(
        self,
        models: list[str],
        watcher: RepositoryWatcher,
        installer: VersionInstaller,
        *,
        strict: bool,
    ) -> Exception | None:
        """The error if no model can be served at the start, or None."""
        missing = self.missing()
        unserved = [model for model in models if model in missing]
        if not unserved or (len(unserved) < len(models) and not strict):
            return None
        if len(unserved) > 1 and not strict:
            reasons = "; ".join(f"{model}: {missing[model]}" for model in unserved)
            return UnservedError(f"none of {len(unserved)} models can be served: {reasons}")
        errors = [e.errors[unserved[0]] for e in (watcher, installer) if unserved[0] in e.errors]
        # The preferred version's.
        first = watcher.failures.first(unserved[0])
        errors.sort(key=lambda error: first is None or str(error) != first.reason)
        if errors:
            return errors[0]
        policy = self.settings.policy
        return NotFoundError(
            f"model {unserved[0]!r}: nothing to serve; {policy} names no version of it"
        )
