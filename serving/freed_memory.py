"""Keeps memory that was freed, so that requests find it mapped.

A request's embeddings and what lies between a tower's products take a few megabytes each. glibc
gives such memory back to the system when it is freed, or not, by thresholds that move with what was
freed before. Where it does, every request maps its pages anew, and lookups of 270 samples take
three times as long. Here the thresholds are set, once, for the process.
"""

import ctypes
from typing import Final

# malloc.h; the threshold of mmap is glibc's largest (DEFAULT_MMAP_THRESHOLD_MAX on 64 bits).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_BYTES: Final = 32 * 2**20
_TRIM_BYTES: Final = 2**30


def give_back_freed_memory() -> None:
    """Gives back to the system what is freed now; after requests that took much more than most."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def keep_freed_memory() -> bool:
    """Lets blocks of up to 32 MiB, and 1 GiB of them in all, stay with the process once freed.

    Returns:
        Whether this system's memory allocator could be told; only glibc's can.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    told = mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
    return bool(told and mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES))
