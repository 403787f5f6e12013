"""Remote versions on this machine: a bounded folder that all processes share.

<cache>/versions/<SHA-256 of the manifest>/<version>/...   hard links to `<cache>/files/`
<cache>/versions/<SHA-256 of the manifest>/use             held by whoever uses the version
<cache>/staging/                                           versions on their way to a store
"""

import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from sharded_infer.errors import StorageError
from sharded_infer.file_cache import FileCache
from sharded_infer.file_lock import Held, held_alone, hold, locked
from sharded_infer.manifest import MANIFEST_NAME, Manifest
from sharded_infer.progress import Progress
from sharded_infer.regular_file import read_regular
from sharded_infer.remote_file import RemoteFile
from sharded_infer.sizes import parse_size, size_text

CACHE_VARIABLE = "SHARDED_INFER_CACHE"
CACHE_SIZE_VARIABLE = "SHARDED_INFER_CACHE_SIZE"
_REMOVED = "removed"


class VersionCache:
    """Versions of remote repositories in a local folder. Safe between processes.

    Attributes:
        path: the folder.
        max_bytes: the versions that were not used for longest go when it would hold more than so
            many bytes, but none that is in use; None: half of what its file system can hold.
    """

    def __init__(self, path: Path, max_bytes: int | None = None) -> None:
        """Names the folder; it is made when the first version comes."""
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
        """A version's folder with some of its files; with `manifest.json` once it has them all.

        Args:
            text: the manifest as it is stored.
            manifest: the same, read.
            names: the files that are wanted.
            source: where to read a file.
            progress: told the bytes that have come.

        Returns:
            The folder, and what keeps it from being evicted until it is closed.

        Raises:
            ArtifactError: a file is missing, short, long or altered.
            StorageError: the store cannot be read, or the disk is full.
        """
        home = self.path / "versions" / hashlib.sha256(text).hexdigest()
        folder = home / str(manifest.version)
        try:
            use = _used(home)
            try:
                if missing := [name for name in names if not _has(folder, manifest, name)]:
                    with locked(home / "building", grown=self._files.used_bytes):
                        self._fill(folder, manifest, missing, source, progress)
                if set(names) == set(manifest.files):
                    _write_manifest(folder, text)
            except BaseException:
                use.close()
                raise
        except OSError as error:
            raise StorageError(f"{folder}: cannot be written: {error.strerror}") from error
        return folder, use

    def _fill(
        self,
        folder: Path,
        manifest: Manifest,
        names: Collection[str],
        source: Callable[[str], RemoteFile],
        progress: Progress,
    ) -> None:
        # Another process may have brought some while this one waited.
        names = [name for name in names if not _has(folder, manifest, name)]
        records = {manifest.files[name].sha256: manifest.files[name] for name in names}
        needed = sum(record.bytes - self._files.holds(record) for record in records.values())
        self._make_room(needed)
        done, total = 0, sum(manifest.files[name].bytes for name in names)

        def got(count: int) -> None:
            nonlocal done
            done += count
            progress("fetching", done, total)

        for name in names:
            self._files.link(source(name), folder / name, got)

    def _make_room(self, needed: int) -> None:
        """Evicts what was not used for longest until so many bytes fit the bound and the disk."""
        self.path.mkdir(parents=True, exist_ok=True)
        disk = shutil.disk_usage(self.path)
        bound = disk.total // 2 if self.max_bytes is None else self.max_bytes
        with locked(self.path / "eviction", grown=self._files.used_bytes):
            # Also what an eviction that was killed left.
            shutil.rmtree(self.path / _REMOVED, ignore_errors=True)
            (self.path / _REMOVED).mkdir(exist_ok=True)
            excess = max(self._files.used_bytes() + needed - bound, needed - disk.free)
            excess -= self._files.remove_unused(excess)
            for use in sorted(self.path.glob("versions/*/use"), key=_last_use):
                if excess <= 0:
                    break
                with held_alone(use) as alone:
                    if alone:
                        # Renamed first: who wants it now makes it anew, not among what is removed.
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
    """The cache that a process uses unless it is given another.

    Args:
        environment: its variables: SHARDED_INFER_CACHE names the folder, SHARDED_INFER_CACHE_SIZE
            bounds it, such as `200GB`.

    Raises:
        InputError: the size is none.
    """
    users = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = environment.get(CACHE_VARIABLE) or str(Path(users) / "sharded-infer")
    size = environment.get(CACHE_SIZE_VARIABLE)
    return VersionCache(Path(folder), parse_size(size, CACHE_SIZE_VARIABLE) if size else None)


def _used(home: Path) -> Held:
    """The version's file `use`, held together with others who use it, and marked as used now."""
    while True:
        home.mkdir(parents=True, exist_ok=True)
        try:
            (home / "use").touch()
        except FileNotFoundError:
            # Evicted right after it was made.
            continue
        if (file := hold(home / "use")) is not None:
            return file


def _last_use(use: Path) -> float:
    try:
        return use.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _has(folder: Path, manifest: Manifest, name: str) -> bool:
    # Links are made of whole files only, whose hashes were right.
    try:
        return (folder / name).stat().st_size == manifest.files[name].bytes
    except FileNotFoundError:
        return False


def _write_manifest(folder: Path, text: bytes) -> None:
    try:
        if read_regular(folder / MANIFEST_NAME, len(text)) == text:
            return
    except OSError:
        # None yet, or none that is sound.
        pass
    new = folder.parent / f"{MANIFEST_NAME}.{os.getpid()}"
    new.write_bytes(text)
    new.replace(folder / MANIFEST_NAME)
