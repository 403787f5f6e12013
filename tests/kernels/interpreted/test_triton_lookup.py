"""The kernel matrix in the interpreter; NaN around tables and outputs shows stray accesses."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from kernels.bags import Bags
from kernels.errors import InputError
from kernels.fused_tables import FusedTables
from kernels.gpu.device_tables import DeviceTables
from kernels.gpu.triton_lookup import TritonLookup
from kernels.gpu.triton_tiles import TileChoice
from kernels.row_format import RowFormat
from tests.reference import lookups as reference
from tests.support.device_tables import device_tables
from tests.support.lookup_cases import BATCHES, CASES, Case, fill, store

BF16_STEP = 2**-7  # the interpreter cuts bf16 off, where a GPU rounds
SMALL = TileChoice(warps=1, thread_words=2, widest_words=8)  # quick to interpret


class Run(NamedTuple):
    case: Case
    batch: Sequence[Sequence[int]]
    weighted: bool = False
    ids: torch.dtype = torch.int64
    alignment: int = 4
    typical_length: float = 1
    choice: TileChoice | None = SMALL


WIDE = Case([(6, 300), (5, 4)], [(0, True), (1, False), (0, False)])
RUNS = {
    "odd dims, weighted": Run(CASES["odd dims"], BATCHES["ragged"], weighted=True),
    "sums and means": Run(CASES["sums and means"], BATCHES["ragged"], ids=torch.int32),
    "weighted means": Run(CASES["means"], BATCHES["one id each"], weighted=True, alignment=16),
    "shared tables": Run(CASES["shared tables out of order"], BATCHES["one feature empty"]),
    "one row, one sample": Run(CASES["one row"], BATCHES["one sample"], ids=torch.int32),
    "dim 1, all bags empty": Run(CASES["dim 1"], BATCHES["all bags empty"]),
    "no samples": Run(CASES["sums"], BATCHES["no samples"]),
    "bags of very different lengths": Run(
        CASES["tables apart"], [[70, 0, 1, 2], [1, 40, 3, 0], [9, 9, 9, 9]]
    ),
    "long bags": Run(
        CASES["sums"], [[70, 0, 17, 1], [1, 50, 3, 40]], weighted=True, typical_length=30
    ),
    "wide and narrow": Run(WIDE, BATCHES["ragged"]),
    "wide and long": Run(WIDE, BATCHES["ragged"], ids=torch.int32, alignment=16, typical_length=9),
    "padded rows": Run(CASES["odd dims"], BATCHES["ragged"], weighted=True, alignment=16),
    "rows at two words": Run(CASES["odd dims"], BATCHES["ragged"], alignment=8),
    "usual tiles": Run(CASES["odd dims"], BATCHES["ragged"], choice=None),
}


def pool(lookup: TritonLookup, bags: Bags, out: Tensor, ids: torch.dtype = torch.int64) -> None:
    lookup.pooled(bags.values.to(ids), bags.offsets().to(ids), out=out, weights=bags.weights)


def poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full(shape, math.nan, dtype=dtype)


@pytest.mark.parametrize("row_format", RowFormat)
@pytest.mark.parametrize("name", RUNS)
def test_pooled_lookups_agree_with_the_reference(row_format: RowFormat, name: str) -> None:
    run = RUNS[name]
    tables = store(run.case, row_format)
    bags = fill(tables, run.batch, weighted=run.weighted)
    lookup = TritonLookup(
        device_tables(tables, alignment=run.alignment),
        typical_lengths=[run.typical_length] * len(tables.dims),
        choice=run.choice,
    )
    assert lookup.constants["PAYLOAD_ALIGNMENT"] >= run.alignment
    out = poisoned(bags.lengths.shape[1], tables.total_dim)
    pool(lookup, bags, out, run.ids)
    expected = reference.pooled_lookup(tables, bags)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("row_format", RowFormat)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_go_to_the_columns_of_a_wider_buffer(
    row_format: RowFormat, dtype: torch.dtype
) -> None:
    tables = store(CASES["sums and means"], row_format)
    bags = fill(tables, BATCHES["ragged"])
    buffer = poisoned(4, tables.total_dim + 5, dtype=dtype)
    out = buffer[:, 3 : 3 + tables.total_dim]
    pool(TritonLookup(device_tables(tables), choice=SMALL), bags, out)
    expected = reference.pooled_lookup(tables, bags)
    tolerance = 1e-5 if dtype is torch.float32 else BF16_STEP
    torch.testing.assert_close(out.float(), expected, rtol=tolerance, atol=1e-4)
    assert bool(buffer[:, :3].isnan().all()) and bool(buffer[:, -2:].isnan().all())


def shard_of(tables: FusedTables, first_row: int, last_row: int) -> DeviceTables:
    """Rows `[first_row, last_row)` of each table; every other column is free."""
    whole = device_tables(tables)
    cuts = [(min(first_row, rows - 1), min(last_row, rows)) for rows in tables.rows]
    columns, column = [], sum(tables.dims)
    for dim in tables.dims:
        column -= dim
        columns.append(2 * column)
    return replace(
        whole,
        byte_offsets=tuple(
            offset + first * stride
            for offset, (first, _), stride in zip(
                whole.byte_offsets, cuts, whole.row_strides, strict=True
            )
        ),
        rows=tuple(last - first for first, last in cuts),
        first_rows=tuple(first for first, _ in cuts),
        columns=tuple(columns),
    )


@pytest.mark.parametrize("row_format", RowFormat)
@pytest.mark.parametrize("batch", ["ragged", "one id each"])
def test_shards_of_rows_add_up_to_the_whole_at_columns_of_their_own(
    row_format: RowFormat, batch: str
) -> None:
    tables = store(Case([(9, 8), (7, 12)], [(0, False), (1, False)]), row_format)
    bags = fill(tables, BATCHES[batch], weighted=True)
    found = []
    for first_row, last_row in ((0, 4), (4, 9)):
        shard = shard_of(tables, first_row, last_row)
        out = poisoned(bags.lengths.shape[1], 40)
        pool(TritonLookup(shard, choice=SMALL), bags, out)
        assert bool(out[:, 12:24].isnan().all()) and bool(out[:, 32:].isnan().all())
        found.append(torch.cat([out[:, 24:32], out[:, :12]], 1))
    expected = reference.pooled_lookup(tables, bags)
    torch.testing.assert_close(found[0] + found[1], expected, rtol=1e-5, atol=1e-4)


STRANGE = torch.tensor([0, 6, 1, 7, 2, -1, 3, 9, 7, 4, 2**40, 5])
STRANGE_LENGTHS = torch.tensor([[2, 1], [3, 2], [2, 2]])


@pytest.mark.parametrize("typical_length", [1, 30])
@pytest.mark.parametrize("row_format", [RowFormat.INT8, RowFormat.BF16])
def test_ids_outside_their_tables_are_skipped(typical_length: int, row_format: RowFormat) -> None:
    tables = store(Case([(7, 5)], [(0, False)] * 3), row_format)
    out = poisoned(2, tables.total_dim)
    lookup = TritonLookup(device_tables(tables), choice=SMALL, typical_lengths=[typical_length] * 3)
    pool(lookup, Bags(STRANGE, STRANGE_LENGTHS), out)
    # The second feature loses 7, -1 and 9, the third 7 and 2**40.
    kept = Bags(
        torch.tensor([0, 6, 1, 2, 3, 4, 5]),
        torch.tensor([[2, 1], [1, 1], [1, 1]]),
    )
    torch.testing.assert_close(out, reference.pooled_lookup(tables, kept), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("row_format", [RowFormat.INT8, RowFormat.FP16])
def test_rows_beyond_two_gigabytes_are_found(row_format: RowFormat) -> None:
    small = store(Case([(9, 4)], [(0, False)]), row_format)
    row_bytes = row_format.row_bytes(4)
    rows = 2**31 // row_bytes + 100
    # Never written, and so never there, but for its last rows.
    memory = torch.empty(rows * row_bytes, dtype=torch.uint8)
    memory[-9 * row_bytes :] = small.memory[: 9 * row_bytes]
    tables = replace(device_tables(small), memory=memory, rows=(rows,), row_strides=(row_bytes,))
    bags = Bags(torch.arange(rows - 9, rows), torch.tensor([[4, 5]]))
    out = poisoned(2, 4)
    pool(TritonLookup(tables, choice=SMALL), bags, out)
    expected = reference.pooled_lookup(small, Bags(torch.arange(9), bags.lengths))
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


def test_arrays_that_do_not_fit_are_refused() -> None:
    lookup = TritonLookup(device_tables(store(CASES["sums"], RowFormat.INT8)), choice=SMALL)
    values, offsets = torch.zeros(4).long(), torch.arange(5)
    out = torch.empty(2, 24)
    with pytest.raises(InputError, match="values: expected int32 or int64"):
        lookup.pooled(values.float(), offsets, out=out)
    with pytest.raises(InputError, match="offsets: expected at least 5, got 4"):
        lookup.pooled(values, offsets[:4], out=out)
    with pytest.raises(InputError, match=r"out: expected \[B, 24 or more\]"):
        lookup.pooled(values, offsets, out=torch.empty(24, 2).t())
    with pytest.raises(InputError, match="out: expected float32 or bfloat16"):
        lookup.pooled(values, offsets, out=out.half())
    with pytest.raises(InputError, match="weights: expected float32"):
        lookup.pooled(values, offsets, out=out, weights=torch.ones(3))
