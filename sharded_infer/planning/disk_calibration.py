"""Measurement of a disk under row reads of tables larger than memory."""

import os
from pathlib import Path
from statistics import median
from tempfile import NamedTemporaryFile
from time import monotonic, perf_counter

import numpy as np
import torch

from kernels.abi.tiers import QUEUE_DEPTH
from kernels.tiers.row_tier import RowTier, TierPart
from kernels.tiers.started_rows import StartedRows
from sharded_infer.errors import InputError
from sharded_infer.planning.topology import Disk
from sharded_infer.progress import Progress, no_progress

_BLOCK_BYTES = 4096
_WRITTEN_BYTES = 16 * 2**20
_FILE_BYTES = 2**28
_TOGETHER, _ALONE = 16 * QUEUE_DEPTH, 200  # reads
_SECONDS, _LONGEST = 2.0, 60.0


def measure_disk(
    folder: Path, progress: Progress = no_progress, *, file_bytes: int = _FILE_BYTES
) -> Disk:
    """Write a file, read its blocks past the page cache, and remove it.

    `progress` is called with the bytes written. Raises InputError for an unwritable folder or a
    missing native library, RowReadError for an unreadable file.
    """
    try:
        with NamedTemporaryFile(prefix="sharded-infer-calibrate-", dir=folder) as file:
            write_random_bytes(file.fileno(), file_bytes, progress)
            blocks = file_bytes // _BLOCK_BYTES
            tier = RowTier(
                Path(file.name),
                offset=0,
                row_bytes=_BLOCK_BYTES,
                rows=blocks,
                hot_rows=0,
                cached_rows=0,
            )
            generator, reads, began = torch.Generator().manual_seed(0), 0, perf_counter()
            while (spent := perf_counter() - began) < _SECONDS:
                _read(tier, torch.randint(blocks, (_TOGETHER,), generator=generator))
                reads = tier.counts().reads
            alone = torch.randint(blocks, (_ALONE, 1), generator=generator)
            return Disk(reads / spent, median(_read(tier, block) for block in alone))
    except OSError as error:
        raise InputError(f"--disk {folder}: cannot be written: {error}") from error


def write_random_bytes(descriptor: int, size: int, progress: Progress) -> None:
    """Fill an empty file with random bytes, flushed to disk and out of memory."""
    generator = np.random.default_rng(0)
    blocks = generator.integers(0, 2**63, (_WRITTEN_BYTES // _BLOCK_BYTES, _BLOCK_BYTES // 8))
    for first in range(0, size, _WRITTEN_BYTES):
        progress("writing to the disk", first, size)
        # Distinct blocks, in case the disk deduplicates.
        blocks[:, 0] = generator.integers(0, 2**63, len(blocks))
        os.pwrite(descriptor, blocks.data.cast("B")[: size - first], first)
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, first, _WRITTEN_BYTES, os.POSIX_FADV_DONTNEED)
    progress("writing to the disk", size, size)


def _read(tier: RowTier, blocks: torch.Tensor) -> float:
    began = perf_counter()
    rows = StartedRows([TierPart(tier)], (None,), blocks, [len(blocks)])
    try:
        rows.wait(monotonic() + _LONGEST)
    finally:
        rows.close()
    return perf_counter() - began
