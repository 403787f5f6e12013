"""What a repository asks of the place where its versions are stored."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sharded_infer.artifact import Artifact
from sharded_infer.file_lock import Held
from sharded_infer.manifest import Manifest
from sharded_infer.progress import Progress


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What no version needs.

    Attributes:
        names: folders or objects, within the model's folder.
        bytes: their size.
    """

    names: tuple[str, ...]
    bytes: int


class StoredVersions(Protocol):
    """Versions of models in one place. Models and versions that are passed in may not exist.

    What goes wrong is a StorageError where the place cannot be read or written, a NotFoundError
    where something is missing, and an ArtifactError where something is not what it should be.
    """

    @property
    def location(self) -> str:
        """The place, as people write it."""

    def models(self) -> list[str]:
        """Names of the models that have a version."""

    def numbers(self, model: str) -> list[int]:
        """Published versions of a model, ascending; none if there is no such model."""

    def holds(self, model: str, version: int) -> bool:
        """Whether a version is published, asked of the version itself and not of a listing."""

    def incomplete(self) -> list[tuple[str, int]]:
        """Models and numbers of what lies in a version's place without a manifest."""

    def where(self, model: str, version: int) -> str:
        """A version's place, as people write it."""

    def open(self, model: str, version: int) -> Artifact:
        """A version's manifest, with its plans and reports to be read."""

    def manifest(self, model: str, version: int) -> Manifest:
        """A version's manifest."""

    def fetch(self, model: str, version: int, progress: Progress) -> tuple[Path, Held]:
        """A local folder with the whole version, and what keeps it there until closed."""

    def verify(self, model: str, version: int, progress: Progress) -> int:
        """Reads every file of a version and compares it with the manifest; the bytes read."""

    def staging(self, model: str) -> AbstractContextManager[Path]:
        """A local folder to write a version in; gone afterwards unless committed."""

    def commit(
        self, staged: Path, manifest: Manifest, version: int | None, progress: Progress
    ) -> Path:
        """Publishes a staged version under a number, or the next free one; a folder so named."""

    def read_labels(self, model: str) -> tuple[bytes, str] | None:
        """The model's `labels.json`, if it has one, and a tag of this content."""

    def replace_labels(self, model: str, content: bytes, tag: str | None) -> bool:
        """Replaces `labels.json` if it is still the one of the tag; whether it did."""

    def in_use(self, model: str, version: int) -> bool:
        """Whether somebody is known to use a version."""

    def remove(self, model: str, version: int) -> bool:
        """Removes a version that nobody is known to use; whether it did."""

    def leftovers(self, model: str, safe_seconds: float) -> Leftovers:
        """What no version needs, and nobody has written for so long."""

    def remove_leftovers(self, model: str, leftovers: Leftovers) -> None:
        """Removes what no version needs."""


def version_number(name: str) -> int | None:
    """The version that a folder's name is; None if it is none."""
    plain = name.isascii() and name.isdigit() and name[0] != "0"
    return int(name) if plain else None
