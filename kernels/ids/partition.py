"""Ranges of hashes of raw ids, each the ids of one part of a table.

The hash is the index's with seed 0. An index orders its buckets by it, so that a range's ids are
adjacent.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kernels.abi.ids import BUCKET_BYTES, MOST_STEPS
from kernels.ids.index_layout import HEADER_BYTES, IndexLayout, hashes_of, homes_of

SEED = 0
LAST_HASH = 2**64 - 1


def partition_hashes(ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash of each id, uint64 `[N]`; no two ids have the same."""
    return hashes_of(ids.view(np.uint64), SEED)


def parts_of(ids: NDArray[np.int64], first_hashes: Sequence[int]) -> NDArray[np.int64]:
    """Part of each id, int64 `[N]`; the parts' first hashes ascend from 0."""
    firsts = np.array(first_hashes, np.uint64)
    return np.searchsorted(firsts, partition_hashes(ids), "right") - 1


def bytes_of_hashes(layout: IndexLayout, first: int, last: int) -> tuple[int, int]:
    """First byte and end of an index's searched bytes for ids with hashes `[first, last]`."""
    if layout.seed != SEED:
        # Buckets are in the order of another hash.
        return HEADER_BYTES, layout.size
    ends = np.array([first, last], np.uint64)
    begin, end = homes_of(ends, layout.home_buckets).tolist()
    return HEADER_BYTES + BUCKET_BYTES * begin, HEADER_BYTES + BUCKET_BYTES * (end + MOST_STEPS + 1)
