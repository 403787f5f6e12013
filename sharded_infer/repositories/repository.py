"""Repositories: versions of models, published whole or not at all, and their labels.

A repository is a folder (`local_versions.py`), or a URL of any file system that fsspec knows, such
as `s3://bucket/prefix` (`remote_versions.py`), whose versions come through a cache on this machine.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kernels.wording import did_you_mean
from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.artifacts.manifest import Manifest, blocks_name
from sharded_infer.artifacts.row_blocks import FileRange
from sharded_infer.errors import InputError, NotFoundError
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
from sharded_infer.repositories.stored_versions import Leftovers, StoredVersions

_LOCAL = {"file", "local"}


class Repository:
    """Models, their versions and labels. Nothing is cached in memory. Version None is the latest.

    Every method raises StorageError if the repository cannot be reached, read or written.

    Attributes:
        location: the folder or URL, as people write it.
        is_remote: whether versions must be fetched before they are used.
        parts: rows of versions that are published in parts.
        signatures: of the versions' manifests.
    """

    def __init__(
        self,
        location: Path | str,
        cache: VersionCache | None = None,
        *,
        trusted_keys: Iterable[Path | str] = (),
    ) -> None:
        """Opens a repository; it need not exist before something is published.

        Args:
            location: a folder, or a URL such as `s3://bucket/prefix`.
            cache: where versions of a remote repository are kept on this machine; None takes the
                folder that SHARDED_INFER_CACHE names.
            trusted_keys: PEM files of ed25519 public keys; every method that reads a version then
                raises SignatureError, an ArtifactError, unless one of the keys has signed it.

        Raises:
            InputError: no file system is known for the URL, or its package is not installed; a file
                of keys cannot be used.
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
        """The folder of a local repository; an InputError if it is remote."""
        if self.is_remote:
            raise InputError(f"{self.location}: has no folder on this machine; fetch its versions")
        return Path(self.location)

    def models(self) -> list[str]:
        """Names of the models that have a version.

        Raises:
            NotFoundError: the folder or bucket does not exist.
        """
        return self._stored.models()

    def versions(self, model: str) -> list[int]:
        """Published versions of a model, ascending.

        Raises:
            NotFoundError: the model has none.
        """
        if not (versions := self._stored.numbers(model)):
            known = self.models()
            raise NotFoundError(
                f"{self.location}: no model {model!r}; it holds {', '.join(known) or 'none'}"
                f"{did_you_mean(model, known)}"
            )
        return versions

    def incomplete(self) -> list[tuple[str, int]]:
        """Models and numbers of version folders without a manifest.

        Raises:
            NotFoundError: the folder or bucket does not exist.
        """
        return self._stored.incomplete()

    def where(self, model: str, version: int) -> str:
        """A version's folder or URL, as people write it."""
        return self._stored.where(model, version)

    def open(self, model: str, version: int | None = None) -> Artifact:
        """Reads a version's manifest.

        From a remote repository it fetches only plans and reports; see `fetch`.

        Raises:
            NotFoundError: there is no such version.
            ArtifactError: its manifest is damaged, or of another model.
        """
        return self._stored.open(model, self._chosen(model, version))

    def manifest(self, model: str, version: int) -> Manifest:
        """Reads a version's manifest, and nothing else of it.

        Raises:
            NotFoundError: there is no such version.
            ArtifactError: it is damaged, or of another model.
        """
        return self._stored.manifest(model, self._chosen(model, version))

    def manifest_text(self, model: str, version: int) -> bytes:
        """As `manifest`, but returns it as it is stored."""
        return self._stored.manifest_text(model, self._chosen(model, version))

    def fetch(
        self, model: str, version: int | None = None, progress: Progress = no_progress
    ) -> Path:
        """Brings a version to this machine.

        It is protected from removal until `release`, or until this process and its forks have
        ended.

        Args:
            progress: called with the bytes fetched so far.

        Returns:
            The version's folder; for a remote repository a folder of the cache, whose files had the
            right hashes when they came.

        Raises:
            NotFoundError: there is no such version.
            ArtifactError: it is damaged.
            StorageError: the store cannot be read, or the disk is full. The next call resumes the
                download.
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
        """As `fetch`, but brings and verifies some files, and parts of others.

        Args:
            names: files to bring whole.
            ranges: rows of tables, each within one piece, and ids of id maps; there are hashes of
                the blocks of their files.

        Returns:
            A folder with the manifest, these files, rows and ids; the rest was not verified.
        """
        wanted = sorted({*names, *(blocks_name(stored.file) for stored in ranges)})
        return self._kept(*self._stored.fetch_rows(model, version, wanted, ranges, progress))

    def holds(self, path: Path) -> bool:
        """Whether a version was fetched, and not released since."""
        return path in self._held

    def release(self, path: Path) -> None:
        """Releases a version that was fetched, so that it may be removed."""
        if (held := self._held.pop(path, None)) is not None:
            held.close()

    def verify(
        self, model: str, version: int | None = None, progress: Progress = no_progress
    ) -> int:
        """Reads every file of a version in its storage, and compares it with the manifest.

        Args:
            progress: called with the bytes read.

        Raises:
            NotFoundError: there is no such version.
            ArtifactError: a file is missing, short, long or altered; names it.
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
        """Publishes a staged version in one step.

        Args:
            staged: the folder from `staging`, complete except for its manifest.
            manifest: the version's number is replaced.
            version: its number; None takes the next free one.
            sealing: how its manifest is written and signed.
            progress: called with the bytes uploaded.

        Returns:
            The version's folder, named by its number. For a remote repository it is the staged
            folder, which is removed when `staging` ends.

        Raises:
            ArtifactError: the number is taken, or the folder cannot be renamed.
        """
        return self._stored.commit(staged, manifest, version, sealing, progress)

    def labels(self, model: str) -> dict[str, int]:
        """The model's labels and their versions; empty if it has none.

        Raises:
            ArtifactError: its file of labels is damaged.
        """
        return dict(sorted(self.label_history(model).versions.items()))

    def label_history(self, model: str) -> Labels:
        """The model's labels, with their previous versions.

        Raises:
            ArtifactError: its file of labels is damaged.
        """
        return LabelFile(self._stored, model).read()[0]

    def set_label(self, model: str, label: str, version: int) -> Labels:
        """Moves or adds a label, in one step.

        Args:
            label: a letter, then letters, digits, `.`, `_` and `-`.

        Raises:
            InputError: the label's name is invalid.
            NotFoundError: there is no such version.
        """
        check_label(label)

        def move(labels: Labels) -> Labels:
            return labels.moved(label, self._chosen(model, version))

        return self.change_labels(model, move)

    def remove_label(self, model: str, label: str) -> Labels:
        """Removes a label; its version stays.

        Raises:
            NotFoundError: there is no such label, or no such model.
        """
        self.versions(model)
        return self.change_labels(model, lambda labels: labels.without(label))

    def set_weights(self, model: str, weights: Mapping[str, int]) -> Labels:
        """Sets which labels share the requests that name no version, in one step.

        Args:
            weights: as `Labels.weighted`.

        Raises:
            InputError, NotFoundError, ArtifactError: as `LabelFile.weigh`; there is no such model.
        """
        self.versions(model)
        return LabelFile(self._stored, model).weigh(weights)

    def change_labels(self, model: str, change: Callable[[Labels], Labels]) -> Labels:
        """Replaces a model's labels in one step, also under concurrent changes.

        Args:
            change: returns the new labels; called again if the labels changed meanwhile.
        """
        return LabelFile(self._stored, model).change(change)

    def in_use(self, model: str, version: int) -> bool:
        """Whether a process of this machine uses a version in its folder; False for a store."""
        return self._stored.in_use(model, version)

    def remove(self, model: str, version: int) -> bool:
        """Removes a version unless it is in use; returns whether it did."""
        return self._stored.remove(model, version)

    def leftovers(self, model: str, safe_seconds: float) -> Leftovers:
        """Folders of killed publishers, or a store's unused files of at least that age."""
        return self._stored.leftovers(model, safe_seconds)

    def remove_leftovers(self, model: str, leftovers: Leftovers) -> None:
        """Removes leftovers."""
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
