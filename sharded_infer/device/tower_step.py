"""What a tower's device does with a batch whose ids have arrived: the work that graphs keep.

parts   -> their columns of the tower's input, copied or added
means   of features whose rows ranks share: sums times the bags' reciprocal lengths
shared  features: each sample gets its bag's columns
tower   -> scores, copied to pinned memory
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sharded_infer.device.device_lookups import ColumnRun, SplitFeatures
from sharded_infer.device.input_layout import InputViews


class Scorer(Protocol):
    """A tower on a device."""

    def __call__(self, dense: Sequence[Tensor], embeddings: Tensor) -> tuple[Tensor, ...]:
        """Starts scoring a batch: fp32 `[B]` or `[B, K]` of each output."""
        ...


@dataclass(frozen=True, slots=True)
class ArrivedPart:
    """A device's part where the tower is.

    Attributes:
        columns: fp32 `[B, part_width]`.
        runs: where they go.
    """

    columns: Tensor
    runs: tuple[ColumnRun, ...]


def put_together(
    pooled: Tensor,
    parts: Sequence[ArrivedPart],
    inputs: InputViews,
    split: SplitFeatures,
    *,
    shared: bool,
) -> Tensor:
    """Brings every feature's columns to where the tower reads them.

    Args:
        pooled: fp32 `[B, width]`, with the columns that were looked up on this device; written.
        parts: of all devices.
        inputs: the batch's.
        split: features whose rows ranks share.
        shared: whether samples share bags.

    Returns:
        fp32 `[B, width]`: `pooled`, or a new tensor where bags are shared.
    """
    for column, width in split.columns:
        pooled[:, column : column + width].zero_()
    for part in parts:
        for run in part.runs:
            target = pooled[:, run.column : run.column + run.width]
            source = part.columns[:, run.source : run.source + run.width]
            if run.added:
                target.add_(source)
            else:
                target.copy_(source)
    if inputs.factors is not None:
        columns = dict(zip(split.features, split.columns, strict=True))
        for number, feature in enumerate(split.means):
            column, width = columns[feature]
            pooled[:, column : column + width].mul_(inputs.factors[number][:, None])
    if not shared or inputs.owners is None or inputs.shared is None:
        return pooled
    spread = pooled.index_select(0, inputs.owners)
    return torch.where(inputs.shared[None, :], spread, pooled)


def score_into(
    tower: Scorer, inputs: InputViews, embeddings: Tensor, scores: Sequence[Tensor]
) -> None:
    """Runs the tower and copies what it gives.

    Args:
        tower: on this device.
        inputs: the batch's.
        embeddings: fp32 `[B, width]`.
        scores: pinned, fp32 `[B]` or `[B, K]` of each output; written.
    """
    for target, found in zip(scores, tower(inputs.dense, embeddings), strict=True):
        target.copy_(found, non_blocking=True)
