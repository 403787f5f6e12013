"""Storage of a version's tables while serving: mapped files or huge pages.

    auto    the file mapped in 2 MiB pages where its file system has them (`file_pages`)
    map     the file mapped: pages of the page cache, shared with every process that maps it
    huge    a copy in memory of 2 MiB pages: private and anonymous, shared with processes forked
            after it, or shared with all (`shared_pages`)

Random rows of a large table almost always miss the processor's address cache (TLB). Walking the
page table then costs about as much as reading the row (docs/benchmarks.md).
"""

import ctypes
import mmap
import os
import platform
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from io import BufferedReader
from pathlib import Path

import torch
from torch import Tensor

from sharded_infer.address_space import is_short_of_memory, memory_short
from sharded_infer.artifacts.file_mapping import HUGE_PAGE_BYTES, advise
from sharded_infer.errors import ArtifactError
from sharded_infer.files.regular_file import open_regular

_READ_BYTES = 16 * 2**20
_NODES = Path("/sys/devices/system/node/online")
_TRANSPARENT = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MAPPINGS = Path("/proc/self/smaps")
_HUGE_FIELDS = ("AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:")
_MADV_POPULATE_READ = 22  # linux/mman.h
_MPOL_INTERLEAVE = 3  # linux/mempolicy.h
# The C library has no `mbind`.
_MBIND_NUMBERS = {"x86_64": 237, "aarch64": 235}
_libc = ctypes.CDLL(None, use_errno=True)


class TableMemory(StrEnum):
    """Storage of tables while serving."""

    AUTO = "auto"
    MAP = "map"
    HUGE = "huge"


def copy_to_huge_pages(
    path: Path,
    on_read: Callable[[int], None],
    ranges: Sequence[tuple[int, int]] | None = None,
    *,
    keeps_places: bool = False,
) -> Tensor:
    """Copy a file to private memory of 2 MiB pages, all present on return.

    With several NUMA nodes, pages are interleaved: every worker reads every row. A kernel without
    transparent huge pages gives 4 KiB pages; see `huge_page_bytes`. Memory is freed with the last
    tensor that uses it.

    Args:
        on_read: called with the bytes of each step.
        ranges: first byte and end of each part to copy; None copies the file.
        keeps_places: parts keep their offsets (else they are concatenated); zeros between take no
            memory.

    Raises:
        ArtifactError: the file is unreadable.
        CapacityError: there is not enough memory; gives the size.
    """
    with opened_to_copy(path) as (file, size):
        parts = [(0, size)] if ranges is None else ranges
        memory = _anonymous(size if keeps_places else sum(end - first for first, end in parts))
        bytes_of = memory.numpy().data
        done = 0
        for first, end in parts:
            done = first if keeps_places else done
            file.seek(first)
            while first < end:
                count = file.readinto(bytes_of[done : done + min(_READ_BYTES, end - first)]) or 0
                if not count:
                    raise ArtifactError(f"{path}: ends at byte {first}, expected {end}")
                done += count
                first += count
                on_read(count)
        return memory


@contextmanager
def opened_to_copy(path: Path) -> Iterator[tuple[BufferedReader, int]]:
    """An open file to copy, and its size; translates errors of the copy.

    Raises ArtifactError if the file is unreadable, CapacityError with the size if memory is short.
    """
    size = 0
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            yield file, size
    except (OSError, ValueError, MemoryError) as error:
        if isinstance(error, ArtifactError):
            raise
        if is_short_of_memory(error):
            raise memory_short(f"{path}: copying it to huge pages", size) from error
        raise ArtifactError(f"{path}: cannot be copied to huge pages: {error}") from error


def copies_are_huge() -> bool:
    """True if the kernel gives private memory huge pages."""
    try:
        return "[never]" not in _TRANSPARENT.read_text()
    except OSError:
        return False


def huge_page_bytes(memories: Sequence[Tensor]) -> int:
    """Bytes of tensors that this process now maps by huge pages."""
    ranges = [(m.data_ptr(), m.data_ptr() + m.numel()) for m in memories]
    found, inside = 0, 0
    with _MAPPINGS.open() as lines:
        for line in lines:
            if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
                begin, end = (int(n, 16) for n in match.groups())
                # The kernel joins neighbouring mappings, so only our part is counted.
                inside = sum(max(0, min(end, last) - max(begin, first)) for first, last in ranges)
            elif inside and line.startswith(_HUGE_FIELDS):
                found += min(int(line.split()[1]) * 1024, inside)
    return found


def map_pages(memories: Sequence[Tensor], on_mapped: Callable[[int], None]) -> bool:
    """Enter every page of mapped uint8 files into this process's page table.

    Otherwise the first requests fault them in. The files should fit in memory, or reading one
    evicts another. `on_mapped` is called with the bytes of each step. False before Linux 5.14.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    for memory in memories:
        begin, end = memory.data_ptr(), memory.data_ptr() + memory.numel()
        for at in range(begin - begin % page, end, _READ_BYTES):
            size = min(_READ_BYTES, end - at)
            if not advise(at, size, _MADV_POPULATE_READ):
                return False
            on_mapped(size)
    return True


def numa_nodes() -> list[int]:
    """The machine's NUMA nodes with memory or processors; one node if unknown."""
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
    """Interleave unwritten memory, at a page-aligned address, over NUMA nodes by page.

    False if the kernel refuses; a container may forbid it.
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
        # The kernel takes one bit less than the given number.
        ctypes.c_ulong(64 * len(words) + 1),
        ctypes.c_uint(0),
    )
    return result == 0


def _anonymous(size: int) -> Tensor:
    # One page more, to begin at a huge page boundary.
    room = size + HUGE_PAGE_BYTES + os.sysconf("SC_PAGE_SIZE")
    mapping = mmap.mmap(-1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel without them gives small pages, which the metric shows.
        with suppress(OSError):
            mapping.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(mapping, dtype=torch.uint8)
    start = -whole.data_ptr() % HUGE_PAGE_BYTES
    memory = whole[start : start + size]
    nodes = numa_nodes()
    if len(nodes) > 1:
        interleave(memory.data_ptr(), size, nodes)
    return memory
