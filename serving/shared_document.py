"""A text in shared memory, which one process at a time writes and any process reads.

sequence           of the last complete text; it lies in the half of that number's parity
half, twice        length, checksum, bytes

A writer fills the other half before it changes the sequence: one that is killed midway leaves the
last complete text, and a reader sees one text or the next.
"""

import mmap
import struct
import zlib

from kernels.wording import counted
from sharded_infer.errors import InternalError

_SEQUENCE = struct.Struct("<Q")
_HEAD = struct.Struct("<II")  # length, CRC-32
_ATTEMPTS = 100


class SharedDocument:
    """Bytes in anonymous shared memory that forks inherit; pages never written cost nothing."""

    def __init__(self, capacity: int) -> None:
        """Begins empty.

        Args:
            capacity: the most bytes it can hold.
        """
        self._half = _HEAD.size + capacity
        self._memory = mmap.mmap(-1, _SEQUENCE.size + 2 * self._half)
        self._capacity = capacity

    @property
    def sequence(self) -> int:
        """A number that grows whenever something is written; 0 before."""
        sequence: int = _SEQUENCE.unpack_from(self._memory)[0]
        return sequence

    def write(self, text: bytes) -> None:
        """Replaces what is there; never two processes or threads at once.

        Raises:
            InternalError: it is too long.
        """
        if len(text) > self._capacity:
            raise InternalError(
                f"shared document: {counted(len(text), 'byte')} cannot fit in {self._capacity}"
            )
        sequence = self.sequence + 1
        start = self._start(sequence)
        first = start + _HEAD.size
        self._memory[first : first + len(text)] = text
        _HEAD.pack_into(self._memory, start, len(text), zlib.crc32(text))
        _SEQUENCE.pack_into(self._memory, 0, sequence)

    def read(self) -> tuple[int, bytes]:
        """The sequence, and what was written with it.

        Raises:
            InternalError: it was written again and again meanwhile.
        """
        for _ in range(_ATTEMPTS):
            sequence = self.sequence
            start = self._start(sequence)
            length, checksum = _HEAD.unpack_from(self._memory, start)
            first = start + _HEAD.size
            text = self._memory[first : first + min(length, self._capacity)]
            if zlib.crc32(text) == checksum:
                return sequence, text
        raise InternalError("shared document: no text of it is whole")

    def _start(self, sequence: int) -> int:
        return _SEQUENCE.size + sequence % 2 * self._half
