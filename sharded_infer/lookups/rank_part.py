"""One rank's part of a group of features: which bags it reads, and where its numbers go.

Compiled code does both (`native_parts`); torch's operators are its reference, and serve without it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.backends.mean_pooling import divide_by_lengths
from kernels.bags import Bags
from kernels.ids.partition import partition_hashes
from sharded_infer.inputs.id_policy import keep_ids
from sharded_infer.lookups import native_parts


@dataclass(frozen=True, slots=True)
class RankPart:
    """What one rank looks up of a group of features, and the destinations of its output.

    Attributes:
        positions: int64 `[entries]`, features of the group.
        reads_all: whether these are all features of the group, in order.
        most_reads: entries of a feature at most: its columns may be cut into several.
        kept: which ids of its features' bags.
        runs: int64 `[runs, 4]`, the fields of each `ColumnRun`.
        only_run: first column and width, if the output is one run that is not added.
        row_bytes: bytes of a stored row: one number, or int64 `[entries]`.
    """

    positions: NDArray[np.int64]
    reads_all: bool
    most_reads: int
    kept: native_parts.KeptIds
    runs: NDArray[np.int64]
    only_run: tuple[int, int] | None
    rank: int
    row_bytes: int | NDArray[np.int64]

    @property
    def reads_everything(self) -> bool:
        """Whether it reads the group's bags as they are."""
        return self.reads_all and self.kept.are_all

    def select(self, bags: Bags) -> Bags:
        """The bags that the rank reads, with the ids of its rows; see `KeptIds`.

        Args:
            bags: of the group.
        """
        if self.reads_everything:
            return bags
        if native_parts.has_native_parts():
            read = ((self.positions, self.kept),)
            [chosen], _ = native_parts.Selections(read, most_reads=self.most_reads).select(bags)
            return chosen.bags()
        return select_by_torch(self, bags)

    def write(self, found: Tensor, repeats: Tensor | None, pooled: Tensor) -> None:
        """Copies or adds an output to its columns; a bag shared by samples is broadcast.

        Args:
            found: fp32 `[R, width]`.
            repeats: int64 `[R]`, rows of `pooled` for each of `found`; None: one, or all if R is 1.
            pooled: fp32 `[B, columns]`; written.
        """
        if native_parts.has_native_parts():
            native_parts.write_runs(found, repeats, self.runs, pooled)
        else:
            write_by_torch(self, found, repeats, pooled)


def selections_of(parts: Sequence[RankPart]) -> native_parts.Selections | None:
    """Chooses what all of these read at once; None: each does better by itself."""
    is_free = any(part.reads_everything for part in parts)
    if len(parts) < 2 or is_free or not native_parts.has_native_parts():
        return None
    most_reads = int(np.bincount(np.concatenate([part.positions for part in parts])).max())
    return native_parts.Selections(
        [(part.positions, part.kept) for part in parts],
        most_reads=most_reads,
        row_bytes=[np.broadcast_to(part.row_bytes, part.positions.shape).copy() for part in parts],
    )


def write_parts(
    parts: Sequence[tuple[RankPart, Tensor]], repeats: Tensor | None, pooled: Tensor
) -> None:
    """As `RankPart.write` of each in turn."""
    if native_parts.has_native_parts():
        listed = [(found, part.runs) for part, found in parts]
        native_parts.write_parts(listed, repeats, pooled)
        return
    for part, found in parts:
        write_by_torch(part, found, repeats, pooled)


def divide_means(
    means: NDArray[np.int64], lengths: Tensor, repeats: Tensor | None, pooled: Tensor
) -> None:
    """Divides sums of several ranks by their bags' lengths; see `native_parts.divide_means`."""
    if native_parts.has_native_parts():
        native_parts.divide_means(lengths, repeats, means, pooled)
    else:
        divide_by_torch(means, lengths, repeats, pooled)


def select_by_torch(part: RankPart, bags: Bags) -> Bags:
    """As `RankPart.select`."""
    counts = bags.lengths.sum(1)
    starts = torch.cumsum(counts, 0) - counts
    positions = torch.from_numpy(part.positions)
    chosen = counts[positions]
    # Indices of the chosen features' ids: a range for each feature.
    shift = starts[positions] - (torch.cumsum(chosen, 0) - chosen)
    taken = torch.repeat_interleave(shift, chosen) + torch.arange(int(chosen.sum()))
    weights = None if bags.weights is None else bags.weights[taken]
    bags = Bags(bags.values[taken], bags.lengths[positions], weights)
    if part.kept.hashes is not None:
        first, last = (np.repeat(of, chosen.numpy()) for of in part.kept.hashes)
        hashes = partition_hashes(bags.values.numpy())
        return keep_ids(bags, torch.from_numpy((first <= hashes) & (hashes <= last)))
    if part.kept.rows is None:
        return bags
    first_rows, last_rows = map(torch.from_numpy, part.kept.rows)
    local = bags.values - torch.repeat_interleave(first_rows, chosen)
    rows = torch.repeat_interleave(last_rows - first_rows, chosen)
    return keep_ids(Bags(local, bags.lengths, bags.weights), (local >= 0) & (local < rows))


def write_by_torch(part: RankPart, found: Tensor, repeats: Tensor | None, pooled: Tensor) -> None:
    """As `RankPart.write`."""
    if repeats is not None:
        found = found.repeat_interleave(repeats, dim=0)
    for column, source, width, added in part.runs.tolist():
        target = pooled[:, column : column + width]
        if added:
            target.add_(found[:, source : source + width])
        else:
            target.copy_(found[:, source : source + width])


def divide_by_torch(
    means: NDArray[np.int64], lengths: Tensor, repeats: Tensor | None, pooled: Tensor
) -> None:
    """As `divide_means`."""
    for feature, column, width in means.tolist():
        of_bags = lengths[feature : feature + 1]
        if repeats is not None:
            of_bags = of_bags.repeat_interleave(repeats, dim=1)
        target = pooled[:, column : column + width]
        divide_by_lengths(target, of_bags.expand(1, len(pooled)), torch.tensor([width]))
