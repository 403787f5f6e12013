"""Raw ids of a version by table: ids looked up in id maps, and unknown ids.

readers add unknown ids to `unknown`, whatever becomes of the request later
for each answered or failed request: additions since the last one go to the table's cell
for each batch: the ids of the table's features, and unknown ids that left their bags
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from serving.metrics.cells import MetricCells
from serving.metrics.version_info import MappedTable, named_places
from sharded_infer.inputs.model_input import ModelInput


class MappedIds:
    """A version's raw ids.

    Readers add to `unknown`, float64 `[T]` by table with an id map, without the lock.
    """

    def __init__(self, cells: MetricCells, *, mapped: int, unknown: int) -> None:
        """Starts without tables; `mapped` and `unknown` are cells of the first table."""
        self._cells = cells
        self._first_mapped, self._first_unknown = mapped, unknown
        self.set_tables(())

    def set_tables(self, tables: Sequence[MappedTable], features: int = 0) -> None:
        """Sets the counted tables, with a new `unknown`. The caller holds the process's lock."""
        places = named_places([table.name for table in tables])
        self._places = np.array([places[table.name] for table in tables], np.int64)
        self._leaves_out = np.array([table.leaves_out for table in tables], np.bool_)
        # Table of each feature; -1: without an id map.
        self._table_of = np.full(features, -1, np.int64)
        for position, table in enumerate(tables):
            self._table_of[list(table.features)] = position
        self.unknown = np.zeros(len(tables))
        self._counted = np.zeros(len(tables))

    def count_unknown(self) -> None:
        """Counts the unknown ids since the last call. The caller holds the process's lock."""
        if not len(self.unknown):
            return
        counted = self.unknown.copy()
        new = counted - self._counted
        if new.any():
            self._counted = counted
            self._add(self._first_unknown, new)
            self._add(self._first_mapped, np.where(self._leaves_out, new, 0.0))

    def count(self, batch: ModelInput) -> None:
        """Counts the ids of a batch. The caller holds the process's lock."""
        if not len(self.unknown):
            return
        for group in batch.groups:
            tables = self._table_of[list(group.features)]
            ids = group.lengths.sum(axis=1)[tables >= 0]
            counts = np.bincount(tables[tables >= 0], ids, minlength=len(self.unknown))
            self._add(self._first_mapped, counts.astype(np.float64, copy=False))

    def _add(self, first: int, counts: NDArray[np.float64]) -> None:
        own = np.frombuffer(self._cells.own.cast("B"))
        # Tables beyond the last place share one.
        np.add.at(own, first + self._places, counts)
