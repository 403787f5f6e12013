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
        """Pools every bag; ids that are not in the tables are skipped.

        Args:
            values: int32 or int64 `[N]`, feature-major.
            offsets: int32 or int64 `[F * B + 1]`, start of each bag.
            out: fp32 or bf16 `[B, width]`, written.
            weights: fp32 `[N]`.
        """
        tables, batch = self.tables, len(out)
        columns = tables.columns
        column = 0
        for feature, dim in enumerate(tables.dims):
            position = feature if tables.positions is None else tables.positions[feature]
            bounds = offsets[position * batch : (position + 1) * batch + 1].long()
            first, last = int(bounds[0]), int(bounds[-1])
            ids = values[first:last].long()
            if tables.first_rows:
                ids = ids - tables.first_rows[feature]
            lengths = bounds.diff()
            samples = torch.repeat_interleave(torch.arange(batch, device=out.device), lengths)
            kept = (ids >= 0) & (ids < tables.rows[feature])
            rows = self._rows(feature, ids[kept])
            if weights is not None:
                rows = rows * weights[first:last][kept, None]
            sums = torch.zeros(batch, dim, device=out.device)
            sums.index_add_(0, samples[kept], rows)
            if tables.means[feature]:
                counts = torch.zeros(batch, device=out.device)
                counts.index_add_(0, samples[kept], torch.ones(len(rows), device=out.device))
                sums *= (1.0 / counts.clamp(min=1))[:, None]
            start = column if columns is None else columns[feature]
            out[:, start : start + dim].copy_(sums)
            column += dim

    def _rows(self, feature: int, ids: Tensor) -> Tensor:
        tables = self.tables
        dim, stride = tables.dims[feature], tables.row_strides[feature]
        row_bytes = tables.row_format.row_bytes(dim)
        begin = tables.byte_offsets[feature]
        lines = tables.memory.as_strided(
            (tables.rows[feature], row_bytes), (stride, 1), tables.memory.storage_offset() + begin
        )
        return decode(tables.row_format, lines[ids], dim)
