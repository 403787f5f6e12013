"""The protocol of a repository's storage, and the numbers of its versions."""

from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.artifacts.manifest import Manifest
from sharded_infer.artifacts.row_blocks import FileRange
from sharded_infer.errors import ArtifactError, MisplacedError, NotFoundError
from sharded_infer.files.file_lock import Held
from sharded_infer.progress import Progress
from sharded_infer.repositories.signatures.manifest_signatures import Sealing


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Unneeded files, folders or objects, named relative to the model's folder."""

    names: tuple[str, ...]
    bytes: int


class StoredVersions(Protocol):
    """Versions of models in one storage. Models and versions in arguments need not exist.

    Errors: StorageError if the storage is inaccessible, NotFoundError if something is missing,
    ArtifactError if something is damaged.
    """

    @property
    def location(self) -> str:
        """The storage's name, for display."""

    def models(self) -> list[str]:
        """Names of the models that have a version."""

    def numbers(self, model: str) -> list[int]:
        """Published versions of a model, ascending; empty if there is no such model."""

    def holds(self, model: str, version: int) -> bool:
        """True if a version is published; reads the version itself, not a listing."""

    def incomplete(self) -> list[tuple[str, int]]:
        """Models and numbers of version folders without a manifest."""

    def where(self, model: str, version: int) -> str:
        """A version's folder or URL, for display."""

    def open(self, model: str, version: int) -> Artifact:
        """A version's manifest, with its plans and reports."""

    def manifest(self, model: str, version: int) -> Manifest:
        """A version's manifest."""

    def manifest_text(self, model: str, version: int) -> bytes:
        """A version's manifest as stored."""

    def fetch(self, model: str, version: int, progress: Progress) -> tuple[Path, Held]:
        """A local folder with the whole version, and a lock that protects it until closed."""

    def fetch_rows(
        self,
        model: str,
        version: int,
        names: Collection[str],
        ranges: Collection[FileRange],
        progress: Progress,
    ) -> tuple[Path, Held]:
        """A local folder with these files and rows of a version, verified, and a lock."""

    def verify(self, model: str, version: int, progress: Progress) -> int:
        """Compare every file of a version with the manifest; return the bytes read."""

    def staging(self, model: str) -> AbstractContextManager[Path]:
        """A local folder for writing a version; removed unless committed."""

    def commit(
        self,
        staged: Path,
        manifest: Manifest,
        version: int,
        sealing: Sealing,
        progress: Progress,
    ) -> Path | None:
        """Publish a version after its signatures; None if the number is taken, else its folder."""

    def read_file(self, model: str, name: str, max_bytes: int) -> tuple[bytes, str] | None:
        """A small file of the model's, if there is one, and a tag of its content."""

    def replace_file(
        self, model: str, name: str, content: bytes, tag: str | None, max_bytes: int
    ) -> bool:
        """Replace a small file if its tag is unchanged (None: no file); True if replaced."""

    def in_use(self, model: str, version: int) -> bool:
        """True if a version is known to be in use."""

    def remove(self, model: str, version: int) -> bool:
        """Remove a version that is not known to be in use; True if removed."""

    def leftovers(self, model: str, safe_seconds: float) -> Leftovers:
        """Unneeded files of at least that age."""

    def remove_leftovers(self, model: str, leftovers: Leftovers) -> None:
        """Remove leftovers."""


# The largest integer that JSON and metrics keep exactly.
MOST_VERSION = 2**53 - 1


def version_number(name: str) -> int | None:
    """The version number, 1 to `MOST_VERSION`, of a folder's name; None if it is not one."""
    plain = name.isascii() and name.isdigit() and name[0] != "0"
    fits = plain and len(name) <= len(str(MOST_VERSION)) and int(name) <= MOST_VERSION
    return int(name) if fits else None


def highest_version(stored: StoredVersions, model: str) -> int:
    """The highest published version, damaged or not, under its own number; 0 if there is none."""
    for number in reversed(stored.numbers(model)):
        try:
            stored.manifest(model, number)
        except MisplacedError:
            continue
        except (ArtifactError, NotFoundError):
            pass
        return number
    return 0


# The file of the highest number that any version of a model ever had.
HIGHEST_NAME = "highest_version"
_MAX_BYTES = 1024


class VersionNumbers:
    """Numbers of one model's versions, none of which is used twice.

    ArtifactError if the file of the highest one is damaged.
    """

    def __init__(self, stored: StoredVersions, model: str) -> None:
        self._stored = stored
        self._model = model

    def take(self, version: int | None) -> int:
        """Reserve a number, None: the next one, also under concurrent calls."""
        where = self._where
        if version is not None and not 1 <= version <= MOST_VERSION:
            raise ArtifactError(
                f"{where}: expected a version from 1 to {MOST_VERSION}, got {version}"
            )
        while True:
            highest, tag = self._read()
            number = version or self._after(highest)
            if number > MOST_VERSION:
                raise ArtifactError(f"{where}: no version number is left above {MOST_VERSION}")
            if number <= highest or self._stored.replace_file(
                self._model, HIGHEST_NAME, f"{number}\n".encode(), tag, _MAX_BYTES
            ):
                return number

    def next(self) -> int:
        """The number that `take` would reserve."""
        number = self._after(self._read()[0])
        while self._stored.holds(self._model, number):
            number += 1
        return number

    @property
    def _where(self) -> str:
        return f"{self._stored.location}/{self._model}"

    def _after(self, highest: int) -> int:
        return max(highest, highest_version(self._stored, self._model)) + 1

    def _read(self) -> tuple[int, str | None]:
        # Earlier releases wrote none.
        found = self._stored.read_file(self._model, HIGHEST_NAME, _MAX_BYTES)
        if found is None:
            return 0, None
        number = version_number(found[0].decode(errors="replace").removesuffix("\n"))
        if number is None:
            raise ArtifactError(
                f"{self._where}/{HIGHEST_NAME}: expected a version number, got {found[0][:40]!r}"
            )
        return number, found[1]
