"""Versions in an object store. It has no renames; creating a manifest publishes a version.

<repository>/<model>/<version>/manifest.json     created last, and only if there is none
<repository>/<model>/files/<sha256>              files of all manifests, stored once
<repository>/<model>/labels.json                 replaced conditionally (`labels.py`)
<repository>/<model>/highest_version             replaced conditionally (`stored_versions.py`)
<repository>/<model>/signatures/<sha256>.json    of manifests (`signatures/signature_file.py`)
<repository>/<model>/parts/<name>.json           rows of a version's tables (`remote_parts.py`)
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from sharded_infer.artifacts.artifact import Artifact, verify_files
from sharded_infer.artifacts.block_hashes import BlockHashes
from sharded_infer.artifacts.manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    REPORT_NAME,
    Manifest,
    blocks_name,
    parse_manifest,
)
from sharded_infer.artifacts.row_blocks import FileRange
from sharded_infer.errors import MisplacedError, NotFoundError, StorageError
from sharded_infer.files.file_lock import Held
from sharded_infer.files.staged_folder import staged_folder
from sharded_infer.progress import Progress, no_progress, summed_progress
from sharded_infer.repositories.remote_parts import FILES, RemoteParts
from sharded_infer.repositories.signatures.manifest_signatures import ManifestSignatures, Sealing
from sharded_infer.repositories.signatures.remote_signatures import RemoteSignatures
from sharded_infer.repositories.signatures.signature_file import signatures_name
from sharded_infer.repositories.storage.object_store import ObjectStore
from sharded_infer.repositories.storage.remote_file import RemoteFile
from sharded_infer.repositories.storage.version_cache import VersionCache
from sharded_infer.repositories.storage.version_upload import upload_missing
from sharded_infer.repositories.stored_versions import Leftovers, version_number

_CLOCK = ".clock"


class RemoteVersions:
    """Versions in an object store; implements `stored_versions.StoredVersions`."""

    def __init__(
        self, store: ObjectStore, cache: VersionCache, signatures: ManifestSignatures
    ) -> None:
        self._store = store
        self._cache = cache
        self._signatures = signatures

    @property
    def location(self) -> str:
        """The URL, for display."""
        return self._store.url

    def models(self) -> list[str]:
        """Names of the models that have a version."""
        names = [entry.name for entry in self._store.entries() if entry.is_folder]
        return [name for name in names if self.numbers(name)]

    def numbers(self, model: str) -> list[int]:
        """Published versions of a model, ascending; empty if there is no such model."""
        if not _is_name(model):
            return []
        names = [entry.name for entry in self._store.entries(model) if entry.is_folder]
        numbers = sorted(number for name in names if (number := version_number(name)) is not None)
        # An object store's folder is a common prefix of its objects, so it holds a manifest.
        if not self._store.has_folders:
            return numbers
        return [number for number in numbers if self.holds(model, number)]

    def holds(self, model: str, version: int) -> bool:
        """True if a version is published."""
        return _is_name(model) and self._store.find(_manifest_key(model, version)) is not None

    def incomplete(self) -> list[tuple[str, int]]:
        """Models and numbers of version folders without a manifest."""
        found = [
            (model.name, number)
            for model in self._store.entries()
            if model.is_folder
            for entry in self._store.entries(model.name)
            if (number := version_number(entry.name)) is not None
        ]
        return [(model, number) for model, number in found if not self.holds(model, number)]

    def where(self, model: str, version: int) -> str:
        """A version's URL."""
        return self._store.where(f"{model}/{version}")

    def open(self, model: str, version: int) -> Artifact:
        """A version's manifest; plans and reports are fetched into the cache."""
        text, manifest = self._read(model, version)
        small = {*manifest.plans.values(), REPORT_NAME} & set(manifest.files)
        folder, held = self._folder(text, manifest, small, no_progress)
        held.close()
        return Artifact(folder, manifest)

    def manifest(self, model: str, version: int) -> Manifest:
        """Read a version's manifest."""
        return self._read(model, version)[1]

    def manifest_text(self, model: str, version: int) -> bytes:
        """Read a version's manifest as stored."""
        return self._read(model, version)[0]

    def fetch(self, model: str, version: int, progress: Progress) -> tuple[Path, Held]:
        """A local folder with the whole version, and a lock that protects it until closed."""
        text, manifest = self._read(model, version)
        return self._folder(text, manifest, set(manifest.files), progress)

    def fetch_rows(
        self,
        model: str,
        version: int,
        names: Collection[str],
        ranges: Collection[FileRange],
        progress: Progress,
    ) -> tuple[Path, Held]:
        """A cached folder with these files and rows of a version, and a lock."""
        text, manifest = self._read(model, version)
        folder, held = self._cache.rows_folder(
            text, manifest, names, ranges, lambda name: self._file(manifest, name), progress
        )
        try:
            # Files that were cached before.
            verify_files(Artifact(folder, manifest), progress, names=names)
        except BaseException:
            held.close()
            raise
        return folder, held

    def verify(self, model: str, version: int, progress: Progress) -> int:
        """Read every object of a version, not its cached copies; return the bytes read."""
        manifest = self.manifest(model, version)
        total = sum(record.bytes for record in manifest.files.values())
        got = summed_progress(progress, "verifying", total)
        for name in manifest.files:
            self._file(manifest, name).verify(got, self._block_hashes(manifest, name))
        return total

    @contextmanager
    def staging(self, _model: str) -> Iterator[Path]:
        """A cache folder for writing a version; removed afterwards."""
        with staged_folder(self._cache.path / "staging") as path:
            staged = path / "version"
            staged.mkdir()
            yield staged

    def commit(
        self,
        staged: Path,
        manifest: Manifest,
        version: int,
        sealing: Sealing,
        progress: Progress,
    ) -> Path | None:
        """Upload missing files, then create the manifest; None: the number is taken."""
        model = manifest.model
        files = f"{model}/{FILES}"
        upload_missing(self._store, files, staged, manifest, progress)
        # Repeated: a collection may have removed files that were long unused.
        upload_missing(self._store, files, staged, manifest, progress)
        text = self._signatures.sealed(manifest, version, sealing)
        if not self._store.create(_manifest_key(model, version), text):
            return None
        target = staged.with_name(str(version))
        staged.rename(target)
        return target

    def read_file(self, model: str, name: str, max_bytes: int) -> tuple[bytes, str] | None:
        """A small object in the model's folder, and its tag."""
        return self._store.read(f"{model}/{name}", max_bytes) if _is_name(model) else None

    def replace_file(
        self, model: str, name: str, content: bytes, tag: str | None, _max_bytes: int
    ) -> bool:
        """Replace a small object if its tag is unchanged; True if replaced."""
        return self._store.replace(f"{model}/{name}", content, tag)

    def in_use(self, _model: str, _version: int) -> bool:
        """Always False: users have their own copies, and downloads are unknown."""
        return False

    def remove(self, model: str, version: int) -> bool:
        """Remove a version's manifest; its files become leftovers."""
        self._store.remove(_manifest_key(model, version))
        return True

    def leftovers(self, model: str, safe_seconds: float) -> Leftovers:
        """Files without a manifest, parts and signatures, older than any publish takes."""
        files = self._store.entries(f"{model}/{FILES}")
        if not files:
            return Leftovers((), 0)
        now = self._now(model)
        old = [
            file
            for file in files
            if file.changed_at and (now - file.changed_at).total_seconds() > safe_seconds
        ]
        # Read after the listing, so that concurrent publishes are seen.
        named: set[str] = set()
        needed: set[str] = set()
        for number in self.numbers(model):
            text, manifest = self._read(model, number)
            named.update(record.sha256 for record in manifest.files.values())
            needed.add(signatures_name(text))
        unused = [file for file in old if file.name not in named]
        parts = RemoteParts(self._store).leftovers(model, safe_seconds, now)
        signatures, their_size = RemoteSignatures(self._store).leftovers(
            model, needed, safe_seconds, now
        )
        return Leftovers(
            (*parts, *signatures, *(f"{FILES}/{file.name}" for file in unused)),
            sum(file.bytes for file in unused) + their_size,
        )

    def remove_leftovers(self, model: str, leftovers: Leftovers) -> None:
        """Remove unneeded files."""
        for name in leftovers.names:
            self._store.remove(f"{model}/{name}")

    def _now(self, model: str) -> datetime:
        # The store's own clock: the local one may be off by days.
        key = f"{model}/{_CLOCK}"
        self._store.remove(key)
        self._store.create(key, b"")
        written = self._store.find(key)
        self._store.remove(key)
        if written is None or written.changed_at is None:
            raise StorageError(f"{self._store.where(key)}: the store does not say when it was made")
        return written.changed_at

    def _read(self, model: str, version: int) -> tuple[bytes, Manifest]:
        key = _manifest_key(model, version)
        where = self._store.where(key)
        if not _is_name(model) or (read := self._store.read(key, MAX_MANIFEST_BYTES)) is None:
            raise NotFoundError(f"{where}: no such object, so no published version")
        # Checked before any use.
        self._signatures.check(model, read[0], where)
        manifest = parse_manifest(read[0], where)
        if manifest.version != version:
            raise MisplacedError(f"{where}: says version {manifest.version}, its folder {version}")
        if manifest.model != model:
            raise MisplacedError(
                f"{where}: the manifest is of model {manifest.model!r}, its folder of {model!r}"
            )
        return read[0], manifest

    def _folder(
        self, text: bytes, manifest: Manifest, names: Collection[str], progress: Progress
    ) -> tuple[Path, Held]:
        return self._cache.folder(
            text, manifest, names, lambda name: self._file(manifest, name), progress
        )

    def _block_hashes(self, manifest: Manifest, name: str) -> BlockHashes | None:
        if (blocks := blocks_name(name)) not in manifest.files:
            return None
        content = self._file(manifest, blocks).content()
        return BlockHashes(name, manifest.files[name], content)

    def _file(self, manifest: Manifest, name: str) -> RemoteFile:
        record = manifest.files[name]
        key = f"{manifest.model}/{FILES}/{record.sha256}"

        def size() -> int | None:
            found = self._store.find(key)
            return None if found is None else found.bytes

        def read(begin: int, end: int) -> bytes:
            return self._store.read_range(key, begin, end)

        return RemoteFile(f"{self._store.where(key)} ({name})", record, size, read)


def _is_name(model: str) -> bool:
    return model not in ("", ".", "..") and not set(model) & set("/\\\0") and len(model) <= 255


def _manifest_key(model: str, version: int) -> str:
    return f"{model}/{version}/{MANIFEST_NAME}"
