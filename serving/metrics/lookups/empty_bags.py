"""Counts the samples with an empty bag of a feature, by compiled code.

A feature counts in its first table. A bag that samples share counts for each of them.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kernels.native_library import address_of
from serving.abi.counting import count_empty_bags
from serving.metrics.cells import MetricCells
from serving.metrics.version_info import named_places
from sharded_infer.inputs.model_input import ModelInput

# Which features a request shares varies by client. Few patterns occur, and the bound keeps a
# hostile client from filling memory with them.
_MAX_PATTERNS = 64


class EmptyBags:
    """A version's empty bags."""

    def __init__(self, cells: MetricCells, first: int) -> None:
        """Starts without features; `first` is the first feature's cell."""
        self._cells = cells
        self._first = first
        self._places: tuple[int, ...] = ()
        self._where: dict[tuple[int, ...], NDArray[np.int64]] = {}

    def set_features(self, features: Sequence[str]) -> None:
        """Sets the counted features, as in `VersionInfo.features`."""
        places = named_places(features)
        # -1: not counted, since its first table counts.
        self._places = tuple(places.pop(name, -1) for name in features)
        self._where = {}

    def count(self, batch: ModelInput) -> None:
        """Counts a batch if there are features. The caller holds the process's lock."""
        if not self._places:
            return
        for group in batch.groups:
            repeats, each = None, 1
            if group.batch_size != batch.batch_size:
                repeats = batch.repeats
                each = batch.batch_size if repeats is None else 1
            lengths = group.lengths
            if not (lengths.flags.c_contiguous and lengths.flags.writeable):
                lengths = lengths.copy()
            count_empty_bags(
                self._cells.own_address,
                address_of(self._cells_of(group.features)),
                address_of(lengths),
                *lengths.shape,
                None if repeats is None else address_of(repeats),
                each,
            )

    def _cells_of(self, features: tuple[int, ...]) -> NDArray[np.int64]:
        cells = self._where.get(features)
        if cells is None:
            places = np.array([self._places[feature] for feature in features], np.int64)
            cells = np.where(places < 0, -1, places + self._first)
            if len(self._where) < _MAX_PATTERNS:
                self._where[features] = cells
        return cells
