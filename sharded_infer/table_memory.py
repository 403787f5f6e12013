"""Where a version's tables lie while they are served: in the files' own pages, or in huge ones.

map     the file mapped: 4 KiB pages of the page cache, shared with every process that maps it
huge    a copy in private anonymous memory of 2 MiB pages, shared with processes forked after it

Random rows of a large table miss the processor's address cache (TLB) almost every time, and walking
the page table costs about as much as reading the row: docs/benchmarks.md has what 2 MiB pages save.
Neither mapped files nor shared memory get huge pages where the kernel's `shmem_enabled` is `never`,
the usual setting, so a copy it is.
"""

import ctypes
import mmap
import os
import platform
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import torch
from torch import Tensor

from sharded_infer.address_space import is_short_of_memory, memory_short
from sharded_infer.errors import ArtifactError
from sharded_infer.regular_file import open_regular

HUGE_PAGE_BYTES = 2 * 2**20
_READ_BYTES = 16 * 2**20
_NODES = Path("/sys/devices/system/node/online")
_MAPPINGS = Path("/proc/self/smaps")
_MADV_POPULATE_READ = 22  # linux/mman.h
_MPOL_INTERLEAVE = 3  # linux/mempolicy.h
# The C library has no `mbind`.
_MBIND_NUMBERS = {"x86_64": 237, "aarch64": 235}
_libc = ctypes.CDLL(None, use_errno=True)


class TableMemory(StrEnum):
    """Where tables lie while they are served."""

    MAP = "map"
    HUGE = "huge"


def copy_to_huge_pages(path: Path, on_read: Callable[[int], None]) -> Tensor:
    """Copies a file to private memory of 2 MiB pages, all of which are there when it returns.

    Where there are several NUMA nodes, pages lie on all of them in turn: every worker reads every
    row, so no node is the right one. A kernel without transparent huge pages gives 4 KiB pages:
    `huge_page_bytes` says what there is.

    Args:
        path: the file.
        on_read: told the bytes of each step.

    Returns:
        uint8 `[bytes of the file]`; the memory is given back with the last tensor that uses it.

    Raises:
        ArtifactError: the file cannot be read.
        CapacityError: there is no memory for it; says how much.
    """
    size = 0
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            memory = _anonymous(size)
            bytes_of = memory.numpy().data
            done = 0
            while done < size:
                count = file.readinto(bytes_of[done : done + _READ_BYTES]) or 0
                if not count:
                    raise ArtifactError(f"{path}: ends at byte {done}, expected {size}")
                done += count
                on_read(count)
    except (OSError, ValueError, MemoryError) as error:
        if isinstance(error, ArtifactError):
            raise
        if is_short_of_memory(error):
            raise memory_short(f"{path}: copying it to huge pages", size) from error
        raise ArtifactError(f"{path}: cannot be copied to huge pages: {error}") from error
    return memory


def huge_page_bytes(memories: Sequence[Tensor]) -> int:
    """How much of some memory lies in huge pages now.

    Args:
        memories: tensors from `copy_to_huge_pages`.
    """
    ranges = [(m.data_ptr(), m.data_ptr() + m.numel()) for m in memories]
    found, inside = 0, 0
    with _MAPPINGS.open() as lines:
        for line in lines:
            if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
                begin, end = (int(n, 16) for n in match.groups())
                # The kernel joins neighbours: the part of a mapping that is one of ours.
                inside = sum(max(0, min(end, last) - max(begin, first)) for first, last in ranges)
            elif inside and line.startswith("AnonHugePages:"):
                found += min(int(line.split()[1]) * 1024, inside)
    return found


def map_pages(memories: Sequence[Tensor], on_mapped: Callable[[int], None]) -> bool:
    """Has every page of mapped files entered in this process's page table, before it is needed.

    Otherwise the first requests do it, page by page, each a fault.

    Args:
        memories: mapped files, uint8; they should fit in memory, or reading one drives out another.
        on_mapped: told the bytes of each step.

    Returns:
        Whether the kernel could be asked (Linux 5.14 and later can).
    """
    page = os.sysconf("SC_PAGE_SIZE")
    for memory in memories:
        begin, end = memory.data_ptr(), memory.data_ptr() + memory.numel()
        for at in range(begin - begin % page, end, _READ_BYTES):
            size = min(_READ_BYTES, end - at)
            if _libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(size), _MADV_POPULATE_READ):
                return False
            on_mapped(size)
    return True


def numa_nodes() -> list[int]:
    """The machine's NUMA nodes that have memory or processors; one where it does not say."""
    try:
        text = _NODES.read_text().strip()
    except OSError:
        return [0]
    nodes: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        nodes.extend(range(int(first), int(last or first) + 1))
    return nodes


def interleave(address: int, size: int, nodes: Sequence[int]) -> bool:
    """Spreads memory that has not been written yet over NUMA nodes, page by page.

    Args:
        address: of its first byte, at the beginning of a page.
        size: its bytes.
        nodes: to use.

    Returns:
        Whether the kernel does it; a container may forbid it.
    """
    number = _MBIND_NUMBERS.get(platform.machine())
    if number is None:
        return False
    mask = sum(1 << node for node in nodes)
    words = (ctypes.c_ulong * (max(nodes) // 64 + 1))()
    for at in range(len(words)):
        words[at] = mask >> (64 * at) & (2**64 - 1)
    result: int = _libc.syscall(
        ctypes.c_long(number),
        ctypes.c_void_p(address),
        ctypes.c_ulong(size),
        ctypes.c_int(_MPOL_INTERLEAVE),
        words,
        # The kernel takes one bit less than it is told.
        ctypes.c_ulong(64 * len(words) + 1),
        ctypes.c_uint(0),
    )
    return result == 0


def _anonymous(size: int) -> Tensor:
    # One page more, to begin where a huge page does.
    room = size + HUGE_PAGE_BYTES + os.sysconf("SC_PAGE_SIZE")
    mapping = mmap.mmap(-1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel without them gives small pages, and the metric says so.
        with suppress(OSError):
            mapping.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(mapping, dtype=torch.uint8)
    start = -whole.data_ptr() % HUGE_PAGE_BYTES
    memory = whole[start : start + size]
    nodes = numa_nodes()
    if len(nodes) > 1:
        interleave(memory.data_ptr(), size, nodes)
    return memory
