"""Every backend against the reference: reference x backends x formats x shapes of tables and bags.

Tables lie between bytes that decode to NaN, and uninitialized memory is NaN: a read or a write
beside its place shows.
"""

import importlib.util
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from kernels import reference
from kernels.bags import Bags
from kernels.errors import InputError
from kernels.fused_tables import FusedTables
from kernels.native_backend import NativeBackend, lookup_instruction_sets
from kernels.pooled_lookup import BACKENDS, PooledLookup
from kernels.row_format import RowFormat
from quant.rowwise import encode


def is_for_fbgemm(tables: FusedTables) -> bool:
    """FBGEMM reads rows of all formats but two, where they fill their last byte."""
    per_byte = max(1, 8 // tables.row_format.element_bits)
    whole = all(dim % per_byte == 0 for dim in tables.dims)
    return whole and tables.row_format not in {RowFormat.BF16, RowFormat.FP8}


def backend_of(tables: FusedTables) -> str:
    """Ours, where it was compiled."""
    if lookup_instruction_sets():
        return "native"
    return "fbgemm" if is_for_fbgemm(tables) else "gather"


class Case(NamedTuple):
    """Tables as (rows, dim), and features as (table, whether it is a mean)."""

    tables: Sequence[tuple[int, int]]
    features: Sequence[tuple[int, bool]]
    gap: int = 0  # bytes between tables


CASES = {
    "sums": Case([(10, 8), (7, 16)], [(0, False), (1, False)]),
    "means": Case([(10, 8), (7, 16)], [(0, True), (1, True)]),
    "sums and means": Case([(10, 8), (7, 16), (5, 8)], [(0, False), (1, True), (2, True)]),
    "one table, one feature": Case([(20, 4)], [(0, False)]),
    "one table, several features": Case([(9, 5)], [(0, False), (0, True), (0, False)]),
    "shared tables out of order": Case(
        [(9, 5), (4, 2)], [(1, False), (0, True), (1, True), (0, False)]
    ),
    "one row": Case([(1, 6), (1, 1)], [(0, False), (1, True)]),
    "dim 1": Case([(12, 1), (3, 1)], [(0, True), (1, False)]),
    "dim 3": Case([(12, 3)], [(0, False)]),
    "odd dims": Case([(5, 7), (6, 33), (4, 129)], [(0, False), (1, True), (2, False)]),
    "tables apart": Case([(5, 3), (6, 3), (4, 5)], [(0, False), (1, True), (2, False)], gap=2),
}

BATCHES = {
    "ragged": [[2, 0, 1, 5], [1, 1, 3, 0], [0, 4, 1, 1], [1, 0, 0, 2]],
    "one id each": [[1] * 4] * 4,
    "one sample": [[3], [1], [0], [2]],
    "one feature empty": [[0] * 4, [2, 1, 0, 1], [0] * 4, [1, 0, 1, 1]],
    "all bags empty": [[0] * 4] * 4,
    "no samples": [[]] * 4,
    "long": [[300, 0, 17, 1], [1, 250, 3, 40], [64, 64, 64, 64], [0, 0, 0, 500]],
}


def store(case: Case, row_format: RowFormat, first_byte: int = 0) -> FusedTables:
    generator = torch.Generator().manual_seed(7)
    # 0xFFFF is NaN in fp16 and bf16.
    parts = [torch.full((first_byte,), 255, dtype=torch.uint8)]
    offsets, end = [], first_byte
    for rows, dim in case.tables:
        stored = encode(row_format, torch.randn(rows, dim, generator=generator)).view(-1)
        offsets.append(end)
        parts += [stored, torch.full((case.gap,), 255, dtype=torch.uint8)]
        end += len(stored) + case.gap
    parts.append(torch.full((64,), 255, dtype=torch.uint8))
    chosen = [table for table, _ in case.features]
    return FusedTables(
        memory=torch.cat(parts),
        row_format=row_format,
        byte_offsets=tuple(offsets[t] for t in chosen),
        rows=tuple(case.tables[t][0] for t in chosen),
        dims=tuple(case.tables[t][1] for t in chosen),
        means=tuple(mean for _, mean in case.features),
    )


def fill(
    tables: FusedTables, lengths: Sequence[Sequence[int]], *, weighted: bool = False, seed: int = 0
) -> Bags:
    """Random ids of the first features' lengths; every table's first and last row among them."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.tensor([list(row) for row in lengths[: len(tables.dims)]], dtype=torch.int64)
    ids = []
    for rows, count in zip(tables.rows, counts.sum(1).tolist(), strict=True):
        drawn = torch.randint(0, rows, (count,), generator=generator)
        drawn[:1], drawn[1:2] = rows - 1, 0
        ids.append(drawn)
    values = torch.cat(ids)
    weights = torch.randn(len(values), generator=generator) if weighted else None
    return Bags(values, counts, weights)


def run(tables: FusedTables, bags: Bags) -> Tensor:
    lookup = PooledLookup(tables)
    assert lookup.backend == backend_of(tables)
    return lookup(bags)


def test_every_backend_is_in_the_matrix() -> None:
    assert [candidate.name for candidate in BACKENDS] == [
        "native",
        "fbgemm",
        "gather",
        # Of tables on a device: the same matrix, in tests/kernels/interpreted/ and on a card.
        "triton",
        "fbgemm_gpu",
    ]


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
    # The others too, wherever this one is preferred.
    gathered = PooledLookup(tables, backend="gather")(bags)
    torch.testing.assert_close(gathered, expected, rtol=1e-5, atol=1e-4)
    ours = [
        NativeBackend(tables, instruction_set=instruction_set)(bags)
        for instruction_set in lookup_instruction_sets()
    ]
    for found in ours:
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    if is_for_fbgemm(tables):
        fbgemm = PooledLookup(tables, backend="fbgemm")(bags)
        torch.testing.assert_close(fbgemm, expected, rtol=1e-5, atol=1e-4)
        # To the bit, but for the baseline, which has no fused product and sum.
        assert all(torch.equal(found, fbgemm) for found in ours[1:])


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("row_format", RowFormat)
def test_empty_bags_are_exactly_zero(row_format: RowFormat) -> None:
    tables = store(CASES["sums and means"], row_format)
    bags = fill(tables, BATCHES["ragged"])
    pooled = run(tables, bags)
    empty = torch.repeat_interleave((bags.lengths == 0).t(), torch.tensor(tables.dims), dim=1)
    assert bool(empty.any())
    assert pooled[empty].abs().sum() == 0
    assert bool((pooled[~empty] != 0).all())


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("row_format", RowFormat)
def test_a_repeated_id_counts_each_time(row_format: RowFormat) -> None:
    tables = store(CASES["sums and means"], row_format)
    lengths = torch.tensor([[8, 1], [8, 1], [8, 1]])
    bags = Bags(torch.full((27,), 3), lengths)
    # Eight equal numbers are summed exactly, and eight is divided exactly.
    many, one = run(tables, bags)
    factors = torch.tensor([1.0 if mean else 8.0 for mean in tables.means])
    expected = one * torch.repeat_interleave(factors, torch.tensor(tables.dims))
    # FBGEMM sums scales and biases apart, so that its 4-bit sums round by themselves.
    torch.testing.assert_close(many, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("first_byte", range(1, 9))
def test_int8_tables_may_begin_at_any_byte(first_byte: int) -> None:
    case = CASES["odd dims"]
    moved, aligned = store(case, RowFormat.INT8, first_byte), store(case, RowFormat.INT8)
    bags = fill(moved, BATCHES["ragged"], weighted=True)
    assert torch.equal(run(moved, bags), run(aligned, bags))


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


@pytest.mark.parametrize("row_format", RowFormat)
def test_a_lookup_leaves_its_inputs_as_they_were(row_format: RowFormat) -> None:
    tables = store(CASES["sums and means"], row_format)
    bags = fill(tables, BATCHES["ragged"], weighted=True)
    assert bags.weights is not None
    inputs = (tables.memory, bags.values, bags.lengths, bags.weights)
    before = [tensor.clone() for tensor in inputs]
    run(tables, bags)
    for tensor, was in zip(inputs, before, strict=True):
        assert torch.equal(tensor, was)


@pytest.mark.parametrize("row_format", RowFormat)
def test_a_forced_backend_is_used_and_named(row_format: RowFormat) -> None:
    tables = store(CASES["sums"], row_format)
    bags = fill(tables, BATCHES["ragged"])
    forced = PooledLookup(tables, backend=backend_of(tables))
    assert forced.backend == backend_of(tables)
    assert torch.equal(forced(bags), PooledLookup(tables)(bags))


@pytest.mark.parametrize(
    ("row_format", "backend", "words"),
    [
        (RowFormat.BF16, "fbgemm", "no kernel for bf16 tables: fbgemm: .* rows, got bf16"),
        (RowFormat.FP8, "fbgemm", "no kernel for fp8 tables: fbgemm: .* rows, got fp8"),
        (
            RowFormat.INT8,
            "cuda",
            "no backend is called 'cuda', expected one of native, fbgemm, gather, triton, "
            "fbgemm_gpu",
        ),
    ],
)
def test_a_forced_backend_that_cannot_is_refused_with_its_reason(
    row_format: RowFormat, backend: str, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        PooledLookup(store(CASES["sums"], row_format), backend=backend)


@pytest.mark.parametrize(("row_format", "dim"), [(RowFormat.INT4, 3), (RowFormat.INT2, 6)])
def test_dims_that_do_not_fill_bytes_are_not_for_fbgemm(row_format: RowFormat, dim: int) -> None:
    tables = store(Case([(4, dim)], [(0, False)]), row_format)
    assert PooledLookup(tables).backend == backend_of(tables) != "fbgemm"
    with pytest.raises(InputError, match=f"fbgemm needs {row_format} dims in multiples of"):
        PooledLookup(tables, backend="fbgemm")


def test_a_missing_fbgemm_is_said_and_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    tables = store(CASES["sums"], RowFormat.INT8)
    assert PooledLookup(tables).backend in {"native", "gather"}
    with pytest.raises(InputError, match="fbgemm: fbgemm_gpu is not installed"):
        PooledLookup(tables, backend="fbgemm")


@pytest.mark.parametrize("row_format", RowFormat)
@pytest.mark.parametrize("position", [0, 4, 6])
@pytest.mark.parametrize("outside", [-1, -(2**63), 7, 2**31, 2**63 - 1])
def test_an_id_outside_its_table_is_refused_with_its_place(
    row_format: RowFormat, position: int, outside: int
) -> None:
    # Two features on one table of 7 rows; ids of (0, 0), (0, 2) x 2, (1, 0) x 2, (1, 1), (1, 2).
    tables = store(Case([(7, 3)], [(0, False), (0, True)]), row_format)
    lengths = torch.tensor([[1, 0, 2], [2, 1, 1]])
    feature, sample = {0: (0, 0), 4: (1, 0), 6: (1, 2)}[position]
    values = torch.arange(7)
    values[position] = outside
    words = rf"feature {feature}, sample {sample}: id {outside} is outside \[0, 7\)"
    with pytest.raises(InputError, match=words):
        PooledLookup(tables)(Bags(values, lengths))


@pytest.mark.parametrize("row_format", RowFormat)
def test_an_id_of_another_features_larger_table_is_refused(row_format: RowFormat) -> None:
    tables = store(Case([(9, 4), (3, 4)], [(0, False), (1, False)]), row_format)
    with pytest.raises(InputError, match=r"feature 1, sample 0: id 5 is outside \[0, 3\)"):
        PooledLookup(tables)(Bags(torch.tensor([5, 5]), torch.tensor([[1], [1]])))


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


@pytest.mark.parametrize("row_format", RowFormat)
def test_another_number_of_features_is_refused(row_format: RowFormat) -> None:
    tables = store(CASES["sums"], row_format)
    with pytest.raises(InputError, match="bags: expected 2 features, got 3"):
        PooledLookup(tables)(Bags(torch.zeros(3, dtype=torch.int64), torch.tensor([[1], [1], [1]])))


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
