"""Address space left to this process, and errors for a shortage of memory."""

import errno
import resource
from pathlib import Path

from sharded_infer.byte_sizes import size_text
from sharded_infer.errors import CapacityError


def address_space_left(root: Path = Path("/")) -> int | None:
    """Bytes that may still be mapped under this process's limit; None: no limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        pages = int((root / "proc/self/statm").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return max(0, limit - pages * resource.getpagesize())


def is_short_of_memory(error: Exception) -> bool:
    """True if the system was out of memory, rather than the input faulty."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    # torch has no class of its own for it (c10/core/impl/alloc_cpu.cpp).
    allocator_failed = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    return allocator_failed or isinstance(error, MemoryError)


def memory_short(what: str, size: int | None = None) -> CapacityError:
    """The error for a shortage of memory, with figures.

    `what` was to be mapped, copied or loaded; `size` is in bytes, None if the failing part is
    unknown.
    """
    words = f"{what}: memory is short"
    if size is not None:
        words += f": {size_text(size)} cannot be had"
    if (left := address_space_left()) is not None:
        words += f", {size_text(left)} are left of this process's address space (ulimit -v)"
    return CapacityError(words)
