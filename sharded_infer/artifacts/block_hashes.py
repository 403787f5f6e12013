"""SHA-256 of each block of a table file, for verification of parts of the file.

The hashes lie beside the table file, in `<name>.blocks`: 32 bytes a block (`FORMAT.md`).
"""

import hashlib
from dataclasses import dataclass

from kernels.wording import counted
from sharded_infer.artifacts.manifest import BLOCK_BYTES, FileRecord, blocks_name
from sharded_infer.errors import ArtifactError

_HASH_BYTES = 32


class BlockHasher:
    """Hashes the blocks of a file whose bytes come in parts of any size."""

    def __init__(self) -> None:
        self._done = bytearray()
        self._open = hashlib.sha256()
        self._room = BLOCK_BYTES

    def update(self, part: bytes | memoryview) -> None:
        """Add the file's next bytes."""
        view = memoryview(part)
        while len(view):
            taken = view[: self._room]
            self._open.update(taken)
            self._room -= len(taken)
            if not self._room:
                self._close()
            view = view[len(taken) :]

    def finish(self) -> bytes:
        """The concatenated hashes of all blocks."""
        if self._room < BLOCK_BYTES:
            self._close()
        return bytes(self._done)

    def _close(self) -> None:
        self._done += self._open.digest()
        self._open, self._room = hashlib.sha256(), BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class BlockHashes:
    """The block hashes (`content`) of one table file, with its name and record."""

    name: str
    record: FileRecord
    content: bytes

    def __post_init__(self) -> None:
        """Raises ArtifactError if the number of hashes is not that of blocks."""
        expected = _HASH_BYTES * self.count
        if len(self.content) != expected:
            raise ArtifactError(
                f"{blocks_name(self.name)}: {counted(len(self.content), 'byte')}, expected "
                f"{expected}: {_HASH_BYTES} for each block of {self.name}"
            )

    @property
    def count(self) -> int:
        """Blocks of the file."""
        return -(-self.record.bytes // BLOCK_BYTES)

    def span(self, first: int, end: int) -> tuple[int, int]:
        """First byte and end of blocks `[first, end)`."""
        return first * BLOCK_BYTES, min(end * BLOCK_BYTES, self.record.bytes)

    def hash_of(self, number: int) -> bytes:
        """A block's SHA-256."""
        return self.content[number * _HASH_BYTES : (number + 1) * _HASH_BYTES]

    def is_block(self, number: int, content: bytes | memoryview) -> bool:
        """True if these bytes are the block."""
        return hashlib.sha256(content).digest() == self.hash_of(number)

    def check(self, first: int, content: bytes | memoryview, where: object) -> None:
        """Compare blocks from number `first`; ArtifactError names the file, block and bytes."""
        for at in range(0, len(content), BLOCK_BYTES):
            number = first + at // BLOCK_BYTES
            if not self.is_block(number, content[at : at + BLOCK_BYTES]):
                raise self.altered(number, where)

    def check_all(self, found: bytes, where: object) -> None:
        """Compare the hashes of a whole file; ArtifactError as `check`."""
        for number in range(self.count):
            if found[number * _HASH_BYTES :][:_HASH_BYTES] != self.hash_of(number):
                raise self.altered(number, where)

    def altered(self, number: int, where: object) -> ArtifactError:
        """The error of a block that differs."""
        begin, end = self.span(number, number + 1)
        return ArtifactError(
            f"{where}: altered: block {number}, bytes {begin} to {end}: its SHA-256 is not the one "
            f"in {blocks_name(self.name)}"
        )
