"""Prepares a version for loading: checks its memory, fetches and verifies it."""

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from serving.host.background import run_beside_requests
from serving.host.cores import usable_cores
from serving.host.memory import available_bytes
from serving.versions.load_phases import LoadPhases
from serving.versions.memory_fit import check_fits, needed_bytes
from serving.versions.state import Failure
from sharded_infer.artifacts.artifact import Artifact, verify_files
from sharded_infer.artifacts.manifest import Manifest, dump_manifest
from sharded_infer.artifacts.mapped_tables import read_tables_large
from sharded_infer.artifacts.table_memory import TableMemory
from sharded_infer.errors import NotFoundError, ShardedInferError
from sharded_infer.progress import Progress, no_progress
from sharded_infer.repositories.repository import Repository
from sharded_infer.towers.host_products import ProductsOption

__all__ = ["FetchFront", "VerifiedFiles", "VersionFetcher", "reason_of"]

# Takes the repository, model and version.
FetchFront = Callable[[Repository, str, int, Progress], Path]


class VerifiedFiles:
    """Files already compared with a manifest, so that versions that share them skip them."""

    def __init__(self) -> None:
        # SHA-256 by identity, which differs for other files and other contents.
        self._digests: dict[tuple[int, ...], str] = {}

    def verify(self, artifact: Artifact, progress: Progress, *, threads: int) -> set[str]:
        """Verifies the other files of a version; returns their names."""
        files = artifact.manifest.files
        # Taken before the bytes are read, so that a concurrent write is noticed.
        found = {name: _identity(artifact.path / name) for name in files}
        new = {name for name in files if self._digests.get(found[name]) != files[name].sha256}
        verify_files(artifact, progress, threads=threads, names=new)
        self._digests |= {found[name]: files[name].sha256 for name in new}
        return new


class VersionFetcher:
    """Preparation of a version before any worker loads it."""

    def __init__(
        self,
        repository: Repository,
        verified: VerifiedFiles,
        *,
        memory: TableMemory | None,
        processes: int,
        shares_copies: bool,
        fetch_front: FetchFront | None = None,
        spare_bytes: int,
        row_memory_bytes: int | None = None,
        products: ProductsOption = ProductsOption.AUTO,
    ) -> None:
        """Stores the settings for all versions.

        Args:
            memory: of their tables; None: as each model's spec says.
            processes: number of processes that will load them.
            shares_copies: they share copies of tables in huge pages.
            fetch_front: fetches and verifies a front's part of a version. Most tables are on shard
                hosts, so their sizes do not matter here. None: all tables are here.
            spare_bytes: memory that must stay free.
            row_memory_bytes, products: as `needed_bytes`.
        """
        self._repository = repository
        self._memory = memory
        self._processes = processes
        self._shares_copies = shares_copies
        self._fetch_front = fetch_front
        self._spare_bytes, self._row_memory_bytes = spare_bytes, row_memory_bytes
        self._products = products
        self._verified = verified
        # Of prepared versions, by folder.
        self._prepared: dict[Path, Manifest] = {}

    def prepare(
        self,
        model: str,
        version: int,
        phases: LoadPhases,
        progress: Progress,
        *,
        beside_requests: bool,
    ) -> tuple[Path, Manifest]:
        """Checks, fetches and verifies a version, the cheapest steps first.

        Args:
            beside_requests: refuse a version that does not leave requests their memory, and verify
                on one core; otherwise on all.

        Returns:
            The local folder, locked until it is released to the repository, and the manifest.

        Raises:
            CapacityError: it does not fit; the message has the figures.
            NotFoundError, ArtifactError, StorageError: the version is missing, damaged, or cannot
                be fetched.
        """
        with phases.phase("fetch"):
            manifest = self._repository.manifest(model, version)
        # Before anything is fetched: the manifest has the sizes.
        with phases.phase("memory"):
            if beside_requests and self._fetch_front is None:
                self._check_fits(manifest)
        with phases.phase("fetch"):
            path = self.hold(model, version, progress)
        if self._fetch_front is not None:
            return path, manifest
        with phases.phase("verify"):
            try:
                threads = 1 if beside_requests else usable_cores()
                artifact = Artifact(path, manifest)
                read = partial(self._read, artifact, progress, threads=threads)
                if beside_requests:
                    run_beside_requests(read)
                else:
                    read()
            except ShardedInferError:
                self._repository.release(path)
                raise
        self._prepared = {
            **{held: one for held, one in self._prepared.items() if self._repository.holds(held)},
            path: manifest,
        }
        return path, manifest

    def hold(self, model: str, version: int, progress: Progress = no_progress) -> Path:
        """Fetches a version, and locks it against removal; a front's part is also verified."""
        if self._fetch_front is not None:
            return self._fetch_front(self._repository, model, version, progress)
        return self._repository.fetch(model, version, progress)

    def fingerprint(self, model: str, version: int) -> str:
        """Changes with a version's manifest, and with its files in a local repository."""
        try:
            manifest = self._repository.manifest(model, version)
        except NotFoundError:
            return "absent"
        except ShardedInferError as error:
            return reason_of(error)
        # A URL is not a local folder: then only the manifest counts.
        folder = Path(self._repository.where(model, version))
        files = [_size_and_time(folder / name) for name in manifest.files]
        return hashlib.sha256(dump_manifest(manifest) + repr(files).encode()).hexdigest()

    def manifest_digest(self, model: str, version: int) -> str:
        """SHA-256 of a version's manifest; ShardedInferError if it cannot be read."""
        return hashlib.sha256(self._repository.manifest_text(model, version)).hexdigest()

    def is_unchanged(self, model: str, failure: Failure) -> bool:
        """True if a failed version would fail again."""
        return self.fingerprint(model, failure.version) == failure.fingerprint

    def _read(self, artifact: Artifact, progress: Progress, *, threads: int) -> None:
        """Verifies the files; reads tables into the page cache in 2 MiB pages, before any map."""
        new = self._verified.verify(artifact, progress, threads=threads)
        manifest = artifact.manifest
        if self._memory_of(manifest) is not TableMemory.AUTO:
            return
        if manifest.table_bytes <= available_bytes():
            names = manifest.memory_files & new
            read_tables_large(artifact, progress, again=True, names=names)

    def _memory_of(self, manifest: Manifest) -> TableMemory:
        return self._memory or TableMemory(manifest.model_spec().serving.memory)

    def _check_fits(self, manifest: Manifest) -> None:
        memory = self._memory_of(manifest)
        needed = needed_bytes(
            manifest,
            memory,
            self._processes,
            shares_copies=self._shares_copies,
            row_memory_bytes=self._row_memory_bytes,
            products=self._products,
        )
        if memory is not TableMemory.HUGE or self._shares_copies:
            needed = max(0, needed - self._shared_bytes(manifest))
        what = f"{manifest.model} version {manifest.version}"
        check_fits(needed, available_bytes(), self._spare_bytes, what)

    def _shared_bytes(self, manifest: Manifest) -> int:
        """Bytes of tables and id maps that versions have in memory already."""
        held = {
            one.files[name]
            for path, one in self._prepared.items()
            if self._repository.holds(path)
            for name in one.memory_files
        }
        wanted = {manifest.files[name] for name in manifest.memory_files}
        return sum(record.bytes for record in wanted & held)


def _identity(path: Path) -> tuple[int, ...]:
    """Differs for other files and other contents; equal for links to one file."""
    try:
        status = path.lstat()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


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
