"""Default rows in place of rows that no host can look up, where the spec declares them.

for each feature of which a host that is lost has rows:
    bags with an id on that host: pooled as if every id had the table's default row
    all other bags: as they were looked up
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.bags import Bags
from kernels.fused_tables import FusedTables
from kernels.pooled_lookup import PooledLookup
from kernels.row_format import RowFormat
from sharded_infer.specs.model_spec import ModelSpec, TableSpec


@dataclass(frozen=True, slots=True)
class FeatureDefault:
    """Default row of one feature of a group.

    Attributes:
        position: of the feature in the group.
        column: its first, in the output.
        lookup: of a table that has the default row alone.
    """

    table: TableSpec
    position: int
    column: int
    lookup: PooledLookup

    def write(self, bags: Bags, lost: Tensor, repeats: Tensor | None, pooled: Tensor) -> None:
        """Pools the lost bags, bool `[R]`, of a group again; `repeats` samples share each."""
        first = int(bags.lengths[: self.position].sum())
        lengths = bags.lengths[self.position : self.position + 1]
        end = first + int(lengths.sum())
        weights = None if bags.weights is None else bags.weights[first:end]
        ids = torch.zeros(end - first, dtype=torch.int64)
        defaults = self.lookup(Bags(ids, lengths, weights), ids_checked=True)
        if repeats is not None:
            defaults = defaults.repeat_interleave(repeats, dim=0)
            lost = lost.repeat_interleave(repeats)
        columns = pooled[:, self.column : self.column + self.table.dim]
        # A bag that all samples share is broadcast.
        columns.copy_(torch.where(lost[:, None], defaults, columns))


def default_lookups(spec: ModelSpec) -> Mapping[int, PooledLookup]:
    """For each feature whose table declares a default row: a table that has this row alone."""
    return {
        position: PooledLookup(
            FusedTables(
                memory=_numbers(feature.table).view(torch.uint8),
                row_format=RowFormat.FP32,
                byte_offsets=(0,),
                rows=(1,),
                dims=(feature.table.dim,),
                means=(feature.table.pooling == "mean",),
            )
        )
        for position, feature in enumerate(spec.table_features)
        if feature.table.default_row is not None
    }


def _numbers(table: TableSpec) -> Tensor:
    row = table.default_row
    return torch.tensor(row) if isinstance(row, tuple) else torch.zeros(table.dim)
