"""A sliding sample of looked-up rows, to measure the share of hot rows.

Requests store some ids of a few batches; a thread of low priority counts them.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sharded_infer.inputs.model_input import ModelInput

# Ids per group of a sampled batch at most, evenly spaced, to bound memory.
_MOST_IDS = 8192
_BATCHES = 32
# The hottest rows are this share of the rows in the sample.
_HOTTEST = 0.01

# A group of a sampled batch: ids; for each feature, where its ids end among all ids of the group;
# the features; the stride of the ids.
_Taken = tuple[NDArray[np.int64], NDArray[np.int64], tuple[int, ...], int]


class HotRows:
    """The last sampled batches of a version."""

    def __init__(self) -> None:
        self._taken: deque[_Taken] = deque(maxlen=_BATCHES)

    def clear(self) -> None:
        """Empties the sample."""
        self._taken.clear()

    def take(self, model_input: ModelInput) -> None:
        """Stores ids of a batch."""
        for group in model_input.groups:
            apart = 1 + len(group.values) // _MOST_IDS
            ends = np.cumsum(group.lengths.sum(1))
            # A copy, because the message that contains the ids may be large.
            self._taken.append((group.values[::apart].copy(), ends, group.features, apart))

    def hot_share(self, first_rows: Sequence[int]) -> float:
        """Share of accesses to the hottest 1% of the accessed rows; 0 without samples.

        `first_rows` has, by feature, the number of its table's row 0 among the rows of all tables.
        """
        firsts = np.array(first_rows, np.int64)
        rows = [
            ids + firsts[list(features)][np.searchsorted(ends, at, side="right")]
            for ids, ends, features, apart in list(self._taken)
            for at in [np.arange(len(ids)) * apart]
        ]
        if not any(map(len, rows)):
            return 0.0
        _, counts = np.unique(np.concatenate(rows), return_counts=True)
        hottest = max(1, round(_HOTTEST * len(counts)))
        counts.sort()
        return float(counts[-hottest:].sum() / counts.sum())
