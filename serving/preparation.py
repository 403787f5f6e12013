"""Brings a version to this machine, ready to be loaded: its memory checked, fetched, verified."""

import hashlib
from pathlib import Path

from serving.load_phases import LoadPhases
from serving.releases import Failure
from serving.spare_memory import available_bytes, check_fits, needed_bytes
from sharded_infer.artifact import Artifact, verify_files
from sharded_infer.errors import NotFoundError, ShardedInferError
from sharded_infer.manifest import Manifest, dump_manifest
from sharded_infer.progress import Progress
from sharded_infer.repository import Repository
from sharded_infer.table_memory import TableMemory

__all__ = ["Preparation", "reason_of"]


class Preparation:
    """What is done with a version before any worker loads it."""

    def __init__(
        self,
        repository: Repository,
        *,
        memory: TableMemory | None,
        processes: int,
        spare_bytes: int,
    ) -> None:
        """Keeps what holds for all versions.

        Args:
            repository: where they are published.
            memory: where their tables will lie; None: as each model's spec says.
            processes: that will load them.
            spare_bytes: memory that must stay free beside them.
        """
        self._repository = repository
        self._memory = memory
        self._processes = processes
        self._spare_bytes = spare_bytes

    def prepare(
        self,
        model: str,
        version: int,
        phases: LoadPhases,
        progress: Progress,
        *,
        checks_memory: bool,
    ) -> tuple[Path, Manifest]:
        """Does all of it, in the order of what it costs.

        Args:
            model: the model.
            version: its number.
            phases: told how long each step takes.
            progress: told how far fetching and verifying are.
            checks_memory: refuse a version that does not fit in the memory that is left.

        Returns:
            The local folder, held until it is released to the repository, and the manifest.

        Raises:
            CapacityError: it does not fit; says the figures.
            NotFoundError, ArtifactError, StorageError: it is gone, damaged, or cannot be fetched.
        """
        with phases.phase("fetch"):
            manifest = self._repository.manifest(model, version)
        # Before anything of it comes here: the manifest has the sizes.
        with phases.phase("memory"):
            if checks_memory:
                self._check_fits(manifest)
        with phases.phase("fetch"):
            path = self._repository.fetch(model, version, progress)
        with phases.phase("verify"):
            try:
                verify_files(Artifact(path, manifest), progress)
            except ShardedInferError:
                self._repository.release(path)
                raise
        return path, manifest

    def fingerprint(self, model: str, version: int) -> str:
        """What changes when a version's manifest does, or a file of it in a local repository."""
        try:
            manifest = self._repository.manifest(model, version)
        except NotFoundError:
            return "absent"
        except ShardedInferError as error:
            return reason_of(error)
        # A URL is no folder here: the manifest alone decides then.
        folder = Path(self._repository.where(model, version))
        files = [_size_and_time(folder / name) for name in manifest.files]
        return hashlib.sha256(dump_manifest(manifest) + repr(files).encode()).hexdigest()

    def is_unchanged(self, model: str, failure: Failure) -> bool:
        """Whether what has failed would fail again."""
        return self.fingerprint(model, failure.version) == failure.fingerprint

    def _check_fits(self, manifest: Manifest) -> None:
        memory = self._memory or TableMemory(manifest.model_spec().serving.memory)
        needed = needed_bytes(manifest, memory, self._processes)
        what = f"{manifest.model} version {manifest.version}"
        check_fits(needed, available_bytes(), self._spare_bytes, what)


def _size_and_time(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def reason_of(error: Exception) -> str:
    """An error in words for people."""
    known = isinstance(error, ShardedInferError)
    return str(error) if known else f"internal error: {type(error).__name__}: {error}"
