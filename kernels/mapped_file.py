"""A mapped file, and whether it is still as long as it was when it was mapped.

A file that becomes shorter while it is mapped loses its last pages: reading them raises SIGBUS,
which the compiled code takes (`kernels/native/lost_pages.h`), and reads zeros from then on. What
is cut off its last page reads as zeros without any signal. Both show in what is compared here after
each lookup, before its result is used: the mapping's mark, and its last byte that was not zero.
"""

import ctypes
import mmap
import weakref
from pathlib import Path

import numpy as np

from kernels.errors import LostMemoryError
from kernels.native_library import load_library

_LIBRARY = load_library(Path(__file__).parent)
if _LIBRARY is not None:
    _LIBRARY.sharded_infer_guard.argtypes = (ctypes.c_void_p, ctypes.c_int64)
    _LIBRARY.sharded_infer_mark_of.restype = ctypes.POINTER(ctypes.c_int32)


class MappedFile:
    """A file's bytes, mapped for reading.

    Attributes:
        path: the file.
        mapping: its bytes.
    """

    def __init__(self, path: Path, mapping: mmap.mmap) -> None:
        """Watches a mapping from now on, for as long as it lives.

        Args:
            path: the file.
            mapping: of all of it; kept.
        """
        self.path, self.mapping = path, mapping
        self._mark = _marked(mapping)
        self._place = _last_not_zero(mapping)
        self._byte = mapping[self._place]

    def check(self) -> None:
        """Refuses a mapping that has lost bytes; where it has not, it reads a byte and a mark.

        Raises:
            LostMemoryError: it has; what was read of it may have been zeros.
        """
        if self._mark.value or self.mapping[self._place] != self._byte:
            raise self._loss()

    def check_size(self) -> None:
        """As `check`, and asks for the file's size: bytes that nobody reads may be lost too.

        Raises:
            LostMemoryError: it has become shorter, or pages of it could not be read.
        """
        self.check()
        if self.mapping.size() < len(self.mapping):
            raise self._loss()

    def _loss(self) -> LostMemoryError:
        size = self.mapping.size()
        expected = len(self.mapping)
        what = "cannot be read any more" if size >= expected else "has become shorter"
        return LostMemoryError(
            f"{self.path}: {what} while it is served: {size} bytes, {expected} were mapped"
        )


def _marked(mapping: mmap.mmap) -> ctypes.c_int32:
    """Where it is marked that pages were lost; without compiled code they end the process."""
    if _LIBRARY is None:
        return ctypes.c_int32(0)
    address = np.frombuffer(mapping, np.uint8).ctypes.data
    place = _LIBRARY.sharded_infer_guard(address, len(mapping))
    if place < 0:
        return ctypes.c_int32(0)
    weakref.finalize(mapping, _LIBRARY.sharded_infer_unguard, place)
    mark: ctypes.c_int32 = _LIBRARY.sharded_infer_mark_of(place).contents
    return mark


def _last_not_zero(mapping: mmap.mmap) -> int:
    """The last byte of the last page that is not zero; its last byte where all are.

    A cut in this page turns it to zero, or nothing that is read; a cut before it takes the page.
    """
    first = (len(mapping) - 1) // mmap.PAGESIZE * mmap.PAGESIZE
    tail = mapping[first:].rstrip(b"\0")
    return first + len(tail) - 1 if tail else len(mapping) - 1
