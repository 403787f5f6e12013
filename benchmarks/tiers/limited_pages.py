"""A mapped file with memory for some of its pages: the most recently used.

This simulates the page cache under a memory limit without the right to set one: the least recently
used pages beyond the limit are dropped with madvise(MADV_PAGEOUT) after each batch. The kernel's
own order is an approximation of it.
"""

import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.backends.native import gather_rows
from sharded_infer.artifacts.file_mapping import advise, map_file
from sharded_infer.errors import InternalError
from sharded_infer.tensors import tensor_of

PAGE_BYTES = mmap.PAGESIZE
_MADV_PAGEOUT = 21  # linux/mman.h, Linux 5.4
_READERS = 32

Rows = NDArray[np.int64]


class LimitedPages:
    """A mapped file of rows, uint8 `[rows, row_bytes]`, of which only some pages stay in memory."""

    def __init__(self, path: Path, row_bytes: int, room_bytes: int) -> None:
        """Map a file with nothing in memory; pages of `room_bytes` will stay."""
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            size = os.fstat(file.fileno()).st_size
            self._mapping = map_file(file.fileno(), size, large=False)
        self._address = np.frombuffer(self._mapping, np.uint8).ctypes.data
        # Read-ahead would bring uncounted pages.
        advise(self._address, size, mmap.MADV_RANDOM)
        whole = tensor_of(np.frombuffer(self._mapping, np.uint8))
        self.rows = whole[: size // row_bytes * row_bytes].view(-1, row_bytes)
        self._row_bytes, self._room = row_bytes, room_bytes // PAGE_BYTES
        self._used = np.full(-(-size // PAGE_BYTES), -1, np.int64)
        self._clock = 0

    def fill(self, rows: Rows) -> None:
        """Read the pages that these rows, in the order of their use, would leave in memory."""
        self._note(rows)
        places = np.flatnonzero(self._used >= 0)
        order = np.argsort(self._used[places])
        self._used[places[order[: -self._room]]] = -1
        kept = np.sort(places[order[-self._room :]])
        first_rows = torch.from_numpy(kept * PAGE_BYTES // self._row_bytes + 1)
        first_rows.clamp_(max=len(self.rows) - 1)
        with ThreadPoolExecutor(_READERS) as readers:
            list(readers.map(lambda part: gather_rows(self.rows, part), first_rows.chunk(_READERS)))

    def missing(self, rows: Rows) -> int:
        """Number of these rows, in order, that are the first of a missing page."""
        first, last = self._pages(rows)
        firsts, at = np.unique(np.concatenate([first, last]), return_index=True)
        absent = at[self._used[firsts] < 0]
        return len(np.unique(absent % len(rows)))

    def drop(self, rows: Rows) -> None:
        """Drop pages beyond the limit, after these rows were read."""
        self._note(rows)
        places = np.flatnonzero(self._used >= 0)
        excess = len(places) - self._room
        if excess <= 0:
            return
        oldest = np.argpartition(self._used[places], excess)[:excess]
        for page in places[oldest].tolist():
            if not advise(self._address + page * PAGE_BYTES, PAGE_BYTES, _MADV_PAGEOUT):
                raise InternalError("bench tiers: the kernel drops no pages: needs Linux 5.4")
        self._used[places[oldest]] = -1

    def _note(self, rows: Rows) -> None:
        times = np.arange(self._clock, self._clock + len(rows))
        for pages in self._pages(rows):
            # If a page comes several times, its last time counts.
            self._used[pages] = times
        self._clock += len(rows)

    def _pages(self, rows: Rows) -> tuple[Rows, Rows]:
        begin = rows * self._row_bytes
        return begin // PAGE_BYTES, (begin + self._row_bytes - 1) // PAGE_BYTES
