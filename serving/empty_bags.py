"""Counts the samples that had an empty bag of a feature: compiled where it can be.

for each group and feature, in its first table: samples whose bag has no ids

A bag that samples share counts for each of them.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kernels.native_library import address_of
from serving.metric_cells import MetricCells
from serving.native_request import LIBRARIES
from serving.version_facts import feature_places
from sharded_infer.batch import JaggedBatch, ModelInput
from sharded_infer.errors import InputError

# Which features a request shares varies by client: few patterns occur, and the bound keeps a
# hostile one from filling memory with them.
_MAX_PATTERNS = 64


class EmptyBags:
    """Where and how one version's empty bags are counted."""

    def __init__(self, cells: MetricCells, first: int, *, native: bool | None = None) -> None:
        """Begins without features.

        Args:
            cells: the server's.
            first: the cell of the first feature's place.
            native: by compiled code, or by NumPy; None takes what is there.

        Raises:
            InputError: compiled code is asked for, but is not there.
        """
        if native and LIBRARIES is None:
            raise InputError("compiled counting is asked for, but was not built")
        self._cells = cells
        self._first = first
        use_native = LIBRARIES is not None if native is None else native
        self._count_natively = None
        if use_native and LIBRARIES is not None:
            self._count_natively = LIBRARIES[1].sharded_infer_count_empty_bags
        self._places: tuple[int, ...] = ()
        self._where: dict[tuple[int, ...], NDArray[np.int64]] = {}

    def set_features(self, features: Sequence[str]) -> None:
        """Says what is counted from now on.

        Args:
            features: as `VersionFacts.features`; of a feature of several tables the first counts.
        """
        places = feature_places(features)
        # -1: not counted, as another table's.
        self._places = tuple(places.pop(name, -1) for name in features)
        self._where = {}

    def count(self, batch: ModelInput) -> None:
        """Counts a batch, once there are features; the process's lock is held.

        Args:
            batch: as it was looked up.
        """
        if not self._places:
            return
        for group in batch.groups:
            repeats, each = None, 1
            if group.batch_size != batch.batch_size:
                repeats = batch.repeats
                each = batch.batch_size if repeats is None else 1
            if self._count_natively is None:
                self._count(group, repeats, each)
                continue
            lengths = group.lengths
            if not (lengths.flags.c_contiguous and lengths.flags.writeable):
                lengths = lengths.copy()
            self._count_natively(
                self._cells.own_address,
                address_of(self._cells_of(group.features)),
                address_of(lengths),
                *lengths.shape,
                None if repeats is None else address_of(repeats),
                each,
            )

    def _count(self, group: JaggedBatch, repeats: NDArray[np.int64] | None, each: int) -> None:
        empty = group.lengths == 0
        counts = empty.sum(axis=1) if repeats is None else empty @ repeats
        own = self._cells.own
        for cell, count in zip(self._cells_of(group.features), counts, strict=True):
            if cell >= 0:
                own[cell] += count * each

    def _cells_of(self, features: tuple[int, ...]) -> NDArray[np.int64]:
        cells = self._where.get(features)
        if cells is None:
            places = np.array([self._places[feature] for feature in features], np.int64)
            cells = np.where(places < 0, -1, places + self._first)
            if len(self._where) < _MAX_PATTERNS:
                self._where[features] = cells
        return cells
