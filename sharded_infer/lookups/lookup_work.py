"""Embeddings of a batch, and the work of their lookup."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sharded_infer.inputs.sequences.tower_rows import SequenceRows

# For one fused lookup: rank, rows, stored bytes of these rows, seconds.
StepWork = tuple[int, int, int, float]


class LookupWork(NamedTuple):
    """Work of a batch's lookups, as plain tuples, because every batch makes one.

    Attributes:
        rows_saved: rows not looked up because samples share a bag.
        defaults: bool `[B]` by table: samples whose bags took its default row.
        unknown: int64 `[B]` by table: ids that its id map on a shard host does not know. Those of a
            bag that samples share are the first one's.
        positions: of sequences in the tower's runs: with an id, and padding; empty without
            sequences.
        users: requests whose user's state was cached, wholly or of a history's beginning, and
            computed; then positions of histories whose states were cached, and computed. Empty
            without user inputs.
    """

    steps: list[StepWork]
    rows_saved: int
    defaults: Mapping[str, NDArray[np.bool_]] = MappingProxyType({})
    unknown: Mapping[str, NDArray[np.int64]] = MappingProxyType({})
    positions: tuple[int, ...] = ()
    users: tuple[int, ...] = ()

    @property
    def ids_unknown(self) -> int:
        """Number of `unknown` ids, of all tables and samples."""
        if not self.unknown:
            return 0
        return sum(int(samples.sum()) for samples in self.unknown.values())


class LookedUp(NamedTuple):
    """Embeddings, and the work of their lookup.

    Attributes:
        pooled: fp32 `[rows, width]`, pooled features in the spec's order.
        sequences: of the batch's samples or requests, in the spec's order.
    """

    pooled: Tensor
    ids_outside: int
    work: LookupWork
    sequences: tuple[SequenceRows, ...] = ()
