"""Fused int8 lookups by FBGEMM's table-batched int-n-bit kernel, in place on the stored rows.

The operator is called directly, not through FBGEMM's Python module: that module copies weights into
its own buffer, checks bounds by rewriting the caller's ids, and falls back to fp16 output silently.
"""

import importlib
import importlib.util
from typing import ClassVar

import torch
from torch import Tensor

from kernels.bags import Bags
from kernels.errors import InputError
from kernels.fused_tables import FusedTables
from kernels.mean import MeanPooling
from kernels.row_format import RowFormat

# FBGEMM's enum values (fbgemm_gpu/split_embedding_configs.py).
_PLACEMENT_HOST = 3
_SPARSE_TYPE_INT8 = 2
_POOLING_SUM = 0
_OUTPUT_FP32 = 0


class FbgemmBackend:
    """One fused FBGEMM call over all features of some tables."""

    name: ClassVar[str] = "fbgemm"

    def __init__(self, tables: FusedTables) -> None:
        """Prepares the kernel's constants.

        Args:
            tables: int8 tables on the host.

        Raises:
            InputError: the tables are not int8, or FBGEMM is not installed.
        """
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
        self._types = torch.full((features,), _SPARSE_TYPE_INT8, dtype=torch.uint8)
        self._byte_offsets = torch.tensor(tables.byte_offsets, dtype=torch.int64)
        self._column_offsets = torch.zeros(features + 1, dtype=torch.int32)
        self._column_offsets[1:] = torch.cumsum(torch.tensor(tables.dims), 0)
        self._total_dim = tables.total_dim
        self._max_dim = max(tables.dims)
        self._mean = MeanPooling(tables)

    @staticmethod
    def refusal(tables: FusedTables) -> str | None:
        """Why this backend cannot look up these tables, or None when it can."""
        # Other formats: bf16 weights kill the process (SIGFPE) in FBGEMM 1.8.
        if tables.row_format is not RowFormat.INT8:
            return f"fbgemm reads int8 rows here, got {tables.row_format}"
        if importlib.util.find_spec("fbgemm_gpu") is None:
            return "fbgemm_gpu is not installed"
        return None

    def __call__(self, bags: Bags) -> Tensor:
        """Pools every bag.

        Args:
            bags: checked ids of F features and B samples.

        Returns:
            fp32 `[B, total_dim]`.
        """
        pooled: Tensor = self._operator(
            self._memory,
            self._unused,
            self._placements,
            self._byte_offsets,
            self._types,
            self._column_offsets,
            self._total_dim,
            0,  # largest int2 dim
            0,  # largest int4 dim
            self._max_dim,
            0,  # largest fp16 dim
            0,  # largest fp32 dim
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
        self._mean.apply(pooled, bags)
        return pooled
