"""A file of a version, as it lies in a store."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kernels.wording import counted
from sharded_infer.errors import ArtifactError
from sharded_infer.manifest import FileRecord
from sharded_infer.read_ahead import read_parts


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file that can be read by ranges.

    Attributes:
        where: its URL, for messages.
        record: the size and hash that it must have.
        size: asks for the size that it has, bytes; None if it is missing.
        read: reads bytes `[begin, end)`; may be called from several threads.
    """

    where: str
    record: FileRecord
    size: Callable[[], int | None]
    read: Callable[[int, int], bytes]

    def parts(self, begin: int) -> Iterator[bytes]:
        """Its bytes from `begin` on, part by part."""
        return read_parts(self.read, begin, self.record.bytes)

    def check_size(self) -> None:
        """Compares its size with the manifest.

        Raises:
            ArtifactError: it is missing, short or long.
        """
        size, expected = self.size(), self.record.bytes
        if size is None:
            raise ArtifactError(
                f"{self.where}: missing; the manifest says {counted(expected, 'byte')}"
            )
        if size != expected:
            problem = "too short" if size < expected else "too long"
            raise ArtifactError(
                f"{self.where}: {problem}: {counted(size, 'byte')}, the manifest says {expected}"
            )

    def check_hash(self, found: str) -> None:
        """Compares its SHA-256 with the manifest.

        Raises:
            ArtifactError: it is another.
        """
        if found != self.record.sha256:
            raise ArtifactError(
                f"{self.where}: altered: its SHA-256 is {found[:12]}…, the manifest says "
                f"{self.record.sha256[:12]}…"
            )

    def verify(self, got: Callable[[int], None]) -> None:
        """Reads it and compares it with the manifest; keeps nothing.

        Args:
            got: told the bytes read.

        Raises:
            ArtifactError: it is missing, short, long or altered.
            StorageError: the store cannot be read.
        """
        self.check_size()
        digest = hashlib.sha256()
        for part in self.parts(0):
            digest.update(part)
            got(len(part))
        self.check_hash(digest.hexdigest())
