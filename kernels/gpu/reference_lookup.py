"""Lookups in a device's tables by plain torch operations: the reference of the Triton kernels.

They also replace the kernels where there is no device.
"""

import torch
from torch import Tensor

from kernels.gpu.device_tables import DeviceTables
from kernels.stored_rows import decode


class ReferenceLookup:
    """Pools bags of `DeviceTables`."""

    def __init__(self, tables: DeviceTables) -> None:
        self.tables = tables

    def pooled(
        self, values: Tensor, offsets: Tensor, *, out: Tensor, weights: Tensor | None = None
    ) -> None:
        """Pools every bag, as `TritonLookup.pooled`."""
        tables, batch = self.tables, len(out)
        for feature, dim in enumerate(tables.dims):
            position, column = tables.positions[feature], tables.columns[feature]
            bounds = offsets[position * batch : (position + 1) * batch + 1].long()
            first, last = int(bounds[0]), int(bounds[-1])
            ids = values[first:last].long() - tables.first_rows[feature]
            lengths = bounds.diff()
            samples = torch.repeat_interleave(torch.arange(batch, device=out.device), lengths)
            kept = (ids >= 0) & (ids < tables.rows[feature])
            rows = self._rows(feature, ids[kept])
            if weights is not None:
                rows = rows * weights[first:last][kept, None]
            sums = torch.zeros(batch, dim, device=out.device)
            sums.index_add_(0, samples[kept], rows)
            if tables.means[feature]:
                sums *= (1.0 / lengths.clamp(min=1))[:, None]
            out[:, column : column + dim].copy_(sums)

    def _rows(self, feature: int, ids: Tensor) -> Tensor:
        tables = self.tables
        dim, stride = tables.dims[feature], tables.row_strides[feature]
        row_bytes = tables.row_format.row_bytes(dim)
        begin = tables.byte_offsets[feature]
        lines = tables.memory.as_strided(
            (tables.rows[feature], row_bytes), (stride, 1), tables.memory.storage_offset() + begin
        )
        return decode(tables.row_format, lines[ids], dim)
