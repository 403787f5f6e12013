"""A mapped file, with checks that it has not been truncated.

Reading lost pages raises SIGBUS; compiled code handles it (`native/base/lost_pages.cpp`), and
they read as zeros, like the rest of a partly cut page, which raises no signal. Each lookup
therefore checks two things before its result is used: the mapping's flag for lost pages, and the
last byte that was not zero.
"""

import ctypes
import mmap
import os
import weakref
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kernels.abi.lost_pages import guard, mark_of, unguard
from kernels.errors import LostMemoryError


class Watch(NamedTuple):
    """Addresses by which compiled code detects a mapping's lost bytes.

    `mark` is that of an int32 that is not 0 after a loss; `byte` is at `place` without a loss.
    """

    mark: int
    place: int
    byte: int


class MappedFile:
    """A file's bytes, mapped for reading."""

    def __init__(self, path: Path, handle: int, mapping: memoryview) -> None:
        """Watches a mapping of a whole file until it is freed; duplicates the file's handle."""
        self.path, self.mapping = path, mapping
        self._handle = os.dup(handle)
        # Other threads may use it until the process has ended.
        weakref.finalize(self, os.close, self._handle).atexit = False
        self._mark = _marked(mapping)
        self._place = _last_not_zero(mapping)
        self._byte = mapping[self._place]

    @property
    def watch(self) -> "Watch":
        """State that `check` reads."""
        begin = np.frombuffer(self.mapping, np.uint8).ctypes.data
        return Watch(ctypes.addressof(self._mark), begin + self._place, self._byte)

    def check(self) -> None:
        """Raises LostMemoryError if bytes were lost, and data from it may be zeros."""
        # Reading a byte that is lost sets the mark; where it was zero, it reads as it did before.
        if self.mapping[self._place] != self._byte or self._mark.value:
            raise self._loss()

    def check_size(self) -> None:
        """`check`, and of the file's size, since unread bytes may be lost too."""
        self.check()
        if os.fstat(self._handle).st_size < len(self.mapping):
            raise self._loss()

    def _loss(self) -> LostMemoryError:
        size, expected = os.fstat(self._handle).st_size, len(self.mapping)
        what = "cannot be read any more" if size >= expected else "has become shorter"
        return LostMemoryError(
            f"{self.path}: {what} while it is served: {size} bytes, {expected} were mapped"
        )


def _marked(mapping: memoryview) -> ctypes.c_int32:
    address = np.frombuffer(mapping, np.uint8).ctypes.data
    place = guard(address, len(mapping))
    if place < 0:
        return ctypes.c_int32(0)
    weakref.finalize(mapping, unguard, place)
    return ctypes.c_int32.from_address(mark_of(place))


def _last_not_zero(mapping: memoryview) -> int:
    """Position of the last page's last nonzero byte, or its last byte if all are zero.

    A cut in this page either zeroes that byte or changes only zeros. A cut before it loses the
    page.
    """
    first = (len(mapping) - 1) // mmap.PAGESIZE * mmap.PAGESIZE
    tail = bytes(mapping[first:]).rstrip(b"\0")
    return first + len(tail) - 1 if tail else len(mapping) - 1
