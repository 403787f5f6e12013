"""Fused lookups by FBGEMM's table-batched int-n-bit kernel, in place on the stored rows.

The operator is called directly: FBGEMM's Python module copies weights into its own buffer, rewrites
the caller's ids to check bounds, and falls back silently to fp16 output.
"""

import importlib
import importlib.util
from typing import ClassVar

import torch
from torch import Tensor

from kernels.bags import Bags
from kernels.errors import InputError
from kernels.fused_tables import FusedTables
from kernels.row_format import RowFormat

# FBGEMM's enum values (fbgemm_gpu/split_embedding_configs.py).
_PLACEMENT_HOST = 3
_POOLING_SUM = 0
_OUTPUT_FP32 = 0
SPARSE_TYPES = {
    RowFormat.FP32: 0,
    RowFormat.FP16: 1,
    RowFormat.INT8: 2,
    RowFormat.INT4: 3,
    RowFormat.INT2: 4,
}
# The operator takes the largest dim of each format, in this order.
DIM_ORDER = (RowFormat.INT2, RowFormat.INT4, RowFormat.INT8, RowFormat.FP16, RowFormat.FP32)


class FbgemmBackend:
    """One fused FBGEMM call over all features of some tables."""

    name: ClassVar[str] = "fbgemm"
    out_dtypes: ClassVar[frozenset[torch.dtype]] = frozenset({torch.float32})

    def __init__(self, tables: FusedTables) -> None:
        """See `LookupBackend`."""
        reason = self.refusal(tables)
        if reason is not None:
            raise InputError(reason)
        # Registers torch.ops.fbgemm.
        importlib.import_module("fbgemm_gpu")
        self._operator = torch.ops.fbgemm.int_nbit_split_embedding_codegen_lookup_function.default
        features = len(tables.dims)
        self._memory = tables.memory
        self._unused = torch.empty(0, dtype=torch.uint8)
        self._placements = torch.full((features,), _PLACEMENT_HOST, dtype=torch.int32)
        self._types = torch.full((features,), SPARSE_TYPES[tables.row_format], dtype=torch.uint8)
        self._byte_offsets = torch.tensor(tables.byte_offsets, dtype=torch.int64)
        self._column_offsets = torch.zeros(features + 1, dtype=torch.int32)
        self._column_offsets[1:] = torch.cumsum(torch.tensor(tables.dims), 0)
        self._total_dim = tables.total_dim
        self._largest_dims = largest_dims(tables)
        self._dims = torch.tensor(tables.dims, dtype=torch.int64)
        self._means = torch.tensor(tables.means) if any(tables.means) else None

    @staticmethod
    def refusal(tables: FusedTables) -> str | None:
        """See `LookupBackend.refusal`."""
        if tables.memory.device.type != "cpu":
            return f"fbgemm reads host memory, the tables are on {tables.memory.device}"
        return format_refusal(tables)

    def pool(self, bags: Bags, out: Tensor | None = None) -> Tensor:
        """See `LookupBackend.pool`."""
        pooled: Tensor = self._operator(
            self._memory,
            self._unused,
            self._placements,
            self._byte_offsets,
            self._types,
            self._column_offsets,
            self._total_dim,
            *self._largest_dims,
            bags.values,
            bags.offsets(),
            _POOLING_SUM,
            bags.weights,
            _OUTPUT_FP32,
            None,
            None,
            1,  # row alignment, bytes
            0,
            -1,
            -1,
        )
        if self._means is not None:
            lengths = torch.where(self._means[:, None], bags.lengths, 1)
            # As in FBGEMM's MEAN pooling, bit for bit; an empty bag stays as it is.
            reciprocals = lengths.clamp(min=1).float().reciprocal()  # [F, B]
            pooled.mul_(torch.repeat_interleave(reciprocals.t(), self._dims, dim=1))
        # The operator allocates its output itself.
        return pooled if out is None else out.copy_(pooled)


def largest_dims(tables: FusedTables) -> list[int]:
    """Largest dim of each format, as the operator takes them."""
    return [max(tables.dims) if known is tables.row_format else 0 for known in DIM_ORDER]


def format_refusal(tables: FusedTables) -> str | None:
    """Reason why FBGEMM cannot read rows of these tables' format and dims, or None."""
    if tables.tiers:
        return "fbgemm reads rows where the table lies, and these lie in tiers"
    if tables.has_overlays:
        return "fbgemm reads no changed rows in front of a table"
    # Others: bf16 weights kill the process (SIGFPE) in FBGEMM 1.8, and its fp8 is another one.
    if tables.row_format not in SPARSE_TYPES:
        return f"fbgemm reads {', '.join(SPARSE_TYPES)} rows, got {tables.row_format}"
    per_byte = max(1, 8 // tables.row_format.element_bits)
    if any(dim % per_byte for dim in tables.dims):
        return f"fbgemm needs {tables.row_format} dims in multiples of {per_byte}"
    if importlib.util.find_spec("fbgemm_gpu") is None:
        return "fbgemm_gpu is not installed"
    return None
