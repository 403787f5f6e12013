"""The protocol of a repository's storage."""

from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.artifacts.manifest import Manifest
from sharded_infer.artifacts.row_blocks import FileRange
from sharded_infer.files.file_lock import Held
from sharded_infer.progress import Progress
from sharded_infer.repositories.signatures.manifest_signatures import Sealing


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Files or folders that no version needs.

    Attributes:
        names: folders or objects, within the model's folder.
    """

    names: tuple[str, ...]
    bytes: int


class StoredVersions(Protocol):
    """Versions of models in one storage. Models and versions in arguments need not exist.

    Errors: StorageError if the storage cannot be read or written, NotFoundError if something is
    missing, ArtifactError if something is damaged.
    """

    @property
    def location(self) -> str:
        """The storage's name, as people write it."""

    def models(self) -> list[str]:
        """Names of the models that have a version."""

    def numbers(self, model: str) -> list[int]:
        """Published versions of a model, ascending; none if there is no such model."""

    def holds(self, model: str, version: int) -> bool:
        """Whether a version is published; reads the version itself, not a listing."""

    def incomplete(self) -> list[tuple[str, int]]:
        """Models and numbers of version folders without a manifest."""

    def where(self, model: str, version: int) -> str:
        """A version's folder or URL, as people write it."""

    def open(self, model: str, version: int) -> Artifact:
        """A version's manifest, with its plans and reports."""

    def manifest(self, model: str, version: int) -> Manifest:
        """A version's manifest."""

    def manifest_text(self, model: str, version: int) -> bytes:
        """A version's manifest as it is stored."""

    def fetch(self, model: str, version: int, progress: Progress) -> tuple[Path, Held]:
        """A local folder with the whole version, and a lock that protects it until it is closed."""

    def fetch_rows(
        self,
        model: str,
        version: int,
        names: Collection[str],
        ranges: Collection[FileRange],
        progress: Progress,
    ) -> tuple[Path, Held]:
        """A local folder with some files and rows of a version, all verified, and a lock."""

    def verify(self, model: str, version: int, progress: Progress) -> int:
        """Reads every file of a version and compares it with the manifest; the bytes read."""

    def staging(self, model: str) -> AbstractContextManager[Path]:
        """A local folder for writing a version; removed unless committed."""

    def commit(
        self,
        staged: Path,
        manifest: Manifest,
        version: int | None,
        sealing: Sealing,
        progress: Progress,
    ) -> Path:
        """Publishes a staged version under a number, or the next free one; returns its folder.

        Its signatures are stored before the version appears.
        """

    def read_labels(self, model: str) -> tuple[bytes, str] | None:
        """The model's `labels.json`, if there is one, and a tag of its content."""

    def replace_labels(self, model: str, content: bytes, tag: str | None) -> bool:
        """Replaces `labels.json` if its tag is unchanged; returns whether it did."""

    def in_use(self, model: str, version: int) -> bool:
        """Whether a version is known to be in use."""

    def remove(self, model: str, version: int) -> bool:
        """Removes a version that is not known to be in use; returns whether it did."""

    def leftovers(self, model: str, safe_seconds: float) -> Leftovers:
        """Files that no version needs, of at least that age."""

    def remove_leftovers(self, model: str, leftovers: Leftovers) -> None:
        """Removes leftovers."""


def version_number(name: str) -> int | None:
    """The version number of a folder's name; None if it is not one."""
    plain = name.isascii() and name.isdigit() and name[0] != "0"
    return int(name) if plain else None
