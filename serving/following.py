"""A server's following of its repository: what its processes share for it, and the first load."""

from dataclasses import dataclass

from serving.board import Board
from serving.follow_settings import FollowSettings
from serving.follower import Follower
from serving.installer import Installer
from serving.metrics import Metrics
from serving.model_store import ModelStore
from serving.refusals import UnservedError
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
        self,
        store: ModelStore,
        models: list[str],
        progress: Progress = no_progress,
        *,
        strict: bool = False,
    ) -> Installer:
        """Loads what the policy asks for, in this process, before anybody is served.

        A version that fails is reported, and another one serves where the policy allows it. So is a
        model that cannot be served: `missing` has it, and it is followed as the others are.

        Args:
            store: this process's.
            models: to serve.
            progress: told how far verifying and copying are.
            strict: raise for one that cannot be served, not only where none can.

        Returns:
            What has loaded them, caught up.

        Raises:
            NotFoundError: the repository lacks a model, or what the policy names.
            ArtifactError, GateError, StorageError: no version of a model can be served; why the
                most wanted one cannot.
            UnservedError: of several models none can be served; why, of each.
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
            raised = self._why_not_served(models, follower, installer, strict=strict)
        finally:
            # Whoever catches what is raised says why.
            follower.failures.release(but=raised)
        if raised is not None:
            raise raised
        return installer

    def missing(self) -> dict[str, str]:
        """The models that are to be served and are not, and why."""
        return self.board.releases()[1].missing

    def _why_not_served(
        self, models: list[str], follower: Follower, installer: Installer, *, strict: bool
    ) -> Exception | None:
        """Why there is nothing to start with; None: there is."""
        missing = self.missing()
        unserved = [model for model in models if model in missing]
        if not unserved or (len(unserved) < len(models) and not strict):
            return None
        if len(unserved) > 1 and not strict:
            reasons = "; ".join(f"{model}: {missing[model]}" for model in unserved)
            return UnservedError(f"none of {len(unserved)} models can be served: {reasons}")
        errors = [e.errors[unserved[0]] for e in (follower, installer) if unserved[0] in e.errors]
        # The most wanted version's.
        first = follower.failures.first(unserved[0])
        errors.sort(key=lambda error: first is None or str(error) != first.reason)
        if errors:
            return errors[0]
        policy = self.settings.policy
        return NotFoundError(
            f"model {unserved[0]!r}: nothing to serve; {policy} names no version of it"
        )
