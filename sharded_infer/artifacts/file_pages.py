"""Files mapped for reading, in 2 MiB pages where the system can, without a copy.

The kernel maps 2 MiB of a file by one entry of the page table if three conditions hold:

- the address equals the offset in the file, modulo 2 MiB;
- the page cache holds these 2 MiB as one folio;
- the file system has large folios (ext4 since Linux 6.16, xfs since 5.18, tmpfs).

Page faults in a mapping with MADV_HUGEPAGE read such folios, and so does a write of 2 MiB at a
multiple of 2 MiB. Smaller folios in the page cache stay so until reread, or joined by
MADV_COLLAPSE, which tmpfs supports and ext4 does not.
"""

import mmap
import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from sharded_infer.artifacts.file_mapping import HUGE_PAGE_BYTES, MADV_COLLAPSE, advise, map_file
from sharded_infer.artifacts.table_memory import huge_page_bytes, map_pages
from sharded_infer.files.regular_file import open_regular

# A smaller share in huge pages is too little.
MOST_HUGE = 0.9
# Rereading this much shows whether the file system has large folios.
_TRIAL_BYTES = 16 * 2**20


def tensor_of(memory: memoryview) -> Tensor:
    """Mapped bytes as uint8 `[bytes]`; must not be written."""
    with warnings.catch_warnings():
        # torch cannot mark the tensor read-only.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(memory, dtype=torch.uint8)


def leave_page_table(memory: Tensor) -> None:
    """Unmap the pages of a part of a mapped file; reading maps them again."""
    begin, end = memory.data_ptr(), memory.data_ptr() + memory.numel()
    begin -= begin % mmap.PAGESIZE
    advise(begin, end - begin, mmap.MADV_DONTNEED)


def read_large(path: Path, on_read: Callable[[int], None], *, again: bool = False) -> int:
    """Read a file into the page cache, as far as possible in folios of 2 MiB.

    `on_read` is called with the bytes of each step. With `again`, smaller folios are dropped and
    reread; the kernel drops only clean pages that no process maps, so one process should do it.
    Returns the bytes that a process maps by huge pages. Raises OSError if it cannot be read or
    mapped.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size < HUGE_PAGE_BYTES:
            return 0
        memory = tensor_of(map_file(file.fileno(), size, large=True))
        if not map_pages([memory], on_read):
            return 0
        found, enough = huge_page_bytes([memory]), MOST_HUGE * whole_pages(size)
        if found < enough and advise(memory.data_ptr(), size, MADV_COLLAPSE):
            found = huge_page_bytes([memory])
        if again and found < enough and hasattr(os, "posix_fadvise"):
            _read_again(file.fileno(), memory)
            found = huge_page_bytes([memory])
    return found


def whole_pages(size: int) -> int:
    """The part of a file's bytes that 2 MiB pages can map."""
    return size // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES


def _read_again(handle: int, memory: Tensor) -> None:
    with suppress(OSError):
        os.fsync(handle)
    for part, first in (memory[:_TRIAL_BYTES], 0), (memory[_TRIAL_BYTES:], _TRIAL_BYTES):
        advise(part.data_ptr(), len(part), mmap.MADV_DONTNEED)
        os.posix_fadvise(handle, first, len(part), os.POSIX_FADV_DONTNEED)
        map_pages([part], lambda _: None)
        if huge_page_bytes([part]) < MOST_HUGE * whole_pages(len(part)):
            break
