"""Local remote versions: a bounded folder shared by all processes.

<cache>/versions/<SHA-256 of the manifest>/<version>/...   hard links to `<cache>/files/`
<cache>/versions/<SHA-256 of the manifest>/rows/<version>/...   the same with some rows only
<cache>/versions/<SHA-256 of the manifest>/use             locked by processes that use the version
<cache>/staging/                                           versions being uploaded to a store
"""

import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.artifacts.manifest import BLOCK_BYTES, MANIFEST_NAME, Manifest
from sharded_infer.artifacts.row_blocks import (
    FileRange,
    Runs,
    bring_rows,
    differing_blocks,
    runs_of,
)
from sharded_infer.byte_sizes import parse_size, size_text
from sharded_infer.errors import StorageError
from sharded_infer.files.cache_folder import cache_folder
from sharded_infer.files.file_lock import Held, held_alone, hold, locked
from sharded_infer.files.regular_file import read_regular
from sharded_infer.progress import Progress, summed_progress
from sharded_infer.repositories.storage.file_cache import FileCache
from sharded_infer.repositories.storage.remote_file import RemoteFile

CACHE_SIZE_VARIABLE = "SHARDED_INFER_CACHE_SIZE"
_REMOVED = "removed"


class VersionCache:
    """Versions of remote repositories in a local folder. Safe between processes.

    Beyond `max_bytes` (None: half the file system), unused versions are evicted, the longest unused
    first.
    """

    def __init__(self, path: Path, max_bytes: int | None = None) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self._files = FileCache(path / "files")

    def folder(
        self,
        text: bytes,
        manifest: Manifest,
        names: Collection[str],
        source: Callable[[str], RemoteFile],
        progress: Progress,
    ) -> tuple[Path, Held]:
        """A version's folder with some files, and a lock against eviction until closed.

        It has `manifest.json` once it has all. `text` is the manifest as stored; `progress` is
        called with the bytes fetched so far. Raises ArtifactError if a file is missing, altered or
        of another size; StorageError for an unreadable store or a full disk.
        """
        home = self.path / "versions" / hashlib.sha256(text).hexdigest()
        folder = home / str(manifest.version)
        with _written(home, folder) as use:
            if missing := [name for name in names if not _has(folder, manifest, name)]:
                with locked(home / "building", grown=self._files.used_bytes):
                    self._fill(folder, manifest, missing, source, progress)
            if set(names) == set(manifest.files):
                _write_manifest(folder, text)
        return folder, use

    def rows_folder(
        self,
        text: bytes,
        manifest: Manifest,
        names: Collection[str],
        ranges: Collection[FileRange],
        source: Callable[[str], RemoteFile],
        progress: Progress,
    ) -> tuple[Path, Held]:
        """As `folder`, but with some verified files and rows, and always `manifest.json`.

        Table files have their full sizes; blocks without these rows may be holes. `names` includes
        the block hashes of all table files in `ranges`.
        """
        home = self.path / "versions" / hashlib.sha256(text).hexdigest()
        folder = home / "rows" / str(manifest.version)
        artifact = Artifact(folder, manifest)
        with _written(home, folder) as use:
            with locked(home / "building", grown=self._files.used_bytes):
                if missing := [name for name in names if not _has(folder, manifest, name)]:
                    self._fill(folder, manifest, missing, source, progress)
                for file in {stored.file for stored in ranges}:
                    self._files.link_rows(manifest.files[file], folder / file)
                bring_rows(artifact, ranges, partial(self._bring, artifact, source, progress))
            _write_manifest(folder, text)
        return folder, use

    def _bring(
        self,
        artifact: Artifact,
        source: Callable[[str], RemoteFile],
        progress: Progress,
        wanted: Mapping[str, Runs],
    ) -> None:
        missing: dict[str, Runs] = {}
        total = BLOCK_BYTES * sum(end - first for r in wanted.values() for first, end in r)
        got = summed_progress(progress, "fetching", total)
        hashes = {file: artifact.block_hashes(file) for file in wanted}
        for file, runs in wanted.items():
            path, of_file = artifact.path / file, hashes[file]
            differing = [n for n, differs in differing_blocks(path, of_file, runs) if differs]
            missing[file] = runs_of(differing)
        needed = BLOCK_BYTES * sum(end - first for r in missing.values() for first, end in r)
        got(total - needed)
        if needed:
            self._make_room(needed)
        for file, runs in missing.items():
            if runs:
                self._files.fill(artifact.path / file, source(file), hashes[file], runs, got)

    def _fill(
        self,
        folder: Path,
        manifest: Manifest,
        names: Collection[str],
        source: Callable[[str], RemoteFile],
        progress: Progress,
    ) -> None:
        # Another process may have fetched some during the wait.
        names = [name for name in names if not _has(folder, manifest, name)]
        records = {manifest.files[name].sha256: manifest.files[name] for name in names}
        needed = sum(record.bytes - self._files.holds(record) for record in records.values())
        self._make_room(needed)
        total = sum(manifest.files[name].bytes for name in names)
        got = summed_progress(progress, "fetching", total)
        for name in names:
            self._files.link(source(name), folder / name, got)

    def _make_room(self, needed: int) -> None:
        """Evict the longest unused versions until so many bytes fit the bound and the disk."""
        self.path.mkdir(parents=True, exist_ok=True)
        disk = shutil.disk_usage(self.path)
        bound = disk.total // 2 if self.max_bytes is None else self.max_bytes
        with locked(self.path / "eviction", grown=self._files.used_bytes):
            # Also the remains of a killed eviction.
            shutil.rmtree(self.path / _REMOVED, ignore_errors=True)
            (self.path / _REMOVED).mkdir(exist_ok=True)
            excess = max(self._files.used_bytes() + needed - bound, needed - disk.free)
            excess -= self._files.remove_unused(excess)
            for use in sorted(self.path.glob("versions/*/use"), key=_last_use):
                if excess <= 0:
                    break
                with held_alone(use) as alone:
                    if alone:
                        # Renamed first: a concurrent user recreates it, away from the files being
                        # removed.
                        use.parent.rename(self.path / _REMOVED / uuid.uuid4().hex)
                        shutil.rmtree(self.path / _REMOVED, ignore_errors=True)
                        (self.path / _REMOVED).mkdir(exist_ok=True)
                excess -= self._files.remove_unused(excess)
        if needed > (free := shutil.disk_usage(self.path).free):
            raise StorageError(
                f"{self.path}: the version needs {size_text(needed)} more, {size_text(free)} are "
                "free, and everything else in the cache is in use"
            )


def default_cache(environment: Mapping[str, str]) -> VersionCache:
    """The cache SHARDED_INFER_CACHE, bound SHARDED_INFER_CACHE_SIZE; InputError if invalid."""
    size = environment.get(CACHE_SIZE_VARIABLE)
    return VersionCache(
        cache_folder(environment), parse_size(size, CACHE_SIZE_VARIABLE) if size else None
    )


@contextmanager
def _written(home: Path, folder: Path) -> Iterator[Held]:
    """A lock on a version being written, kept on success; StorageError if unwritable."""
    try:
        use = _used(home)
        try:
            yield use
        except BaseException:
            use.close()
            raise
    except OSError as error:
        raise StorageError(f"{folder}: cannot be written: {error.strerror}") from error


def _used(home: Path) -> Held:
    """The version's file `use`, locked shared and marked as used now."""
    while True:
        home.mkdir(parents=True, exist_ok=True)
        try:
            (home / "use").touch()
        except FileNotFoundError:
            # Evicted right after its creation.
            continue
        if (file := hold(home / "use")) is not None:
            return file


def _last_use(use: Path) -> float:
    try:
        return use.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _has(folder: Path, manifest: Manifest, name: str) -> bool:
    # Links refer only to whole files with verified hashes.
    try:
        return (folder / name).stat().st_size == manifest.files[name].bytes
    except FileNotFoundError:
        return False


def _write_manifest(folder: Path, text: bytes) -> None:
    try:
        if read_regular(folder / MANIFEST_NAME, len(text)) == text:
            return
    except OSError:
        # Missing or damaged.
        pass
    new = folder.parent / f"{MANIFEST_NAME}.{os.getpid()}"
    new.write_bytes(text)
    new.replace(folder / MANIFEST_NAME)
