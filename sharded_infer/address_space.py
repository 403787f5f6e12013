"""How much address space this process may still take, and what is said where memory is short."""

import errno
import resource
from pathlib import Path

from sharded_infer.byte_sizes import size_text
from sharded_infer.errors import CapacityError


def address_space_left(root: Path = Path("/")) -> int | None:
    """Bytes that may still be mapped under this process's limit; None: it has none.

    Args:
        root: where `proc` lies.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        pages = int((root / "proc/self/statm").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return max(0, limit - pages * resource.getpagesize())


def is_short_of_memory(error: Exception) -> bool:
    """Whether the system had no memory to give: nothing is wrong with what was to be read."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    # torch has no class of its own for it (c10/core/impl/alloc_cpu.cpp).
    allocator_failed = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    return allocator_failed or isinstance(error, MemoryError)


def memory_short(what: str, size: int | None = None) -> CapacityError:
    """The refusal of what there was no memory for, with figures.

    Args:
        what: that was to be mapped, copied or loaded, for the message.
        size: its bytes; None where it is not known which of its parts found none.
    """
    words = f"{what}: memory is short"
    if size is not None:
        words += f": {size_text(size)} cannot be had"
    if (left := address_space_left()) is not None:
        words += f", {size_text(left)} are left of this process's address space (ulimit -v)"
    return CapacityError(words)
