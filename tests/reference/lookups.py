"""The reference of every lookup kernel: its pseudocode, runnable and slow.

    for each sample b, for each feature f:
        out[b, columns of f] = sum over i in bag (f, b) of weight[i] * decode(row values[i])
        a row is the table's own, or the one that its overlay has in front of it
        if f is a mean: out[b, columns of f] /= max(1, length of the bag)

A mean divides by the number of ids, weighted or not, as FBGEMM's MEAN pooling does.
"""

import torch
from torch import Tensor

from kernels.bags import Bags
from kernels.errors import InputError
from kernels.fused_tables import FusedTables
from kernels.stored_rows import decode


def pooled_lookup(tables: FusedTables, bags: Bags) -> Tensor:
    """Pools every bag into fp32 `[B, tables.total_dim]`, summing in double precision.

    Raises InputError if an id is outside its table.
    """
    features, batch = bags.lengths.shape
    out = torch.zeros(batch, tables.total_dim, dtype=torch.float64)
    position, column = 0, 0
    for feature in range(features):
        dim, rows = tables.dims[feature], tables.rows[feature]
        row_bytes = tables.row_format.row_bytes(dim)
        start = tables.byte_offsets[feature]
        own_rows = tables.own_rows(feature)
        overlay = tables.overlays[feature] if tables.overlays else None
        stored = tables.memory[start : start + own_rows * row_bytes].view(own_rows, row_bytes)
        for sample in range(batch):
            length = int(bags.lengths[feature, sample])
            for i in range(position, position + length):
                row = int(bags.values[i])
                if not 0 <= row < rows:
                    raise InputError(
                        f"feature {feature}, sample {sample}: id {row} is outside [0, {rows})"
                    )
                weight = 1.0 if bags.weights is None else float(bags.weights[i])
                own = stored[min(row, own_rows - 1)][None].clone()
                if overlay is not None:
                    overlay.patch(torch.tensor([row]), own)
                value = decode(tables.row_format, own, dim)[0].double()
                out[sample, column : column + dim] += weight * value
            if tables.means[feature]:
                out[sample, column : column + dim] /= max(1, length)
            position += length
        column += dim
    return out.float()
