"""Repositories: versions of models, published whole or not at all, and the labels that name them.

A repository is a folder (`local_versions.py`), or a URL of any file system that fsspec knows, such
as `s3://bucket/prefix` (`remote_versions.py`), whose versions come through a cache on this machine.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kernels.wording import did_you_mean
from sharded_infer.artifact import Artifact
from sharded_infer.errors import InputError, NotFoundError
from sharded_infer.file_lock import Held
from sharded_infer.label_file import LabelFile
from sharded_infer.labels import Labels, check_label
from sharded_infer.local_versions import LocalVersions
from sharded_infer.manifest import Manifest
from sharded_infer.object_store import ObjectStore
from sharded_infer.progress import Progress, no_progress
from sharded_infer.remote_versions import RemoteVersions
from sharded_infer.stored_versions import Leftovers, StoredVersions
from sharded_infer.version_cache import VersionCache, default_cache

_LOCAL = {"file", "local"}


class Repository:
    """Models, their versions and labels. Nothing is kept in memory: every answer is asked for.

    Every method raises StorageError where the repository cannot be reached, read or written.

    Attributes:
        location: the folder or URL, as people write it.
        is_remote: whether versions must be fetched before they are used.
    """

    def __init__(self, location: Path | str, cache: VersionCache | None = None) -> None:
        """Names the place; it need not exist before something is published.

        Args:
            location: a folder, or a URL such as `s3://bucket/prefix`.
            cache: where versions of a remote repository are kept on this machine; None takes the
                folder that SHARDED_INFER_CACHE names.

        Raises:
            InputError: no file system is known for the URL, or its package is not installed.
        """
        protocol, separator, rest = str(location).partition("://")
        self._stored: StoredVersions
        self.is_remote = bool(separator) and protocol not in _LOCAL
        if self.is_remote:
            cache = default_cache(os.environ) if cache is None else cache
            self._stored = RemoteVersions(ObjectStore(str(location)), cache)
        else:
            self._stored = LocalVersions(Path(rest) if separator else Path(location))
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
        """Models and numbers of what lies in a version's place without a manifest, so is none.

        Raises:
            NotFoundError: the folder or bucket does not exist.
        """
        return self._stored.incomplete()

    def version_path(self, model: str, version: int | None = None) -> Path:
        """The folder of a version of a local repository.

        Args:
            model: the model.
            version: its number; None is the latest.

        Raises:
            InputError: the repository is remote.
            NotFoundError: there is no such version.
        """
        return self.path / model / str(self._chosen(model, version))

    def where(self, model: str, version: int) -> str:
        """A version's folder or URL, as people write it."""
        return self._stored.where(model, version)

    def open(self, model: str, version: int | None = None) -> Artifact:
        """Reads a version's manifest.

        Of a remote repository only plans and reports come to this machine; see `fetch`.

        Args:
            model: the model.
            version: its number; None is the latest.

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

    def fetch(
        self, model: str, version: int | None = None, progress: Progress = no_progress
    ) -> Path:
        """Brings a version to this machine.

        It stays there, and in a local repository nobody removes it, until `release` or until this
        process and those that it forks have ended.

        Args:
            model: the model.
            version: its number; None is the latest.
            progress: told the bytes that have come.

        Returns:
            A folder that holds the version: of a local repository its own; of a remote one a
            folder of the cache, whose files had the right hashes when they came.

        Raises:
            NotFoundError: there is no such version.
            ArtifactError: it is damaged.
            StorageError: the store cannot be read, or the disk is full. What has come is kept: the
                next call goes on from there.
        """
        path, held = self._stored.fetch(model, self._chosen(model, version), progress)
        if path in self._held:
            held.close()
        else:
            self._held[path] = held
        return path

    def release(self, path: Path) -> None:
        """Lets go of a version that was fetched: it may be removed from now on."""
        if (held := self._held.pop(path, None)) is not None:
            held.close()

    def verify(
        self, model: str, version: int | None = None, progress: Progress = no_progress
    ) -> int:
        """Reads every file of a version where it is stored, and compares it with the manifest.

        Args:
            model: the model.
            version: its number; None is the latest.
            progress: told the bytes read.

        Returns:
            The bytes read.

        Raises:
            NotFoundError: there is no such version.
            ArtifactError: a file is missing, short, long or altered; names it.
        """
        return self._stored.verify(model, self._chosen(model, version), progress)

    @contextmanager
    def staging(self, model: str) -> Iterator[Path]:
        """A local folder to write a version in; gone afterwards unless committed.

        Folders that killed publishers left behind are removed first.
        """
        with self._stored.staging(model) as path:
            yield path

    def commit(
        self,
        staged: Path,
        manifest: Manifest,
        *,
        version: int | None = None,
        progress: Progress = no_progress,
    ) -> Path:
        """Makes a staged version visible, whole.

        Args:
            staged: the folder from `staging`, complete but for its manifest.
            manifest: its manifest; the version's number is replaced.
            version: the number to give; None takes the next free one.
            progress: told the bytes uploaded.

        Returns:
            The version's folder, named by its number. Of a remote repository it is the staged
            one, and gone when `staging` ends.

        Raises:
            ArtifactError: the number is taken, or the folder cannot be renamed.
        """
        return self._stored.commit(staged, manifest, version, progress)

    def labels(self, model: str) -> dict[str, int]:
        """The model's labels and the versions that they point at; empty if it has none.

        Raises:
            ArtifactError: its file of labels is damaged.
        """
        return dict(sorted(self.label_history(model).versions.items()))

    def label_history(self, model: str) -> Labels:
        """The model's labels, and what they pointed at before.

        Raises:
            ArtifactError: its file of labels is damaged.
        """
        return LabelFile(self._stored, model).read()[0]

    def set_label(self, model: str, label: str, version: int) -> Labels:
        """Moves a label, or makes it; whoever reads sees it as before or as after.

        Args:
            model: the model.
            label: its name: a letter, then letters, digits, `.`, `_` and `-`.
            version: a published version.

        Returns:
            The model's labels as they are now.

        Raises:
            InputError: it is no label's name.
            NotFoundError: there is no such version.
        """
        check_label(label)

        def move(labels: Labels) -> Labels:
            return labels.moved(label, self._chosen(model, version))

        return self.change_labels(model, move)

    def remove_label(self, model: str, label: str) -> Labels:
        """Removes a label; the version that it points at stays.

        Raises:
            NotFoundError: there is no such label, or no such model.
        """
        self.versions(model)
        return self.change_labels(model, lambda labels: labels.without(label))

    def change_labels(self, model: str, change: Callable[[Labels], Labels]) -> Labels:
        """Replaces a model's labels in one step, whoever else changes them at once.

        Args:
            model: the model.
            change: the labels after, from those before; called again if they changed meanwhile.

        Returns:
            The labels after.
        """
        return LabelFile(self._stored, model).change(change)

    def in_use(self, model: str, version: int) -> bool:
        """Whether a process of this machine uses a version in its folder; of a store, never."""
        return self._stored.in_use(model, version)

    def remove(self, model: str, version: int) -> bool:
        """Removes a version unless somebody uses it; whether it did. `collection` decides."""
        return self._stored.remove(model, version)

    def leftovers(self, model: str, safe_seconds: float) -> Leftovers:
        """Killed publishers' folders; a store's files that no version names, so old at least."""
        return self._stored.leftovers(model, safe_seconds)

    def remove_leftovers(self, model: str, leftovers: Leftovers) -> None:
        """Removes what no version needs."""
        self._stored.remove_leftovers(model, leftovers)

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
