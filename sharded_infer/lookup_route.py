"""One way through a plan's shards for a group of features: its fused lookups, one after another."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.bags import Bags
from kernels.mean import divide_by_lengths
from kernels.pooled_lookup import PooledLookup
from sharded_infer.id_policy import IdPolicy, keep_ids
from sharded_infer.table_pieces import PlacedPiece

# Of one fused lookup: its rank, rows, their bytes as stored, and seconds.
StepWork = tuple[int, int, int, float]


class LookupWork(NamedTuple):
    """What the lookups of a batch were. Plain tuples: every batch makes one.

    Attributes:
        steps: of each fused lookup.
        rows_saved: rows that were not looked up because samples share a bag.
    """

    steps: list[StepWork]
    rows_saved: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One feature's part of a fused lookup."""

    feature: int
    placed: PlacedPiece
    column: int  # first column in the model's output


@dataclass(frozen=True, slots=True)
class Step:
    """One fused lookup of a route, and where its output goes."""

    lookup: PooledLookup
    positions: Tensor | None  # features of the group that it reads; None: all of them, in order
    first_rows: Tensor | None  # int64 [entries]; None: the step holds whole tables
    last_rows: Tensor | None
    runs: tuple[tuple[int, int, int], ...]  # (output column, step column, width)
    rank: int
    row_bytes: int | NDArray[np.int64]  # of a stored row: of all entries, or [entries]


@dataclass(frozen=True, slots=True)
class Route:
    """Everything to do for one group of features."""

    policy: IdPolicy
    steps: tuple[Step, ...]
    summed_columns: tuple[tuple[int, int], ...]  # of row-sharded features: (column, width)
    means: tuple[tuple[int, int, int], ...]  # row-sharded means: (position, column, width)


def look_up(
    route: Route,
    bags: Bags,
    repeats: Tensor | None,
    pooled: Tensor,
    work: list[StepWork],
) -> int:
    """Writes the columns of a group's features.

    Args:
        route: what to do.
        bags: R bags a feature: a bag a sample, or one for all, or as `repeats` says.
        repeats: int64 `[R]`, samples that share each bag; None where nothing, or all, is shared.
        pooled: fp32 `[B, width]`, written to.
        work: given each step's rank, rows, bytes and seconds.

    Returns:
        Rows that were not looked up because samples share a bag.
    """
    saved = 0
    for column, width in route.summed_columns:
        pooled[:, column : column + width] = 0.0
    for step in route.steps:
        began = perf_counter()
        chosen = _bags_of(step, bags)
        _pool(step, chosen, repeats, pooled)
        rows, now = chosen.values.shape[0], perf_counter()
        work.append((step.rank, rows, _bytes_of(step, chosen, rows), now - began))
        if repeats is not None:
            of_bags = chosen.lengths.numpy().sum(0)
            saved += int(of_bags @ (repeats.numpy() - 1))
        elif bags.lengths.shape[1] != len(pooled):
            saved += rows * (len(pooled) - 1)
    for position, column, width in route.means:
        lengths = bags.lengths[position : position + 1]
        if repeats is not None:
            lengths = lengths.repeat_interleave(repeats, dim=1)
        target = pooled[:, column : column + width]
        divide_by_lengths(target, lengths.expand(1, len(pooled)), torch.tensor([width]))
    return saved


def _pool(step: Step, chosen: Bags, repeats: Tensor | None, pooled: Tensor) -> None:
    """Looks the bags of one step up, and writes or adds them to their columns."""
    if step.first_rows is None and len(step.runs) == 1 and chosen.lengths.shape[1] == len(pooled):
        column, _, width = step.runs[0]
        step.lookup(chosen, ids_checked=True, out=pooled[:, column : column + width])
        return
    part = step.lookup(chosen, ids_checked=True)
    if repeats is not None:
        part = part.repeat_interleave(repeats, dim=0)
    for column, source, width in step.runs:
        target = pooled[:, column : column + width]
        if step.first_rows is None:
            # One bag for all samples is broadcast here.
            target.copy_(part[:, source : source + width])
        else:
            target.add_(part[:, source : source + width])


def _bytes_of(step: Step, chosen: Bags, rows: int) -> int:
    if isinstance(step.row_bytes, int):
        return rows * step.row_bytes
    return int(chosen.lengths.numpy().sum(1) @ step.row_bytes)


def row_bytes_of(entries: Sequence[Entry]) -> int | NDArray[np.int64]:
    """Bytes of a stored row: one number where all entries have the same, or `[entries]`.

    Args:
        entries: of the step, in order.
    """
    sizes = [e.placed.table.row_format.row_bytes(e.placed.columns) for e in entries]
    return sizes[0] if len(set(sizes)) == 1 else np.array(sizes, np.int64)


def column_runs(entries: Sequence[Entry]) -> tuple[tuple[int, int, int], ...]:
    """Where a step's columns go: (output column, step column, width).

    Args:
        entries: of the step, in order.
    """
    # Neighbouring columns are copied together. A row shard's run may not join its twin's.
    runs: list[tuple[int, int, int]] = []
    source = 0
    for entry in entries:
        width = entry.placed.columns
        if runs and runs[-1][0] + runs[-1][2] == entry.column:
            column, first, so_far = runs[-1]
            runs[-1] = (column, first, so_far + width)
        else:
            runs.append((entry.column, source, width))
        source += width
    return tuple(runs)


def _bags_of(step: Step, bags: Bags) -> Bags:
    if step.positions is not None:
        counts = bags.lengths.sum(1)
        starts = torch.cumsum(counts, 0) - counts
        chosen = counts[step.positions]
        # Positions of the chosen features' ids: each feature's start, then counting up.
        shift = starts[step.positions] - (torch.cumsum(chosen, 0) - chosen)
        taken = torch.repeat_interleave(shift, chosen) + torch.arange(int(chosen.sum()))
        weights = None if bags.weights is None else bags.weights[taken]
        bags = Bags(bags.values[taken], bags.lengths[step.positions], weights)
    if step.first_rows is None or step.last_rows is None:
        return bags
    counts = bags.lengths.sum(1)
    local = bags.values - torch.repeat_interleave(step.first_rows, counts)
    rows = torch.repeat_interleave(step.last_rows - step.first_rows, counts)
    return keep_ids(Bags(local, bags.lengths, bags.weights), (local >= 0) & (local < rows))
