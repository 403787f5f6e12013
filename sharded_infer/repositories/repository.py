"""Repositories: versions of models, published atomically, and their labels.

A repository is a folder (`local_versions.py`), or a URL of any fsspec file system, such as
`s3://bucket/prefix` (`remote_versions.py`), read through a local cache of versions.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kernels.wording import did_you_mean
from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.artifacts.manifest import Manifest, blocks_name
from sharded_infer.artifacts.row_blocks import FileRange
from sharded_infer.errors import ArtifactError, InputError, NotFoundError
from sharded_infer.files.file_lock import Held
from sharded_infer.progress import Progress, no_progress
from sharded_infer.repositories.label_file import LabelFile
from sharded_infer.repositories.labels import Labels, check_label
from sharded_infer.repositories.local_parts import LocalParts
from sharded_infer.repositories.local_versions import LocalVersions
from sharded_infer.repositories.remote_parts import RemoteParts
from sharded_infer.repositories.remote_versions import RemoteVersions
from sharded_infer.repositories.signatures.local_signatures import LocalSignatures
from sharded_infer.repositories.signatures.manifest_signatures import (
    UNSIGNED,
    ManifestSignatures,
    Sealing,
)
from sharded_infer.repositories.signatures.remote_signatures import RemoteSignatures
from sharded_infer.repositories.signatures.trusted_keys import TrustedKeys
from sharded_infer.repositories.storage.object_store import ObjectStore
from sharded_infer.repositories.storage.version_cache import VersionCache, default_cache
from sharded_infer.repositories.stored_parts import StoredParts
from sharded_infer.repositories.stored_versions import (
    Leftovers,
    StoredVersions,
    VersionNumbers,
    highest_version,
)

_LOCAL = {"file", "local"}


class Repository:
    """Models, their versions and labels. Nothing is cached in memory. Version None is the latest.

    Every method raises StorageError if the repository cannot be reached, read or written.

    Attributes:
        location: the folder or URL, for display.
        is_remote: True if versions must be fetched before use.
        parts: rows of versions that are published in parts.
    """

    def __init__(
        self,
        location: Path | str,
        cache: VersionCache | None = None,
        *,
        trusted_keys: Iterable[Path | str] = (),
    ) -> None:
        """Open a repository, which may not exist until the first publish.

        Args:
            location: a folder, or a URL such as `s3://bucket/prefix`.
            cache: local copies of a remote repository's versions; None: the folder
                SHARDED_INFER_CACHE.
            trusted_keys: PEM files of ed25519 public keys. Methods that read a version then raise
                SignatureError, an ArtifactError, unless one of the keys has signed it.

        Raises:
            InputError: an unknown file system, a missing package, or an unusable key file.
        """
        protocol, separator, rest = str(location).partition("://")
        files = tuple(trusted_keys)
        trusted = TrustedKeys(files) if files else None
        self._stored: StoredVersions
        self.parts: StoredParts
        self.is_remote = bool(separator) and protocol not in _LOCAL
        if self.is_remote:
            cache = default_cache(os.environ) if cache is None else cache
            store = ObjectStore(str(location))
            self.signatures = ManifestSignatures(RemoteSignatures(store), trusted)
            self._stored = RemoteVersions(store, cache, self.signatures)
            self.parts = RemoteParts(store)
        else:
            folder = Path(rest) if separator else Path(location)
            self.signatures = ManifestSignatures(LocalSignatures(folder), trusted)
            self._stored = LocalVersions(folder, self.signatures)
            self.parts = LocalParts(folder)
        self.location = self._stored.location
        self._held: dict[Path, Held] = {}

    @property
    def path(self) -> Path:
        """The folder of a local repository; InputError if it is remote."""
        if self.is_remote:
            raise InputError(f"{self.location}: has no folder on this machine; fetch its versions")
        return Path(self.location)

    def models(self) -> list[str]:
        """Names of the models that have a version; NotFoundError without the folder or bucket."""
        return self._stored.models()

    def versions(self, model: str) -> list[int]:
        """Published versions of a model, ascending; NotFoundError if it has none."""
        if not (versions := self._stored.numbers(model)):
            known = self.models()
            raise NotFoundError(
                f"{self.location}: no model {model!r}; it holds {', '.join(known) or 'none'}"
                f"{did_you_mean(model, known)}"
            )
        return versions

    def latest(self, model: str) -> int:
        """The highest version under its own number; NotFoundError if the model has none."""
        return highest_version(self._stored, model) or self.versions(model)[-1]

    def next_version(self, model: str) -> int:
        """The number of the next version, if nobody else publishes one."""
        return VersionNumbers(self._stored, model).next()

    def incomplete(self) -> list[tuple[str, int]]:
        """Models and numbers of version folders without a manifest; NotFoundError as `models`."""
        return self._stored.incomplete()

    def where(self, model: str, version: int) -> str:
        """A version's folder or URL, for display."""
        return self._stored.where(model, version)

    def open(self, model: str, version: int | None = None) -> Artifact:
        """Read a version's manifest; from a remote repository also its plans and reports.

        Raises:
            NotFoundError: no such version.
            ArtifactError: a manifest that is damaged, or of another model.
        """
        return self._stored.open(model, self._chosen(model, version))

    def manifest(self, model: str, version: int) -> Manifest:
        """Read a version's manifest alone; errors as `open`."""
        return self._stored.manifest(model, self._chosen(model, version))

    def manifest_text(self, model: str, version: int) -> bytes:
        """The manifest as stored; errors as `open`."""
        return self._stored.manifest_text(model, self._chosen(model, version))

    def fetch(
        self, model: str, version: int | None = None, progress: Progress = no_progress
    ) -> Path:
        """Copy a remote version to this machine.

        It is protected from removal until `release`, or until this process and its forks end.

        Args:
            progress: called with the bytes fetched so far.

        Returns:
            The version's folder; for a remote repository a cached one, whose hashes were verified
                on arrival.

        Raises:
            NotFoundError: no such version.
            ArtifactError: it is damaged.
            StorageError: an unreadable store or a full disk; the next call resumes the download.
        """
        return self._kept(*self._stored.fetch(model, self._chosen(model, version), progress))

    def fetch_rows(
        self,
        model: str,
        version: int,
        names: Collection[str],
        ranges: Collection[FileRange],
        progress: Progress = no_progress,
    ) -> Path:
        """As `fetch`, but copy and verify only some files, and parts of others.

        Args:
            names: files to copy whole.
            ranges: rows of tables, each within one piece, and ids of id maps; their files need
                block hashes.

        Returns:
            A folder with the manifest, these files, rows and ids; the rest is unverified.
        """
        wanted = sorted({*names, *(blocks_name(stored.file) for stored in ranges)})
        return self._kept(*self._stored.fetch_rows(model, version, wanted, ranges, progress))

    def holds(self, path: Path) -> bool:
        """True if a version was fetched and not yet released."""
        return path in self._held

    def release(self, path: Path) -> None:
        """Release a fetched version, so that it may be removed."""
        if (held := self._held.pop(path, None)) is not None:
            held.close()

    def verify(
        self, model: str, version: int | None = None, progress: Progress = no_progress
    ) -> int:
        """Compare every stored file of a version with the manifest; return the bytes read.

        Args:
            progress: called with the bytes read.

        Raises:
            NotFoundError: no such version.
            ArtifactError: a file is missing, altered or of another size; names it.
        """
        return self._stored.verify(model, self._chosen(model, version), progress)

    @contextmanager
    def staging(self, model: str) -> Iterator[Path]:
        """A local folder for writing a version; removed unless committed.

        Folders of killed publishers are removed first.
        """
        with self._stored.staging(model) as path:
            yield path

    def commit(
        self,
        staged: Path,
        manifest: Manifest,
        *,
        version: int | None = None,
        sealing: Sealing = UNSIGNED,
        progress: Progress = no_progress,
    ) -> Path:
        """Publish a staged version atomically.

        Args:
            staged: the folder from `staging`, complete except for its manifest.
            manifest: its version number is replaced.
            version: None: the number after the highest that any version ever had.
            sealing: serialization and signing of the manifest.
            progress: called with the bytes uploaded.

        Returns:
            The version's folder, named by its number. For a remote repository it is the staged
                folder, which is removed when `staging` ends.

        Raises:
            ArtifactError: the number is taken, or the folder cannot be renamed.
        """
        numbers = VersionNumbers(self._stored, manifest.model)
        while True:
            number = numbers.take(version)
            path = self._stored.commit(staged, manifest, number, sealing, progress)
            if path is not None:
                return path
            if version is not None:
                where = self._stored.where(manifest.model, number)
                raise ArtifactError(f"{where}: cannot be published: is there already")

    def labels(self, model: str) -> dict[str, int]:
        """The model's labels and versions, empty without any; ArtifactError if damaged."""
        return dict(sorted(self.label_history(model).versions.items()))

    def label_history(self, model: str) -> Labels:
        """The model's labels, with their previous versions; errors as `labels`."""
        return LabelFile(self._stored, model).read()[0]

    def set_label(self, model: str, label: str, version: int) -> Labels:
        """Move or add a label atomically.

        Args:
            label: a letter, then letters, digits, `.`, `_` and `-`.

        Raises:
            InputError: invalid label name.
            NotFoundError: no such version.
        """
        check_label(label)

        def move(labels: Labels) -> Labels:
            return labels.moved(label, self._chosen(model, version))

        return self.change_labels(model, move)

    def remove_label(self, model: str, label: str) -> Labels:
        """Remove a label but not its version; NotFoundError for an unknown label or model."""
        self.versions(model)
        return self.change_labels(model, lambda labels: labels.without(label))

    def set_weights(self, model: str, weights: Mapping[str, int]) -> Labels:
        """Atomically set the labels that share requests without a version.

        Args:
            weights: as `Labels.weighted`.

        Raises:
            InputError, NotFoundError, ArtifactError: as `LabelFile.weigh`; there is no such model.
        """
        self.versions(model)
        return LabelFile(self._stored, model).weigh(weights)

    def change_labels(self, model: str, change: Callable[[Labels], Labels]) -> Labels:
        """Replace a model's labels atomically, also under concurrent changes.

        `change` returns the new labels; it is called again if they changed meanwhile.
        """
        return LabelFile(self._stored, model).change(change)

    def in_use(self, model: str, version: int) -> bool:
        """True if a local process uses a version in its folder; always False for a store."""
        return self._stored.in_use(model, version)

    def remove(self, model: str, version: int) -> bool:
        """Remove a version unless it is in use; True if removed."""
        return self._stored.remove(model, version)

    def leftovers(self, model: str, safe_seconds: float) -> Leftovers:
        """Folders of killed publishers, or a store's unused files of at least that age."""
        return self._stored.leftovers(model, safe_seconds)

    def remove_leftovers(self, model: str, leftovers: Leftovers) -> None:
        """Remove leftovers."""
        self._stored.remove_leftovers(model, leftovers)

    def _kept(self, path: Path, held: Held) -> Path:
        if path in self._held:
            held.close()
        else:
            self._held[path] = held
        return path

    def _chosen(self, model: str, version: int | None) -> int:
        if version is not None and self._stored.holds(model, version):
            return version
        versions = self.versions(model)
        if version is None:
            return versions[-1]
        raise NotFoundError(
            f"{self.location}: model {model!r} has no version {version}; it has "
            f"{', '.join(map(str, versions))}"
        )
