"""Storage protocol for parts: rows of a version that is not published yet."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from sharded_infer.artifacts.manifest import FileRecord
from sharded_infer.progress import Progress

MAX_RECORD_BYTES = 256 * 2**20  # of a part; ten million chunks of rows take less


class StoredParts(Protocol):
    """Parts of models in one storage, by name. Each has a record and some files.

    Parts appear atomically; a repeated store has the same bytes. Methods raise StorageError if the
    storage is inaccessible.
    """

    def names(self, model: str) -> list[str]:
        """Names of the model's parts, sorted; empty if there is no such model."""

    def where(self, model: str, name: str) -> str:
        """A part's folder or URL, for display."""

    def store(
        self,
        model: str,
        name: str,
        record: bytes,
        staged: Path,
        files: Mapping[str, FileRecord],
        progress: Progress,
    ) -> None:
        """Store a part, replacing one of its name.

        `staged` is the folder from `staging`, with the files; `progress` is called with bytes
        uploaded.
        """

    def record(self, model: str, name: str) -> bytes | None:
        """A part's record; None if there is no such part."""

    def blocks(self, model: str, name: str, file: str, expected: FileRecord) -> Iterator[bytes]:
        """A file's bytes, some MiB at a time, unverified; NotFoundError if it is missing."""

    def link(self, model: str, name: str, file: str, target: Path) -> bool:
        """Create a file of a part without reading it; True if supported."""

    def remove(self, model: str, name: str) -> None:
        """Remove an unneeded part, if this storage removes parts at once."""
