"""Keeps freed memory mapped for the next requests, in few arenas.

A request's embeddings and what lies between a tower's products take a few megabytes each. glibc
gives such memory back to the system when it is freed, or not, by thresholds that move with what was
freed before. Where it does, every request maps its pages anew, and lookups of 270 samples take
three times as long. Here the thresholds are set, once, for the process.

What is kept is kept by arena, and glibc has eight arenas a core: thirty threads, each of which ran
one large batch, kept 1 GB. Only as many batches run at once as there are slots: few arenas do.
"""

import ctypes
from pathlib import Path
from time import monotonic, process_time
from typing import Final

# malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MMAP_BYTES: Final = 16 * 2**20
_TRIM_BYTES: Final = 2**30
# So many that run at once hardly wait for each other's arena; each arena keeps what they took.
_SLOTS_OF_AN_ARENA: Final = 4
# A server that nobody asks burns a hundredth of a core. Giving back costs the next requests a page
# fault for every 4 KiB, so it must be worth it.
_IDLE_SECONDS: Final = 2.0
_IDLE_SHARE: Final = 0.05
_WORTH_BYTES: Final = 16 * 2**20
_libc = ctypes.CDLL(None)


def keep_freed_memory(slots: int = 1) -> bool:
    """Keeps freed blocks of up to 16 MiB, at most 1 GiB in all, in the process.

    Larger blocks go back to the system, such as those of requests with thousands of samples.

    Args:
        slots: batches that run at once.

    Returns:
        Whether the allocator supports this; only glibc's does.
    """
    mallopt = getattr(_libc, "mallopt", None)
    if mallopt is None:
        return False
    told = mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
    told = told and mallopt(_M_ARENA_MAX, -(-slots // _SLOTS_OF_AN_ARENA))
    return bool(told and mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES))


def give_back_freed_memory() -> None:
    """Gives freed memory back to the system; the next requests map theirs anew."""
    malloc_trim = getattr(_libc, "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


class FreedMemory:
    """Gives freed memory of a peak back when the process is idle."""

    def __init__(self, kept: int | None = None) -> None:
        """Starts from the present memory.

        Args:
            kept: bytes of anonymous memory below which nothing is done; None: the present ones.
        """
        self._kept = anonymous_bytes() if kept is None else kept
        self._since, self._worked = monotonic(), process_time()

    def look(self, now: float, worked: float) -> bool:
        """Checks every two seconds whether the process was idle and holds more than it needs.

        Args:
            now: seconds of the monotonic clock.
            worked: processor seconds of the process.

        Returns:
            Whether memory was given back.
        """
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
    """Resident anonymous memory of this process, in bytes.

    Args:
        status: the kernel's file; the result is 0 without it.
    """
    for line in status.read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
