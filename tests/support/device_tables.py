"""Stored tables as an engine places them in a device's memory."""

import itertools

import torch

from kernels.fused_tables import FusedTables
from kernels.gpu.device_tables import DeviceTables, rounded_up
from kernels.gpu.row_stride import WIDE_BYTES, WORD_BYTES

_COPIED_BYTES = 64 * 2**20
# NaN in floating-point formats.
_POISON = 255


def device_tables(
    tables: FusedTables, device: torch.device | None = None, *, alignment: int = WORD_BYTES
) -> DeviceTables:
    """Copy tables to a device, payloads at multiples of 4, 8 or 16 bytes, NaN around rows."""
    device = device or tables.memory.device
    header, end, places = tables.row_format.header_bytes, 0, []
    for rows, dim in zip(tables.rows, tables.dims, strict=True):
        stride = rounded_up(tables.row_format.row_bytes(dim), alignment)
        begin = end + (-(end + header)) % alignment
        places.append((begin, stride))
        end = begin + rows * stride
    size = end + header + WIDE_BYTES
    memory = torch.full((size,), _POISON, dtype=torch.uint8, device=device)
    sources = zip(tables.byte_offsets, tables.rows, tables.dims, strict=True)
    for (begin, stride), (offset, rows, dim) in zip(places, sources, strict=True):
        row_bytes = tables.row_format.row_bytes(dim)
        stored = tables.memory[offset : offset + rows * row_bytes].view(rows, row_bytes)
        lines = memory[begin : begin + rows * stride].view(rows, stride)[:, :row_bytes]
        # A strided copy needs a temporary of the same size on the device, so it is done in parts.
        step = max(1, _COPIED_BYTES // stride)
        for first in range(0, rows, step):
            lines[first : first + step].copy_(stored[first : first + step])
    begins, strides = zip(*places, strict=True)
    return DeviceTables(
        memory=memory,
        row_format=tables.row_format,
        byte_offsets=begins,
        row_strides=strides,
        rows=tables.rows,
        dims=tables.dims,
        means=tables.means,
        first_rows=(0,) * len(tables.dims),
        columns=tuple(itertools.accumulate(tables.dims[:-1], initial=0)),
        positions=tuple(range(len(tables.dims))),
    )
