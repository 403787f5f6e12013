"""The operator's arguments, on the host; its CUDA kernel runs on GPUs, in `make gpu-check`."""

import importlib

import pytest
import torch

from kernels.errors import InputError
from kernels.row_format import RowFormat
from tests.gpu_check.fbgemm_peer import FbgemmPeer, operator_constants
from tests.reference import lookups as reference
from tests.support.lookup_cases import CASES, Case, fill, store


def test_fbgemms_operator_for_the_host_reads_the_copies_by_the_same_arguments() -> None:
    importlib.import_module("fbgemm_gpu")
    operator = torch.ops.fbgemm.int_nbit_split_embedding_codegen_lookup_function.default
    tables = store(Case([(9, 8), (4, 16)], [(1, False), (0, False), (1, False)]), RowFormat.INT8)
    memory, unused, placements, *others = operator_constants(tables)
    on_the_host = torch.full_like(placements, 3)
    bags = fill(tables, [[2, 0, 1], [1, 1, 3], [0, 4, 1]], weighted=True)
    ids, offsets = bags.values.int(), bags.offsets().int()
    last = (0, bags.weights, 0, None, None, 16, 0, -1, -1)
    pooled = operator(memory, unused, on_the_host, *others, ids, offsets, *last)
    expected = reference.pooled_lookup(tables, bags)
    torch.testing.assert_close(pooled, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("row_format", RowFormat)
def test_tables_on_the_host_are_refused(row_format: RowFormat) -> None:
    tables = store(CASES["sums"], row_format)
    assert "fbgemm_gpu reads a CUDA device" in str(FbgemmPeer.refusal(tables))
    with pytest.raises(InputError, match="fbgemm_gpu reads a CUDA device"):
        FbgemmPeer(tables)
