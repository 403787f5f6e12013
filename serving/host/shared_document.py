"""Values in shared memory for all processes of a server.

One process at a time writes a `SharedDocument`. Every process may change a `LockedDocument`.
"""

import fcntl
import mmap
import os
import struct
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from pydantic import TypeAdapter

from kernels.wording import counted
from sharded_infer.errors import InternalError

Value = TypeVar("Value")
_SEQUENCE = struct.Struct("<Q")
_HEAD = struct.Struct("<II")  # length, CRC-32
_ATTEMPTS = 100


class SharedDocument:
    """Bytes in anonymous shared memory that forks inherit; unwritten pages cost nothing.

    sequence           of the last complete text; it lies in the half of that number's parity
    half, twice        length, checksum, bytes

    A writer fills the other half before it changes the sequence. If it is killed midway, the last
    complete text remains. A reader sees one text or the next.
    """

    def __init__(self, capacity: int) -> None:
        self._half = _HEAD.size + capacity
        self._memory = mmap.mmap(-1, _SEQUENCE.size + 2 * self._half)
        self._capacity = capacity

    @property
    def sequence(self) -> int:
        """Number of writes."""
        sequence: int = _SEQUENCE.unpack_from(self._memory)[0]
        return sequence

    def write(self, text: bytes) -> None:
        """Replace the text, from one thread at a time in all; InternalError if it is too long."""
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
        """Sequence and text; InternalError if it was rewritten during every attempt."""
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


class LockedDocument(Generic[Value]):
    """A value in shared memory that forks inherit; create it before any fork.

    The lock is the kernel's, so the death of its holder releases it.
    """

    def __init__(self, capacity: int, adapter: TypeAdapter[Value], value: Value) -> None:
        """Store the first value; the capacity is in bytes of JSON."""
        self._adapter = adapter
        self._document = SharedDocument(capacity)
        self._document.write(adapter.dump_json(value))
        self._file = os.memfd_create("sharded-infer-lock")
        weakref.finalize(self, os.close, self._file)
        # File locks are by process: threads need another lock, also by process, as a thread of the
        # parent may have held it at the fork.
        self._locks: dict[int, threading.Lock] = {}

    @property
    def sequence(self) -> int:
        """Changes with the value; cheap to read."""
        return self._document.sequence

    def read(self) -> tuple[int, Value]:
        """Sequence and value."""
        sequence, text = self._document.read()
        return sequence, self._adapter.validate_json(text)

    def change(self, edit: Callable[[Value], Value]) -> int:
        """Replace the value by `edit` of it, exclusively, and return the new sequence.

        An exception leaves it unchanged. Raises InternalError if the text is too long.
        """
        with self._locked():
            self._document.write(self._adapter.dump_json(edit(self.read()[1])))
            return self._document.sequence

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._locks.setdefault(os.getpid(), threading.Lock()):
            fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)
