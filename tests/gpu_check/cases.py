"""Large random tables, and ids to look up."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.fused_tables import FusedTables
from kernels.gpu.device_tables import DeviceTables
from kernels.gpu.row_stride import WIDE_BYTES, WORD_BYTES, device_stride
from kernels.row_format import HEADER_BYTES, RowFormat
from tests.support.device_tables import device_tables

# Ids of a bag of each of DLRM-v2's 26 features (MLPerf's multi-hot Criteo data).
MULTI_HOT = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)


def large_tables(
    row_format: RowFormat, *, tables: int, rows: int, dim: int, device: torch.device
) -> FusedTables:
    """Tables of random numbers of about 1, created on the device."""
    row_bytes = row_format.row_bytes(dim)
    memory = torch.randint(0, 256, (tables * rows, row_bytes), dtype=torch.uint8, device=device)
    if row_format in {RowFormat.FP16, RowFormat.BF16, RowFormat.FP32}:
        # Exponents of 0 and less: no infinities.
        item = row_format.element_bits // 8
        memory[:, item - 1 :: item] &= 0x3B
    else:
        head = torch.tensor([0.01, -1.0], dtype=torch.float16, device=device).view(torch.uint8)
        if row_format is RowFormat.FP8:
            head = torch.tensor([0.01], device=device).view(torch.uint8)
            memory &= 0x77
        memory[:, :HEADER_BYTES] = head
    return FusedTables(
        memory=memory.view(-1),
        row_format=row_format,
        byte_offsets=tuple(table * rows * row_bytes for table in range(tables)),
        rows=(rows,) * tables,
        dims=(dim,) * tables,
        means=(False,) * tables,
    )


def placed(tables: FusedTables) -> DeviceTables:
    """Tables at the strides of serving."""
    row_bytes = tables.row_format.row_bytes(tables.dims[0])
    alignment = WIDE_BYTES if device_stride(row_bytes) % WIDE_BYTES == 0 else WORD_BYTES
    return device_tables(tables, alignment=alignment)


def random_ids(
    lengths: Sequence[int], *, batch: int, rows: int, skewed: bool, device: torch.device
) -> tuple[Tensor, Tensor]:
    """int32 ids `[N]` and offsets `[F * B + 1]`, every bag of a feature of one length.

    Skewed ids follow Zipf's law with exponent 1, hot rows anywhere; others are uniform.
    """
    count = sum(lengths) * batch
    if skewed:
        ranks = (torch.rand(count, device=device, dtype=torch.float64) * math.log(rows)).exp() - 1
        # A product with an odd number scatters neighbours.
        ids = (ranks.long() * 2654435761).remainder(rows)
    else:
        ids = torch.randint(0, rows, (count,), device=device)
    each = torch.tensor(lengths, device=device).repeat_interleave(batch)
    offsets = torch.zeros(len(each) + 1, dtype=torch.int64, device=device)
    torch.cumsum(each, 0, out=offsets[1:])
    return ids.to(torch.int32), offsets.to(torch.int32)
