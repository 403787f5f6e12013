"""Stored bytes and pooled numbers against FBGEMM's, bit for bit."""

import fbgemm_gpu  # noqa: F401 - registers the operator
import pytest
import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_inference import (
    IntNBitTableBatchedEmbeddingBagsCodegen,
)
from fbgemm_gpu.tbe.config.embedding_config import BoundsCheckMode, EmbeddingLocation, PoolingMode

from kernels.pooled_lookup import PooledLookup
from kernels.row_format import HEADER_BYTES, RowFormat
from tests.support.lookup_cases import Case, fill, store

SHAPES = ((40, 8), (13, 3), (25, 64), (1, 1))
FEATURES = (0, 1, 0, 2, 3)  # the table of each feature


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("mean", [False, True], ids=["sum", "mean"])
def test_fbgemms_own_module_pools_our_rows_to_the_same_bits(mean: bool, weighted: bool) -> None:
    tables = store(Case(SHAPES, [(table, mean) for table in FEATURES]), RowFormat.INT8)
    stored = []
    for table, (rows, dim) in enumerate(SHAPES):
        first, size = tables.byte_offsets[FEATURES.index(table)], rows * (HEADER_BYTES + dim)
        stored.append(tables.memory[first : first + size].view(rows, -1))
    module = IntNBitTableBatchedEmbeddingBagsCodegen(
        [
            (str(table), rows, dim, SparseType.INT8, EmbeddingLocation.HOST)
            for table, (rows, dim) in enumerate(SHAPES)
        ],
        feature_table_map=list(FEATURES),
        weight_lists=[
            (table[:, HEADER_BYTES:].contiguous(), table[:, :HEADER_BYTES].contiguous())
            for table in stored
        ],
        pooling_mode=PoolingMode.MEAN if mean else PoolingMode.SUM,
        device="cpu",
        output_dtype=SparseType.FP32,
        row_alignment=1,
        bounds_check_mode=BoundsCheckMode.NONE,
        indices_dtype=torch.int64,
    )
    # One sample for each length from 0 to 257.
    generator = torch.Generator().manual_seed(4)
    lengths = [torch.randperm(258, generator=generator).tolist() for _ in FEATURES]
    bags = fill(tables, lengths, weighted=weighted)
    theirs = module(bags.values, bags.offsets(), bags.weights)
    assert torch.equal(PooledLookup(tables, backend="fbgemm")(bags), theirs)
