"""Fused lookups of any row format: one gather and one segmented sum for all tables of a dim.

rows of all features of one dim lie on one grid of row_bytes: row = first row of table + id
out = segmented sum over bags of (weight *) decode(memory[row])
"""

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from kernels.backends.mean_pooling import MeanPooling
from kernels.bags import Bags
from kernels.fused_tables import FusedTables
from kernels.row_overlay import RowOverlay
from kernels.stored_rows import decode


class _Grid(NamedTuple):
    """Features whose tables lie on one grid of rows."""

    features: Tensor  # int64 [G], positions among all features
    first_rows: Tensor  # int64 [G], grid row where each feature's table begins
    matrix: Tensor  # uint8 [rows of the grid, row_bytes]
    dim: int
    columns: Tensor  # int64 [G * dim], output columns
    overlays: tuple[tuple[int, RowOverlay], ...]  # places among the features, changed rows


class GatherBackend:
    """Gathers rows, widens them to fp32, and sums by bag."""

    name: ClassVar[str] = "gather"
    out_dtypes: ClassVar[frozenset[torch.dtype]] = frozenset({torch.float32})

    def __init__(self, tables: FusedTables) -> None:
        self._row_format = tables.row_format
        self._total_dim = tables.total_dim
        self._mean = MeanPooling(tables)
        self._grids = _grids(tables)

    @staticmethod
    def refusal(tables: FusedTables) -> str | None:
        """Why this backend cannot look up these tables, or None when it can."""
        if tables.tiers:
            return "gather reads rows where the table lies, and these lie in tiers"
        if tables.memory.device.type != "cpu":
            return f"gather reads host memory, the tables are on {tables.memory.device}"
        return None

    def pool(self, bags: Bags, out: Tensor | None = None) -> Tensor:
        """As `LookupBackend.pool`."""
        batch = bags.lengths.shape[1]
        counts = bags.lengths.sum(1)  # ids by feature
        pooled = torch.empty(batch, self._total_dim) if out is None else out
        for grid in self._grids:
            values, weights, lengths = bags.values, bags.weights, bags.lengths
            if len(self._grids) > 1:
                chosen = torch.zeros(len(counts), dtype=torch.bool)
                chosen[grid.features] = True
                of_grid = torch.repeat_interleave(chosen, counts)
                values, lengths = values[of_grid], lengths[grid.features]
                weights = None if weights is None else weights[of_grid]
            of_features = counts[grid.features]
            first = torch.repeat_interleave(grid.first_rows, of_features)
            stored = _gathered(grid, values + first, values, of_features)
            rows = decode(self._row_format, stored, grid.dim)  # [n, dim]
            if weights is not None:
                rows.mul_(weights[:, None])
            sums = torch.segment_reduce(
                rows, "sum", lengths=lengths.reshape(-1), unsafe=True, initial=0
            )
            by_sample = sums.view(len(grid.features), batch, grid.dim).transpose(0, 1)
            pooled[:, grid.columns] = by_sample.reshape(batch, len(grid.columns))
        self._mean.apply(pooled, bags)
        return pooled


def _gathered(grid: _Grid, places: Tensor, ids: Tensor, counts: Tensor) -> Tensor:
    """The stored rows of ids, changed ones in front of the tables' own."""
    if not grid.overlays:
        return grid.matrix.index_select(0, places)
    # New rows lie behind their tables, where others are.
    stored = grid.matrix.index_select(0, places.clamp(max=len(grid.matrix) - 1))
    ends = counts.cumsum(0).tolist()
    for place, overlay in grid.overlays:
        own = slice(ends[place] - int(counts[place]), ends[place])
        overlay.patch(ids[own], stored[own])
    return stored


def _grids(tables: FusedTables) -> list[_Grid]:
    members: dict[tuple[int, int], list[int]] = {}
    for feature, (offset, dim) in enumerate(zip(tables.byte_offsets, tables.dims, strict=True)):
        row_bytes = tables.row_format.row_bytes(dim)
        members.setdefault((dim, offset % row_bytes), []).append(feature)
    column_starts = [sum(tables.dims[:f]) for f in range(len(tables.dims))]
    grids = []
    for (dim, _), features in members.items():
        row_bytes = tables.row_format.row_bytes(dim)
        start = min(tables.byte_offsets[f] for f in features)
        end = max(tables.byte_offsets[f] + tables.own_rows(f) * row_bytes for f in features)
        grids.append(
            _Grid(
                features=torch.tensor(features),
                first_rows=torch.tensor(
                    [(tables.byte_offsets[f] - start) // row_bytes for f in features]
                ),
                matrix=tables.memory[start:end].view(-1, row_bytes),
                dim=dim,
                columns=torch.cat([torch.arange(dim) + column_starts[f] for f in features]),
                overlays=tuple(
                    (place, overlay)
                    for place, f in enumerate(features if tables.overlays else ())
                    if (overlay := tables.overlays[f]) is not None
                ),
            )
        )
    return grids
