"""Tables between bytes that decode to NaN, and bags of every shape, for pooled lookups."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from kernels.bags import Bags
from kernels.fused_tables import FusedTables
from kernels.row_format import RowFormat
from tests.reference.row_encoding import encode


class Case(NamedTuple):
    """Tables as (rows, dim), and features as (table, True for a mean)."""

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


def store(case: Case, row_format: RowFormat, first_byte: int = 0, *, seed: int = 7) -> FusedTables:
    generator = torch.Generator().manual_seed(seed)
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
    """Random ids of the first features' lengths, with every table's first and last row."""
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
