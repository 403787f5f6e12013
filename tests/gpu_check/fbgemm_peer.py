"""The peer of our lookups: FBGEMM's int-n-bit kernel, on padded copies of the tables.

Its GPU kernel needs rows at multiples of 16 bytes and tables at multiples of 128, casts ids to
int32 and always pools to a new tensor. The rows' bytes are ours.
"""

import importlib
from typing import Any

import torch
from torch import Tensor

from kernels.backends.fbgemm import SPARSE_TYPES, format_refusal, largest_dims
from kernels.errors import InputError
from kernels.fused_tables import FusedTables
from kernels.gpu.device_tables import rounded_up

# FBGEMM's enum values (fbgemm_gpu/split_embedding_configs.py).
_PLACEMENT_DEVICE = 0
_POOLING_SUM = 0
_OUTPUT_FP32 = 0
_ROW_ALIGNMENT = 16
_TABLE_ALIGNMENT = 128
_MOST_ROWS = 2**31 - 1


class FbgemmPeer:
    def __init__(self, tables: FusedTables) -> None:
        """Copy fp32, fp16, int8, int4 or int2 tables of a CUDA device with padded rows.

        Raises InputError for other tables, or without FBGEMM's CUDA build.
        """
        reason = self.refusal(tables)
        if reason is not None:
            raise InputError(reason)
        importlib.import_module("fbgemm_gpu")
        self._operator = torch.ops.fbgemm.int_nbit_split_embedding_codegen_lookup_function.default
        self._constants = operator_constants(tables)

    @staticmethod
    def refusal(tables: FusedTables) -> str | None:
        if tables.memory.device.type != "cuda":
            return f"fbgemm_gpu reads a CUDA device, the tables are on {tables.memory.device}"
        if max(tables.rows) > _MOST_ROWS:
            return f"fbgemm_gpu takes tables of up to {_MOST_ROWS} rows, got {max(tables.rows)}"
        return format_refusal(tables)

    def sums(self, ids: Tensor, offsets: Tensor, weights: Tensor | None) -> Tensor:
        """Start summing every bag, means too, without waiting: fp32 `[B, total_dim]`.

        Ids are int32 `[N]`, checked; offsets int32 `[F * B + 1]`; weights fp32 `[N]`.
        """
        pooled: Tensor = self._operator(
            *self._constants,
            ids,
            offsets,
            _POOLING_SUM,
            weights,
            _OUTPUT_FP32,
            None,
            None,
            _ROW_ALIGNMENT,
            0,
            -1,
            -1,
        )
        return pooled


def operator_constants(tables: FusedTables) -> tuple[Any, ...]:
    """The operator's arguments before the ids: a padded copy of the tables, on their device."""
    device, features = tables.memory.device, len(tables.dims)
    places: dict[tuple[int, int, int], int] = {}
    end = 0
    sources = list(zip(tables.byte_offsets, tables.rows, tables.dims, strict=True))
    for source in sources:
        if source not in places:
            places[source] = end
            table_bytes = source[1] * _padded_row_bytes(tables, source[2])
            end += rounded_up(table_bytes, _TABLE_ALIGNMENT)
    weights = torch.zeros(end, dtype=torch.uint8, device=device)
    for (offset, rows, dim), begin in places.items():
        row_bytes, stride = tables.row_format.row_bytes(dim), _padded_row_bytes(tables, dim)
        stored = tables.memory[offset : offset + rows * row_bytes].view(rows, row_bytes)
        weights[begin : begin + rows * stride].view(rows, stride)[:, :row_bytes].copy_(stored)
    columns = torch.zeros(features + 1, dtype=torch.int32)
    columns[1:] = torch.cumsum(torch.tensor(tables.dims), 0)
    return (
        weights,
        torch.empty(0, dtype=torch.uint8, device=device),
        torch.full((features,), _PLACEMENT_DEVICE, dtype=torch.int32, device=device),
        torch.tensor([places[source] for source in sources], dtype=torch.int64, device=device),
        torch.full((features,), SPARSE_TYPES[tables.row_format], dtype=torch.uint8, device=device),
        columns.to(device),
        tables.total_dim,
        *largest_dims(tables),
    )


def _padded_row_bytes(tables: FusedTables, dim: int) -> int:
    return rounded_up(tables.row_format.row_bytes(dim), _ROW_ALIGNMENT)
