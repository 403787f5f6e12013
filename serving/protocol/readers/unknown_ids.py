"""Counts of unknown raw ids by table."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from kernels.native_library import address_of
from serving.abi.counting import count_unknown
from sharded_infer.errors import InternalError
from sharded_infer.specs.model_spec import ModelSpec

Cells = NDArray[np.float64]


class UnknownIds:
    """Counts of a model, float64 `[mapped tables]` as `spec.mapped_tables`. Thread-safe."""

    def __init__(self, spec: ModelSpec, cells: Cells | None = None) -> None:
        """Starts at zero, or adds to contiguous `cells`.

        Raises:
            InternalError: there is not a cell for each table.
        """
        self._places = {table.name: place for place, table in enumerate(spec.mapped_tables)}
        self.cells = np.zeros(len(self._places)) if cells is None else cells
        if self.cells.shape != (len(self._places),) or self.cells.dtype != np.float64:
            raise InternalError(
                f"unknown ids: expected float64 [{len(self._places)}], got {self.cells.dtype} "
                f"{list(self.cells.shape)}"
            )

    def add(self, unknown: Iterable[tuple[str, int]]) -> None:
        """Counts the unknown ids of a request: tables and how many."""
        counts = np.zeros(len(self.cells), np.int64)
        for table, count in unknown:
            counts[self._places[table]] = count
        # Compiled code may add to them meanwhile, without the GIL.
        count_unknown(address_of(self.cells), address_of(counts), len(counts))
