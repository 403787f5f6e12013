"""A server's following of its repository: what its processes share for it, and the first load."""

from dataclasses import dataclass

from serving.board import Board
from serving.follow_settings import FollowSettings
from serving.follower import Follower
from serving.installer import Installer
from serving.metrics import Metrics
from serving.model_store import ModelStore
from serving.version_policy import DEFAULT_NAME
from sharded_infer.errors import NotFoundError
from sharded_infer.progress import Progress, no_progress
from sharded_infer.repository import Repository


@dataclass(frozen=True, slots=True)
class Following:
    """What is needed to follow a repository, in any process of a server.

    Attributes:
        repository: where versions are published.
        board: what the processes tell each other.
        metrics: the server's.
        settings: what is followed, and how.
    """

    repository: Repository
    board: Board
    metrics: Metrics
    settings: FollowSettings

    def follower(self) -> Follower:
        """One that goes on from what the board says."""
        return Follower(self.repository, self.board, self.metrics, self.settings)

    def installer(self, store: ModelStore, worker: int = 0) -> Installer:
        """What brings a process to what the board says.

        Args:
            store: the process's.
            worker: its number.
        """
        return Installer(store, self.board, self.metrics, worker)

    def load_first(
        self, store: ModelStore, models: list[str], progress: Progress = no_progress
    ) -> Installer:
        """Loads what the policy asks for, in this process, before anybody is served.

        A version that fails is reported, and another one serves where the policy allows it.

        Args:
            store: this process's.
            models: to serve.
            progress: told how far verifying and copying are.

        Returns:
            What has loaded them, caught up.

        Raises:
            NotFoundError: the repository lacks a model, or what the policy names.
            ArtifactError, GateError, StorageError: no version of a model can be served; why the
                most wanted one cannot.
        """
        follower, installer = self.follower(), self.installer(store)
        follower.follow(models)
        if self.settings.explicit:
            # The others, for the index.
            follower.look()
        follower.failures.hold_back()
        # There is no old version to leave room for; the loader looks whether one fits by itself.
        raised: Exception | None = None
        try:
            while follower.step(progress, checks_memory=False):
                installer.catch_up(progress)
            installer.catch_up(progress)
            raised = self._why_not_served(models, follower, installer)
        finally:
            # Whoever catches what is raised says why.
            follower.failures.release(but=raised)
        if raised is not None:
            raise raised
        return installer

    def _why_not_served(
        self, models: list[str], follower: Follower, installer: Installer
    ) -> Exception | None:
        """Why the first model of which nothing can be served cannot be; None: all are served."""
        meant = self.board.releases()[1].models
        unserved = next((m for m in models if DEFAULT_NAME not in meant[m].names), None)
        if unserved is None:
            return None
        errors = [e.errors[unserved] for e in (follower, installer) if unserved in e.errors]
        # The most wanted version's.
        first = follower.failures.first(unserved)
        errors.sort(key=lambda error: first is None or str(error) != first.reason)
        if errors:
            return errors[0]
        return NotFoundError(
            f"model {unserved!r}: nothing to serve; {self.settings.policy} names no version of it"
        )
