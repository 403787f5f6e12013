"""A mapped file of which only the pages that were used last stay in memory."""

import ctypes
import os
from pathlib import Path

import numpy as np
import torch

from benchmarks.tiers.limited_pages import PAGE_BYTES, LimitedPages
from kernels.backends.native import gather_rows

ROW_BYTES, ROOM = 132, 64
# Pages that each core holds back before the kernel sorts them by use, and cannot drop: folio_batch.
UNSORTED = 31 * (os.cpu_count() or 1)


def resident(pages: LimitedPages) -> int:
    """Pages of a file that are in memory."""
    address, size = pages.rows.data_ptr(), pages.rows.numel()
    found = np.zeros(-(-size // PAGE_BYTES), np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.mincore(
        ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_void_p(found.ctypes.data)
    )
    assert result == 0
    return int((found & 1).sum())


def test_pages_that_were_used_last_stay(tmp_path: Path) -> None:
    path, generator = tmp_path / "table", np.random.default_rng(0)
    path.write_bytes(generator.bytes(1000 * PAGE_BYTES))
    with path.open("rb") as file:
        os.fsync(file.fileno())
    pages = LimitedPages(path, ROW_BYTES, ROOM * PAGE_BYTES)
    rows = len(pages.rows)
    pages.fill(generator.integers(0, rows, 2000))
    for _ in range(5):
        batch = generator.integers(0, rows, 40)
        before = pages.missing(batch)
        assert before > 20
        gather_rows(pages.rows, torch.from_numpy(batch))
        pages.drop(batch)
        assert pages.missing(batch[-20:]) == 0
        assert resident(pages) <= ROOM + UNSORTED
    # A page that comes twice is missing once.
    away = np.flatnonzero([pages.missing(np.array([row])) for row in range(0, rows, 40)])[0] * 40
    assert pages.missing(np.array([away, away])) == 1
