"""Repositories: versions of models in a folder, published whole or not at all.

<repository>/<model>/<version>/manifest.json     no manifest, no version
<repository>/<model>/.staging-<random>/          a version being written (`staging.py`)
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sharded_infer.artifact import Artifact, open_artifact
from sharded_infer.errors import ArtifactError, NotFoundError
from sharded_infer.manifest import MANIFEST_NAME, Manifest, dump_manifest
from sharded_infer.staging import staged_folder


class Repository:
    """A folder of models and their versions.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path | str) -> None:
        """Names the folder; it need not exist before something is published."""
        self.path = Path(path)

    def models(self) -> list[str]:
        """Names of the models that have a version.

        Raises:
            NotFoundError: the folder does not exist.
        """
        if not self.path.is_dir():
            raise NotFoundError(f"{self.path}: no such repository")
        homes = [entry for entry in self.path.iterdir() if not entry.name.startswith(".")]
        return sorted(home.name for home in homes if _published(home))

    def versions(self, model: str) -> list[int]:
        """Published versions of a model, ascending.

        Raises:
            NotFoundError: the model has none.
        """
        if not (versions := self._versions(model)):
            known = ", ".join(self.models()) or "none"
            raise NotFoundError(f"{self.path}: no model {model!r}; it holds {known}")
        return versions

    def version_path(self, model: str, version: int | None = None) -> Path:
        """The folder of a version.

        Args:
            model: the model.
            version: its number; None is the latest.

        Raises:
            NotFoundError: there is no such version.
        """
        versions = self.versions(model)
        chosen = versions[-1] if version is None else version
        if chosen not in versions:
            raise NotFoundError(
                f"{self.path}: model {model!r} has no version {chosen}; it has "
                f"{', '.join(map(str, versions))}"
            )
        return self.path / model / str(chosen)

    def open(self, model: str, version: int | None = None) -> Artifact:
        """Reads a version's manifest.

        Args:
            model: the model.
            version: its number; None is the latest.

        Raises:
            NotFoundError: there is no such version.
            ArtifactError: its manifest is damaged, or of another model.
        """
        artifact = open_artifact(self.version_path(model, version))
        if artifact.manifest.model != model:
            raise ArtifactError(
                f"{artifact.path}: the manifest is of model {artifact.manifest.model!r}, its "
                f"folder of {model!r}"
            )
        return artifact

    @contextmanager
    def staging(self, model: str) -> Iterator[Path]:
        """A folder to write a version in, beside its place; gone afterwards unless committed.

        Folders that killed publishers left behind are removed first.
        """
        with staged_folder(self.path / model) as path:
            yield path

    def commit(self, staged: Path, manifest: Manifest) -> Path:
        """Makes a staged version visible: everything to disk, the manifest last, then the rename.

        Args:
            staged: the folder from `staging`, complete but for its manifest.
            manifest: its manifest; the version's number is replaced by the next free one.

        Returns:
            The version's folder.
        """
        for path in staged.rglob("*"):
            _flush(path)
        home = self.path / manifest.model
        while True:
            version = max(_numbers(home), default=0) + 1
            text = dump_manifest(replace(manifest, version=version))
            (staged / MANIFEST_NAME).write_bytes(text)
            _flush(staged / MANIFEST_NAME)
            _flush(staged)
            target = home / str(version)
            try:
                # Fails if another publisher took the number: a folder with files is never replaced.
                staged.rename(target)
            except OSError as error:
                if target.exists():
                    continue
                raise ArtifactError(f"{target}: cannot be published: {error.strerror}") from error
            _flush(home)
            return target

    def _versions(self, model: str) -> list[int]:
        # Looked up among the folder's entries: no name, such as "..", leads out of it.
        if not self.path.is_dir() or model not in os.listdir(self.path):
            return []
        return _published(self.path / model)


def _published(home: Path) -> list[int]:
    if not home.is_dir():
        return []
    return [n for n in _numbers(home) if (home / str(n) / MANIFEST_NAME).is_file()]


def _numbers(home: Path) -> list[int]:
    names = [entry.name for entry in home.iterdir()]
    return sorted(int(n) for n in names if n.isascii() and n.isdigit() and n[0] != "0")


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
