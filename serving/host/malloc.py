"""Keeps freed memory mapped for the next requests, in few arenas.

A request's embeddings and the values between a tower's products take a few megabytes each. glibc
returns such memory to the system when it is freed, depending on thresholds that follow earlier
frees. Then every request maps its pages anew, and lookups of 270 samples take three times as long.
Here the thresholds are set once for the process.

Arenas keep this memory, and glibc has eight arenas a core: thirty threads, each of which ran one
large batch, kept 1 GB. As only as many batches run at once as there are slots, few arenas suffice.
"""

import ctypes
from pathlib import Path
from time import monotonic, process_time
from typing import Final

# malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MMAP_BYTES: Final = 16 * 2**20
_TRIM_BYTES: Final = 2**30
# So many batches hardly wait for each other's arena; each arena keeps their memory.
_SLOTS_OF_AN_ARENA: Final = 4
# An idle server uses a hundredth of a core. Returning memory costs the next requests a page
# fault for every 4 KiB, so it must be worth it.
_IDLE_SECONDS: Final = 2.0
_IDLE_SHARE: Final = 0.05
_WORTH_BYTES: Final = 16 * 2**20
_libc = ctypes.CDLL(None)


def keep_freed_memory(slots: int = 1) -> bool:
    """Keep freed blocks of up to 16 MiB, at most 1 GiB in all, in the process.

    Larger blocks, as of requests with thousands of samples, return to the system. `slots` batches
    run at once. Returns False if the allocator does not support this; only glibc's does.
    """
    mallopt = getattr(_libc, "mallopt", None)
    if mallopt is None:
        return False
    told = mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
    told = told and mallopt(_M_ARENA_MAX, -(-slots // _SLOTS_OF_AN_ARENA))
    return bool(told and mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES))


def give_back_freed_memory() -> None:
    """Return freed memory to the system; the next requests map theirs anew."""
    malloc_trim = getattr(_libc, "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


class FreedMemory:
    """Returns a peak's freed memory to the system when the process is idle."""

    def __init__(self, kept: int | None = None) -> None:
        """Keep a number of bytes of anonymous memory; None: the current number."""
        self._kept = anonymous_bytes() if kept is None else kept
        self._since, self._worked = monotonic(), process_time()

    def look(self, now: float, worked: float) -> bool:
        """Every two seconds, return memory if the process was idle and has too much; True if so."""
        seconds = now - self._since
        if seconds < _IDLE_SECONDS:
            return False
        idle = worked - self._worked < _IDLE_SHARE * seconds
        self._since, self._worked = now, worked
        if not idle or anonymous_bytes() < self._kept + _WORTH_BYTES:
            return False
        give_back_freed_memory()
        self._kept = anonymous_bytes()
        return True


def anonymous_bytes(status: Path = Path("/proc/self/status")) -> int:
    """Bytes of resident anonymous memory of this process; 0 without the kernel's file."""
    for line in status.read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
