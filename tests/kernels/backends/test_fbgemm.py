"""Stored bytes and pooled numbers against FBGEMM's, bit for bit."""

import fbgemm_gpu  # noqa: F401 - registers the operator
import pytest
import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_inference import (
    IntNBitTableBatchedEmbeddingBagsCodegen,
)
from fbgemm_gpu.tbe.config.embedding_config import BoundsCheckMode, EmbeddingLocation, PoolingMode
from torch import Tensor

from kernels.bags import Bags
from kernels.fused_tables import FusedTables
from kernels.pooled_lookup import PooledLookup
from kernels.row_format import HEADER_BYTES, RowFormat
from quant.encoding.rowwise import encode

SHAPES = ((40, 8), (13, 3), (25, 64), (1, 1))
FEATURES = (0, 1, 0, 2, 3)  # the table of each feature
MODES = {False: PoolingMode.SUM, True: PoolingMode.MEAN}


def stored_tables() -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [
        encode(RowFormat.INT8, torch.randn(rows, dim, generator=generator)) for rows, dim in SHAPES
    ]


def fused(stored: list[Tensor], mean: bool) -> FusedTables:
    starts = [sum(table.numel() for table in stored[:index]) for index in range(len(stored))]
    return FusedTables(
        memory=torch.cat([table.view(-1) for table in stored]),
        row_format=RowFormat.INT8,
        byte_offsets=tuple(starts[t] for t in FEATURES),
        rows=tuple(SHAPES[t][0] for t in FEATURES),
        dims=tuple(SHAPES[t][1] for t in FEATURES),
        means=(mean,) * len(FEATURES),
    )


def bags_up_to(longest: int, *, weighted: bool) -> Bags:
    """One sample for each length from 0 to the longest."""
    generator = torch.Generator().manual_seed(4)
    lengths = torch.stack(
        [torch.randperm(longest + 1, generator=generator) for _ in range(len(FEATURES))]
    )
    values = torch.cat(
        [
            torch.randint(0, SHAPES[table][0], (int(counts.sum()),), generator=generator)
            for table, counts in zip(FEATURES, lengths, strict=True)
        ]
    )
    weights = torch.rand(len(values), generator=generator) if weighted else None
    return Bags(values, lengths, weights)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("mean", [False, True], ids=["sum", "mean"])
def test_fbgemms_own_module_pools_our_rows_to_the_same_bits(mean: bool, weighted: bool) -> None:
    stored = stored_tables()
    module = IntNBitTableBatchedEmbeddingBagsCodegen(
        [
            (str(index), rows, dim, SparseType.INT8, EmbeddingLocation.HOST)
            for index, (rows, dim) in enumerate(SHAPES)
        ],
        feature_table_map=list(FEATURES),
        weight_lists=[
            (table[:, HEADER_BYTES:].contiguous(), table[:, :HEADER_BYTES].contiguous())
            for table in stored
        ],
        pooling_mode=MODES[mean],
        device="cpu",
        output_dtype=SparseType.FP32,
        row_alignment=1,
        bounds_check_mode=BoundsCheckMode.NONE,
        indices_dtype=torch.int64,
    )
    bags = bags_up_to(257, weighted=weighted)
    theirs = module(bags.values, bags.offsets(), bags.weights)
    assert torch.equal(PooledLookup(fused(stored, mean), backend="fbgemm")(bags), theirs)
