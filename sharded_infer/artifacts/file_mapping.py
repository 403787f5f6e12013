"""Mappings of files at multiples of 2 MiB; avoids torch for commands that only read manifests."""

import ctypes
import mmap
import os

import numpy as np

HUGE_PAGE_BYTES = 2 * 2**20
MADV_COLLAPSE = 25  # linux/mman.h, Linux 6.1
_MAP_FIXED = 0x10  # linux/mman.h
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
)


def map_file(handle: int, size: int, *, large: bool) -> memoryview:
    """Map a file at a multiple of 2 MiB, shared with other processes.

    The handle may be closed. The mapping is freed with the last buffer that uses its bytes. `size`
    is at least 1. With `large`, 2 MiB pages are requested; the kernel may refuse. Raises OSError if
    it cannot be mapped.
    """
    room = size + HUGE_PAGE_BYTES
    whole = memoryview(mmap.mmap(-1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0))
    first: int = np.frombuffer(whole, np.uint8).ctypes.data
    start = -first % HUGE_PAGE_BYTES
    # Over a part of our own mapping, which frees it.
    flags = mmap.MAP_SHARED | _MAP_FIXED
    if _libc.mmap(first + start, size, mmap.PROT_READ, flags, handle, 0) != first + start:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if large and hasattr(mmap, "MADV_HUGEPAGE"):
        advise(first + start, size, mmap.MADV_HUGEPAGE)
    return whole[start : start + size]


def advise(address: int, size: int, advice: int) -> bool:
    """Call madvise(2) for page-aligned memory; False if the kernel refuses, with ctypes' errno."""
    result: int = _libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), advice)
    return result == 0
