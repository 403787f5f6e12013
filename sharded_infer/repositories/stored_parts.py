"""The protocol of a repository's storage for parts: rows of a version that is not published yet."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from sharded_infer.artifacts.manifest import FileRecord
from sharded_infer.progress import Progress

MAX_RECORD_BYTES = 256 * 2**20  # of a part; ten million chunks of rows take less


class StoredParts(Protocol):
    """Parts of models in one storage, by name. Each has a record and some files.

    A part is whole, or not there. Whoever stores it again has the same bytes.

    Errors: StorageError if the storage cannot be read or written.
    """

    def names(self, model: str) -> list[str]:
        """Names of the model's parts, sorted; none if there is no such model."""

    def where(self, model: str, name: str) -> str:
        """A part's folder or URL, as people write it."""

    def store(
        self,
        model: str,
        name: str,
        record: bytes,
        staged: Path,
        files: Mapping[str, FileRecord],
        progress: Progress,
    ) -> None:
        """Stores a part, in the place of one of its name.

        Args:
            staged: the folder from `staging`, with the files.
            progress: called with the bytes uploaded.
        """

    def record(self, model: str, name: str) -> bytes | None:
        """A part's record; None if there is no such part."""

    def blocks(self, model: str, name: str, file: str, expected: FileRecord) -> Iterator[bytes]:
        """A file's bytes, some MiB at a time, without a comparison with their hash.

        Raises:
            NotFoundError: there is no such file.
        """

    def link(self, model: str, name: str, file: str, target: Path) -> bool:
        """Makes a new file of a part's without reading it; returns whether it could."""

    def remove(self, model: str, name: str) -> None:
        """Removes a part that is needed no more, if this storage removes parts at once."""
