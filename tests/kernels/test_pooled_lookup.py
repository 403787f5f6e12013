"""Reference x backends x formats x shapes; NaN around tables and outputs shows stray accesses."""

import importlib.util
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels.backends.fbgemm import FbgemmBackend
from kernels.backends.native import NativeBackend, gather_rows
from kernels.bags import Bags
from kernels.errors import InputError
from kernels.fused_tables import FusedTables
from kernels.machine import InstructionSet, instruction_sets
from kernels.pooled_lookup import BACKENDS, LookupBackend, PooledLookup
from kernels.row_format import RowFormat
from tests.kernels.test_row_overlay import overlaid
from tests.kernels.tiers.test_row_tier import tiered
from tests.reference import lookups as reference
from tests.support.lookup_cases import BATCHES, CASES, Case, fill, store


def is_for_fbgemm(tables: FusedTables) -> bool:
    """FBGEMM reads rows of all formats but two, where they fill their last byte."""
    per_byte = max(1, 8 // tables.row_format.element_bits)
    whole = all(dim % per_byte == 0 for dim in tables.dims)
    return whole and tables.row_format not in {RowFormat.BF16, RowFormat.FP8}


def run(tables: FusedTables, bags: Bags) -> Tensor:
    lookup = PooledLookup(tables)
    assert lookup.backend == "native"
    return lookup(bags)


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("row_format", RowFormat)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("case", CASES)
def test_a_backend_agrees_with_the_reference(
    row_format: RowFormat, weighted: bool, batch: str, case: str
) -> None:
    tables = store(CASES[case], row_format)
    bags = fill(tables, BATCHES[batch], weighted=weighted)
    pooled = run(tables, bags)
    assert pooled.dtype == torch.float32
    assert pooled.shape == (bags.lengths.shape[1], tables.total_dim)
    # Sums of up to 500 numbers of size 1, each sum rounding by 2**-24 of its running value.
    expected = reference.pooled_lookup(tables, bags)
    torch.testing.assert_close(pooled, expected, rtol=1e-5, atol=1e-4)
    empty = torch.repeat_interleave((bags.lengths == 0).t(), torch.tensor(tables.dims), dim=1)
    assert not pooled[empty].any()
    ours = [
        NativeBackend(tables, instruction_set=instruction_set).pool(bags)
        for instruction_set in instruction_sets()
    ]
    for found in ours:
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    if is_for_fbgemm(tables):
        forced = PooledLookup(tables, backend="fbgemm")
        assert forced.backend == "fbgemm"
        fbgemm = forced(bags)
        torch.testing.assert_close(fbgemm, expected, rtol=1e-5, atol=1e-4)
        # To the bit, but for the baseline, which has no fused product and sum.
        assert all(torch.equal(found, fbgemm) for found in ours[1:])


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("row_format", RowFormat)
@pytest.mark.parametrize("first_byte", [1, 2, 4, 6, 10])
def test_tables_of_every_format_may_begin_at_any_byte(
    row_format: RowFormat, first_byte: int
) -> None:
    case = CASES["tables apart"]
    moved, aligned = store(case, row_format, first_byte), store(case, row_format)
    bags = fill(moved, BATCHES["ragged"], weighted=True)
    assert torch.equal(run(moved, bags), run(aligned, bags))


@pytest.mark.parametrize(
    ("row_format", "dim", "backend", "words"),
    [
        (RowFormat.BF16, 8, "fbgemm", "no kernel for bf16 tables: fbgemm: .* rows, got bf16"),
        (RowFormat.FP8, 8, "fbgemm", "no kernel for fp8 tables: fbgemm: .* rows, got fp8"),
        (RowFormat.INT4, 3, "fbgemm", "fbgemm needs int4 dims in multiples of"),
        (RowFormat.INT2, 6, "fbgemm", "fbgemm needs int2 dims in multiples of"),
        (RowFormat.INT8, 8, "cuda", "no backend is called 'cuda', expected one of native, fbgemm"),
    ],
)
def test_a_forced_backend_that_cannot_is_refused_with_its_reason(
    row_format: RowFormat, dim: int, backend: str, words: str
) -> None:
    tables = store(Case([(4, dim)], [(0, False)]), row_format)
    with pytest.raises(InputError, match=words):
        PooledLookup(tables, backend=backend)


@pytest.mark.parametrize("change", ["overlays", "tiers"])
def test_fbgemm_reads_neither_changed_rows_nor_tiers(change: str, tmp_path: Path) -> None:
    tables = store(CASES["sums"], RowFormat.INT8)
    if change == "overlays":
        changed, words = overlaid(tables), "fbgemm reads no changed rows in front of a table"
    else:
        changed, words = tiered(tables, tmp_path / "rows", hot=1, cached=1), "lie in tiers"
    with pytest.raises(InputError, match=words):
        PooledLookup(changed, backend="fbgemm")


def test_a_missing_fbgemm_is_said_and_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    tables = store(CASES["sums"], RowFormat.INT8)
    assert PooledLookup(tables).backend == "native"
    with pytest.raises(InputError, match="fbgemm: fbgemm_gpu is not installed"):
        PooledLookup(tables, backend="fbgemm")


@pytest.mark.parametrize("row_format", RowFormat)
@pytest.mark.parametrize("outside", [-1, -(2**63), 5, 2**31, 2**63 - 1])
def test_an_id_outside_its_table_is_refused_with_its_place(
    row_format: RowFormat, outside: int
) -> None:
    # Ids of (0, 0), (0, 2) x 2, (1, 0) x 2, (1, 1), (1, 2); the first table has more rows.
    tables = store(Case([(7, 3), (5, 3)], [(0, False), (1, True)]), row_format)
    lengths = torch.tensor([[1, 0, 2], [2, 1, 1]])
    for feature, sample, position in ((0, 0, 0), (1, 0, 4), (1, 2, 6)):
        values, rows = torch.tensor([0, 4, 2, 1, 3, 0, 4]), (7, 5)[feature]
        values[position] = rows if outside == 5 else outside
        words = (
            rf"feature {feature}, sample {sample}: id {values[position]} is outside \[0, {rows}\)"
        )
        with pytest.raises(InputError, match=words):
            PooledLookup(tables)(Bags(values, lengths))


@pytest.mark.parametrize("row_format", RowFormat)
@pytest.mark.parametrize(
    "lengths",
    [
        [[1, 1], [1, 1]],
        [[2, 2], [2, 2]],
        [[-1, 2], [3, 1]],
        [[2**62, 2**62], [2**62, 2**62 + 5]],
        [[2**63 - 1, 2**63 - 1], [5, 2]],
    ],
    ids=["too few", "too many", "negative", "wrapping around to 5", "wrapping around twice"],
)
def test_lengths_that_are_not_those_of_the_values_are_refused(
    row_format: RowFormat, lengths: list[list[int]]
) -> None:
    tables = store(CASES["sums"], row_format)
    with pytest.raises(InputError, match="lengths: expected non-negative ones that sum to 5 "):
        PooledLookup(tables)(Bags(torch.zeros(5, dtype=torch.int64), torch.tensor(lengths)))


@pytest.mark.parametrize("backend", ["native", "fbgemm"])
def test_tables_on_a_device_are_refused(backend: str) -> None:
    # The meta device stands for any that is not the host.
    tables = store(CASES["sums"], RowFormat.INT8)
    elsewhere = replace(tables, memory=tables.memory.to("meta"))
    with pytest.raises(InputError, match=f"{backend}: {backend} reads host memory, .* on meta"):
        PooledLookup(elsewhere, backend=backend)


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("row_format", RowFormat)
def test_it_writes_where_it_is_told_and_nowhere_else(row_format: RowFormat) -> None:
    dims = (1, 5, 16, 33, 128, 200)
    features = [(table, table % 2 == 1) for table in range(len(dims))]
    tables = store(Case([(9, dim) for dim in dims], features), row_format)
    lengths = torch.randint(0, 30, (len(dims), 7), generator=torch.Generator().manual_seed(1))
    bags = fill(tables, lengths.tolist(), weighted=True)
    backends: list[LookupBackend] = [
        NativeBackend(tables, instruction_set=one) for one in instruction_sets()
    ]
    if is_for_fbgemm(tables):
        backends.append(FbgemmBackend(tables))
    for backend in backends:
        expected = backend.pool(bags)
        for dtype in backend.out_dtypes:
            around = torch.full((7, sum(dims) + 20), torch.nan, dtype=dtype)
            out = around[:, 7:-13]
            assert backend.pool(bags, out) is out
            assert torch.equal(out, expected.to(dtype))
            assert bool(around[:, :7].isnan().all()) and bool(around[:, -13:].isnan().all())
        lookup = PooledLookup(tables, backend=backend.name)
        assert lookup(bags, out=(out := torch.empty(7, sum(dims)))) is out


def test_an_instruction_set_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    baseline = (InstructionSet.BASELINE,)
    monkeypatch.setattr("kernels.machine.instruction_sets", lambda: baseline)
    with pytest.raises(InputError, match="native: no avx2 here, only baseline"):
        NativeBackend(store(CASES["sums"], RowFormat.INT8), instruction_set=InstructionSet.AVX2)


def test_a_bare_gather_reads_the_rows_it_is_asked_for() -> None:
    rows = torch.randint(0, 256, (50, 132), dtype=torch.uint8)
    ids = torch.randint(0, 50, (256,))
    assert torch.equal(gather_rows(rows, ids), rows[ids])
    with pytest.raises(InputError, match="ids: expected int64"):
        gather_rows(rows, ids.int())


@pytest.mark.parametrize("backend", [candidate.name for candidate in BACKENDS])
@pytest.mark.parametrize(
    "out",
    [
        torch.empty(4, 24, dtype=torch.float16),
        torch.empty(5, 24),
        torch.empty(4, 25),
        torch.empty(24, 4).t(),
    ],
    ids=["another dtype", "more samples", "more columns", "columns apart"],
)
def test_another_output_is_refused(backend: str, out: Tensor) -> None:
    tables = store(CASES["sums"], RowFormat.INT8)
    bags = fill(tables, BATCHES["ragged"])
    with pytest.raises(InputError, match=r"out: expected .*float32 \[4, 24\] of contiguous rows"):
        PooledLookup(tables, backend=backend)(bags, out=out)


@pytest.mark.parametrize("row_format", RowFormat)
def test_lookups_of_many_threads_at_once_agree(row_format: RowFormat) -> None:
    tables = store(CASES["sums and means"], row_format)
    lookup = PooledLookup(tables)
    batches = [
        fill(tables, BATCHES["long"], weighted=seed % 2 == 0, seed=seed) for seed in range(9)
    ]
    alone = [lookup(bags) for bags in batches]
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lookup, batches * 30))
    for index, pooled in enumerate(together):
        assert torch.equal(pooled, alone[index % len(alone)])
