"""Versions in a local folder, published by a rename.

<repository>/<model>/<version>/manifest.json     marks a version; locked by its users
<repository>/<model>/labels.json                 replaced by a rename (`labels.py`)
<repository>/<model>/highest_version             replaced by a rename (`stored_versions.py`)
<repository>/<model>/signatures/<sha256>.json    of manifests (`signatures/signature_file.py`)
<repository>/<model>/.staging-<random>/          being written or removed (`staged_folder.py`)
<repository>/<model>/.part-<name>/               rows of a version's tables (`local_parts.py`)
"""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from sharded_infer.artifacts.artifact import (
    Artifact,
    artifact_of,
    read_manifest,
    verify_files,
)
from sharded_infer.artifacts.manifest import MANIFEST_NAME, Manifest
from sharded_infer.artifacts.row_blocks import FileRange, verify_rows
from sharded_infer.errors import ArtifactError, MisplacedError, NotFoundError, StorageError
from sharded_infer.files.file_lock import Held, held_alone, hold
from sharded_infer.files.regular_file import flush
from sharded_infer.files.staged_folder import leftover_bytes, staged_folder, sweep
from sharded_infer.files.tagged_file import read_tagged, replace_tagged
from sharded_infer.progress import Progress
from sharded_infer.repositories.linked_files import link_equal_files
from sharded_infer.repositories.local_parts import LocalParts
from sharded_infer.repositories.signatures.local_signatures import LocalSignatures
from sharded_infer.repositories.signatures.manifest_signatures import ManifestSignatures, Sealing
from sharded_infer.repositories.signatures.signature_file import signatures_name
from sharded_infer.repositories.stored_versions import Leftovers, version_number


class LocalVersions:
    """Versions in a folder; implements `stored_versions.StoredVersions`."""

    def __init__(self, path: Path, signatures: ManifestSignatures) -> None:
        self.path = path
        self._signatures = signatures

    @property
    def location(self) -> str:
        """The folder, for display."""
        return str(self.path)

    def models(self) -> list[str]:
        """Names of the models that have a version."""
        if not self.path.is_dir():
            raise NotFoundError(f"{self.path}: no such repository")
        homes = [entry for entry in self.path.iterdir() if not entry.name.startswith(".")]
        return sorted(home.name for home in homes if _published(home))

    def numbers(self, model: str) -> list[int]:
        """Published versions of a model, ascending; empty if there is no such model."""
        return _published(self.path / model) if self._is_entry(model) else []

    def holds(self, model: str, version: int) -> bool:
        """True if a version is published."""
        return version in self.numbers(model)

    def incomplete(self) -> list[tuple[str, int]]:
        """Models and numbers of version folders without a manifest."""
        return [
            (home.name, number)
            for home in sorted(self.path.iterdir())
            if home.is_dir() and not home.name.startswith(".")
            for number in _numbers(home)
            if number not in _published(home)
        ]

    def where(self, model: str, version: int) -> str:
        """A version's folder, for display."""
        return str(self.path / model / str(version))

    def open(self, model: str, version: int) -> Artifact:
        """Read a version's manifest."""
        return self._read(model, version)[0]

    def manifest(self, model: str, version: int) -> Manifest:
        """Read a version's manifest."""
        return self.open(model, version).manifest

    def manifest_text(self, model: str, version: int) -> bytes:
        """Read a version's manifest as stored."""
        return self._read(model, version)[1]

    def fetch(self, model: str, version: int, _progress: Progress) -> tuple[Path, Held]:
        """The version's own folder, and a lock that protects it until closed."""
        folder = self._folder(model, version)
        try:
            held = hold(folder / MANIFEST_NAME)
        except OSError as error:
            # Unlocked, it could be removed while in use.
            raise StorageError(f"{folder}: cannot be locked: {error.strerror}") from error
        if held is None:
            raise NotFoundError(f"{folder}: removed meanwhile")
        if self._signatures.trusted is not None:
            try:
                self.open(model, version)
            except BaseException:
                held.close()
                raise
        return folder, held

    def fetch_rows(
        self,
        model: str,
        version: int,
        names: Collection[str],
        ranges: Collection[FileRange],
        progress: Progress,
    ) -> tuple[Path, Held]:
        """The version's own folder, with these files and rows verified, and a lock."""
        folder, held = self.fetch(model, version, progress)
        try:
            artifact = self.open(model, version)
            verify_files(artifact, progress, names=names)
            verify_rows(artifact, ranges, progress)
        except BaseException:
            held.close()
            raise
        return folder, held

    def verify(self, model: str, version: int, progress: Progress) -> int:
        """Read every file of a version; return the bytes read."""
        return verify_files(self.open(model, version), progress, blocks=True)

    @contextmanager
    def staging(self, model: str) -> Iterator[Path]:
        """A folder for writing a version, beside its place; removed unless committed."""
        with staged_folder(self.path / model) as path:
            yield path

    def commit(
        self,
        staged: Path,
        manifest: Manifest,
        version: int,
        sealing: Sealing,
        progress: Progress,
    ) -> Path | None:
        """Flush everything to disk, the manifest last, then rename; None: the number is taken."""
        home = self.path / manifest.model
        try:
            link_equal_files(staged, manifest, self._earlier(manifest.model), progress)
            for path in staged.rglob("*"):
                flush(path)
            return self._rename(staged, manifest, home, version, sealing)
        except OSError as error:
            raise StorageError(f"{home}: cannot be written: {error.strerror}") from error

    def read_file(self, model: str, name: str, max_bytes: int) -> tuple[bytes, str] | None:
        """A small file in the model's folder, and a tag of its content."""
        if not self._is_entry(model):
            return None
        return read_tagged(self.path / model / name, max_bytes)

    def replace_file(
        self, model: str, name: str, content: bytes, tag: str | None, max_bytes: int
    ) -> bool:
        """Replace a small file if its tag is unchanged; True if replaced."""
        return replace_tagged(self.path / model / name, content, tag, max_bytes)

    def in_use(self, model: str, version: int) -> bool:
        """True if a process holds its lock."""
        path = self.path / model / str(version) / MANIFEST_NAME
        try:
            with held_alone(path) as alone:
                return not alone and path.exists()
        except OSError as error:
            raise ArtifactError(f"{path}: cannot be read: {error.strerror}") from error

    def remove(self, model: str, version: int) -> bool:
        """Remove an unused version; True if removed."""
        home = self.path / model
        folder = home / str(version)
        try:
            with held_alone(folder / MANIFEST_NAME) as alone:
                if not alone:
                    return not (folder / MANIFEST_NAME).exists()
                # One rename makes it disappear; the rest of a killed removal is swept as staging
                # is.
                with staged_folder(home) as leaving:
                    folder.rename(leaving / folder.name)
                    flush(home)
        except OSError as error:
            raise StorageError(f"{folder}: cannot be removed: {error.strerror}") from error
        return True

    def leftovers(self, model: str, safe_seconds: float) -> Leftovers:
        """The staging folders of killed publishers, and old parts and signatures."""
        names, size = leftover_bytes(self.path / model)
        old = LocalParts(self.path).leftovers(model, safe_seconds)
        texts = (self.manifest_text(model, number) for number in self.numbers(model))
        unneeded, their_size = LocalSignatures(self.path).leftovers(
            model, {signatures_name(text) for text in texts}, safe_seconds
        )
        return Leftovers((*names, *old.names, *unneeded), size + old.bytes + their_size)

    def remove_leftovers(self, model: str, leftovers: Leftovers) -> None:
        """Remove the staging folders of killed publishers, and these parts and signatures."""
        sweep(self.path / model)
        LocalParts(self.path).remove_leftovers(model, leftovers)
        LocalSignatures(self.path).remove(model, leftovers.names)

    def _rename(
        self, staged: Path, manifest: Manifest, home: Path, version: int, sealing: Sealing
    ) -> Path | None:
        # Signatures come before the version, which must never be visible unsigned.
        text = self._signatures.sealed(manifest, version, sealing)
        (staged / MANIFEST_NAME).write_bytes(text)
        flush(staged / MANIFEST_NAME)
        flush(staged)
        target = home / str(version)
        try:
            # Fails if another publisher took the number: a folder with files is never replaced.
            staged.rename(target)
        except OSError as error:
            if os.path.lexists(target):
                return None
            raise ArtifactError(f"{target}: cannot be published: {error.strerror}") from error
        flush(home)
        return target

    def _read(self, model: str, version: int) -> tuple[Artifact, bytes]:
        folder = self._folder(model, version)
        text = read_manifest(folder)
        # Checked before any use.
        self._signatures.check(model, text, str(folder / MANIFEST_NAME))
        artifact = artifact_of(folder, text)
        if artifact.manifest.model != model:
            raise MisplacedError(
                f"{artifact.path}: the manifest is of model {artifact.manifest.model!r}, its "
                f"folder of {model!r}"
            )
        return artifact, text

    def _folder(self, model: str, version: int) -> Path:
        """A version's folder; ArtifactError if it lies outside the repository."""
        folder = self.path / model / str(version)
        if folder.is_symlink():
            raise MisplacedError(f"{folder}: expected a folder, got a symbolic link")
        return folder

    def _is_entry(self, model: str) -> bool:
        # Looked up among the folder's entries, so no name, such as "..", leads outside.
        return self.path.is_dir() and model in os.listdir(self.path)

    def _earlier(self, model: str) -> Iterator[Artifact]:
        for number in reversed(self.numbers(model)):
            try:
                yield self.open(model, number)
            except (ArtifactError, NotFoundError):
                # Damaged, or removed meanwhile: not linked.
                continue


def _published(home: Path) -> list[int]:
    if not home.is_dir():
        return []
    # Anything at a manifest's path counts: a damaged version must not be skipped silently.
    return [n for n in _numbers(home) if os.path.lexists(home / str(n) / MANIFEST_NAME)]


def _numbers(home: Path) -> list[int]:
    numbers = (version_number(entry.name) for entry in home.iterdir())
    return sorted(number for number in numbers if number is not None)
