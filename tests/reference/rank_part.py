"""A rank's part of a lookup by torch's operators."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.backends.mean_pooling import divide_by_lengths
from kernels.bags import Bags
from kernels.ids.partition import partition_hashes
from sharded_infer.inputs.id_policy import keep_ids
from sharded_infer.lookups.rank_part import RankPart


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
    """As `native_parts.divide_means`."""
    for feature, column, width in means.tolist():
        of_bags = lengths[feature : feature + 1]
        if repeats is not None:
            of_bags = of_bags.repeat_interleave(repeats, dim=1)
        target = pooled[:, column : column + width]
        divide_by_lengths(target, of_bags.expand(1, len(pooled)), torch.tensor([width]))
